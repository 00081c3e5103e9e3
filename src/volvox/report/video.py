"""Videos of a policy playing."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from imageio_ffmpeg import get_ffmpeg_exe

from volvox.envs.envpool_tasks import color_screen
from volvox.ops.batching import where_rows
from volvox.types import ArrayTree, Env, Policy


class Recording(NamedTuple):
    """A recorded episode.

    Attributes:
      path: The MP4 file.
      episode_return: Undiscounted sum of unclipped rewards.
      length: Timesteps played. The video also has a picture of the start of the episode.
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
    """Records one episode of the greedy policy.

    Atari games are recorded in the colours of their screen, enlarged three times: a second emulator with the same seed
    takes the same actions for the camera. For other environments the newest channel of each observation is recorded
    in grey, enlarged four times.

        record_video(env, algorithm.policy, algorithm.variables(state), "episode.mp4")
        record_video(env, algorithm.policy, run.variables("last"), "last.mp4", seed=3, fps=30)

    Args:
      env: The environment. Except for Atari, its observations must be uint8 images `[height, width, stack]`.
      policy: The policy.
      variables: Variables of `policy.apply`.
      path: The video; its name ends in `.mp4`. Its directory is made if it is missing.
      seed: Seed of the environment.
      max_episode_steps: Timesteps after which the episode is cut; None is the limit of the environment.
      fps: Pictures per second; None is the speed of the emulator, 60 frames per second.

    Raises:
      ValueError: Observations are not images, or `max_episode_steps` is below 1.
      OSError: ffmpeg failed, for example because the disk is full or it does not know the suffix of the name.
    """
    path, spec, camera = Path(path), env.spec, color_screen(env)
    observations = [(x.dtype, x.ndim) for x in jax.tree.leaves(spec.observation)]
    if camera is None and observations != [(np.uint8, 3)]:
        raise ValueError(f"a video needs uint8 images [height, width, stack]; {spec.name} has {spec.observation}")
    limit = spec.max_episode_steps if max_episode_steps is None else max_episode_steps
    recipes = [env] if camera is None else [env, camera]
    channels, scale, pixels = (-1, 4, "gray") if camera is None else (slice(None), 3, "rgb24")
    height, width = (scale * side for side in recipes[-1].spec.observation_shape[:2])
    path.parent.mkdir(parents=True, exist_ok=True)
    # ffmpeg takes the start of relative paths such as "pong:0" or "-x" for something else.
    unfinished = path.absolute().with_name(f".unfinished-{os.getpid()}-{path.name}")
    source = f"-f rawvideo -pix_fmt {pixels} -s {width}x{height} -r {fps or 60 / spec.frame_skip:g} -i -"
    target = "-an -c:v libx264 -crf 20 -pix_fmt yuv420p -movflags +faststart"
    command = [get_ffmpeg_exe(), "-y", "-loglevel", "error", *source.split(), *target.split(), str(unfinished)]
    apply, mode, groups = jax.jit(policy.apply), jax.jit(policy.mode), []
    with contextlib.ExitStack() as stack:
        stack.callback(unfinished.unlink, missing_ok=True)
        for recipe in recipes:
            groups += recipe.make(seed, max_episode_steps=limit, num_envs=1, num_groups=1, host=True)
            stack.callback(groups[-1].close)
        # Its own process group: Ctrl-C is for this process. imageio's writer would fork, which JAX does not survive.
        started = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0)
        encoder: Any = stack.enter_context(started)
        states, recurrent = [group.init() for group in groups], policy.initial_state(1)
        episode_return, length, done = 0.0, 0, False
        with contextlib.suppress(BrokenPipeError):  # ffmpeg failed; its exit code is checked below
            while not done:
                states, steps = zip(*(g.recv(x) for g, x in zip(groups, states, strict=True)), strict=True)
                step, picture = steps[0], np.asarray(steps[-1].observation)[0, :, :, channels]
                encoder.stdin.write(picture.repeat(scale, axis=0).repeat(scale, axis=1).tobytes())
                episode_return += float(step.reward[0])
                length += int(not step.first[0])
                done = bool(step.terminated[0] or step.truncated[0])
                if not done:
                    recurrent = where_rows(jnp.asarray(step.first), policy.initial_state(1), recurrent)
                    output, recurrent = apply(variables, jnp.asarray(step.observation), recurrent)
                    states = [group.send(x, mode(output)) for group, x in zip(groups, states, strict=True)]
        _, errors = encoder.communicate()
        if encoder.returncode != 0:
            raise OSError(f"ffmpeg failed: {errors.decode(errors='replace').strip()}")
        os.replace(unfinished, path)
    return Recording(path, episode_return, length)


def show(path: str | os.PathLike[str]) -> None:
    """Shows a video if the program runs in a notebook."""
    if "ipykernel" in sys.modules:
        from IPython.display import Video, display

        display(Video(str(path), embed=True))
