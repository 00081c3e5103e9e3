"""Ways to train TD3 with few weights, side by side: return and compression over training.

    python experiments/group_sparse.py --task HalfCheetah --steps 300_000 --seeds 3 --run-dir runs/sparse
    python experiments/group_sparse.py --task HalfCheetah --steps 300_000 --seeds 3 --run-dir runs/sparse --resume

Each way is a run in a directory of its own, `<run-dir>/<way>`, whose seeds learn side by side. All aim at the same
sparsity of large layers, but for grouping alone; where they ended, the results say. At the end all that the directory
holds is compared: `group_sparse.json`, `curves.json` and `group_sparse.png`. A way that comes to nothing (numbers no
longer finite) is named and left out. N:M leaves a first layer dense whose inputs it does not divide, as Humanoid's.
"""

import dataclasses
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import jax
import numpy as np
import optax
import tyro
from flax import linen as nn
from matplotlib.figure import Figure

import volvox as vx
from volvox._checks import integer
from volvox.sparsity.schedules import check_sparsity
from volvox.training import check_unused

Flag = tyro.conf.arg
Way = Literal[
    "dense",
    "iterative-fast",
    "iterative-medium",
    "iterative-slow",
    "dynamic",
    "n-of-m",
    "gst",
    "gst-grouping-only",
    "gst-pruning-only",
    "gst-unaware",
]
_ENDS = {"iterative-fast": 0.4, "iterative-medium": 0.7, "iterative-slow": 1.0}
"""When iterative pruning is done, as shares of all steps."""
_SCORE, _INDEX, _CURVES, _SETTINGS = "score.json", "group_sparse.json", "curves.json", "settings.json"
_EQUAL = 0.95
"""Of the dense return: what counts as kept."""
_FREE = ("ways", "run_dir", "resume")
"""Settings in which calls for one directory may differ."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Ways to train TD3 with few weights."""

    task: Annotated[str, Flag(help="name of a MuJoCo task")] = "HalfCheetah"
    ways: Annotated[tuple[Way, ...], Flag(help="what is trained, in this order")] = get_args(Way)
    steps: Annotated[int, Flag(help="steps of each seed")] = 300_000
    seeds: Annotated[int, Flag(help="learners of each way")] = 3
    final_sparsity: Annotated[float, Flag(help="share of a large layer's weights that need not be stored")] = 0.875
    block: Annotated[int, Flag(help="of block-circulant layers")] = 4
    increment: Annotated[float, Flag(help="of the sparsity, of group-sparse training")] = 0.01
    tolerance: Annotated[float, Flag(help="of returns below the best, see volvox.sparsity.reward_aware")] = 0.1
    every: Annotated[int, Flag(help="updates between changes of the masks; iterative and dynamic: 1 000 at most")] = (
        5_000
    )
    min_side: Annotated[int, Flag(help="layers with fewer inputs or outputs stay dense")] = 32
    hidden: Annotated[tuple[int, ...], Flag(help="widths of the hidden layers of actor and critics")] = (256, 256)
    num_envs: Annotated[int, Flag(help="environments of each seed")] = 4
    threads: Annotated[int | None, Flag(help="simulator threads; default: all CPUs")] = None
    batch_size: Annotated[int, Flag(help="transitions of an update")] = 256
    random_steps: Annotated[int, Flag(help="steps with random actions, before learning")] = 25_000
    replay_size: Annotated[int, Flag(help="steps that are remembered")] = 1_000_000
    save_replay: Annotated[bool, Flag(help="keep it in checkpoints; else a resumed run gathers one anew")] = True
    steps_per_iteration: Annotated[int, Flag(help="steps in one row of metrics")] = 5_000
    episodes: Annotated[int, Flag(help="fresh episodes each policy plays at the end, without noise")] = 10
    seed: Annotated[int, Flag(help="fixes all random numbers but the simulators'")] = 0
    run_dir: Annotated[str, Flag(help="where runs and results go")] = "runs/sparse"
    resume: Annotated[bool, Flag(help="go on with the runs in --run-dir")] = False


