"""What every environment group needs, for anyone who writes one.

A group is a `volvox.types.EnvGroup`: `num_envs` environments that step together. Its author writes `init`, `recv`,
`send` and `restart`. `recipe` makes the `Env` from such a group, `consistent` makes its time steps keep the promises of
`TimeStep`, `checked_action` and `bounded_action` check what is sent to it. `wrapped` changes what groups of another
recipe show and do. Environments that are pure functions need none of this: `volvox.envs.from_functions` makes groups of
them.

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
>>> env = groups.recipe(spec, counter, num_envs=4, groups=2, environment="counter")
>>> one, other = env.make(seed=0)
>>> state, timestep = one.recv(one.init())
>>> timestep.first.tolist(), timestep.reward.tolist()
([True, True], [0.0, 0.0])
>>> state, timestep = one.recv(one.send(state, np.array([0, 1])))
>>> timestep.terminated.tolist(), timestep.reward.tolist()
([False, True], [1.0, 1.0])
"""

import contextlib
import dataclasses
import functools
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import group_size, integer
from volvox._settings import describe
from volvox.types import ArrayTree, Env, EnvGroup, EnvSpec, TimeStep

PATIENCE = 600.0
"""Seconds for environments to answer, or for a chunk of the loop; compilation is not counted."""
_PIECES = 600


def recipe(spec: EnvSpec, make_group: Callable[..., EnvGroup], *, num_envs: int, groups: int, **config: Any) -> Env:
    """Makes the recipe of an environment from the function that makes one group of it.

    Args:
      spec: What the environment offers.
      make_group: (spec, num_envs, *, index, seed, host, **options) -> group. `spec` says after how many timesteps an
        episode is truncated, `index` numbers the groups from 0, `seed` is an int of at least 0 that all groups share,
        a group with `host` is driven from Python, and `options` are what else `make` was called with.
      num_envs: Environments in all groups together.
      groups: Number of groups; a divisor of `num_envs`.
      **config: What identifies the environment and its settings, for the recipe's `config`; `num_envs` and `groups`
        are added to it.

    Returns:
      The recipe. Its `make` raises ValueError for a number out of range and for groups that would not be equal. What
      a group raises later names the environment, if need be in a note, and so does the RuntimeError for time steps of
      other shapes than those of `spec`.

    Raises:
      ValueError: `num_envs` or `groups` is no positive integer, or groups would not be equal.
    """
    group_size(num_envs, groups)
    config = describe({**config, "num_envs": num_envs, "groups": groups})

    def make(seed, *, max_episode_steps=None, num_envs=None, num_groups=None, host=False, first_group=0, **options):
        seed, count = integer("seed", seed, low=0, high=None), env.num_groups if num_groups is None else num_groups
        size = group_size(env.num_envs if num_envs is None else num_envs, count)
        cut = _with_cutoff(spec, max_episode_steps)
        indices = range(first_group, first_group + count)
        made = (make_group(cut, size, index=index, seed=seed, host=host, **options) for index in indices)
        return tuple(_guarded(group) for group in made)

    env = Env(spec, int(num_envs), int(groups), make, config)
    return env


