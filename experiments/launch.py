"""What the experiment scripts share: running an algorithm in a run directory, and scoring what came of it."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import jax
import tyro

import volvox as vx

Flag = tyro.conf.arg


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Flags that every script has."""

    run_dir: Annotated[str, Flag(help="where config, metrics, checkpoints, picture and video go")]
    seed: Annotated[int, Flag(help="fixes all random numbers but the emulators' history")] = 0
    resume: Annotated[bool, Flag(help="go on with the run in --run-dir")] = False
    minutes: Annotated[float | None, Flag(help="begin no further step after so many minutes")] = None
    checkpoint_every: Annotated[int, Flag(help="steps (rows of metrics) between checkpoints")] = 1
    video: Annotated[bool, Flag(help="film what was learned, where observations are images")] = True
    score_episodes: Annotated[
        int, Flag(help="at the end, play so many fresh episodes with what was learned and at random; 0: none")
    ] = 0


def launch(
    make_algorithm: Callable[[], tuple[vx.types.Algorithm, int]],
    settings: RunSettings,
    *,
    step_name: str,
    learned: str,
    sampled: bool = False,
) -> int:
    """Trains, scores and films; returns what the script should exit with: 2 for bad settings, after one line.

    Args:
      make_algorithm: () -> (algorithm, its steps in all); raises ValueError for bad settings.
      settings: the flags that every script has.
      step_name: what a step is called.
      learned: what the result is called beside random play, e.g. "elite".
      sampled: score it with drawn actions too, not only with the likeliest.
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
            score(settings, run, learned, sampled=sampled)
        if settings.video and len(run.algorithm.env.spec.observation_shape) == 3:
            run.watch()
    return run.exit_code


def score(settings: RunSettings, run: vx.Run, learned: str, *, sampled: bool) -> None:
    """Plays fresh episodes with what was learned and at random; prints and writes all with 95% intervals."""
    env = run.algorithm.env
    seed = settings.seed + 1_000_003  # episodes that training has not seen
    count = settings.score_episodes
    scores = {learned: vx.rollout.play(env, run.algorithm.network, run.policy(), num_episodes=count, seed=seed)}
    if sampled:
        scores[f"{learned}, sampled"] = vx.rollout.play(
            env, run.algorithm.network, run.policy(), num_episodes=count, sampled=True, seed=seed
        )
    scores["random"] = vx.rollout.play_randomly(env, num_episodes=count, seed=seed)
    written = {}
    for name, result in scores.items():
        print(f"{name}: {result.mean:.1f} [{result.low:.1f}, {result.high:.1f}] over {count} episodes")
        written[name] = {
            "mean": result.mean,
            "interval_95": [result.low, result.high],
            "returns": result.returns.tolist(),
            "lengths": result.lengths.tolist(),
        }
    (Path(settings.run_dir) / "score.json").write_text(json.dumps(written, indent=1) + "\n")