def make_algorithm(settings: Settings, way: str) -> vx.types.Algorithm:
    """TD3 trained in one way; raises ValueError for bad settings."""
    for name in ("seeds", "steps", "episodes", "block", "every"):
        integer(name, getattr(settings, name), low=1)
    check_sparsity("final_sparsity", settings.final_sparsity)
    if settings.steps <= settings.random_steps:
        raise ValueError(f"steps={settings.steps}: nothing is learned from random_steps={settings.random_steps}.")
    env = vx.envs.mujoco(settings.task, num_envs=settings.seeds * settings.num_envs, groups=2, threads=settings.threads)
    (size,) = env.spec.action_shape or (0,)
    actor = vx.networks.MLP(size, hidden=settings.hidden, activation=nn.relu)
    critic = vx.networks.QNetwork(settings.hidden)
    names = ("batch_size", "random_steps", "steps_per_iteration", "save_replay")
    options = vx.off_policy.reference() | {name: getattr(settings, name) for name in names}
    # No more than there will be: all of it stands in each checkpoint.
    options |= {"num_learners": settings.seeds, "replay_size": min(settings.replay_size, settings.steps)}
    rate = options["learning_rate"]
    sparsity, side = settings.final_sparsity, settings.min_side
    updates = max(settings.steps - settings.random_steps, 2)
    often = min(1_000, settings.every)
    whole: tuple[str, ...] = ()

    if way == "dense":
        return vx.off_policy.td3(actor, critic, env, **options)
    if way.startswith("gst"):
        block = 1 if way == "gst-pruning-only" else settings.block
        # Without grouping there is further to go, in as many changes.
        way_to_go = (sparsity - 1 + 1 / block) / max(sparsity - 1 + 1 / settings.block, 1e-6)
        gst = vx.sparsity.group_sparse(
            block=block,
            final_sparsity=sparsity,
            increment=min(settings.increment * max(way_to_go, 1.0), 1.0),
            # Below the best by all of the range is no fall: the same rise, whatever the returns.
            tolerance=1.0 if way == "gst-unaware" else settings.tolerance,
            every=settings.every,
            min_side=side,
            pruning=way != "gst-grouping-only",
        )
        return gst(vx.off_policy.td3, actor, critic, env, **options)
    if way == "dynamic":
        rule = vx.sparsity.dynamic(sparsity=sparsity, every=often)
    elif way == "n-of-m":
        m = round(1 / (1 - sparsity))
        if abs(sparsity - (1 - 1 / m)) > 1e-6:
            raise ValueError(f"final_sparsity={sparsity}: n-of-m keeps 1 of m weights; take 0.5, 0.75, 0.8, 0.875, ...")
        (observed,) = env.spec.observation_shape
        undivided = any(x % m and x >= side for x in (observed, observed + size))
        whole = ("Dense_0/kernel",) if undivided else ()
        rule = vx.sparsity.keep_n_of_m(1, m, drop=0.05, every=often)
    else:
        end = max(round(_ENDS[way] * updates), 1)
        rule = vx.sparsity.magnitude(vx.sparsity.cubic(final_sparsity=sparsity, begin=0, end=end), every=often)
    options["optimizer"] = vx.sparsity.sparse(optax.adam(rate), rule, min_side=side, dense=whole)
    return vx.off_policy.td3(actor, critic, env, **options)


