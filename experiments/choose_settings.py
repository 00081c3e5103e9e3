"""Studies that chose default settings: variants of a learner on a task, several learners of each in one program.

    python experiments/choose_settings.py ppo-cartpole --run-dir runs/settings

Variants run one after the other. Ctrl-C saves the variant in progress, and the same command goes on. The script writes
`STUDY.json` to `--out` and prints a table: mean return and 95% interval (Student's t over learners) at five timesteps.
"Evaluated" are episodes with the likeliest actions; "training" is the mean of the last 100 training episodes.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import atari_ppo
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import linen as nn
from launch import exit_code
from results_table import RESULTS, table
from scores import hardware_and_date, interval

import volvox as vx
from volvox.report.files import write_file
from volvox.runs.config import to_json
from volvox.runs.directory import revision, versions
from volvox.runs.train import run_path

NUM_POINTS = 10
Name = Literal[
    "ppo-cartpole",
    "ppo-acrobot",
    "ppo-pendulum",
    "pqn-cartpole",
    "a3c-halfcheetah",
    "a3c-halfcheetah-ten",
    "a3c-pong",
    "a3c-breakout",
    "a3c-boxing",
    "ppo-pong",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """Variants of settings on a task.

    Attributes:
      env: Makes the environments of one learner.
      network: Makes the network for environments, given a variant's name.
      variants: Settings by name.
      timesteps: Timesteps of each learner.
      num_learners: Learners of each variant.
      num_episodes: Episodes of an evaluation of each learner; 0: no evaluation.
    """

    env: Callable[[], vx.Env]
    network: Callable[[vx.Env, str], Any]
    variants: dict[str, Any]
    timesteps: int
    num_learners: int = 10
    num_episodes: int = 20


def categorical(env: vx.Env, variant: str) -> nn.Module:
    """Returns the network of PPO for few numbers and discrete actions."""
    del variant
    return vx.networks.CategoricalMLP(env.spec.num_outputs)


def gaussian(env: vx.Env, variant: str) -> nn.Module:
    """Returns the network of PPO and A3C for few numbers and continuous actions."""
    del variant
    return vx.networks.GaussianMLP(env.spec.num_outputs)


def values(env: vx.Env, variant: str) -> nn.Module:
    """Returns purejaxql's network for CartPole."""
    del variant
    return vx.networks.MLP(env.spec.num_outputs, (256, 256), nn.relu, layer_norm=True)


