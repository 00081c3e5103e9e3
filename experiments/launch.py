"""What the experiment scripts share: running an algorithm in a run directory, and scoring what came of it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import volvox as vx


def launch(
    make_algorithm: Callable[[], tuple[vx.types.Algorithm, int]],
    settings: Any,
    *,
    step_name: str,
    learned: str,
) -> int:
    """Trains, scores and films; returns what the script should exit with: 2 for bad settings, after one line.

    Args:
      make_algorithm: () -> (algorithm, its steps in all); raises ValueError for bad settings.
      settings: the script's flags, `seed`, `run_dir`, `resume`, `minutes`, `checkpoint_every`, `video` and
        `score_episodes` among them.
      step_name: what a step is called.
      learned: what the result is called beside random play, e.g. "elite".
    """
    try:
        if settings.score_episodes < 0:
            raise ValueError(f"score_episodes={settings.score_episodes}: give the number of episodes, or 0 for none.")
        if settings.minutes is not None and not settings.minutes > 0:
            raise ValueError(f"minutes={settings.minutes}: give a positive number of minutes, or leave it out.")
        algorithm, steps = make_algorithm()
        run = vx.train(
            algorithm,
            jax.random.key(settings.seed),
            steps=steps,
            run_dir=settings.run_dir,
            resume=settings.resume,
            checkpoint_every=settings.checkpoint_every,
            stop_after=None if settings.minutes is None else 60 * settings.minutes,
            step_name=step_name,
        )
    except (ValueError, FileExistsError, BlockingIOError, vx.checkpoint.DamagedCheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    if not run.interrupted and run.metrics:
        algorithm.close()
        if settings.score_episodes:
            score(settings, run, learned)
        if settings.video:
            run.watch()
    return run.exit_code


def score(settings: Any, run: vx.Run, learned: str) -> None:
    """Plays fresh episodes with what was learned and at random; prints and writes both with 95% intervals."""
    env = run.algorithm.env
    seed = settings.seed + 1_000_003  # episodes that training has not seen
    scores = {
        learned: vx.rollout.play(
            env, run.algorithm.network, run.policy(), num_episodes=settings.score_episodes, seed=seed
        ),
        "random": vx.rollout.play_randomly(env, num_episodes=settings.score_episodes, seed=seed),
    }
    written = {}
    for name, result in scores.items():
        print(
            f"{name}: {result.mean:.1f} [{result.low:.1f}, {result.high:.1f}] over {settings.score_episodes} episodes"
        )
        written[name] = {
            "mean": result.mean,
            "interval_95": [result.low, result.high],
            "returns": result.returns.tolist(),
            "lengths": result.lengths.tolist(),
        }
    (Path(settings.run_dir) / "score.json").write_text(json.dumps(written, indent=1) + "\n")
