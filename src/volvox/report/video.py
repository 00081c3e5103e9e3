"""Videos of a policy playing."""

import contextlib
import io
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from imageio_ffmpeg import count_frames_and_secs, get_ffmpeg_exe

from volvox._checks import integer
from volvox.envs.envpool_tasks import color_screen, whole_games
from volvox.report.plots import new_figure
from volvox.rollout.scoring import act
from volvox.types import ArrayTree, Env, EnvGroup, Policy

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.figure import Figure


class Recording(NamedTuple):
    """A recorded episode, or episodes of several policies side by side.

    Attributes:
      path: The MP4 file.
      episode_return: Undiscounted sum of unclipped rewards; the mean of several policies.
      length: Timesteps played, of the longest episode. The video also has a picture of the start of the episode.
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
    num_policies: int | None = None,
    seed: int = 0,
    max_episode_steps: int | None = None,
    fps: float | None = None,
) -> Recording:
    """Records one episode of the greedy policy, or one of each of several policies side by side.

    Atari games are recorded in the colours of their screen, enlarged three times: a second emulator with the same seed
    takes the same actions for the camera. Other environments draw themselves: tasks of envpool, Gymnasium's
    environments with `render_mode="rgb_array"`, and pure-JAX environments with `render`
    (`volvox.envs.from_functions`). Of all others the newest channel of each observation is recorded in grey, enlarged
    four times. envpool's MuJoCo draws with EGL and its driver (Debian: `apt-get install libegl1 libgl1-mesa-dri`).

        record_video(env, algorithm.policy, algorithm.variables(state), "episode.mp4")
        record_video(env, algorithm.policy, run.variables("last"), "last.mp4", seed=3, fps=30)

    Args:
      env: The environment.
      policy: The policy.
      variables: Variables of `policy.apply`.
      path: The video; its name ends in `.mp4`. Its directory is made if it is missing.
      num_policies: Number N of policies; leaves of `variables` are then `[N, ...]`. Each plays in an environment with a
        seed of its own. A picture whose episode has ended stands still. None: one policy.
      seed: Seed of the environments.
      max_episode_steps: Timesteps after which an episode is cut; None is the limit of the environment.
      fps: Pictures per second; None is the speed of the emulator on Atari (60 frames per second), otherwise 30.

    Raises:
      ValueError: The environment cannot be drawn and its observations are no uint8 images, or a number is below 1.
      OSError: ffmpeg failed, for example because the disk is full or it does not know the suffix of the name; or MuJoCo
        finds no EGL or no driver.
    """
    path, spec, camera = Path(path), env.spec, color_screen(env)
    limit = spec.max_episode_steps if max_episode_steps is None else max_episode_steps
    recipes, options = ([env], {"render_mode": "rgb_array"}) if camera is None else ([env, camera], whole_games(env))
    n = 1 if num_policies is None else integer("num_policies", num_policies, low=1)
    if num_policies is None:
        variables = jax.tree.map(lambda x: jnp.asarray(x)[None], variables)
    path.parent.mkdir(parents=True, exist_ok=True)
    # ffmpeg takes the start of relative paths such as "pong:0" or "-x" for something else.
    unfinished = path.absolute().with_name(f".unfinished-{os.getpid()}-{path.name}")
    greedy = jax.jit(jax.vmap(partial(act, policy, False, None)))
    recurrent = jax.tree.map(lambda x: jnp.stack([x] * n), policy.initial_state(1))
    groups: list[EnvGroup] = []
    encoder: Any = None
    with contextlib.ExitStack() as stack:
        stack.callback(unfinished.unlink, missing_ok=True)
        for recipe in recipes:
            groups += recipe.make(seed, max_episode_steps=limit, num_envs=n, num_groups=1, host=True, **options)
            stack.callback(groups[-1].close)
        render = groups[0].render
        images = [(x.dtype, x.ndim) for x in jax.tree.leaves(spec.split_mask(spec.observation)[0])] == [(np.uint8, 3)]
        if camera is None and render is None and not images:
            raise ValueError(
                f"{spec.name} cannot be drawn, and its observations are no uint8 images [height, width, stack]: give "
                "from_functions the argument render, or a class of Gymnasium the argument render_mode"
            )
        states = [group.init() for group in groups]
        returns, length, done, shown = np.zeros(n), 0, np.zeros(n, bool), None
        with contextlib.suppress(BrokenPipeError):  # ffmpeg failed; its exit code is checked below
            while not done.all():
                states, steps = zip(*(g.recv(x) for g, x in zip(groups, states, strict=True)), strict=True)
                step, scale = steps[0], 1
                if camera is not None:
                    pictures, scale = np.asarray(steps[1].observation), 3
                elif render is not None:
                    pictures = render(states[0])
                else:
                    (image,) = jax.tree.leaves(spec.split_mask(step.observation)[0])
                    pictures, scale = np.asarray(image)[..., -1:].repeat(3, axis=-1), 4
                shown = pictures if shown is None else np.where(done[:, None, None, None], shown, pictures)
                frame = _grid(shown, scale if n == 1 else 1)
                if encoder is None:
                    speed = 30 if camera is None else 60 / spec.frame_skip
                    encoder = stack.enter_context(_encoder(frame, unfinished, fps or speed))
                encoder.stdin.write(frame.tobytes())
                returns += np.where(done, 0.0, step.reward)
                length += int(not np.asarray(step.first)[~done].all())
                done = done | np.asarray(step.terminated) | np.asarray(step.truncated)
                if not done.all():
                    batches = jax.tree.map(lambda x: jnp.asarray(x)[:, None], step._replace(extras={}))
                    action, recurrent = greedy(variables, batches, recurrent)
                    states = [group.send(x, action[:, 0]) for group, x in zip(groups, states, strict=True)]
        assert encoder is not None
        _, errors = encoder.communicate()
        if encoder.returncode != 0:
            raise OSError(f"ffmpeg failed: {errors.decode(errors='replace').strip()}")
        os.replace(unfinished, path)
    return Recording(path, float(returns.mean()), length)


def filmstrip(path: str | os.PathLike[str], num_frames: int = 6) -> "Figure":
    """Draws frames of a video side by side, evenly spaced from the first to the last.

        vx.report.filmstrip(run.watch())

    Args:
      path: The video.
      num_frames: Number of frames.

    Raises:
      ValueError: `num_frames` is below 2.
      RuntimeError: ffmpeg cannot read the video.
    """
    from matplotlib.image import imread

    integer("num_frames", num_frames, low=2)
    path = str(Path(path).absolute())
    last = count_frames_and_secs(path)[0] - 1  # pyright: ignore[reportOptionalOperand]  # an int
    chosen = "+".join(f"eq(n,{round(i)})" for i in np.linspace(0, last, num_frames))
    join = f"select='{chosen}',tile={num_frames}x1:padding=8:color=white"
    options = ["-vf", join, "-frames:v", "1", "-f", "image2pipe", "-c:v", "png", "-"]
    joined = subprocess.run([get_ffmpeg_exe(), "-i", path, *options], check=True, capture_output=True)
    picture = imread(io.BytesIO(joined.stdout))
    figure = new_figure(figsize=(12, 12 * picture.shape[0] / picture.shape[1]))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(picture)
    axes.set_axis_off()
    return figure


def _grid(pictures: np.ndarray, scale: int) -> np.ndarray:
    """Joins pictures `[N, height, width, 3]` to one of even height and width, row by row."""
    pictures = pictures.repeat(scale, axis=1).repeat(scale, axis=2)
    n, height, width, _ = pictures.shape
    columns = math.ceil(math.sqrt(n))
    pictures = np.pad(pictures, [(0, -n % columns), (0, height % 2), (0, width % 2), (0, 0)])
    rows = pictures.reshape(-1, columns, *pictures.shape[1:]).swapaxes(1, 2)
    return rows.reshape(rows.shape[0] * rows.shape[1], -1, 3)


def _encoder(frame: np.ndarray, path: Path, fps: float) -> Any:
    """Starts ffmpeg, which reads frames of this size and writes the file."""
    source = f"-f rawvideo -pix_fmt rgb24 -s {frame.shape[1]}x{frame.shape[0]} -r {fps:g} -i -"
    target = "-an -c:v libx264 -crf 20 -pix_fmt yuv420p -movflags +faststart"
    command = [get_ffmpeg_exe(), "-y", "-loglevel", "error", *source.split(), *target.split(), str(path)]
    # Its own process group: Ctrl-C is for this process. imageio's writer would fork, which JAX does not survive.
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0)


def show(path: str | os.PathLike[str]) -> None:
    """Shows a video if the program runs in a notebook."""
    if "ipykernel" in sys.modules:
        from IPython.display import Video, display

        display(Video(str(path), embed=True))
