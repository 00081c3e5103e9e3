"""Building blocks for authors of environments.

A group is a `volvox.types.EnvGroup`: `num_envs` environments that step together. Its author writes `init`, `recv`,
`send` and `restart`. `recipe` makes an `Env` of such groups, `consistent` corrects timesteps, and `checked_action` and
`bounded_action` check actions. Environments that are pure functions need none of this: use
`volvox.envs.from_functions`.

Example: environments that count their timesteps, and end when action 1 is sent.

>>> import jax.numpy as jnp
>>> import numpy as np
>>> from volvox.envs import groups
>>> from volvox.types import EnvGroup, EnvSpec, TimeStep
>>> def counter(spec, num_envs, *, index, seed, host):
...     def init():  # (count, the next observation begins an episode)
...         return jnp.zeros(num_envs, jnp.int32), jnp.ones(num_envs, bool), jnp.zeros(num_envs, jnp.int32)
...     def recv(state):
...         count, first, action = state
...         count = jnp.where(first, 0, count + 1)
...         timestep = TimeStep(
...             observation=count[:, None].astype(jnp.float32),
...             reward=jnp.ones(num_envs),
...             first=first,
...             terminated=action == 1,
...             truncated=count >= spec.max_episode_steps,
...             extras={"elapsed_steps": count},
...         )
...         timestep = groups.consistent(timestep)  # no reward and no end at `first`
...         return (count, timestep.terminated | timestep.truncated, action), timestep
...     def send(state, action):
...         return *state[:2], groups.checked_action(spec, num_envs, jnp.asarray(action))
...     def restart(state, seed=None):
...         return init()
...     return EnvGroup(spec, num_envs, not host, init, recv, send, restart, close=lambda: None)
>>> spec = EnvSpec(
...     name="counter",
...     observation_shape=(1,),
...     observation_dtype=np.dtype(np.float32),
...     num_actions=2,
...     action_shape=None,
...     action_low=None,
...     action_high=None,
...     max_episode_steps=10,
...     frame_skip=1,
...     extras=("elapsed_steps",),
... )
>>> env = groups.recipe(spec, counter, num_envs=4, groups=2, config={"type": "my_module.counter"})
>>> one, other = env.make(seed=0)
>>> state, timestep = one.recv(one.init())
>>> timestep.first.tolist(), timestep.reward.tolist()
([True, True], [0.0, 0.0])
>>> state, timestep = one.recv(one.send(state, np.array([0, 1])))
>>> timestep.terminated.tolist(), timestep.reward.tolist()
([False, True], [1.0, 1.0])
"""

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import integer
from volvox.types import ArrayTree, Config, Env, EnvGroup, EnvSpec, TimeStep


def recipe(
    spec: EnvSpec, make_group: Callable[..., EnvGroup], *, num_envs: int, groups: int, config: Config | None = None
) -> Env:
    """Makes the recipe of an environment from a function that makes one group of it.

    Observations are converted by `convert_observation`: images get their channels last, and numbers of 64 bits become
    numbers of 32 bits.

    Args:
      spec: The environment; images may have their channels first.
      make_group: `(spec, num_envs, *, index, seed, host, **options) -> group`. `spec.max_episode_steps` is the cutoff
        of this group, `index` numbers the groups from 0, `seed` is an int from 0 to 2**32 - 1 that all groups share, a
        group with `host` is driven from Python, and `options` are the other options of `Env.make`, `render_mode` only
        if the function names it.
      num_envs: Environments in all groups together.
      groups: Number of groups; a divisor of `num_envs`.
      config: `Env.config`: {"type": the public path of the function that makes this recipe, its arguments}.

    Returns:
      The recipe. Its `make` raises ValueError if a number is out of range or groups would not be equal.

    Raises:
      ValueError: `num_envs`, `groups` or `spec.max_episode_steps` is not a positive integer, or groups would differ in
        size.
    """
    _group_size(num_envs, groups)

    def layout(path: Any, x: Any) -> tuple[int, ...]:
        is_mask = bool(path) and getattr(path[0], "key", None) == "action_mask"
        return tuple(x.shape) if is_mask else _channels_last(x.shape)

    shape = jax.tree.map_with_path(layout, spec.observation)
    spec = with_cutoff(spec._replace(observation_shape=shape), None)
    if isinstance(shape, dict) and "action_mask" in shape and not spec.continuous:
        if not all(isinstance(size, int) for size in shape["action_mask"]):
            raise ValueError(f"action_mask of {spec.name} must be one array: concatenate the masks of its components.")
        # A mask of combinations of choices cannot be used; it is an ordinary observation.
        combinations = math.prod(spec.num_choices or (spec.num_outputs,))
        if math.prod(shape["action_mask"]) not in (spec.num_outputs, combinations):
            raise ValueError(f"action_mask of {spec.name} needs {spec.num_outputs} entries, got {shape['action_mask']}")

    def converted(group: EnvGroup) -> EnvGroup:
        like, name = group.spec.observation, group.spec.name

        def recv(state: ArrayTree) -> tuple[ArrayTree, TimeStep]:
            state, timestep = group.recv(state)
            observation = convert_observation(timestep.observation, like, name)
            return state, timestep._replace(observation=observation)

        return group._replace(recv=recv)

    draws = "render_mode" in inspect.signature(make_group).parameters

    def make(seed, *, max_episode_steps=None, num_envs=None, num_groups=None, host=False, first_group=0, **options):
        if not draws:
            options.pop("render_mode", None)
        seed = integer("seed", seed, low=0, high=2**32 - 1)
        count = env.num_groups if num_groups is None else num_groups
        size = _group_size(env.num_envs if num_envs is None else num_envs, count)
        cut = with_cutoff(spec, max_episode_steps)
        indices = range(first_group, first_group + count)
        made = (make_group(cut, size, index=index, seed=seed, host=host, **options) for index in indices)
        return tuple(converted(group) for group in made)

    env = Env(spec, int(num_envs), int(groups), make, {} if config is None else config)
    return env


