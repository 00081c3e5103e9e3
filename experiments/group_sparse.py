"""Ways to train TD3 with few weights, side by side: return and compression over training.

    python experiments/group_sparse.py --task HalfCheetah --timesteps 300_000 --run-dir runs/sparse
    python experiments/group_sparse.py --task HalfCheetah --timesteps 300_000 --run-dir runs/sparse --resume

Each way is a run in a directory of its own, `<run-dir>/<way>`. Its learners differ by seed and learn side by side. All
ways except grouping alone aim at the same sparsity of large layers. Iterative and dynamic pruning and N:M change their
masks at most every 1 000 updates. At the end all runs in the directory are compared: `group_sparse.json`, `curves.json`
and `group_sparse.png`. A way that diverges is named and left out. N:M keeps a first layer dense if m does not divide
its inputs, as in Humanoid.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import tyro
from launch import exit_code, once
from matplotlib.figure import Figure
from scores import difference_interval, interval

import volvox as vx
from volvox.report import read_metrics
from volvox.report.files import write_file
from volvox.runs.config import to_json
from volvox.runs.directory import check_unused
from volvox.runs.train import run_path
from volvox.sparsity import Cubic, Dynamic, GroupSparse, KeepNOfM, Magnitude

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
"""End of iterative pruning, as a share of all timesteps."""
_SCORE = "score.json"
_EQUAL = 0.95
"""Share of the dense return that counts as equal."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Ways to train TD3 with few weights."""

    task: Annotated[str, Flag(help="name of a MuJoCo task")] = "HalfCheetah"
    ways: Annotated[tuple[Way, ...], Flag(help="ways to train, in this order")] = get_args(Way)
    timesteps: Annotated[int, Flag(help="timesteps of each learner")] = 300_000
    hidden: Annotated[tuple[int, ...], Flag(help="widths of the hidden layers of actor and critics")] = (256, 256)
    num_learners: Annotated[int, Flag(help="learners with seeds of their own, side by side")] = 3
    num_envs: Annotated[int, Flag(help="environments of each learner")] = 4
    threads: Annotated[int | None, Flag(help="simulator threads; default: all CPUs")] = None
    episodes: Annotated[int, Flag(help="fresh episodes each policy plays at the end, without noise")] = 10
    evaluate_every: Annotated[int | None, Flag(help="timesteps between evaluations of the learners; None: none")] = None
    seed: Annotated[int, Flag(help="seed of all random numbers but the simulators'")] = 0
    run_dir: Annotated[str, Flag(help="directory of runs and results")] = "runs/sparse"
    resume: Annotated[bool, Flag(help="continue the runs in --run-dir")] = False
    kept: Annotated[int, Flag(help="weights that n-of-m keeps of each m, at gst's final sparsity")] = 1
    gst: GroupSparse = GroupSparse(final_sparsity=0.875)
    td3: vx.TD3 = vx.TD3()


def make_algorithm(settings: Settings, way: str) -> vx.Algorithm:
    """TD3 trained in one way; raises ValueError for bad settings."""
    td3 = settings.td3
    if settings.timesteps <= td3.random_timesteps:
        raise ValueError(f"timesteps={settings.timesteps} must exceed random_timesteps={td3.random_timesteps}")
    env = vx.envs.mujoco(settings.task, num_envs=settings.num_envs, groups=2, threads=settings.threads)
    (size,), (observed,) = env.spec.action_shape or (0,), env.spec.observation_shape
    networks, optimizer = vx.networks.ActorAndCritic.mlp(size, settings.hidden), td3.optimizer
    if way.startswith("gst"):
        gst = group_sparse(settings.gst, way)
        networks = vx.networks.ActorAndCritic(gst.network(networks.actor), gst.network(networks.critic))
        optimizer = optimizer if way == "gst-grouping-only" else gst.optimizer(optimizer)
    elif way != "dense":
        rule, min_side = rule_of(settings, way), settings.gst.min_side
        m = rule.m if isinstance(rule, KeepNOfM) else 1
        undivided = any(x % m and x >= min_side for x in (observed, observed + size))
        whole = ("Dense_0/kernel",) if undivided else ()
        optimizer = vx.sparsity.sparse(optimizer, rule, min_side=min_side, dense=whole)
    # Each checkpoint holds the whole replay, so it should not be larger than necessary.
    replay_size = min(td3.replay_size, settings.timesteps)
    td3 = dataclasses.replace(td3, optimizer=optimizer, replay_size=replay_size)
    evaluation = {"evaluate_every": settings.evaluate_every, "num_evaluation_episodes": settings.episodes}
    return vx.learn(td3, networks, env, num_learners=settings.num_learners, **evaluation)


