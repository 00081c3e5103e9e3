"""Videos of a policy playing."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from imageio_ffmpeg import get_ffmpeg_exe

from volvox.envs.ale import color_screen
from volvox.loop.evaluator import greedy_action
from volvox.ops.batching import where_rows
from volvox.report.progress import in_notebook
from volvox.types import Array, ArrayTree, Env, EnvGroup, Policy, TimeStep


class Recording(NamedTuple):
    """One recorded episode.

    Attributes:
      path: The MP4 file.
      episode_return: Undiscounted sum of unclipped rewards.
      length: Steps played; the video has one picture more, or as many as begin the episode.
    """

    path: Path
    episode_return: float
    length: int


def record_video(
    env: Env,
    network: Policy,
    params: ArrayTree,
    path: str | os.PathLike[str],
    *,
    seed: int = 0,
    max_steps: int | None = None,
    fps: float | None = None,
) -> Recording:
    """Plays one episode greedily and films it.

    An Atari game is filmed in colour, as on its screen, three times enlarged: a second emulator with the same seed
    takes the same actions for the camera alone. Of other environments the newest channel of each observation is
    filmed, in grey and four times enlarged.

    Args:
        env: recipe of the environment; one copy of it is made, driven from Python, and closed again. But for Atari its
            observations are uint8 images `[height, width, stack]`, the newest last.
        network: the policy; its output is logits `[1, num_actions]`, or one continuous action, flat.
        params: the network's parameters, as `Policy.prepare` takes them.
        path: where to write, ending in `.mp4`; its folder is made if missing.
        seed: the environment's seed.
        max_steps: steps after which the episode is cut; None is the environment's own limit.
        fps: pictures per second; None is the emulator's own speed, 60 frames per second.

    Returns:
        The file, the episode's return and its length.

    Raises:
        ValueError: observations that are no images, a path that is no `.mp4`, or `max_steps` below 1.
        RuntimeError: the camera's emulator lost step with the one that is played (it never should), or ffmpeg failed.
    """
    path, spec = Path(path), env.spec
    camera = color_screen(env)
    if camera is None and (len(spec.observation_shape) != 3 or np.dtype(spec.observation_dtype) != np.uint8):
        raise ValueError(
            f"{spec.name} cannot be filmed: a video needs uint8 images [height, width, stack] as observations, "
            f"got {np.dtype(spec.observation_dtype)} {list(spec.observation_shape)}"
        )
    if path.suffix != ".mp4":
        raise ValueError(f"a video's path ends in .mp4, got {path}")
    limit = spec.max_episode_steps if max_steps is None else max_steps
    if limit < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")

    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".unfinished-{path.name}")
    groups: list[EnvGroup] = []
    with ExitStack() as stack:
        for recipe in (env,) if camera is None else (env, camera):
            groups += recipe.make(seed, max_episode_steps=limit, num_envs=1, num_groups=1, host=True)
            stack.callback(groups[-1].close)
        write = stack.enter_context(_mp4(unfinished, fps or 60 / spec.frame_skip))
        episode_return, length = 0.0, 0
        for timesteps in _episode(groups, network, params, limit):
            played, filmed = timesteps[0], timesteps[-1]
            if camera is not None and not _in_step(played, filmed):
                raise RuntimeError(f"{spec.name}: the camera's emulator shows another game after step {length}")
            write(_picture(filmed.observation, colour=camera is not None))
            episode_return += float(played.reward[0])
            length += int(not played.first[0])
    os.replace(unfinished, path)
    return Recording(path, episode_return, length)


@contextmanager
def _mp4(path: Path, fps: float) -> Iterator[Callable[[np.ndarray], None]]:
    """Opens a video; gives the function that adds a picture: uint8 `[height, width]` or `[.., 3]`, even sides.

    The file is whole after the block, and removed if the block raises. ffmpeg is run directly, since imageio would fork
    in a way that JAX's threads do not survive.
    """
    encoders: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryFile() as errors:

        def write(picture: np.ndarray) -> None:
            if not encoders:
                height, width = picture.shape[:2]
                pixels = "rgb24" if picture.ndim == 3 else "gray"
                given = f"-f rawvideo -pix_fmt {pixels} -s {width}x{height} -r {fps:g} -i -"
                made = "-an -c:v libx264 -crf 20 -pix_fmt yuv420p -movflags +faststart -f mp4"
                command = [get_ffmpeg_exe(), "-y", "-loglevel", "error", *given.split(), *made.split(), str(path)]
                # Its own process group: Ctrl-C is for us.
                encoders.append(subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors, process_group=0))
            pipe = encoders[0].stdin
            assert pipe is not None
            try:
                pipe.write(np.ascontiguousarray(picture).tobytes())
            except BrokenPipeError as error:
                raise RuntimeError(f"ffmpeg ended early: {_text(errors)}") from error

        try:
            yield write
            for encoder in encoders:
                encoder.communicate()
                if encoder.returncode != 0:
                    raise RuntimeError(f"ffmpeg failed: {_text(errors)}")
        except BaseException:
            for encoder in encoders:
                encoder.kill()
                encoder.communicate()
            path.unlink(missing_ok=True)
            raise


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").strip()


def _episode(groups: list[EnvGroup], network: Policy, params: ArrayTree, limit: int) -> Iterator[list[TimeStep]]:
    """Plays one episode by what the first group shows; yields all groups' time steps, those that begin it included."""
    spec = groups[0].spec
    variables, apply = network.prepare(params), jax.jit(network.apply)
    memory = network.initial_state(1)
    states = [group.init() for group in groups]
    length = 0
    while True:
        replies = [group.recv(state) for group, state in zip(groups, states, strict=True)]
        yield [timestep for _, timestep in replies]
        played = replies[0][1]
        length += int(not played.first[0])
        if length == limit or played.terminated[0] or played.truncated[0]:
            return
        memory = where_rows(jnp.asarray(played.first), network.initial_state(1), memory)
        output, memory = apply(variables, jnp.asarray(played.observation), memory, None)
        action = greedy_action(spec)(output)
        states = [group.send(state, action) for group, (state, _) in zip(groups, replies, strict=True)]


def _in_step(played: TimeStep, filmed: TimeStep) -> bool:
    return all(
        np.array_equal(a, b)
        for a, b in (
            (played.reward, filmed.reward),
            (played.terminated, filmed.terminated),
            (played.truncated, filmed.truncated),
            (played.extras["ram"], filmed.extras["ram"]),
        )
    )


def show(path: str | os.PathLike[str]) -> None:
    """Shows a video in the notebook this runs in; elsewhere does nothing."""
    if in_notebook():
        from IPython.display import Video, display  # a notebook has it; scripts need not

        display(Video(str(path), embed=True))


def _picture(observation: Array, *, colour: bool) -> np.ndarray:
    """uint8 `[1, height, width, C]` -> uint8 `[3 height, 3 width, 3]` in colour, `[4 height, 4 width]` in grey."""
    picture = np.asarray(observation)[0]
    if not colour:
        picture = picture[:, :, -1]
    scale = 3 if colour else 4
    return picture.repeat(scale, axis=0).repeat(scale, axis=1)
