"""What `volvox.train` returns."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from volvox.report import plots, video
from volvox.report.rows import Row
from volvox.types import Algorithm, ArrayTree

PLOT = "learning_curve.png"
"""The learning curve's name in a run directory."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of `volvox.train`, as far as it got.

        run = vx.train(algorithm, steps=10, run_dir="runs/a")
        run.plot()
        run.watch()
        print(vx.play(env, algorithm.policy, run.variables()))

    Attributes:
      algorithm: As given.
      state: The algorithm's state after the last completed step.
      metrics: One row a completed step, those before a resume included.
      run_dir: The run directory, if there is one.
      interrupted: A signal (Ctrl-C, SIGTERM) ended the run early.
      exit_code: What a script should exit with (`sys.exit(run.exit_code)`): 0, or 128 + the signal's number: 130 for
        Ctrl-C.
    """

    algorithm: Algorithm = dataclasses.field(repr=False)
    state: Any = dataclasses.field(repr=False)
    metrics: list[Row] = dataclasses.field(repr=False)
    run_dir: Path | None
    interrupted: bool
    exit_code: int

    def variables(self) -> ArrayTree:
        """Returns what `algorithm.policy.apply` takes: the best so far, or the latest where nothing ranks them."""
        return self.algorithm.variables(self.state)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draws the learning curve; see `volvox.report.learning_curve`.

        Args:
          path: where to write the PNG; by default `learning_curve.png` in the run directory, if there is one.
        """
        if path is None and self.run_dir is not None:
            path = self.run_dir / PLOT
        return plots.learning_curve(self.metrics, path, title=self.algorithm.env.spec.name)

    def watch(self, path: str | os.PathLike[str] | None = None, *, seed: int = 0, max_steps: int | None = None) -> Path:
        """Records the policy playing one episode, greedily; a notebook shows it.

        Args:
          path: where to write the MP4; by default `episode.mp4` in the run directory.
          seed: the environment's seed.
          max_steps: steps after which the episode is cut; by default the environment's limit.

        Returns:
          The video's path. Its return and length are printed.

        Raises:
          ValueError: neither a path nor a run directory, or observations that are no images.
        """
        if path is None:
            if self.run_dir is None:
                raise ValueError("this run has no run directory: say where to write the video: watch('episode.mp4')")
            path = self.run_dir / "episode.mp4"
        recorded = video.record_video(
            self.algorithm.env, self.algorithm.policy, self.variables(), path, seed=seed, max_steps=max_steps
        )
        print(f"{recorded.path}: return {recorded.episode_return:g} in {recorded.length} steps")
        video.show(recorded.path)
        return recorded.path
