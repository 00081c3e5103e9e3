"""The one loop: groups of environments take turns, so that emulators and device overlap.

    for each group g:
        timestep = recv(g)                 # wait for g's emulators
        carry, action = act(carry, g, timestep)
        send(g, action)                    # returns at once; g's emulators step in C++ threads
        carry = work(carry, g)             # device work that runs while emulators step

One pass over the groups is a *beat*, and a fixed number of beats is a *round*; `finish` ends each round, while the
emulators of all groups step. The loop exists in two forms with bit-equal results: `traced` compiles a chunk of rounds
as one program; `driven` runs it from Python around jitted `act`, `work` and `finish`. The second is the reference, and
it serves groups that cannot be traced.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from volvox._checks import integer
from volvox.ops.order import after
from volvox.rollout.devices import ALONE, Devices
from volvox.types import Array, ArrayTree, EnvGroup, TimeStep


class Stages(NamedTuple):
    """The functions that an algorithm contributes to the loop. `g` is the index of the group, a Python int.

    The state is split by the function that may change it: `act` changes `carry` (small) and only reads `memory`
    (large); `work` changes both. All read `constants`, and none changes them. The split keeps the large state in place.

    Attributes:
      act: (carry, memory, constants, g, timestep) -> (carry, action `[B, ...]`).
      work: (carry, memory, constants, g) -> (carry, memory). Its computations must depend on an integer scalar of
        `carry`, such as a counter: this dependence makes them wait for `send`.
      active: (carry, g) -> bool: whether the group is stepped in this beat. None: always.
      remaining: carry -> bool: whether work remains. None: always.
      finish: (carry, memory, constants) -> (carry, memory), called at the end of each round. The rule of `work` holds.
      episode_keys: (carry, constants, g) -> (where bool `[B]`, keys `[B]`), for `EnvGroup.rekey` before each `recv`:
        the environments that begin an episode, and the keys of these episodes. None: environments continue with their
        own random numbers.
    """

    act: Callable[[ArrayTree, ArrayTree, ArrayTree, int, TimeStep], tuple[ArrayTree, Array]]
    work: Callable[[ArrayTree, ArrayTree, ArrayTree, int], tuple[ArrayTree, ArrayTree]]
    active: Callable[[ArrayTree, int], Array] | None = None
    remaining: Callable[[ArrayTree], Array] | None = None
    finish: Callable[[ArrayTree, ArrayTree, ArrayTree], tuple[ArrayTree, ArrayTree]] | None = None
    episode_keys: Callable[[ArrayTree, ArrayTree, int], tuple[Array, Array]] | None = None


class LoopState(NamedTuple):
    """The state that a chunk changes.

    Attributes:
      envs: The state of each group, actions in flight.
      carry: The small state.
      memory: The large state.
    """

    envs: tuple[ArrayTree, ...]
    carry: ArrayTree
    memory: ArrayTree


RunChunk = Callable[[LoopState, ArrayTree, int], tuple[LoopState, Any]]
"""(state, constants, rounds) -> (state, rounds done). Donates `state`; ends after `rounds`, or if no work remains."""


def traced(
    stages: Stages, groups: Sequence[EnvGroup], *, beats_per_round: int = 1, devices: Devices = ALONE
) -> RunChunk:
    """The fast form: a chunk of rounds as one compiled, donated program.

    Args:
      stages: The algorithm.
      groups: Traceable groups; they must outlive the returned function.
      beats_per_round: Beats of a round.
      devices: The devices that run the loop as one program.

    Returns:
      A `RunChunk`: a `functools.partial` whose `func` is the `jax.jit` function, for tests that read its program.

    Raises:
      ValueError: a group is not traceable, there are none, they differ in size, or a round has no beat.
    """
    _check(groups, beats_per_round)
    for g, group in enumerate(groups):
        if not group.traceable:
            raise ValueError(
                f"group {g} ({group.spec.name}) is host-driven; use driven(...), or make it with host=False."
            )

    def beat(state: LoopState, constants, zero) -> LoopState:
        envs, carry, memory = list(state.envs), state.carry, state.memory
        for g, group in enumerate(groups):

            def step(env, carry, g=g, group=group, memory=memory):
                env, timestep = group.recv(_keyed(stages, group, g, env, carry, constants))
                carry, action = stages.act(carry, memory, constants, g, timestep)
                return group.send(env, action), carry

            if stages.active is None:
                envs[g], carry = step(envs[g], carry)
            else:
                # Memory is an operand only: results of a conditional are copied.
                envs[g], carry = jax.lax.cond(
                    stages.active(carry, g), step, lambda env, carry: (env, carry), envs[g], carry
                )
            carry, memory = stages.work(after(carry, envs[g], zero), memory, constants, g)
            next_group = (g + 1) % len(groups)
            # Pure-JAX groups hold no token, and need no order.
            envs[next_group] = after(envs[next_group], (carry, memory), zero, required=False)
        return LoopState(tuple(envs), carry, memory)

    def round_(state: LoopState, constants, zero) -> LoopState:
        if beats_per_round == 1:
            state = beat(state, constants, zero)
        else:
            state = jax.lax.fori_loop(0, beats_per_round, lambda _, state: beat(state, constants, zero), state)
        if stages.finish is None:
            return state
        envs = list(state.envs)
        carry, memory = stages.finish(after(state.carry, envs[-1], zero), state.memory, constants)
        envs[0] = after(envs[0], (carry, memory), zero, required=False)
        return LoopState(tuple(envs), carry, memory)

    def rounds_of(state: LoopState, constants: ArrayTree, rounds: Array | int, zero: Array):
        def unfinished(loop):
            done, state = loop
            return (done < rounds) & (True if stages.remaining is None else stages.remaining(state.carry))

        def body(loop):
            done, state = loop
            return done + 1, round_(state, constants, zero)

        done, state = jax.lax.while_loop(unfinished, body, (jnp.int32(0), state))
        return state, done

    @partial(jax.jit, donate_argnums=0)
    def chunk(state: LoopState, constants: ArrayTree, rounds: Array | int, *, zero: Array):
        return devices.mapped(rounds_of)(state, constants, rounds, zero)

    return partial(chunk, zero=devices.placed(jnp.int32(0)))


def driven(
    stages: Stages, groups: Sequence[EnvGroup], *, beats_per_round: int = 1, devices: Devices = ALONE
) -> RunChunk:
    """The reference form: the same loop in Python, around jitted `act`, `work` and `finish`.

    Args:
      stages: The algorithm.
      groups: Groups of any kind; made with `host=True` where they cannot be traced.
      beats_per_round: Beats of a round.
      devices: The devices that run the loop as one program.

    Returns:
      A `RunChunk`.

    Raises:
      ValueError: there are no groups, they differ in size, or a round has no beat.
    """
    _check(groups, beats_per_round)
    calls = Calls(stages, groups, devices)

    def run(state, constants, rounds):
        envs, carry, memory = list(state.envs), state.carry, state.memory
        done = 0
        while done < rounds and calls.remaining(carry):
            for g in list(range(len(groups))) * beats_per_round:
                if calls.active(carry, g):
                    envs[g], timestep = calls.recv(g, envs[g], carry, constants)
                    carry, action = calls.act(carry, memory, constants, g, timestep)
                    envs[g] = calls.send[g](envs[g], action)
                carry, memory = calls.work(carry, memory, constants, g)
            carry, memory = calls.finish(carry, memory, constants)
            done += 1
        return LoopState(tuple(envs), carry, memory), done

    return run


class Calls:
    """The stages and the groups as compiled functions that Python calls one by one."""

    def __init__(self, stages: Stages, groups: Sequence[EnvGroup], devices: Devices = ALONE):
        """Compiles nothing yet; each function is compiled by its first call."""
        self._recv = [compiled(group.recv, devices) if group.traceable else group.recv for group in groups]
        self._groups, self._stages = groups, stages
        if stages.episode_keys is not None:
            self._stages = stages._replace(episode_keys=jax.jit(stages.episode_keys, static_argnums=2))
        self.send = [compiled(group.send, devices) if group.traceable else group.send for group in groups]
        self.act = compiled(stages.act, devices, static=3, donate=(0,))
        self.work = compiled(stages.work, devices, static=3, donate=(0, 1))
        self.active = jax.jit(stages.active, static_argnums=1) if stages.active else lambda carry, g: True
        self.remaining = jax.jit(stages.remaining) if stages.remaining else lambda carry: True
        self.finish = lambda carry, memory, constants: (carry, memory)
        if stages.finish is not None:
            self.finish = compiled(stages.finish, devices, donate=(0, 1))

    def recv(self, g: int, env: ArrayTree, carry: ArrayTree, constants: ArrayTree) -> tuple[ArrayTree, TimeStep]:
        """Gives the episodes that begin their keys, and waits for group `g`."""
        return self._recv[g](_keyed(self._stages, self._groups[g], g, env, carry, constants))


def compiled(
    function: Callable[..., Any], devices: Devices, *, static: int | None = None, donate: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """Returns a function that all devices call, compiled; `static` and `donate` are as in `jax.jit`."""
    if devices.mesh is None:
        return jax.jit(function, static_argnums=static, donate_argnums=donate)
    if static is None:
        return jax.jit(devices.mapped(function), donate_argnums=donate)

    def call(*args: Any) -> Any:
        arrays = (*args[:static], *args[static + 1 :])
        return devices.mapped(lambda *given: function(*given[:static], args[static], *given[static:]))(*arrays)

    return jax.jit(call, static_argnums=static, donate_argnums=donate)


def _keyed(
    stages: Stages, group: EnvGroup, g: int, env: ArrayTree, carry: ArrayTree, constants: ArrayTree
) -> ArrayTree:
    """The state of a group, in which episodes that begin have the keys that the algorithm gives them."""
    if stages.episode_keys is None or group.rekey is None:
        return env
    return group.rekey(env, *stages.episode_keys(carry, constants, g))


def _check(groups: Sequence[EnvGroup], beats_per_round: int) -> None:
    integer("beats_per_round", beats_per_round, low=1)
    sizes = sorted({group.num_envs for group in groups})
    if not sizes:
        raise ValueError("the loop needs at least one group of environments; two let emulators and device overlap.")
    if len(sizes) > 1:
        raise ValueError(f"groups of {sizes} environments; all groups of a loop have one size.")