def array_module(array: Any) -> Any:
    """Returns the module that computes with an array: jax.numpy for a `jax.Array`, otherwise NumPy."""
    return jnp if isinstance(array, jax.Array) else np


def consistent(timestep: TimeStep) -> TimeStep:
    """Corrects a timestep so that it satisfies the rules of `TimeStep`.

    Rewards become float32 and ends bool. Where `first` holds, the reward becomes 0 and nothing has ended; an episode
    that terminates is not also truncated. Arrays are `[B, ...]`, or those of one environment.

    Raises:
      AssertionError: the shapes of `reward`, `first`, `terminated` and `truncated` differ.
    """
    xp, first = array_module(timestep.first), timestep.first
    reward = xp.asarray(timestep.reward, xp.float32)
    terminated, truncated = (xp.asarray(end, xp.bool_) for end in (timestep.terminated, timestep.truncated))
    chex.assert_equal_shape((reward, first, terminated, truncated))
    return timestep._replace(
        reward=xp.where(first, xp.float32(0), reward),
        terminated=terminated & ~first,
        truncated=truncated & ~terminated & ~first,
    )


def convert_observation(observation: ArrayTree, like: ArrayTree, name: str) -> ArrayTree:
    """Converts observations to the shapes and dtypes of a spec; the same rule in training, evaluation and acting.

    - An image with its channels first is transposed: `[..., C, H, W]` becomes `[..., H, W, C]`.
    - Numbers of 64 bits become numbers of 32 bits. Floating-point numbers are rounded. Integers keep their value.

    Args:
      observation: An array, or a pytree of arrays, with any leading dimensions.
      like: Shape and dtype of one observation: `EnvSpec.observation`.
      name: The environment, for messages.

    Returns:
      The observations.

    Raises:
      ValueError: An observation has another structure or shape, or a number does not fit into the dtype. The numbers in
        a `jax.Array` are not checked, because compiled code cannot raise.
    """

    def convert(path: Any, like: Any, x: Any) -> Any:
        x, dtype, rank = x if isinstance(x, jax.Array) else np.asarray(x), np.dtype(like.dtype), len(like.shape)
        shape = x.shape[x.ndim - rank :] if x.ndim >= rank else x.shape
        if shape == like.shape and x.dtype == dtype:
            return x
        what = f"the observation{jax.tree_util.keystr(path)} of {name}"
        if shape != like.shape and rank == 3 and _channels_last(shape) == like.shape:
            x = array_module(x).moveaxis(x, -3, -1)
        elif shape != like.shape:
            raise ValueError(f"{what} must have shape {like.shape} (after batch dimensions), got {x.shape}")
        if isinstance(x, jax.Array) or x.dtype == dtype:
            return x.astype(dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            cast = x.astype(dtype)
        if not np.can_cast(x.dtype, dtype):
            wrong = cast != x if dtype.kind in "iub" else np.isinf(cast) & np.isfinite(x)
            if wrong.any():
                raise ValueError(f"{what} is {x[wrong][0]}, which does not fit into {dtype}; change it with a wrapper")
        return cast

    return jax.tree.map_with_path(convert, like, observation)


def _channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Moves the channels of an image to the end; other shapes stay as they are.

    An array with three dimensions is an image with its channels first if it has fewer channels than rows and columns,
    and more than three rows and columns.
    """
    channels_first = len(shape) == 3 and max(shape[0], 3) < min(shape[1:])
    return (*shape[1:], shape[0]) if channels_first else tuple(shape)


def checked_action(spec: EnvSpec, num_envs: int, action: Any) -> Any:
    """Returns the actions if their shape is `[num_envs, *action_shape]`.

    Raises:
      ValueError: they have another shape.
    """
    shape = (num_envs, *(spec.action_shape or ()))
    if action.shape != shape:
        raise ValueError(f"actions of {spec.name} must have shape {shape}, got {action.shape}")
    return action


class ActionIsNaN(FloatingPointError):
    """Actions are NaN, in these rows of a group."""

    def __init__(self, message: str, rows: Sequence[int] = ()):
        super().__init__(message)
        self.rows = rows


def bounded_action(spec: EnvSpec, action: Any) -> Any:
    """Returns the actions `[B, *action_shape]`, clipped to the bounds of each component.

    Raises:
      ValueError: continuous actions in a NumPy array are out of bounds by more than rounding. (A `jax.Array` is only
        clipped, so that this works inside `jit`.)
      ActionIsNaN: One of them is NaN.
    """
    xp, low, high = array_module(action), spec.action_low, spec.action_high
    if low is None or high is None:
        last: Any = np.array(spec.num_choices, np.int32) - 1 if spec.num_choices else (spec.num_actions or 0) - 1
        return xp.minimum(xp.maximum(action, 0), last)  # faster than NumPy's `clip`
    if xp is np:
        if (wrong := np.isnan(action)).any():
            rows = np.unique(np.nonzero(wrong)[0]).tolist()
            raise ActionIsNaN(f"an action for {spec.name} is NaN; a lower learning rate often helps", rows)
        slack = 1e-6 * np.nan_to_num(high - low, posinf=0.0)  # for rounding to float32
        if ((action < low - slack) | (action > high + slack)).any():
            raise ValueError(f"actions for {spec.name} are out of bounds ({low} to {high}): {action}; clip them")
    return xp.clip(action, low, high)


def environment_action(spec: EnvSpec, action: np.ndarray) -> np.ndarray:
    """Converts actions of a policy to actions of the environment's own space.

    Args:
      spec: The environment.
      action: `[..., *action_shape]`, within bounds.

    Returns:
      The actions with the shape and dtype of `spec.action_range`; unchanged if that is None.
    """
    if spec.action_range is None:
        return action
    low, high = spec.action_range
    action = action.reshape(action.shape[: action.ndim - len(spec.action_shape or ())] + low.shape).astype(low.dtype)
    # float64 bounds may lie between two float32 numbers, so that a clipped action can still be out of bounds.
    return np.clip(action, low, high) if spec.continuous else low + action


def action_bounds(low: Any, high: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Makes `EnvSpec.action_low` and `action_high`, float32 `[*shape]`, from numbers or arrays of that shape.

    Raises:
      ValueError: an array has another shape, or a lower bound is not below its upper bound.
    """
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), shape) for bound in (low, high))
    if not np.all(low < high):
        raise ValueError(f"action_low must be below action_high, got {low} and {high}")
    return low, high


