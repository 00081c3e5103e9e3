"""Environments made from three pure functions of one environment, behind the same interface as envpool's."""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import integer, takes
from volvox._settings import recorded
from volvox.envs.groups import action_bounds, checked_action, consistent, recipe
from volvox.types import Array, ArrayTree, Config, Env, EnvGroup, EnvSpec, TimeStep, zeros


class FunctionalState(NamedTuple):
    """State of a group of functional environments.

    Attributes:
      key: Keys `[B]`.
      inner: The environments' own states, leaves `[B, ...]`.
      elapsed: int32 `[B]`: timesteps since the episode began.
      done: bool `[B]`: the last timestep ended the episode, or there was none yet; the next observation begins one.
      action: The actions sent last, `[B, ...]`.
    """

    key: Array
    inner: ArrayTree
    elapsed: Array
    done: Array
    action: Array


@recorded
def from_functions(
    reset: Callable[[Array], ArrayTree],
    step: Callable[[ArrayTree, Array, Array], tuple[ArrayTree, Any, Any]],
    observe: Callable[[ArrayTree], ArrayTree],
    *,
    name: str,
    num_envs: int,
    max_episode_steps: int,
    groups: int = 1,
    num_actions: int | None = None,
    num_choices: Sequence[int] | None = None,
    action_shape: tuple[int, ...] | None = None,
    action_low: float | np.ndarray = -1.0,
    action_high: float | np.ndarray = 1.0,
    extras: Callable[[ArrayTree], dict[str, Array]] | None = None,
    settings: Config | None = None,
) -> Env:
    """Makes a recipe for environments given by functions of a single environment (they are vmapped here).

    Autoreset is envpool's: the timestep after an end discards its action, gives reward 0 and reports `first`. An
    episode that has not terminated is truncated after `max_episode_steps` timesteps. `send` only stores the actions,
    `recv` computes the timestep. Extras: `elapsed_steps` (int32 `[B]`), and what `extras` gives. With a fixed seed
    everything is exactly repeatable, restarts included, and the state of a group is all there is. A population's
    episodes have keys of their own (`EnvGroup.rekey`), so that its results do not depend on `num_envs` and `groups`.

    Example: a point on a line, pushed towards 0.

      >>> env = volvox.envs.from_functions(
      ...     reset=lambda key: jax.random.uniform(key, minval=-1.0),
      ...     step=lambda position, action, key: (position + 0.1 * action[0], -abs(position), False),
      ...     observe=lambda position: position[None],
      ...     name="point",
      ...     num_envs=8,
      ...     max_episode_steps=50,
      ...     action_shape=(1,),
      ... )

    Args:
      reset: key -> state of a new episode.
      step: (state, action, key) -> (state, reward, terminated); action is an int32 scalar, int32 `[len(num_choices)]`
        or float32 `[*action_shape]`, reward and terminated are scalars.
      observe: state -> observation, channels last if it is an image; an array, or a dict or a tuple of arrays.
      name: What `EnvSpec.name` says.
      num_envs: Environments in all groups together.
      max_episode_steps: Timesteps after which an episode is truncated.
      groups: Number of groups; a divisor of `num_envs`.
      num_actions: Number of discrete actions. Exactly one of this, `num_choices` and `action_shape` must be given.
      num_choices: For actions of several discrete components, the number of choices of each.
      action_shape: Shape of a continuous action.
      action_low: Smallest allowed values of a continuous action (not enforced): a number, or an array
        `[*action_shape]`.
      action_high: Largest allowed values, likewise.
      extras: state -> what else `TimeStep.extras` holds, by name; None if there is nothing else.
      settings: What else makes this environment what it is, for the recipe's `config`: JSON values.

    Returns:
      The recipe.

    Raises:
      ValueError: a number out of range, not one kind of action given, or functions whose results do not fit.
    """
    integer("max_episode_steps", max_episode_steps, low=1)
    takes("reset", reset, "key")
    takes("step", step, "state", "action", "key")
    takes("observe", observe, "state")
    kinds = {"num_actions": num_actions, "num_choices": num_choices, "action_shape": action_shape}
    if sum(kind is not None for kind in kinds.values()) != 1:
        given = ", ".join(f"{kind}={value!r}" for kind, value in kinds.items())
        raise ValueError(f"give exactly one of num_actions, num_choices and action_shape, got {given}")
    low = high = None
    if action_shape is not None:
        low, high = action_bounds(action_low, action_high, tuple(action_shape))
    if num_actions is not None:
        integer("num_actions", num_actions, low=1)
    if num_choices is not None:
        num_choices = tuple(integer("each of num_choices", number, low=1) for number in num_choices)
        action_shape = (len(num_choices),)
    spec = EnvSpec(
        name=name,
        observation_shape=(),
        observation_dtype=np.dtype(np.float32),
        num_actions=num_actions,
        action_shape=None if action_shape is None else tuple(action_shape),
        action_low=low,
        action_high=high,
        max_episode_steps=int(max_episode_steps),
        frame_skip=1,
        num_choices=num_choices,
    )
    functions = _Functions(reset, step, observe, extras or (lambda state: {}), spec.action)
    observation, named = functions.check()
    spec = spec._replace(
        observation_shape=jax.tree.map(lambda x: tuple(x.shape), observation),
        observation_dtype=jax.tree.map(lambda x: np.dtype(x.dtype), observation),
        extras=("elapsed_steps", *named),
    )
    # All groups share what is compiled, so that another group, seed or cutoff compiles nothing twice.
    init = jax.jit(functions.init, static_argnames="num_envs")
    recv = jax.jit(jax.vmap(functions.recv, in_axes=(0, None)), inline=True)
    settings = {"max_episode_steps": max_episode_steps, **(settings or {}), "code": functions.code()}
    make_group = partial(_group, init, recv)
    return recipe(spec, make_group, num_envs=num_envs, groups=groups, environment=name, settings=settings)


