"""The one loop: groups of environments take turns, so that emulators and device overlap.

    for each group g:
        timestep = recv(g)                 # wait for g's emulators
        carry, action = act(carry, g, timestep)
        send(g, action)                    # returns at once; g's emulators step in C++ threads
        carry = work(carry, g)             # device work that runs while emulators step

One pass over the groups is a *beat*, and a fixed number of beats is a *round*; `finish` ends each round, while all
groups' emulators step. The loop exists in two forms with the same meaning: `traced` compiles a chunk of rounds whole;
`driven` runs it from Python around jitted `act`, `work` and `finish`, is the reference, and serves groups that cannot
be traced.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox.ops.order import after
from volvox.types import Array, ArrayTree, EnvGroup, TimeStep
from volvox.validation import integer


class Stages(NamedTuple):
    """What an algorithm does in the loop. `g` is the group's index, a Python int.

    State is split by who may change it: `act` changes `carry` (small) and only reads `memory` (large); `work` changes
    both. `constants` are read by `work` and changed by nobody. The large stays in place only so.
    """

    act: Callable[[ArrayTree, ArrayTree, int, TimeStep], tuple[ArrayTree, Array]]
    """(carry, memory, g, timestep) -> (carry, action `[B, ...]`)."""
    work: Callable[[ArrayTree, ArrayTree, ArrayTree, int], tuple[ArrayTree, ArrayTree]]
    """(carry, memory, constants, g) -> (carry, memory). Everything it does must depend on an integer scalar of
    `carry` (a count, a counter): that is what makes it wait for `send`."""
    active: Callable[[ArrayTree, int], Array] | None
    """(carry, g) -> bool: whether the group is stepped in this beat. None: always."""
    remaining: Callable[[ArrayTree], Array] | None
    """carry -> bool: whether work remains. None: always."""
    finish: Callable[[ArrayTree, ArrayTree, ArrayTree], tuple[ArrayTree, ArrayTree]] | None = None
    """(carry, memory, constants) -> (carry, memory), at the end of each round, under the rule of `work`. None:
    nothing."""


class LoopState(NamedTuple):
    """All that a chunk changes."""

    envs: tuple[ArrayTree, ...]
    """The state of each group, actions in flight."""
    carry: ArrayTree
    memory: ArrayTree


Chunk = Callable[[LoopState, ArrayTree, int], tuple[LoopState, Any]]
"""(state, constants, rounds) -> (state, rounds done). Donates `state`; ends when `rounds` are done or nothing
remains."""


def traced(stages: Stages, groups: Sequence[EnvGroup], *, beats_per_round: int = 1) -> Chunk:
    """The fast form: a chunk of rounds as one compiled, donated program.

    Args:
      stages: the algorithm.
      groups: traceable groups; they must outlive the returned function.
      beats_per_round: beats of a round.

    Returns:
      A `Chunk`; `chunk.jitted` is the `jax.jit` function behind it, of (state, constants, rounds, zero).

    Raises:
      ValueError: a group is not traceable, there are none, or a round has no beat.
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
                env, timestep = group.recv(env)
                carry, action = stages.act(carry, memory, g, timestep)
                return group.send(env, action), carry

            if stages.active is None:
                envs[g], carry = step(envs[g], carry)
            else:
                # Memory is an operand only: results of a conditional are copied.
                envs[g], carry = jax.lax.cond(
                    stages.active(carry, g), step, lambda env, carry: (env, carry), envs[g], carry
                )
            carry, memory = stages.work(after(carry, envs[g], zero), memory, constants, g)
            following = (g + 1) % len(groups)
            # Pure-JAX groups hold no token, and need no order.
            envs[following] = after(envs[following], (carry, memory), zero, required=False)
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

    @partial(jax.jit, donate_argnums=0)
    def chunk(state: LoopState, constants: ArrayTree, rounds: Array, zero: Array):
        def unfinished(loop):
            done, state = loop
            return (done < rounds) & (True if stages.remaining is None else stages.remaining(state.carry))

        def body(loop):
            done, state = loop
            return done + 1, round_(state, constants, zero)

        done, state = jax.lax.while_loop(unfinished, body, (jnp.int32(0), state))
        return state, done

    def run(state, constants, rounds):
        return chunk(state, constants, jnp.int32(rounds), jnp.int32(0))

    run.jitted = chunk  # type: ignore[attr-defined]  # for tests that read the compiled loop
    return run


def driven(stages: Stages, groups: Sequence[EnvGroup], *, beats_per_round: int = 1) -> Chunk:
    """The reference form: the same loop in Python, around jitted `act`, `work` and `finish`.

    Args:
      stages: the algorithm.
      groups: groups made with `host=True`, or pure-JAX ones.
      beats_per_round: beats of a round.

    Returns:
      A `Chunk`.

    Raises:
      ValueError: there are no groups, or a round has no beat.
    """
    _check(groups, beats_per_round)
    act = [jax.jit(partial(_act, stages, g), donate_argnums=0) for g in range(len(groups))]
    work = [jax.jit(partial(_work, stages, g), donate_argnums=(0, 1)) for g in range(len(groups))]
    finish = None if stages.finish is None else jax.jit(stages.finish, donate_argnums=(0, 1))
    remaining = None if stages.remaining is None else jax.jit(stages.remaining)
    active = None
    if stages.active is not None:
        is_active = stages.active
        active = [jax.jit(lambda carry, g=g: is_active(carry, g)) for g in range(len(groups))]

    def run(state, constants, rounds):
        envs, carry, memory = list(state.envs), state.carry, state.memory
        done = 0
        while done < rounds and (remaining is None or bool(remaining(carry))):
            for g, group in list(enumerate(groups)) * beats_per_round:
                if active is None or bool(active[g](carry)):
                    envs[g], timestep = group.recv(envs[g])
                    carry, action = act[g](carry, memory, timestep)
                    envs[g] = group.send(envs[g], action if group.traceable else np.asarray(action))
                carry, memory = work[g](carry, memory, constants)
            if finish is not None:
                carry, memory = finish(carry, memory, constants)
            done += 1
        return LoopState(tuple(envs), carry, memory), done

    return run


def _check(groups: Sequence[EnvGroup], beats_per_round: int) -> None:
    integer("beats_per_round", beats_per_round, low=1)
    if not groups:
        raise ValueError("the loop needs at least one group of environments; two let emulators and device overlap.")


def _act(stages: Stages, g: int, carry, memory, timestep):
    return stages.act(carry, memory, g, timestep)


def _work(stages: Stages, g: int, carry, memory, constants):
    return stages.work(carry, memory, constants, g)