def _guarded(group: EnvGroup) -> EnvGroup:
    """A group whose errors name the environment, and whose time steps have the shapes that its spec says."""

    def call(function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:  # raised again, with the name of the environment
            if group.spec.name not in str(error):
                error.add_note(f"This was raised in the environment {group.spec.name}.")
            raise

    def recv(state: ArrayTree) -> tuple[ArrayTree, TimeStep]:
        state, timestep = call(group.recv, state)
        flags = {name: np.shape(getattr(timestep, name)) for name in ("reward", "first", "terminated", "truncated")}
        shapes = {"observation": jax.tree.map(np.shape, timestep.observation), **flags}
        wanted = {"observation": jax.tree.map(lambda x: (group.num_envs, *x.shape), group.spec.observation)}
        wanted |= dict.fromkeys(flags, (group.num_envs,))
        if wrong := [name for name in shapes if shapes[name] != wanted[name]]:
            told = ", ".join(f"{name} {shapes[name]} instead of {wanted[name]}" for name in wrong)
            raise RuntimeError(f"the environment {group.spec.name} gave other shapes than its spec says: {told}")
        return state, timestep

    return group._replace(init=functools.partial(call, group.init), recv=recv, send=functools.partial(call, group.send))


def wrapped(env: Env, wrapper: Any, *, spec: EnvSpec | None = None, hidden_steps: int = 0, **config: Any) -> Env:
    """Makes a recipe whose groups are those of another recipe with other time steps or actions.

    A wrapper is an object with three functions. They are called with NumPy arrays if Python drives the group, and
    inside `jit` otherwise; `array_module` tells which.

    - `init(num_envs) -> state`, a pytree of NumPy arrays: the wrapper's state before the first episode and after a
      restart;
    - `observe(state, timestep) -> (state, timestep)`: the time step that is shown in place of the group's;
    - `act(state, action) -> action`: the actions `[B, ...]` that are sent in place of those given.

    Example: `volvox.envs.preprocessing` has two wrappers.

    Args:
      env: The recipe to wrap.
      wrapper: What changes time steps and actions.
      spec: What the wrapped environment offers; None if that is what `env` offers.
      hidden_steps: Timesteps of each episode that the wrapper hides; the episodes of `env` are longer by as many.
      **config: What is added to the recipe's `config`.

    Returns:
      The recipe.
    """
    spec = env.spec if spec is None else spec

    def make(seed: int, *, max_episode_steps: int | None = None, **options: Any) -> tuple[EnvGroup, ...]:
        cut = _with_cutoff(spec, max_episode_steps)
        inner = env.make(seed, max_episode_steps=cut.max_episode_steps + hidden_steps, **options)
        return tuple(_Wrapped(group, wrapper).group(cut) for group in inner)

    kept = {name: value for name, value in env.config.items() if name != "made_by"}  # that makes it without the wrapper
    return env._replace(spec=spec, make=make, config={**kept, **describe(config)})


@dataclasses.dataclass(frozen=True, eq=False)
class _Wrapped:
    """A group and its wrapper; the state is a pair of theirs."""

    inner: EnvGroup
    wrapper: Any

    def group(self, spec: EnvSpec) -> EnvGroup:
        functions = {"init": self.init, "recv": self.recv, "send": self.send, "restart": self.restart}
        return self.inner._replace(spec=spec, **functions, rekey=None if self.inner.rekey is None else self.rekey)

    def init(self) -> tuple[ArrayTree, ArrayTree]:
        return self._begin(self.inner.init())

    def recv(self, state: tuple[ArrayTree, ArrayTree]) -> tuple[tuple[ArrayTree, ArrayTree], TimeStep]:
        inner, timestep = self.inner.recv(state[0])
        own, timestep = self.wrapper.observe(state[1], timestep)
        return (inner, own), timestep

    def send(self, state: tuple[ArrayTree, ArrayTree], action: Any) -> tuple[ArrayTree, ArrayTree]:
        inner, own = state
        action = (jnp if self.inner.traceable else np).asarray(action)
        action = self.wrapper.act(own, checked_action(self.inner.spec, self.inner.num_envs, action))
        return self.inner.send(inner, action), own

    def rekey(self, state: tuple[ArrayTree, ArrayTree], where: Any, keys: Any) -> tuple[ArrayTree, ArrayTree]:
        assert self.inner.rekey is not None
        return self.inner.rekey(state[0], where, keys), state[1]

    def restart(self, state: tuple[ArrayTree, ArrayTree], seed: int | None = None) -> tuple[ArrayTree, ArrayTree]:
        return self._begin(self.inner.restart(state[0], seed))

    def _begin(self, inner: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
        own = self.wrapper.init(self.inner.num_envs)
        return inner, jax.tree.map(jnp.asarray, own) if self.inner.traceable else own


class Answers:
    """Runs blocking calls in a thread, so that waiting has a time limit and can be interrupted by Ctrl-C.

    Attributes:
      missing: Whether the last call has not returned yet, so that what it uses must not be freed.
    """

    def __init__(self):
        self.missing, self._number = False, 0
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._given: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_answer, args=(self._asked, self._given), daemon=True).start()
        self._end = weakref.finalize(self, self._asked.put, None)

    def of(self, call: Callable[[], Any], name: str) -> Any:
        """Returns what a call returns, or raises what it raises.

        Args:
          call: What may block.
          name: The environment, for the message.

        Raises:
          TimeoutError: It has not returned within `PATIENCE` seconds.
        """
        self.missing, self._number = True, self._number + 1
        self._asked.put((self._number, call))
        # Waited for in pieces: a clock goes on while the process, and its emulators with it, are stopped (Ctrl-Z).
        for _ in range(_PIECES):
            try:
                number, result, error = self._given.get(timeout=PATIENCE / _PIECES)
            except queue.Empty:
                continue
            if number != self._number:  # of a call whose waiting was interrupted
                continue
            self.missing = False
            if error is None:
                return result
            try:
                raise error
            finally:
                del error  # whose traceback has this frame
        raise TimeoutError(unanswered(name))

    def close(self) -> bool:
        """Ends the thread; returns whether it is done with all calls, if need be after a second."""
        self._end()
        if self.missing:  # after an interrupt an answer may be on its way
            with contextlib.suppress(queue.Empty):
                while self.missing:
                    self.missing = self._given.get(timeout=1.0)[0] != self._number
        return not self.missing


def _answer(asked: queue.SimpleQueue[Any], given: queue.SimpleQueue[Any]) -> None:
    """Runs a thread's calls until None comes; keeps nothing of them, so that pools can be freed."""
    while (asking := asked.get()) is not None:
        number, call = asking
        try:
            answer = number, call(), None
        except BaseException as error:  # raised in the thread that asked
            answer = number, None, error
        del asking, call
        given.put(answer)
        del answer


def unanswered(name: str) -> str:
    """Returns the message of a TimeoutError for environments that did not answer."""
    return (
        f"{name} did not answer within {PATIENCE:g} seconds: an environment blocks, or a thread of the emulators died"
    )


def array_module(array: Any) -> Any:
    """Returns the module that computes with an array: jax.numpy for a `jax.Array`, otherwise NumPy."""
    return jnp if isinstance(array, jax.Array) else np


def consistent(timestep: TimeStep) -> TimeStep:
    """Returns a time step that keeps the promises of `TimeStep`, from one that may not.

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


def checked_action(spec: EnvSpec, num_envs: int, action: Any) -> Any:
    """Returns the actions if their shape is `[num_envs, *action_shape]`.

    Raises:
      ValueError: they have another shape.
    """
    shape = (num_envs, *(spec.action_shape or ()))
    if action.shape != shape:
        raise ValueError(f"actions of {spec.name} must have shape {shape}, got {action.shape}")
    return action


def bounded_action(spec: EnvSpec, action: Any) -> Any:
    """Returns the actions `[B, *action_shape]`, clipped to the bounds of each component.

    Raises:
      ValueError: continuous actions in a NumPy array are out of bounds by more than rounding. (A `jax.Array` is only
        clipped, so that this works inside `jit`.)
      FloatingPointError: One of them is NaN.
    """
    xp, low, high = array_module(action), spec.action_low, spec.action_high
    if low is None or high is None:
        return xp.clip(action, 0, np.array(spec.num_choices or spec.num_actions, np.int32) - 1)
    slack = 1e-6 * np.nan_to_num(high - low, posinf=0.0)  # for rounding to float32
    if xp is np and (wrong := np.argwhere(~((action >= low - slack) & (action <= high + slack)))).size:
        at = tuple(wrong[0].tolist())
        if np.isnan(action[at]):
            raise FloatingPointError(
                f"an action for {spec.name} is NaN: the parameters of the policy, or what it observes, are no longer "
                "finite; a lower learning rate often helps"
            )
        bounds = f"{low[at[1:]]:.6g} to {high[at[1:]]:.6g} for component {list(at[1:])}"
        raise ValueError(f"an action of {action[at]} is outside of {spec.name}'s bounds, {bounds}; clip it")
    return xp.clip(action, low, high)


def action_bounds(low: Any, high: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Makes `EnvSpec.action_low` and `action_high`, float32 `[*shape]`, from numbers or arrays of that shape.

    Raises:
      ValueError: an array has another shape, or a lower bound is not below its upper bound.
    """
    bounds = np.asarray(low, np.float32), np.asarray(high, np.float32)
    if any(bound.shape not in ((), shape) for bound in bounds) or not np.all(bounds[0] < bounds[1]):
        raise ValueError(
            f"action_low must be below action_high, both numbers or arrays of shape {shape}; got {low!r} and {high!r}"
        )
    return np.broadcast_to(bounds[0], shape), np.broadcast_to(bounds[1], shape)


def _with_cutoff(spec: EnvSpec, max_episode_steps: int | None) -> EnvSpec:
    """Returns the spec with another cutoff; None keeps the spec's."""
    steps = spec.max_episode_steps if max_episode_steps is None else max_episode_steps
    return spec._replace(max_episode_steps=integer("max_episode_steps", steps, low=1))