def train(settings: Settings, way: str) -> int:
    """One run, and how its policies play; the exit code of an interrupt, or 0."""
    directory = Path(settings.run_dir) / way
    algorithm = make_algorithm(settings, way)
    try:
        run = vx.train(
            algorithm,
            jax.random.key(settings.seed),
            steps=-(-settings.steps // settings.steps_per_iteration),
            run_dir=directory,
            resume=settings.resume,
            checkpoint_every=10,
            keep_checkpoints=1,
        )
        if run.interrupted:
            return run.exit_code
        how = {"steps": run.metrics[-1]["steps"], "episodes": settings.episodes, "seed": settings.seed}
        scored = json.loads((directory / _SCORE).read_text()) if (directory / _SCORE).exists() else {}
        if scored.get("of") != how:
            returns = []
            for learner in range(settings.seeds):
                variables = vx.off_policy.policy_of(run.state, learner)
                played = vx.loop.play(
                    algorithm.env,
                    algorithm.network,
                    variables,
                    num_episodes=settings.episodes,
                    seed=settings.seed + 1_000_003,
                )
                returns.append(played.returns.tolist())
            (directory / _SCORE).write_text(json.dumps({"of": how, "returns": returns}) + "\n")
    finally:
        algorithm.close()
    return 0


def results(settings: Settings) -> dict[str, dict[str, Any]]:
    """What each way came to: means over seeds with 95% intervals, compression, and measured wall-clock."""
    found: dict[str, dict[str, Any]] = {}
    for way in get_args(Way):
        directory = Path(settings.run_dir) / way
        if not (directory / _SCORE).exists():
            continue
        rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        each = np.array(json.loads((directory / _SCORE).read_text())["returns"]).mean(axis=1)
        compression = np.array([row.get("compression", 0.0) for row in rows])
        found[way] = {
            "return": float(each.mean()),
            "return_interval_95": _interval(each),
            "return_of_seeds": each.tolist(),
            "average_compression": float(compression.mean()),
            "final_compression": float(compression[-1]),
            "wall_clock_s": rows[-1]["seconds"],
            "updates_per_s": float(np.median([row["updates_per_second"] for row in rows if row.get("critic_loss")])),
            "steps": rows[-1]["steps"],
            "updates": rows[-1]["update"],
        }
    if "dense" in found:
        for values in found.values():
            values["return_minus_dense"] = values["return"] - found["dense"]["return"]
            if found["dense"]["return"] > 0:
                values["return_over_dense"] = values["return"] / found["dense"]["return"]
            for name in ("wall_clock_s", "updates_per_s"):
                values[f"{name[:-2]}_over_dense"] = values[name] / found["dense"][name]
    return found


def _interval(values: np.ndarray) -> list[float] | None:
    """Of the mean, by Student's t (a little too wide above ten values); None of one, of which nothing can be said."""
    if len(values) < 2:
        return None
    t = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
    half = t.get(len(values), t[10]) * values.std(ddof=1) / np.sqrt(len(values))
    return [float(values.mean() - half), float(values.mean() + half)]


def at_equal_return(found: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Average compression of group-sparse training over that of iterative pruning, both at 95% of the dense return.

    Iterative pruning is taken at the speed that compresses most of those that keep so much. None where one is missing.
    """
    kept = {way: values for way, values in found.items() if values.get("return_over_dense", 0) >= _EQUAL}
    iterative = [way for way in kept if way in _ENDS]
    if "gst" not in kept or not iterative:
        return None
    best = max(iterative, key=lambda way: kept[way]["average_compression"])
    points = 100 * (kept["gst"]["average_compression"] - kept[best]["average_compression"])
    return {"over": best, "percentage_points": points}


def curves(settings: Settings, ways: Iterable[str]) -> dict[str, dict[str, list[Any]]]:
    """Over training: steps, the mean return lately of each seed (None before the first), share that is not stored."""
    names = [f"recent_mean_{s}" for s in range(settings.seeds)] if settings.seeds > 1 else ["recent_mean"]
    found = {}
    for way in ways:
        rows = [json.loads(line) for line in (Path(settings.run_dir) / way / "metrics.jsonl").read_text().splitlines()]
        returns = [[None if row.get(name) is None else round(row[name], 1) for name in names] for row in rows]
        compression = [round(row.get("compression", 0.0), 4) for row in rows]
        found[way] = {"steps": [row["steps"] for row in rows], "returns": returns, "compression": compression}
    return found


def draw(settings: Settings, found: dict[str, dict[str, Any]], curves: dict[str, dict[str, list[Any]]]) -> Figure:
    """Return and compression over training, and average compression against what was learned."""
    figure = Figure(figsize=(14, 4.6), layout="constrained")
    by_return, by_compression, reached = figure.subplots(1, 3)
    colors = ("#000000", "#E69F00", "#D55E00", "#CC79A7", "#009E73", "#56B4E9", "#0072B2", "#7A3E9D", "#8C6D31")
    styles = ("-", "-", "-", "-", "-", "-", "-", ":", "--")
    looks = dict(zip(get_args(Way), zip((*colors, "#999999"), (*styles, "-."), strict=True), strict=True))
    marker = "" if settings.steps > 10 * settings.steps_per_iteration else "."
    for way, curve in curves.items():
        color, style = looks[way]
        steps = np.array(curve["steps"]) / 1_000
        each = np.array(curve["returns"], float)
        by_return.plot(steps, each.mean(axis=1), style, marker=marker, color=color, label=way)
        by_return.fill_between(steps, each.min(axis=1), each.max(axis=1), color=color, alpha=0.1, linewidth=0)
        by_compression.plot(steps, 100 * np.array(curve["compression"]), style, marker=marker, color=color)
        x, y = 100 * found[way]["average_compression"], found[way]["return"]
        reached.plot([x] * settings.seeds, found[way]["return_of_seeds"], ".", color=color, alpha=0.5)
        reached.plot(x, y, "D" if way.startswith("gst") else "o", color=color, markersize=7)
    if found.get("dense", {}).get("return", 0) > 0:
        reached.axhline(_EQUAL * found["dense"]["return"], color="0.5", linestyle="--", linewidth=0.8)
    by_return.set_ylabel("return, latest episodes: mean and range of seeds")
    by_compression.set_ylabel("weights that need not be stored (%)")
    reached.set_xlabel("the same, mean over training (%)")
    reached.set_ylabel("return of the last policies; dashed: 95% of dense")
    for axes in (by_return, by_compression, reached):
        axes.grid(color="0.9", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (by_return, by_compression):
        axes.set_xlabel("steps (thousand)")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize="small")
    figure.suptitle(f"TD3 on {settings.task}, {settings.seeds} seed{'s' * (settings.seeds > 1)}")
    return figure


def say(found: dict[str, dict[str, Any]]) -> None:
    """A line for each way."""
    print(
        f"{'way':18} {'return':>8}  {'of seeds':24} {'compression: mean':>17} {'final':>6} {'wall-clock':>11} "
        f"{'updates':>9} {'a second':>9}"
    )
    for way, values in found.items():
        seeds = ", ".join(f"{value:.0f}" for value in values["return_of_seeds"])
        print(
            f"{way:18} {values['return']:8.0f}  {seeds:24} {values['average_compression']:17.1%} "
            f"{values['final_compression']:6.1%} {values['wall_clock_s']:9.0f} s {values['updates']:9} "
            f"{values['updates_per_s']:9.0f}"
        )


def shaping(settings: Settings) -> dict[str, Any]:
    """The settings that all runs of a directory share."""
    return {name: value for name, value in dataclasses.asdict(settings).items() if name not in _FREE}


def check_settings(settings: Settings) -> None:
    """Raises ValueError if the directory holds runs of other settings, which could not be compared with these."""
    path = Path(settings.run_dir) / _SETTINGS
    own = json.loads(json.dumps(shaping(settings)))
    if path.exists() and (saved := json.loads(path.read_text())) != own:
        names = [name for name in own if own[name] != saved.get(name)]
        raise ValueError(
            f"{settings.run_dir} holds runs of other settings ({', '.join(names)}); use those, or another --run-dir."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(own) + "\n")


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    folder = Path(settings.run_dir)
    try:
        for way in settings.ways:  # every bad setting is refused before long work
            try:
                make_algorithm(settings, way).close()
            except ValueError as error:
                raise ValueError(f"{way}: {error}") from error
            if not settings.resume:
                check_unused(folder / way)
        check_settings(settings)
        failed = []
        for way in settings.ways:
            try:
                print(f"{way}:", file=sys.stderr, flush=True)
                if code := train(settings, way):
                    return code
            except FloatingPointError as error:
                print(f"error: {way}: {error}", file=sys.stderr)
                failed.append(way)
    except (ValueError, FileExistsError, BlockingIOError, vx.checkpoint.DamagedCheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = results(settings)
    gain = at_equal_return(found)
    written = {"settings": shaping(settings), "ways": found, "at_equal_return": gain}
    (folder / _INDEX).write_text(json.dumps(written, indent=1) + "\n")
    over_training = curves(settings, found)
    (folder / _CURVES).write_text(json.dumps(over_training) + "\n")
    draw(settings, found, over_training).savefig(folder / "group_sparse.png", dpi=100)
    say(found)
    if gain:
        print(f"gst stores {gain['percentage_points']:.1f} percentage points less than {gain['over']}, over training")
    else:
        print(f"no compression at equal return: gst and a speed of iterative pruning must keep {_EQUAL:.0%} of dense")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