@dataclasses.dataclass(frozen=True, eq=False)
class _Functions:
    """The functions of one environment; `action` says what an action looks like."""

    reset: Callable[[Array], ArrayTree]
    step: Callable[[ArrayTree, Array, Array], tuple[ArrayTree, Any, Any]]
    observe: Callable[[ArrayTree], ArrayTree]
    extras: Callable[[ArrayTree], dict[str, Array]]
    action: jax.ShapeDtypeStruct

    def check(self) -> tuple[ArrayTree, dict[str, Any]]:
        """Returns what observation and extras look like; raises ValueError where the functions do not fit."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        state = jax.eval_shape(self.reset, key)
        result = jax.eval_shape(self.step, state, self.action, key)
        if not isinstance(result, tuple) or len(result) != 3:
            given = f"{len(result)} items" if isinstance(result, tuple) else type(result).__name__
            raise ValueError(
                f"step must return (state, reward, terminated), three items; it returned {given}. Observations are "
                "made by observe(state), and a limit of time is max_episode_steps"
            )
        after, reward, terminated = result
        old, new = (jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree) for tree in (state, after))
        if old != new or jax.tree.structure(state) != jax.tree.structure(after):
            raise ValueError(f"step must keep the structure, shapes and dtypes of the state: got {new} from {old}")
        for what, result in (("reward", reward), ("terminated", terminated)):
            if result.shape != ():
                raise ValueError(f"step must give a scalar {what} for one environment, got shape {result.shape}")
        named = jax.eval_shape(self.extras, state)
        if not isinstance(named, dict) or "elapsed_steps" in named:
            raise ValueError(
                f"extras must give a dict without 'elapsed_steps', which is there anyway; it gives {named}"
            )
        return jax.eval_shape(self.observe, state), named

    def code(self) -> str:
        """Returns a hash of what the functions compute, by which a change is noticed when a run is resumed."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        state = jax.eval_shape(self.reset, key)
        traced = [jax.make_jaxpr(self.reset)(key), jax.make_jaxpr(self.step)(state, self.action, key)]
        traced += [jax.make_jaxpr(function)(state) for function in (self.observe, self.extras)]
        # In a terminal or a notebook `str` would give a jaxpr colours.
        printed = "".join(closed.pretty_print(use_color=False) for closed in traced)
        found = hashlib.sha256(re.sub(r"0x\w+", "", printed).encode())
        for closed in traced:  # printed, an array is a name
            for array in _arrays(closed.jaxpr, closed.consts):
                found.update(array.tobytes())
        return found.hexdigest()[:16]

    def init(self, key: Array, index: int | Array, *, num_envs: int) -> FunctionalState:
        """Returns the state in which all environments of group `index` are about to begin an episode."""
        keys = _keys(key, index, num_envs)
        return FunctionalState(
            key=keys,
            # Replaced at the first `recv`, which resets everywhere; here for its shapes.
            inner=jax.vmap(self.reset)(keys),
            elapsed=jnp.zeros(num_envs, jnp.int32),
            done=jnp.ones(num_envs, jnp.bool_),
            action=zeros(self.action, num_envs),
        )

    def recv(self, state: FunctionalState, limit: Array) -> tuple[FunctionalState, TimeStep]:
        """Steps one environment; `limit` is the number of timesteps that truncates an episode."""
        key, reset_key, step_key = jax.random.split(state.key, 3)
        first = state.done
        stepped, reward, terminated = self.step(state.inner, state.action, step_key)
        inner = jax.tree.map(partial(jnp.where, first), self.reset(reset_key), stepped)
        elapsed = jnp.where(first, 0, state.elapsed + 1)
        extras = {**self.extras(inner), "elapsed_steps": elapsed}
        timestep = consistent(TimeStep(self.observe(inner), reward, first, terminated, elapsed >= limit, extras))
        done = timestep.terminated | timestep.truncated
        return FunctionalState(key, inner, elapsed, done, state.action), timestep


