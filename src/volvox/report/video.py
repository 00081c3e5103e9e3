"""Videos of a policy playing."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from imageio_ffmpeg import get_ffmpeg_exe

from volvox._checks import integer
from volvox.envs.envpool_tasks import color_screen
from volvox.ops.batching import where_rows
from volvox.report.progress import in_notebook
from volvox.types import ArrayTree, Env, EnvGroup, Policy, TimeStep


class Recording(NamedTuple):
    """One recorded episode.

    Attributes:
      path: The MP4 file.
      episode_return: Undiscounted sum of unclipped rewards.
      length: Timesteps played; the video has one picture more, or as many as begin the episode.
    """

    path: Path
    episode_return: float
    length: int


def record_video(
    env: Env,
    policy: Policy,
    variables: ArrayTree,
    path: str | os.PathLike[str],
    *,
    seed: int = 0,
    max_episode_steps: int | None = None,
    fps: float | None = None,
) -> Recording:
    """Plays one episode greedily and films it.

    An Atari game is filmed in colour, as on its screen, three times enlarged: a second emulator with the same seed
    takes the same actions for the camera alone. Of other environments the newest channel of each observation is
    filmed, in grey and four times enlarged.

        record_video(env, algorithm.policy, algorithm.variables(state), "episode.mp4")
        record_video(env, algorithm.policy, run.variables("last"), "last.mp4", seed=3, fps=30)

    Args:
      env: Recipe of the environment; one copy of it is made, driven from Python, and closed again. Other than
        Atari's, its observations are uint8 images `[height, width, stack]`, the newest last.
      policy: Plays its mode.
      variables: What `policy.apply` takes.
      path: Where to write, ending in `.mp4`; its folder is made if missing.
      seed: The environment's seed.
      max_episode_steps: Timesteps after which the episode is cut; None is the environment's own limit.
      fps: Pictures per second; None is the emulator's own speed, 60 frames per second.

    Returns:
      The file, the episode's return and its length.

    Raises:
      ValueError: Observations that are not images, a path that does not end in `.mp4`, or `max_episode_steps` below 1.
      RuntimeError: The camera's emulator no longer shows the game that is played (this should never happen).
      OSError: ffmpeg failed, for example because the disk is full.
    """
    path, spec = Path(path), env.spec
    camera = color_screen(env)
    seen = [(np.dtype(x.dtype).name, list(x.shape)) for x in jax.tree.leaves(spec.observation)]
    if camera is None and [(dtype, len(shape)) for dtype, shape in seen] != [("uint8", 3)]:
        raise ValueError(
            f"{spec.name} cannot be filmed: a video needs uint8 images [height, width, stack] as observations, "
            f"got {' and '.join(f'{dtype} {shape}' for dtype, shape in seen)}"
        )
    if path.suffix != ".mp4":
        raise ValueError(f"a video's path ends in .mp4, got {path}")
    limit = integer(
        "max_episode_steps", spec.max_episode_steps if max_episode_steps is None else max_episode_steps, low=1
    )
    recipes = [env] if camera is None else [env, camera]
    groups: list[EnvGroup] = []
    channels, scale, pixels = (-1, 4, "gray") if camera is None else (slice(None), 3, "rgb24")
    height, width = (scale * side for side in recipes[-1].spec.observation_shape[:2])
    path.parent.mkdir(parents=True, exist_ok=True)
    # Absolute: ffmpeg takes the start of a path such as "pong:0" or "-x" for something else.
    unfinished = path.absolute().with_name(f".unfinished-{os.getpid()}-{path.name}")
    with ExitStack() as stack:
        for recipe in recipes:
            groups += recipe.make(seed, max_episode_steps=limit, num_envs=1, num_groups=1, host=True)
            stack.callback(groups[-1].close)
        form = f"-pix_fmt {pixels} -s {width}x{height} -r {fps or 60 / spec.frame_skip:g}"
        pipe = stack.enter_context(_mp4(unfinished, form))
        episode_return, length = 0.0, 0
        for timesteps in _episode(groups, policy, variables):
            played, filmed = timesteps[0], timesteps[-1]
            if camera is not None and not _same_game(played, filmed):
                raise RuntimeError(f"{spec.name}: the camera's emulator shows another game after timestep {length}")
            picture = np.asarray(filmed.observation)[0, :, :, channels]
            pipe.write(picture.repeat(scale, axis=0).repeat(scale, axis=1).tobytes())
            episode_return += float(played.reward[0])
            length += int(not played.first[0])
    os.replace(unfinished, path)
    return Recording(path, episode_return, length)


def show(path: str | os.PathLike[str]) -> None:
    """Shows a video in the notebook this runs in; elsewhere does nothing."""
    if in_notebook():
        from IPython.display import Video, display  # a notebook has it; scripts need not

        display(Video(str(path), embed=True))


@contextmanager
def _mp4(path: Path, form: str) -> Iterator[IO[bytes]]:
    """Encodes the pictures written to the pipe it gives: a file that is whole after the block, none if it raises.

    `form` describes the pictures to ffmpeg: their pixels, their size, and how many there are in a second.
    ffmpeg is run directly, since imageio would fork in a way that JAX's threads do not survive.
    """
    encoding = "-an -c:v libx264 -crf 20 -pix_fmt yuv420p -movflags +faststart -f mp4"
    options = f"-y -loglevel error -f rawvideo {form} -i - {encoding}"
    command = [get_ffmpeg_exe(), *options.split(), str(path)]
    with tempfile.TemporaryFile() as errors:
        # Its own process group: Ctrl-C is for us.
        encoder = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors, process_group=0)
        assert encoder.stdin is not None
        try:
            yield encoder.stdin
            encoder.communicate()
            if encoder.returncode != 0:
                raise BrokenPipeError
        except BaseException as error:
            encoder.kill()
            encoder.communicate()
            path.unlink(missing_ok=True)
            if not isinstance(error, BrokenPipeError):
                raise
            errors.seek(0)
            raise OSError(f"ffmpeg failed: {errors.read().decode(errors='replace').strip()}") from error


def _episode(groups: list[EnvGroup], policy: Policy, variables: ArrayTree) -> Iterator[list[TimeStep]]:
    """Plays one episode by what the first group shows; yields all groups' time steps, those that begin it included."""
    apply, mode = jax.jit(policy.apply), jax.jit(policy.mode)
    recurrent = policy.initial_state(1)
    states = [group.init() for group in groups]
    while True:
        replies = [group.recv(state) for group, state in zip(groups, states, strict=True)]
        yield [timestep for _, timestep in replies]
        played = replies[0][1]
        if played.terminated[0] or played.truncated[0]:
            return
        recurrent = where_rows(jnp.asarray(played.first), policy.initial_state(1), recurrent)
        output, recurrent = apply(variables, jnp.asarray(played.observation), recurrent)
        action = mode(output)
        states = [group.send(state, action) for group, (state, _) in zip(groups, replies, strict=True)]


def _same_game(played: TimeStep, filmed: TimeStep) -> bool:
    fields = [(step.reward, step.terminated, step.truncated, step.extras["ram"]) for step in (played, filmed)]
    return all(map(np.array_equal, *fields))