class ImageTorso(nn.Module):
    """GA3C's small convolutional network, with a remedy for images whose pixels hardly change.

    Attributes:
      variant: "centred observation": its mean is subtracted; "standardised observation": it is also divided by its
        standard deviation; "normalised features": layer normalisation after the torso; "normalised layers": before each
        activation. Others: images as they are.
    """

    variant: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Features `[B, 256]` of images `[B, 84, 84, 4]`."""
        if self.variant.endswith("observation"):
            x = x.astype(jnp.float32) / 255
            x = x - x.mean((1, 2, 3), keepdims=True)
        if self.variant == "standardised observation":
            x = x / (x.std((1, 2, 3), keepdims=True) + 1e-3)
        features = vx.networks.SmallTorso(layer_norm=self.variant == "normalised layers")(x)
        return nn.LayerNorm()(features) if self.variant == "normalised features" else features


def images(env: vx.Env, variant: str) -> nn.Module:
    """Returns the network of A3C and PPO for images."""
    return vx.networks.ActorCritic(env.spec.num_outputs, ImageTorso(variant))


def ppo_variants(timesteps: int) -> dict[str, vx.PPO]:
    """Returns variants of the defaults of PPO."""
    changes: dict[str, dict[str, Any]] = {
        "no value clip, lag 1": {"value_clip": None, "lag": 1},
        "no value clip, lag 0": {"value_clip": None, "lag": 0},
        "value clip, lag 1": {"value_clip": 0.2, "lag": 1},
        "value clip, lag 0": {"value_clip": 0.2, "lag": 0},
        "no value clip, lag 1, annealed": {"value_clip": None, "lag": 1, "anneal_timesteps": timesteps},
        "value clip, lag 1, annealed": {"value_clip": 0.2, "lag": 1, "anneal_timesteps": timesteps},
        "no value clip, lag 0, 10 epochs": {"value_clip": None, "lag": 0, "num_epochs": 10},
        "no value clip, lag 0, 10 epochs, 16 minibatches": {"lag": 0, "num_epochs": 10, "num_minibatches": 16},
        "no value clip, lag 1, 10 epochs": {"value_clip": None, "lag": 1, "num_epochs": 10},
        "value clip, lag 1, 10 epochs": {"value_clip": 0.2, "lag": 1, "num_epochs": 10},
    }
    plain = vx.PPO(num_epochs=4, num_minibatches=4)
    return {name: dataclasses.replace(plain, **change) for name, change in changes.items()}


def pqn_variants() -> dict[str, vx.PQN]:
    """Returns variants of PQN with the schedule of purejaxql. A bound of 0.1 scales the rewards of CartPole by 0.1."""
    plain = vx.PQN(anneal_timesteps=500_000, normalize_rewards=False, lag=1)
    changes: dict[str, dict[str, Any]] = {
        "rewards of 1, lag 1": {},
        "rewards of 1, lag 0": {"lag": 0},
        "rewards of 0.1, lag 1": {"reward_bound": 0.1},
        "normalised rewards, lag 1": {"normalize_rewards": True},
    }
    return {name: dataclasses.replace(plain, **change) for name, change in changes.items()}


def a3c_variants() -> dict[str, vx.A3C]:
    """Returns variants of A3C for MuJoCo; "both" are observations and rewards."""
    plain = vx.A3C(trace_decay=0.95, learning_rate=3e-4, entropy_coefficient=0.0, reward_bound=None)
    scaled = dataclasses.replace(plain, normalize_observations=True, normalize_rewards=True, reward_bound=10.0)
    changes: dict[str, dict[str, Any]] = {
        "rate 1e-3": {"learning_rate": 1e-3},
        "rate 3e-4": {},
        "rate 2e-3": {"learning_rate": 2e-3},
        "rate 1e-3, 5 timesteps": {"learning_rate": 1e-3, "segment_length": 5},
        "rate 1e-3, 10 timesteps": {"learning_rate": 1e-3, "segment_length": 10},
        "rate 1e-3, 40 timesteps": {"learning_rate": 1e-3, "segment_length": 40},
        "rate 1e-3, entropy 0.001": {"learning_rate": 1e-3, "entropy_coefficient": 0.001},
    }
    variants = {f"both, {name}": dataclasses.replace(scaled, **change) for name, change in changes.items()}
    observations = dataclasses.replace(plain, normalize_observations=True)
    return {"nothing normalised": plain, **variants, "observations normalised": observations}


def halfcheetah_study(num_learners: int, *names: str) -> Study:
    """Returns the study of A3C on HalfCheetah-v5, of all variants, or of the named variants."""
    variants = a3c_variants()
    return Study(
        env=lambda: vx.envs.mujoco("HalfCheetah-v5", num_envs=16, groups=2),
        network=gaussian,
        variants={name: variants[name] for name in names or variants},
        timesteps=1_000_000,
        num_learners=num_learners,
        num_episodes=10,
    )


def image_study(game: str) -> Study:
    """Returns the study of remedies for badly conditioned images: A3C, 1.6 million frames."""
    plain = vx.A3C(segment_length=5, learning_rate=5e-4)
    remedies = ("centred observation", "standardised observation", "normalised features", "normalised layers")
    moments = {"moments of pixels": dataclasses.replace(plain, normalize_observations=True)}
    return Study(
        env=lambda: vx.envs.atari(game, num_envs=16, groups=2),
        network=images,
        variants={"as is": plain} | moments | dict.fromkeys(remedies, plain),
        timesteps=400_000,
        num_learners=3,
        num_episodes=0,
    )


def ppo_lag_study() -> Study:
    """Returns the study of PPO's lag on Pong, with the settings of `atari_ppo.py desktop`."""
    variants = {f"lag {lag}": dataclasses.replace(atari_ppo.DESKTOP.learner, lag=lag) for lag in (0, 1)}
    return Study(
        env=lambda: vx.envs.atari("Pong", num_envs=16, groups=2),
        network=images,
        variants=variants,
        timesteps=400_000,
        num_learners=3,
        num_episodes=0,
    )