def group_sparse(gst: GroupSparse, way: str) -> GroupSparse:
    """Group-sparse training, or a part of it."""
    if way == "gst-unaware":
        # Returns cannot fall below their best by more than their range, so the sparsity always rises.
        return dataclasses.replace(gst, tolerance=1.0)
    if way == "gst-pruning-only":
        # Without grouping the sparsity has a longer way to go, in as many changes.
        further = gst.final_sparsity / max(gst.final_sparsity - 1 + 1 / gst.block, 1e-6)
        increment = gst.increment if gst.end is not None else min(gst.increment * further, 1.0)
        return dataclasses.replace(gst, block=1, increment=increment)
    return gst


def rule_of(settings: Settings, way: str) -> vx.sparsity.Rule:
    """The rule that prunes single weights."""
    sparsity, every = settings.gst.final_sparsity, min(1_000, settings.gst.every)
    if way == "dynamic":
        return Dynamic(sparsity=sparsity, every=every)
    if way == "n-of-m":
        n, m = settings.kept, round(settings.kept / (1 - sparsity))
        if abs(sparsity - (1 - n / m)) > 1e-6:
            raise ValueError(f"final_sparsity={sparsity} is not 1 - {n}/m; with kept=1 take 0.5, 0.75, 0.8, 0.875, ...")
        return KeepNOfM(n=n, m=m, drop=0.05, every=every)
    updates = (settings.timesteps - settings.td3.random_timesteps) * settings.td3.updates_per_timestep
    end = max(round(_ENDS[way] * updates), 1)
    return Magnitude(schedule=Cubic(final_sparsity=sparsity, begin=0, end=end), every=every)


def train(settings: Settings, way: str) -> int:
    """Trains one run and scores its policies; returns the exit code of an interrupt, or 0."""
    path = Path(settings.run_dir) / way / _SCORE
    algorithm = make_algorithm(settings, way)
    try:
        with once(path.parent, resume=settings.resume):
            run = vx.train(
                algorithm,
                seed=settings.seed,
                max_timesteps=settings.timesteps,
                run_dir=path.parent,
                resume=settings.resume,
                checkpoint_every=10,
                keep_checkpoints=1,
            )
        if run.interrupted:
            return run.exit_code
        how = {"steps": run.metrics[-1]["timesteps"], "episodes": settings.episodes, "seed": settings.seed}
        if not path.exists() or json.loads(path.read_text())["of"] != how:
            returns = []
            for learner in range(settings.num_learners):
                score = run.learner(learner).evaluate(settings.episodes, seed=settings.seed + 1_000_003)
                returns.append(score.returns.tolist())
            write_file(path, json.dumps({"of": how, "returns": returns}) + "\n")
    finally:
        algorithm.close()
    return 0


def rows_of(settings: Settings) -> dict[str, list[dict[str, Any]]]:
    """Metrics of each way that was trained and played, in the order of `Way`."""
    folders = {way: Path(settings.run_dir) / way for way in get_args(Way)}
    return {
        way: read_metrics(folder / "metrics.jsonl") for way, folder in folders.items() if (folder / _SCORE).exists()
    }


def results(settings: Settings) -> dict[str, dict[str, Any]]:
    """Returns, compression and time of each way: means over learners with 95% intervals."""
    found: dict[str, dict[str, Any]] = {}
    for way, rows in rows_of(settings).items():
        score = json.loads((Path(settings.run_dir) / way / _SCORE).read_text())
        each = np.array(score["returns"]).mean(axis=1)
        compression = np.array([row.get("compression", 0.0) for row in rows])
        timesteps = np.diff([row["timesteps"] for row in rows], prepend=0)
        found[way] = {
            "return": float(each.mean()),
            "return_interval_95": interval(each)[1:] if len(each) > 1 else None,
            "return_of_seeds": each.tolist(),
            "average_compression": float(np.average(compression, weights=timesteps)),
            "final_compression": float(compression[-1]),
            "wall_clock_s": rows[-1]["seconds"],
            "updates_per_s": float(np.median([row["updates_per_second"] for row in rows if row.get("critic_loss")])),
            "steps": rows[-1]["timesteps"],
            "updates": rows[-1]["update"],
        }
    if "dense" not in found:
        return found
    dense = found["dense"]
    for values in found.values():
        values["return_minus_dense"] = values["return"] - dense["return"]
        if values is not dense:
            difference = difference_interval(values["return_of_seeds"], dense["return_of_seeds"])
            values["return_minus_dense_interval_95"] = difference
        if dense["return"] > 0:
            values["return_over_dense"] = values["return"] / dense["return"]
    return found


def curves(settings: Settings) -> dict[str, dict[str, list[Any]]]:
    """Over training: timesteps, recent mean returns of the learners (None before the first), share not stored."""

    def returns(row: dict[str, Any]) -> list[float | None]:
        if "recent_mean" not in row:
            return [None] * settings.num_learners
        return [round(mean, 1) for mean in row.get("recent_mean_each", [row["recent_mean"]])]

    return {
        way: {
            "steps": [row["timesteps"] for row in rows],
            "returns": [returns(row) for row in rows],
            "compression": [round(row.get("compression", 0.0), 4) for row in rows],
        }
        for way, rows in rows_of(settings).items()
    }


