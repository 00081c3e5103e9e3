"""A benchmark of learning: learners of volvox beside references with the same settings, over several seeds.

    python experiments/benchmark.py run --size small --run-dir runs/benchmark
    python experiments/benchmark.py draw --size small --run-dir runs/benchmark

`small` takes an hour on two idle cores, `full` days. A run makes the runs of each row one at a time,
volvox and reference in turns, and can be stopped: the same command goes on with the runs that are missing. `--only`
chooses rows. The reference of a learner is Stable-Baselines3, which the first run installs into an environment of its
own in the run directory (`benchmarks/peers/sb3.py`); the reference of novelty search is random search. The settings of
the reference are derived from those of volvox, so constants are equal; `lag` and V-trace exist in volvox alone.

Protocol: about every twentieth of a run, both sides play 20 new episodes with the likeliest actions. Curves are
interpolated at 20 equally spaced timesteps. A run's area is the mean of its curve, and its final score the mean of the
last two points. Seconds are the median of the runs that were measured. They include compilation, and exclude
evaluations and the start of the process.

`draw` writes `small.json`, `small.png` and `small.md` to `--out`.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import maze_novelty
import numpy as np
import tyro
from flax import linen as nn
from launch import exit_code
from matplotlib.figure import Figure
from results_table import HERE, RESULTS, number, table
from scores import hardware_and_date, interval, p_value

import volvox as vx
from volvox.report.files import write_file
from volvox.runs.config import to_json
from volvox.runs.directory import revision, versions

NUM_POINTS, NUM_EPISODES = 20, 20
SIGNIFICANCE = 0.05
REFERENCE = (
    "stable-baselines3==2.9.2",
    "torch==2.13.0",
    "gymnasium[box2d,mujoco]==1.3.0",
    "gymnax==1.0.1",
    "jax==0.10.2",
    "ale-py==0.11.2",
    "opencv-python-headless==5.0.0.93",
    "six==1.17.0",
)
"""Packages of the reference; gymnax needs six. PyTorch runs on the CPU; its builds for CPUs alone are smaller."""
PEER = HERE.parent / "benchmarks" / "peers" / "sb3.py"
SIDES = ("volvox", "reference")
Size = Literal["small", "full"]
Learner = vx.PPO | vx.A3C | vx.TD3 | vx.SAC
ABOUT = """# Learning benchmark, {size}