STUDIES: dict[Name, Study] = {
    "ppo-cartpole": Study(
        env=lambda: vx.envs.cartpole(num_envs=8),
        network=categorical,
        variants=ppo_variants(500_000),
        timesteps=500_000,
    ),
    "ppo-acrobot": Study(
        env=lambda: vx.envs.gymnax("Acrobot-v1", num_envs=8),
        network=categorical,
        variants=ppo_variants(500_000),
        timesteps=500_000,
    ),
    "ppo-pendulum": Study(
        env=lambda: vx.envs.gymnax("Pendulum-v1", num_envs=8),
        network=gaussian,
        variants=ppo_variants(500_000),
        timesteps=500_000,
    ),
    "pqn-cartpole": Study(
        env=lambda: vx.envs.cartpole(num_envs=32),
        network=values,
        variants=pqn_variants(),
        timesteps=500_000,
        num_learners=5,
        num_episodes=64,
    ),
    "a3c-halfcheetah": halfcheetah_study(3),
    "a3c-halfcheetah-ten": halfcheetah_study(
        10, "both, rate 1e-3", "both, rate 1e-3, 10 timesteps", "both, rate 1e-3, 40 timesteps", "both, rate 2e-3"
    ),
    "a3c-pong": image_study("Pong"),
    "a3c-breakout": image_study("Breakout"),
    "a3c-boxing": image_study("Boxing"),
    "ppo-pong": ppo_lag_study(),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Runs the variants of a study that are missing.

    Attributes:
      study: Name of the study.
      only: Words that the name of a variant must contain, all of them; default: all variants.
      run_dir: Directory of the runs.
      out: Directory of the result.
    """

    study: tyro.conf.Positional[Name]
    only: tuple[str, ...] = ()
    run_dir: str = "runs/settings"
    out: Path = RESULTS / "settings"


def make_algorithm(study: Study, variant: str) -> vx.Algorithm:
    """Returns the algorithm of a variant."""
    env, every = study.env(), study.timesteps // NUM_POINTS
    evaluation: Any = {"evaluate_every": every, "num_evaluation_episodes": study.num_episodes}
    return vx.learn(
        study.variants[variant],
        study.network(env, variant),
        env,
        num_learners=study.num_learners,
        **(evaluation if study.num_episodes else {}),
    )


def learned(study: Study, variant: str, run_dir: Path) -> dict[str, Any]:
    """Trains the learners of a variant, or goes on with them.

    Returns:
      `timesteps` `[P]`, mean returns `evaluated` and `training` `[P, S]`, the `settings`, and `commit`.
    """
    algorithm = make_algorithm(study, variant)
    how: Any = {"run_dir": run_dir, "resume": True, "progress": False, "loggers": (), "keep_checkpoints": 1}
    try:
        run = vx.train(algorithm, max_timesteps=study.timesteps, checkpoint_every=1_000, **how)
        if run.interrupted:
            raise SystemExit(run.exit_code)
    finally:
        algorithm.close()
    timesteps = np.array([row["timesteps"] for row in run.metrics])
    points = study.timesteps * np.arange(1, NUM_POINTS + 1) // NUM_POINTS
    ends = np.searchsorted(timesteps, points).clip(max=len(timesteps) - 1)
    rows = [run.metrics[i] for i in ends]
    curves = {"evaluated": "evaluation_mean_each", "training": "training_mean_each"}
    found: dict[str, Any] = {name: [row.get(metric) for row in rows] for name, metric in curves.items()}
    found |= {"timesteps": [row["timesteps"] for row in rows], "commit": revision(), **hardware_and_date()}
    return found | {"settings": to_json(study.variants[variant])}


def lines(study: Study, variants: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the lines of a Markdown table: evaluated or, without evaluation, training returns."""
    kind = "evaluated" if study.num_episodes else "training"
    points = range(1, NUM_POINTS, 2)
    columns = [f"{kind}, {study.timesteps * (i + 1) // NUM_POINTS // 1_000:,}k" for i in points]
    cells = []
    for variant, found in variants.items():
        cell = {column: shown(found[kind][i]) for column, i in zip(columns, points, strict=True)}
        cells.append({"variant": variant, **cell, "training, last": shown(found["training"][-1])})
    return table(["variant", *columns, "training, last"], cells)


def shown(values: list[float] | None) -> str:
    """Returns mean and interval of a number of each learner."""
    if values is None:
        return ""
    mean, low, high = interval(np.array(values))
    return f"{mean:.0f} [{low:.0f}, {high:.0f}]"


def main() -> int:
    options = tyro.cli(Options, description=__doc__)
    study, path = STUDIES[options.study], options.out / f"{options.study}.json"
    kept = json.loads(path.read_text()) if path.exists() else {"variants": {}}
    about = {name: kept[name] for name in ("hardware", "date") if name in kept}  # of all variants, in older files
    variants = {name: about | found for name, found in kept["variants"].items()}
    for name, settings in study.variants.items():
        if name in variants and variants[name]["settings"] != to_json(settings):
            raise ValueError(f"{path} has {name!r} with other settings; remove it, or give another --out.")
        if name in variants or not all(word in name for word in options.only):
            continue
        folder = run_path(options.run_dir) / options.study / name.replace(", ", "_").replace(" ", "-")
        variants[name] = learned(study, name, folder)
        print(name, shown(variants[name]["evaluated"][-1] or variants[name]["training"][-1]), flush=True)
        variants = {known: variants[known] for known in study.variants if known in variants}
        options.out.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps({"versions": versions(), "variants": variants}) + "\n")
    print("\n".join(lines(study, variants)))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