def draw(settings: Settings, found: dict[str, dict[str, Any]], curves: dict[str, dict[str, list[Any]]]) -> Figure:
    """Return and compression over training, and average compression against what was learned."""
    figure = Figure(figsize=(14, 4.6), layout="constrained")
    by_return, by_compression, reached = figure.subplots(1, 3)
    colors = ("#000000", "#E69F00", "#D55E00", "#CC79A7", "#009E73", "#56B4E9", "#0072B2", "#7A3E9D", "#8C6D31")
    looks = dict(zip(get_args(Way), zip((*colors, "#999999"), (*"-------:", "--", "-."), strict=True), strict=True))
    marker = "" if settings.timesteps > 10 * settings.td3.timesteps_per_iteration else "."
    for way, curve in curves.items():
        color, style = looks[way]
        timesteps = np.array(curve["steps"]) / 1_000
        each = np.array(curve["returns"], float)
        by_return.plot(timesteps, each.mean(axis=1), style, marker=marker, color=color, label=way)
        by_return.fill_between(timesteps, each.min(axis=1), each.max(axis=1), color=color, alpha=0.1, linewidth=0)
        by_compression.plot(timesteps, 100 * np.array(curve["compression"]), style, marker=marker, color=color)
        x, y, returns = (found[way][name] for name in ("average_compression", "return", "return_of_seeds"))
        reached.plot([100 * x] * len(returns), returns, ".", color=color, alpha=0.5)
        reached.plot(100 * x, y, "D" if way.startswith("gst") else "o", color=color, markersize=7)
    if found.get("dense", {}).get("return", 0) > 0:
        reached.axhline(_EQUAL * found["dense"]["return"], color="0.5", linestyle="--", linewidth=0.8)
    by_return.set_ylabel("return of recent episodes: mean and range of learners")
    by_compression.set_ylabel("weights that need not be stored (%)")
    reached.set_xlabel("the same, mean over training (%)")
    reached.set_ylabel("return of the last policies; dashed: 95% of dense")
    for axes in (by_return, by_compression, reached):
        axes.grid(color="0.9", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (by_return, by_compression):
        axes.set_xlabel("timesteps (thousand)")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize="small")
    num_learners = settings.num_learners
    figure.suptitle(f"TD3 on {settings.task}, {num_learners} seed{'s' * (num_learners > 1)}")
    return figure


def report(found: dict[str, dict[str, Any]]) -> None:
    """Prints a line for each way."""
    head = ("way", "return", "of seeds", "compression: mean", "final", "wall-clock", "updates", "a second")
    print("{:18} {:>8}  {:24} {:>17} {:>6} {:>11} {:>9} {:>9}".format(*head))
    line = "{:18} {:8.0f}  {:24} {:17.1%} {:6.1%} {:9.0f} s {:9} {:9.0f}"
    names = ("average_compression", "final_compression", "wall_clock_s", "updates", "updates_per_s")
    for way, values in found.items():
        seeds = ", ".join(f"{value:.0f}" for value in values["return_of_seeds"])
        print(line.format(way, values["return"], seeds, *(values[name] for name in names)))


def check_settings(settings: Settings) -> None:
    """Raises ValueError if the directory holds runs with other settings, which could not be compared with these."""
    free = {"ways": (), "evaluate_every": None, "run_dir": "", "resume": False}
    path = Path(settings.run_dir) / "settings.json"
    text = json.dumps(to_json(dataclasses.replace(settings, **free)), indent=2) + "\n"
    if path.exists() and path.read_text() != text:
        raise ValueError(
            f"{settings.run_dir} holds runs with other settings, see {path}; use these, or another --run-dir"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, text)


def settings_of(args: list[str] | None = None) -> Settings:
    """The settings that flags give."""
    config = (tyro.conf.AvoidSubcommands, tyro.conf.OmitArgPrefixes)
    return tyro.cli(Settings, args=args, description=__doc__, config=config)


def main() -> int:
    settings, failed = settings_of(), []
    folder = run_path(settings.run_dir)
    for way in settings.ways:  # bad settings are refused before long work
        make_algorithm(settings, way).close()
        if not settings.resume:
            check_unused(folder / way)
    check_settings(settings)
    for way in settings.ways:
        try:
            print(f"{way}:", file=sys.stderr, flush=True)
            if code := train(settings, way):
                return code
        except FloatingPointError as error:
            print(f"error: {way}: {error}", file=sys.stderr)
            failed.append(way)
    found, over_training = results(settings), curves(settings)
    write_file(folder / "group_sparse.json", json.dumps({"ways": found}, indent=1) + "\n")
    write_file(folder / "curves.json", json.dumps(over_training) + "\n")
    draw(settings, found, over_training).savefig(folder / "group_sparse.png", dpi=100)
    report(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