`python experiments/benchmark.py draw --size {size}` makes this page; `benchmark.py --help` has the protocol. Scores are
mean returns of 20 episodes with the likeliest actions. "Final" is the mean of the last two of 20 points of a run, and
"area" the mean of all. "Runs" are those of volvox and of the reference. Intervals are Student's 95% intervals over
runs. The reference has the same settings, or in rows "beside SB3 defaults" its own. "As the reference" is "no" if final
score or area is significantly lower (Welch's t-test, p < 0.05, not corrected for the number of rows), otherwise
"better" if one of them is significantly higher, otherwise "yes". Fewer than three runs have no verdict. In the hard
maze, a score is minus the smallest distance to the goal that any member has reached so far.

![learning curves]({size}.png)

{table}
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A comparison.

    Attributes:
      name: Name in files, tables and pictures.
      task: Task by Gymnasium's or gymnax's name, or a game of Atari.
      learner: Settings, which the reference has too; None: novelty search.
      num_envs: Environments.
      timesteps: Timesteps of a run.
      network: Kind of network: "mlp" (with `hidden`), "minatar" or "nature".
      hidden: Widths of the hidden layers.
      published: A published score, and its source.
      other_defaults: Whether the reference has its own defaults and one environment instead of the settings.
    """

    name: str
    task: str
    learner: Learner | None
    num_envs: int
    timesteps: int
    network: Literal["mlp", "minatar", "nature"] = "mlp"
    hidden: tuple[int, ...] = (64, 64)
    published: tuple[float, str] | None = None
    other_defaults: bool = False


class MinAtarTorso(nn.Module):
    """16@3x3, dense 128; orthogonal initialisation. Images `[B, 10, 10, C]` -> features `[B, 128]`."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Features `[B, 128]` of images `[B, 10, 10, C]`."""
        init = nn.initializers.orthogonal(2**0.5)
        x = nn.relu(nn.Conv(16, (3, 3), padding="VALID", kernel_init=init)(x))
        return nn.relu(nn.Dense(128, kernel_init=init)(x.reshape(len(x), -1)))


def small_rows() -> tuple[Row, ...]:
    """The rows of the small benchmark.

    "defaults" are those of volvox's PPO, and "zoo" the constants of RL Baselines3 Zoo, without its gSDE.
    """
    defaults = vx.PPO()
    cartpole = {"segment_length": 32, "num_minibatches": 1, "num_epochs": 20, "trace_decay": 0.8, "discount": 0.98}
    cartpole |= {"learning_rate": 1e-3, "anneal_timesteps": 100_000, "entropy_coefficient": 0.0}
    pendulum = {"segment_length": 1024, "num_minibatches": 64, "num_epochs": 10, "discount": 0.9}
    pendulum |= {"learning_rate": 1e-3, "entropy_coefficient": 0.0}
    lander = {"segment_length": 1024, "num_minibatches": 256, "num_epochs": 4, "learning_rate": 3e-4}
    lander |= {"trace_decay": 0.98, "discount": 0.999}
    minatar = {"segment_length": 32, "num_minibatches": 8, "num_epochs": 4, "learning_rate": 1e-3}
    a2c: Any = {"segment_length": 5, "learning_rate": 7e-4, "entropy_coefficient": 0.0, "reward_bound": None}
    td3: Any = {"learning_rate": 1e-3, "batch_size": 100, "random_timesteps": 2_000, "replay_size": 200_000}
    zoo = "RL Baselines3 Zoo, one run"
    return (
        Row(
            name="PPO defaults, CartPole",
            task="CartPole-v1",
            learner=defaults,
            num_envs=8,
            timesteps=100_000,
            published=(500.0, f"{zoo}, tuned"),
        ),
        Row(
            name="PPO defaults, Acrobot",
            task="Acrobot-v1",
            learner=defaults,
            num_envs=8,
            timesteps=100_000,
            published=(-73.5, f"{zoo}, tuned, 1M timesteps"),
        ),
        Row(
            name="PPO zoo, CartPole",
            task="CartPole-v1",
            learner=dataclasses.replace(defaults, **cartpole),
            num_envs=8,
            timesteps=100_000,
            published=(500.0, zoo),
        ),
        Row(
            name="PPO zoo, Pendulum",
            task="Pendulum-v1",
            learner=dataclasses.replace(defaults, **pendulum),
            num_envs=4,
            timesteps=100_000,
            published=(-172.2, f"{zoo}, with gSDE"),
        ),
        Row(
            name="PPO zoo, LunarLander",
            task="LunarLander-v3",
            learner=dataclasses.replace(defaults, **lander),
            num_envs=16,
            timesteps=300_000,
            published=(242.1, f"{zoo}, v2, 1M timesteps"),
        ),
        Row(
            name="PPO mujoco, InvertedPendulum",
            task="InvertedPendulum-v5",
            learner=dataclasses.replace(vx.PPO.mujoco(), value_clip=None, anneal_timesteps=100_000),
            num_envs=1,
            timesteps=100_000,
        ),
        Row(
            name="PPO, MinAtar Breakout",
            task="Breakout-MinAtar",
            learner=dataclasses.replace(defaults, **minatar),
            num_envs=64,
            timesteps=500_000,
            network="minatar",
        ),
        Row(
            name="A3C, CartPole",
            task="CartPole-v1",
            learner=vx.A3C(**a2c),
            num_envs=8,
            timesteps=200_000,
            published=(500.0, f"A2C, {zoo}, 500k timesteps"),
        ),
        Row(
            name="A3C, Acrobot",
            task="Acrobot-v1",
            learner=vx.A3C(**a2c, normalize_observations=True, normalize_rewards=True),
            num_envs=16,
            timesteps=300_000,
            published=(-83.4, f"A2C, {zoo}, 500k timesteps"),
        ),
        Row(
            name="TD3, Pendulum",
            task="Pendulum-v1",
            learner=vx.TD3(**td3, discount=0.98),
            num_envs=1,
            timesteps=10_000,
            hidden=(256, 256),
            published=(-151.9, f"{zoo}, 20k timesteps"),
        ),
        Row(
            name="TD3, InvertedPendulum",
            task="InvertedPendulum-v5",
            learner=vx.TD3(**td3),
            num_envs=1,
            timesteps=10_000,
            hidden=(256, 256),
        ),
        Row(name="novelty, hard maze", task="hard maze", learner=None, num_envs=250, timesteps=10_000_000),
    )


def full_rows() -> tuple[Row, ...]:
    """The rows of the full benchmark: Atari and MuJoCo.

    "TD3 first code" has the constants of the authors' first code, and shows how learning begins.
    """
    atari = {"Pong": 20.36, "Breakout": 414.66, "Seaquest": 1_230.0, "Frostbite": 904.3, "Kangaroo": 7_281.6}
    mujoco = {"HalfCheetah": 9_583.0, "Hopper": 3_135.0, "Walker2d": 4_058.0}
    ppo_mujoco, ppo_atari = (dataclasses.replace(x, value_clip=None) for x in (vx.PPO.mujoco(), vx.PPO.atari()))
    rows = [
        Row(
            name=f"TD3, {task}",
            task=f"{task}-v5",
            learner=vx.TD3(),
            num_envs=1,
            timesteps=1_000_000,
            hidden=(256, 256),
            published=(score, "CleanRL, v4"),
        )
        for task, score in mujoco.items()
    ]
    first = vx.TD3(learning_rate=1e-3, batch_size=100, random_timesteps=10_000)
    changes: Any = {"name": "TD3 first code, HalfCheetah", "timesteps": 40_000, "published": None}
    rows.append(dataclasses.replace(rows[0], learner=first, **changes))
    for task in mujoco:
        named = {"task": f"{task}-v5", "timesteps": 1_000_000}
        rows.append(Row(name=f"PPO mujoco, {task}", learner=ppo_mujoco, num_envs=1, **named))
        rows.append(Row(name=f"A3C mujoco, {task}", learner=vx.A3C.mujoco(), num_envs=16, **named))
    pendulum: Any = {"learning_rate": 1e-3, "temperature_learning_rate": 1e-3, "random_timesteps": 2_000}
    rows.append(
        Row(
            name="SAC, Pendulum",
            task="Pendulum-v1",
            learner=vx.SAC(**pendulum, replay_size=200_000),
            num_envs=1,
            timesteps=20_000,
            hidden=(256, 256),
            published=(-157.0, "RL Baselines3 Zoo, one run, 20k timesteps"),
        )
    )
    for task, score in {"Hopper": 2_310.0, "HalfCheetah": 9_635.0}.items():
        named = {"task": f"{task}-v4", "timesteps": 300_000, "published": (score, "CleanRL, 1M timesteps")}
        rows.append(Row(name=f"SAC, {task}", learner=vx.SAC(), num_envs=1, hidden=(256, 256), **named))
    for task in ("CartPole-v1", "Acrobot-v1", "LunarLander-v3"):
        named = {"task": task, "timesteps": 200_000, "other_defaults": True}
        rows.append(Row(name=f"PPO beside SB3 defaults, {task[:-3]}", learner=vx.PPO(), num_envs=8, **named))
    for game, score in atari.items():
        named = {"task": game, "timesteps": 10_000_000, "network": "nature", "published": (score, "PPO, CleanRL")}
        rows.append(Row(name=f"PPO atari, {game}", learner=ppo_atari, num_envs=8, **named))
    return tuple(rows)


ROWS = {"small": small_rows, "full": full_rows}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Makes the runs that are missing.

    Attributes:
      size: Which list of rows.
      run_dir: Directory of runs, of the reference's environment, and of one JSON file for each run that is complete.
      seeds: Runs of each row and side; None: 5 (small) or 3 (full).
      only: Words that the name of a row must contain, all of them; default: all rows.
      sides: Sides to run.
      measure_time: Whether wall-clock is recorded; turn it off while other work runs on the machine.
    """

    size: Size = "small"
    run_dir: str = "runs/benchmark"
    seeds: int | None = None
    only: tuple[str, ...] = ()
    sides: tuple[Literal["volvox", "reference"], ...] = SIDES
    measure_time: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draw:
    """Compares the runs that are complete, and draws their curves.

    Rows of an earlier result that have no runs in `run_dir` stay in it.

    Attributes:
      size: Which list of rows.
      run_dir: Directory of the runs.
      out: Directory of JSON, picture and table.
    """

    size: Size = "small"
    run_dir: str = "runs/benchmark"
    out: Path = RESULTS / "benchmark"


def make_env(row: Row) -> vx.Env:
    """Returns the environments of a row."""
    sizes: Any = {"num_envs": row.num_envs, "groups": min(row.num_envs, 2)}
    if row.network == "minatar":
        return vx.envs.gymnax(row.task, **sizes)
    if row.network == "nature":
        return vx.envs.atari(row.task, **sizes)
    return vx.envs.envpool(row.task, **sizes)


def make_algorithm(row: Row) -> vx.Algorithm:
    """Returns the algorithm of a row with a learner, which is evaluated once for each point of the curve."""
    learner, env = row.learner, make_env(row)
    assert learner is not None
    size, every = env.spec.num_outputs, row.timesteps // NUM_POINTS
    if isinstance(learner, vx.TD3 | vx.SAC):
        network: Any = vx.networks.ActorAndCritic.mlp(size, row.hidden, gaussian=isinstance(learner, vx.SAC))
        learner = dataclasses.replace(learner, timesteps_per_iteration=every)
    else:
        if row.network != "mlp":
            torso = MinAtarTorso() if row.network == "minatar" else vx.networks.NatureTorso()
            network = vx.networks.ActorCritic(size, torso)
        else:
            kind = vx.networks.GaussianMLP if env.spec.continuous else vx.networks.CategoricalMLP
            network = kind(size, row.hidden)
    evaluation: Any = {"num_evaluation_episodes": NUM_EPISODES, "num_evaluation_envs": NUM_EPISODES}
    return vx.learn(learner, network, env, evaluate_every=every, **evaluation)


def reference_job(row: Row, seed: int) -> dict[str, Any]:
    """Returns the job of `peers/sb3.py` that has the settings of a row with a learner, or its own defaults.

    Stable-Baselines3 weighs the squared error of values, and volvox half of it. Rows have no `value_clip`:
    Stable-Baselines3 minimises the loss of clipped values, and volvox the larger of it and the loss without clipping.
    """
    s = row.learner
    if isinstance(s, vx.TD3 | vx.SAC):
        settings: dict[str, Any] = {"learning_rate": s.learning_rate, "buffer_size": s.replay_size}
        settings |= {"learning_starts": s.random_timesteps, "batch_size": s.batch_size, "tau": s.target_rate}
        settings |= {"gamma": s.discount, "train_freq": 1, "gradient_steps": 1}
        if isinstance(s, vx.TD3):
            settings |= {"action_noise": s.exploration_noise, "policy_delay": s.policy_delay}
            settings |= {"target_policy_noise": s.target_noise, "target_noise_clip": s.target_noise_clip}
        algorithm, hidden, activation = type(s).__name__, list(row.hidden), "relu"
    else:
        assert s is not None
        settings = {"n_steps": s.segment_length, "learning_rate": s.learning_rate, "gamma": s.discount}
        settings |= {"gae_lambda": s.trace_decay, "ent_coef": s.entropy_coefficient, "vf_coef": s.value_coefficient / 2}
        settings["max_grad_norm"] = 1e9 if s.max_gradient_norm is None else s.max_gradient_norm
        if isinstance(s, vx.PPO):
            settings |= {"batch_size": row.num_envs * s.segment_length // s.num_minibatches, "n_epochs": s.num_epochs}
            settings |= {"clip_range": s.clip, "target_kl": s.kl_stop}
            settings["normalize_advantage"] = s.normalize_advantages
        else:
            settings["use_rms_prop"] = False
        algorithm = "PPO" if isinstance(s, vx.PPO) else "A2C"
        hidden, activation = {"pi": list(row.hidden), "vf": list(row.hidden)}, "tanh"
    if row.other_defaults:
        settings = {}
    return {
        "algorithm": algorithm,
        "settings": settings,
        "anneal": isinstance(s, vx.PPO) and s.anneal_timesteps is not None,
        "network": row.network,
        "hidden": hidden,
        "activation": activation,
        "task": f"{row.task}NoFrameskip-v4" if row.network == "nature" else row.task,
        "num_envs": 1 if row.other_defaults else row.num_envs,
        "timesteps": row.timesteps,
        "every": row.timesteps // NUM_POINTS,
        "episodes": NUM_EPISODES,
        "normalize_observations": s.normalize_observations,
        "normalize_rewards": s.normalize_rewards,
        "threads": len(os.sched_getaffinity(0)) if row.network == "nature" else 1,
        "seed": 1_000_003 * seed,  # environment i has this seed plus i: runs share no episodes
    }


def train(row: Row, side: str, seed: int, run_dir: Path) -> dict[str, Any]:
    """Makes or resumes a run of volvox.

    Returns:
      `timesteps` and mean `returns` of the evaluations, and `seconds` without them. In the maze the return is minus the
      least distance to the goal so far.
    """
    how: dict[str, Any] = {"seed": seed, "run_dir": run_dir, "resume": True, "progress": False, "loggers": ()}
    if row.learner is None:
        settings = maze_novelty.Settings(num_envs=row.num_envs)
        if side == "reference":  # random search is a genetic algorithm without parents
            settings = dataclasses.replace(settings, num_parents=0, mutation_std=vx.GA.mutation_std)
        algorithm = maze_novelty.make_algorithm(settings, "novelty" if side == "volvox" else "fitness")
        how["steps"] = row.timesteps // (settings.population_size * algorithm.env.spec.max_episode_steps)
    else:
        algorithm = make_algorithm(row)
        how["max_timesteps"] = row.timesteps
    run = vx.train(algorithm, **how)
    algorithm.close()
    if run.interrupted:
        raise SystemExit(run.exit_code)
    seconds = sum(x["step_seconds"] - x.get("evaluation_seconds", 0.0) for x in run.metrics)
    if row.learner is None:
        timesteps = [x["frames"] for x in run.metrics]
        returns = np.maximum.accumulate([x["training_best"] for x in run.metrics]).tolist()
    else:
        rows = [x for x in run.metrics if "evaluation_seconds" in x]
        timesteps, returns = ([x[name] for x in rows] for name in ("evaluation_timesteps", "evaluation_mean"))
    return {"timesteps": timesteps, "returns": returns, "seconds": seconds}


def install(folder: Path) -> Path:
    """Installs the reference, once; returns its Python."""
    python, marker = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join(REFERENCE) + "\n"
    if not marker.exists() or marker.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *REFERENCE], check=True)
        write_file(marker, wanted)
    return python


def run_path_of(run_dir: str | Path, row: Row, side: str, seed: int) -> Path:
    """Returns the file of a run that is complete."""
    name = row.name.lower().replace(", ", "-").replace(" ", "-")
    return Path(run_dir, name, f"{side}-{seed}.json")


def settings_of(row: Row, side: str, seed: int) -> dict[str, Any]:
    """Returns the settings of a run as JSON values."""
    if side == "reference" and row.learner is not None:
        return reference_job(row, seed)
    return {**to_json(dataclasses.replace(row, published=None)), "seed": seed}


def run(options: Run) -> int:
    """Makes the runs that are missing."""
    chosen = [row for row in ROWS[options.size]() if all(word in row.name for word in options.only)]
    if not chosen:
        raise ValueError(f"--only {' '.join(options.only)}: no row has that in its name; leave it out to run all.")
    python = Path()
    if "reference" in options.sides and any(row.learner is not None for row in chosen):
        python = install(Path(options.run_dir, "reference").absolute())
    for row in chosen:
        for seed in range(options.seeds or (5 if options.size == "small" else 3)):
            for side in options.sides:
                path, settings = run_path_of(options.run_dir, row, side, seed), settings_of(row, side, seed)
                if path.exists():
                    if json.loads(path.read_text())["settings"] != settings:
                        raise ValueError(f"{path} has other settings; remove it, or give another --run-dir.")
                    continue
                if side == "reference" and row.learner is not None:
                    command = [str(python), str(PEER), "--job", json.dumps(settings)]
                    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                    found = json.loads(done.stdout.splitlines()[-1])
                else:
                    found = train(row, side, seed, path.with_suffix(""))
                print(
                    f"{row.name}, {side}, seed {seed}: {found['returns'][-1]:.4g} in {found['seconds']:.0f} s",
                    flush=True,
                )
                seconds = found["seconds"] if options.measure_time else None
                found |= {"seconds": seconds, "settings": settings, "commit": revision(), **hardware_and_date()}
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, json.dumps(found) + "\n")
                shutil.rmtree(path.with_suffix(""), ignore_errors=True)
    return 0


def compare(row: Row, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Compares the runs of both sides.

    Returns:
      `timesteps` of the points, and of each side `returns` `[S, P]`, `seconds` `[S]`, and mean and interval of `area`
      and `final`; the `p_values` of both; and `as_reference`: "no" if area or final score is significantly lower,
      otherwise "better" if one of them is significantly higher, otherwise "yes".
    """
    points = np.linspace(row.timesteps / NUM_POINTS, row.timesteps, NUM_POINTS)
    found: dict[str, Any] = {"task": row.task, "timesteps": points.tolist(), "published": row.published}
    scores: dict[str, dict[str, np.ndarray]] = {}
    for side in SIDES:
        curves = np.array([np.interp(points, one["timesteps"], one["returns"]) for one in runs[side]])
        scores[side] = {"area": curves.mean(axis=1), "final": curves[:, -2:].mean(axis=1)}
        found[side] = {name: interval(values) for name, values in scores[side].items()}
        found[side] |= {"returns": curves.round(2).tolist(), "seconds": [one["seconds"] for one in runs[side]]}
        found[side] |= {"settings": runs[side][0]["settings"]}
        found[side] |= {name: [one[name] for one in runs[side]] for name in ("commit", "hardware", "date")}
        found[side]["seeds"] = [one["settings"]["seed"] for one in runs[side]]
    ours, theirs = (scores[side] for side in SIDES)
    found["p_values"] = {name: p_value(ours[name], theirs[name]) for name in ours}
    different = [name for name, p in found["p_values"].items() if p < SIGNIFICANCE]
    worse = any(ours[name].mean() < theirs[name].mean() for name in different)
    found["as_reference"] = "no" if worse else "better" if different else "yes"
    if min(map(len, runs.values())) < 3:
        found["as_reference"] = "too few runs"
    return found


def lines(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the lines of a Markdown table of compared rows."""
    columns = ("learner, task", "timesteps", "runs", "volvox, final", "reference, final")
    columns += ("volvox, area", "reference, area", "p (final, area)", "as the reference")
    columns += ("volvox, seconds", "reference, seconds")
    cells = []
    for name, found in rows.items():
        cell = {"learner, task": name, "timesteps": f"{found['timesteps'][-1]:,.0f}"}
        cell["runs"] = ", ".join(str(len(found[side]["returns"])) for side in SIDES)
        for side in SIDES:
            for score in ("final", "area"):
                mean, low, high = map(number, found[side][score])
                cell[f"{side}, {score}"] = f"{mean} [{low}, {high}]"
            seconds = [x for x in found[side]["seconds"] if x is not None]
            cell[f"{side}, seconds"] = f"{np.median(seconds):.0f}" if seconds else "not measured"
        cell["p (final, area)"] = f"{found['p_values']['final']:.2g}, {found['p_values']['area']:.2g}"
        cells.append(cell | {"as the reference": f"**{found['as_reference']}**"})
    return table(columns, cells)


def picture(rows: dict[str, dict[str, Any]]) -> Figure:
    """Draws mean and 95% interval of the curves of both sides, and published scores."""
    num_columns = min(len(rows), 4)
    num_rows = -(-len(rows) // num_columns)
    figure = Figure(figsize=(3.4 * num_columns, 2.7 * num_rows + 0.4), layout="constrained")
    panels = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for axes, (name, found) in zip(panels, rows.items(), strict=False):
        timesteps = np.array(found["timesteps"]) / 1_000
        for side, color in zip(SIDES, ("#D55E00", "#0072B2"), strict=True):
            mean, low, high = np.array([interval(x) for x in np.array(found[side]["returns"]).T]).T
            axes.plot(timesteps, mean, color=color, label=side)
            axes.fill_between(timesteps, low, high, color=color, alpha=0.2, linewidth=0)
        if found["published"] is not None:
            score, source = found["published"]
            axes.axhline(score, color="0.4", linestyle="--", linewidth=0.8, label=source)
        each = np.concatenate([np.ravel(found[side]["returns"]) for side in SIDES])
        margin = 0.05 * max(np.ptp(each), 1.0)
        axes.set_ylim(each.min() - margin, each.max() + margin)  # intervals of few runs are wide
        axes.set_title(f"{name}: {found['as_reference']}", fontsize="small")
        axes.set_xlabel("thousand timesteps", fontsize="x-small")
        axes.tick_params(labelsize="x-small")
        axes.legend(frameon=False, fontsize="xx-small")
    for axes in panels[len(rows) :]:
        axes.set_axis_off()
    return figure


def draw(options: Draw) -> int:
    """Compares the runs that are complete, and writes JSON, picture and table."""
    result = options.out / f"{options.size}.json"
    known, rows = json.loads(result.read_text())["rows"] if result.exists() else {}, dict[str, dict[str, Any]]()
    for row in ROWS[options.size]():
        paths = {side: run_path_of(options.run_dir, row, side, 0).parent.glob(f"{side}-*.json") for side in SIDES}
        runs = {side: [json.loads(path.read_text()) for path in found] for side, found in paths.items()}
        for one in runs.values():
            one.sort(key=lambda run: run["settings"]["seed"])
        if min(map(len, runs.values())) >= 2:
            rows[row.name] = compare(row, runs)
        elif row.name in known:  # its runs are in another directory
            rows[row.name] = known[row.name]
    if not rows:
        raise ValueError(f"{options.run_dir} has no row with two complete runs of each side; run some first.")
    about = {"episodes": NUM_EPISODES, "reference": REFERENCE, "versions": versions()}
    options.out.mkdir(parents=True, exist_ok=True)
    write_file(result, json.dumps({**about, "rows": rows}) + "\n")
    write_file(options.out / f"{options.size}.md", ABOUT.format(size=options.size, table="\n".join(lines(rows))))
    picture(rows).savefig(options.out / f"{options.size}.png", dpi=80)
    print("\n".join(lines(rows)))
    return 0


def main() -> int:
    command = tyro.conf.subcommand
    commands = Annotated[Run, command("run")] | Annotated[Draw, command("draw")]
    options: Any = tyro.cli(commands, description=__doc__)  # pyright: ignore[reportCallIssue, reportArgumentType]
    if isinstance(options, Draw):
        return draw(options)
    jax.config.update("jax_enable_compilation_cache", False)  # seconds include compilation
    return run(options)


if __name__ == "__main__":
    sys.exit(exit_code(main))
