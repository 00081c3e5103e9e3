"""What the scripts write of a run's score: `score.json`, and with what, where and when results were made."""

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
from volvox.runs.provenance import processor, provenance, versions


def keep_score(run: vx.Run, episodes: int, *, seed: int, sampled: bool) -> None:
    """Scores a run and writes `score.json`, unless it is there already.

    Args:
      run: The run, which has a directory.
      episodes: Of each protocol but `exact`, which plays each start once.
      seed: That of training; scores begin from other starts.
      sampled: Score drawn actions too, not only the likeliest.
    """
    assert run.run_dir is not None
    path, of = Path(run.run_dir) / "score.json", scored_of(run, episodes)
    with contextlib.suppress(FileNotFoundError, ValueError):  # one that is no JSON is written anew
        if json.loads(path.read_text()).get("of") == of:
            return
    scores = scores_of(run, episodes, seed=seed, sampled=sampled)
    written = {name: score_values(result) for name, result in scores.items()} | {"of": of}
    write_file(path, json.dumps(written, indent=1) + "\n")
    with contextlib.suppress(OSError):  # the terminal may be gone
        print("\n".join(f"{name}: {result}" for name, result in scores.items()), flush=True)


def scores_of(run: vx.Run, episodes: int, *, seed: int, sampled: bool) -> dict[str, vx.Score]:
    """Scores of the result and of random play, by every protocol there is for the environment; see `keep_score`."""
    env, seed = run.algorithm.env, seed + 1_000_003  # other starts than those of training
    play = partial(vx.play, env, run.algorithm.policy, run.variables(), seed=seed)
    name = "elite" if run.algorithm.genome else "policy"
    scores = {name: play(num_episodes=episodes)}
    if scores[name].protocol == "sticky":
        scores[f"{name}, exact"] = play(protocol="exact")
    if sampled:
        scores[f"{name}, sampled"] = play(num_episodes=episodes, sampled=True)
    if evaluated(run):
        scores[f"{name}, last"] = run.evaluate(episodes, which="last", seed=seed)
    scores["random"] = vx.play_randomly(env, num_episodes=episodes, seed=seed)
    return scores


def scored_of(run: vx.Run, episodes: int) -> dict[str, Any]:
    """What a score is of: by it a run that was resumed with nothing left to do is not scored again."""
    last = run.algorithm.last_variables is not None and not evaluated(run)  # of populations it is the best
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(run.variables()):
        digest.update(np.asarray(leaf).tobytes())
    which = "last" if last else "best"
    return {"steps": len(run.metrics), "episodes": episodes, "which": which, "network": digest.hexdigest()[:16]}


def evaluated(run: vx.Run) -> bool:
    """Whether a learner was evaluated while it learned, so that its best policy may be another than the last."""
    return any("evaluation_mean" in row for row in run.metrics)


def score_values(score: vx.Score) -> dict[str, Any]:
    """A score as JSON values."""
    return {
        "mean": score.mean,
        "interval_95": None if score.low is None else [score.low, score.high],
        "protocol": score.protocol,
        "about": score.about,
        "human_normalized": score.human_normalized,
        "returns": score.returns.tolist(),
        "lengths": score.lengths.tolist(),
    }


def made_with(settings: Any) -> dict[str, Any]:
    """`settings` of a study as JSON values, `versions`, and `provenance`: what it writes beside its results."""
    values = dataclasses.asdict(settings)
    for name in ("resume", "run_dir"):
        values.pop(name, None)
    return {"settings": values, "versions": versions(), "provenance": provenance()}


def made_here() -> dict[str, str]:
    """`hardware`, as in "2 CPUs, AMD EPYC": the CPUs that this process may use; and `date`, today's in UTC."""
    cpus = len(os.sched_getaffinity(0))
    hardware = f"{cpus} CPU{'s' * (cpus != 1)}, {processor()}"
    return {"hardware": hardware, "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