def environment_seeds(seed: int, *, group: int, num_envs: int) -> list[int]:
    """Returns the seeds of the environments of one group, `num_envs` integers below 2**31.

    They differ between groups, and a larger group begins with the seeds of a smaller one.
    """
    sequence = np.random.SeedSequence([seed, group])
    return [int(word >> 1) for word in sequence.generate_state(num_envs)]


def environment_keys(key: Any, index: Any, num_envs: int) -> Any:
    """Returns the keys `[B]` of the environments of group `index`, each by its number among those of all groups."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, index * num_envs + jnp.arange(num_envs))


def _group_size(num_envs: object, num_groups: object) -> int:
    """Returns the size of each of `num_groups` equal groups; raises ValueError if they cannot be equal."""
    total = integer("num_envs", num_envs, low=1)
    groups = integer("groups", num_groups, low=1)
    if total % groups:
        raise ValueError(f"num_envs must be a multiple of groups: got num_envs={total} and groups={groups}")
    return total // groups


def unknown_name(kind: str, name: object, names: Iterable[str]) -> ValueError:
    """Makes the error for an unknown name, with similar names if there are any."""
    close = difflib.get_close_matches(str(name), list(names), n=3)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    return ValueError(f"unknown {kind} {name!r}{hint}")


def with_cutoff(spec: EnvSpec, max_episode_steps: int | None) -> EnvSpec:
    """Returns a spec with this cutoff, or the spec itself for None; raises ValueError for a bad cutoff."""
    steps = spec.max_episode_steps if max_episode_steps is None else max_episode_steps
    return spec._replace(max_episode_steps=integer("max_episode_steps", steps, low=1))