def _keys(key: Array, index: int | Array, num_envs: int) -> Array:
    """Returns the keys `[B]` of the environments of group `index`, each by its number among those of all groups."""
    numbers = index * num_envs + jnp.arange(num_envs)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)


def _arrays(jaxpr: Any, constants: Iterable[Any] = ()) -> Iterator[np.ndarray]:
    """The constant arrays of a jaxpr and of those that it calls."""
    values = [*constants, *(atom.val for equation in jaxpr.eqns for atom in equation.invars if hasattr(atom, "val"))]
    for value in values:
        is_key = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        yield np.asarray(jax.random.key_data(value) if is_key else value)
    for equation in jaxpr.eqns:
        for called in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(called, "eqns"):
                yield from _arrays(getattr(called, "jaxpr", called), getattr(called, "consts", ()))


def _group(init: Any, recv: Any, spec: EnvSpec, num_envs: int, *, index: int, seed: int, host: bool) -> EnvGroup:
    """Makes group number `index`; `init` and `recv` are those of `_Functions`, compiled."""

    def key_of(seed: int) -> Array:
        return jax.random.key(integer("seed", seed, low=0, high=2**32 - 1))

    def receive(state: FunctionalState) -> tuple[FunctionalState, TimeStep]:
        state, timestep = recv(state, np.int32(spec.max_episode_steps))
        return state, jax.device_get(timestep) if host else timestep

    def send(state: FunctionalState, action: Array | np.ndarray) -> FunctionalState:
        action = checked_action(spec, num_envs, jnp.asarray(action))
        return state._replace(action=action.astype(state.action.dtype))

    def restart(state: FunctionalState, seed: int | None = None) -> FunctionalState:
        if seed is not None:
            state = state._replace(key=_keys(key_of(seed), index, num_envs))
        return state._replace(done=jnp.ones(num_envs, jnp.bool_))

    def rekey(state: FunctionalState, where: Array, keys: Array) -> FunctionalState:
        return state._replace(key=jnp.where(where, keys, state.key))

    start = partial(init, key_of(seed), index, num_envs=num_envs)
    functions = (start, receive, send, restart, lambda: None)
    return EnvGroup(spec, num_envs, not host, *functions, resumable=not host, rekey=rekey)
