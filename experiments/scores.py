"""Scores of runs as the scripts write them, statistics of scores, and the versions, machine and date of results."""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import volvox as vx
from volvox.report.files import write_file
from volvox.runs.directory import processor, provenance, versions


def keep_score(run: vx.Run, episodes: int, *, seed: int, sampled: bool) -> None:
    """Scores the result of a run and random play; skipped if `score.json` has the scores of the same policy.

    Args:
      run: The run, which has a directory.
      episodes: Episodes of each protocol but `exact`, which plays each start once.
      seed: Seed of training; scores use other starts.
      sampled: Also score sampled actions.
    """
    assert run.run_dir is not None
    path, of = Path(run.run_dir) / "score.json", scored_policy(run, episodes)
    with contextlib.suppress(FileNotFoundError, ValueError):  # ValueError: the file is damaged
        if json.loads(path.read_text()).get("of") == of:
            return
    env, seed = run.algorithm.env, seed + 1_000_003  # other starts than those of training
    play = partial(vx.play, env, run.algorithm.policy, run.variables(), seed=seed)
    name = "elite" if run.algorithm.genome else "policy"
    scores = {name: play(num_episodes=episodes)}
    if scores[name].protocol == "sticky":
        scores[f"{name}, exact"] = play(protocol="exact")
    if sampled:
        scores[f"{name}, sampled"] = play(num_episodes=episodes, sampled=True)
    if was_evaluated(run):
        scores[f"{name}, last"] = run.evaluate(episodes, which="last", seed=seed)
    scores["random"] = vx.play_randomly(env, num_episodes=episodes, seed=seed)
    values = {name: score_values(score) for name, score in scores.items()} | {"of": of}
    write_file(path, json.dumps(values, indent=1) + "\n")
    with contextlib.suppress(OSError):  # the terminal may be gone
        print("\n".join(f"{name}: {score}" for name, score in scores.items()), flush=True)


def scored_policy(run: vx.Run, episodes: int) -> dict[str, Any]:
    """Describes the policy of a score, so that a resumed run that is already complete is not scored again."""
    is_last = run.algorithm.last_variables is not None and not was_evaluated(run)
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(run.variables()):
        digest.update(np.asarray(leaf).tobytes())
    which = "last" if is_last else "best"
    return {"steps": len(run.metrics), "episodes": episodes, "which": which, "network": digest.hexdigest()[:16]}


def was_evaluated(run: vx.Run) -> bool:
    """Whether a learner was evaluated during training, so that its best policy may differ from the last one."""
    return any("evaluation_mean" in row for row in run.metrics)


def score_values(score: vx.Score) -> dict[str, Any]:
    """Returns a score as JSON values."""
    return {
        "mean": score.mean,
        "interval_95": None if score.low is None else [score.low, score.high],
        "protocol": score.protocol,
        "about": score.about,
        "human_normalized": score.human_normalized,
        "returns": score.returns.tolist(),
        "lengths": score.lengths.tolist(),
    }


def interval(values: np.ndarray) -> list[float]:
    """Returns the mean of `[S]` numbers, and its 95% interval by Student's t."""
    from scipy import stats  # takes half a second

    mean = float(np.mean(values))
    if np.ptp(values) == 0:
        return [mean, mean, mean]
    low, high = stats.t.interval(0.95, len(values) - 1, mean, stats.sem(values))
    return [mean, float(low), float(high)]


def p_value(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Returns the two-sided p-value of Welch's t-test."""
    from scipy import stats

    if np.ptp(ours) == np.ptp(theirs) == 0:
        return float(ours[0] == theirs[0])
    samples = [number for x in (ours, theirs) for number in (x.mean(), x.std(ddof=1), len(x))]
    return float(stats.ttest_ind_from_stats(*samples, equal_var=False)[1])


def difference_interval(ours: list[float], theirs: list[float]) -> list[float] | None:
    """Returns the 95% interval of the difference of two means by Welch's t-test; None for a single number."""
    from scipy import stats

    if min(len(ours), len(theirs)) < 2:
        return None
    found = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    return [float(found.low), float(found.high)]


def made_with(settings: Any) -> dict[str, Any]:
    """Returns the settings of a study as JSON values, versions and provenance, which it writes beside its results."""
    values = {name: value for name, value in dataclasses.asdict(settings).items() if name not in ("resume", "run_dir")}
    return {"settings": values, "versions": versions(), "provenance": provenance()}


def hardware_and_date() -> dict[str, str]:
    """Returns the `hardware`, such as "2 CPUs, AMD EPYC" (those that this process may use), and the `date` in UTC."""
    cpus = len(os.sched_getaffinity(0))
    hardware = f"{cpus} CPU{'s' * (cpus != 1)}, {processor()}"
    return {"hardware": hardware, "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
