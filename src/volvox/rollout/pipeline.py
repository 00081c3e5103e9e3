"""The one loop: groups of environments take turns, so that emulators and device overlap.

    for each group g:
        timestep = recv(g)                 # wait for g's emulators
        carry, action = act(carry, g, timestep)
        send(g, action)                    # returns at once; g's emulators step in C++ threads
        carry = work(carry, g)             # device work that runs while emulators step

One pass over the groups is a *beat*. The loop exists in two forms with the same meaning: `traced` compiles a chunk of
beats whole; `driven` runs it from Python around jitted `act` and `work`, is the reference, and serves groups that
cannot be traced.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox.ops.order import after
from volvox.types import Array, ArrayTree, EnvGroup, TimeStep


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


class LoopState(NamedTuple):
    """All that a chunk changes."""

    envs: tuple[ArrayTree, ...]
    """The state of each group, actions in flight."""
    carry: ArrayTree
    memory: ArrayTree


Chunk = Callable[[LoopState, ArrayTree, int], tuple[LoopState, Any]]
"""(state, constants, beats) -> (state, beats done). Donates `state`; ends when `beats` are done or nothing remains."""


def traced(stages: Stages, groups: Sequence[EnvGroup]) -> Chunk:
    """The fast form: a chunk of beats as one compiled, donated program.

    Args:
      stages: the algorithm.
      groups: traceable groups; they must outlive the returned function.

    Returns:
      A `Chunk`; `chunk.jitted` is the `jax.jit` function behind it, of (state, constants, beats, zero).

    Raises:
      ValueError: a group is not traceable, or there are none.
    """
    _check(groups)
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

    @partial(jax.jit, donate_argnums=0)
    def chunk(state: LoopState, constants: ArrayTree, beats: Array, zero: Array):
        def unfinished(loop):
            done, state = loop
            return (done < beats) & (True if stages.remaining is None else stages.remaining(state.carry))

        def body(loop):
            done, state = loop
            return done + 1, beat(state, constants, zero)

        done, state = jax.lax.while_loop(unfinished, body, (jnp.int32(0), state))
        return state, done

    def run(state, constants, beats):
        return chunk(state, constants, jnp.int32(beats), jnp.int32(0))

    run.jitted = chunk  # type: ignore[attr-defined]  # for tests that read the compiled loop
    return run


def driven(stages: Stages, groups: Sequence[EnvGroup]) -> Chunk:
    """The reference form: the same loop in Python, around jitted `act` and `work`.

    Args:
      stages: the algorithm.
      groups: groups made with `host=True`, or pure-JAX ones.

    Returns:
      A `Chunk`.

    Raises:
      ValueError: there are no groups.
    """
    _check(groups)
    act = [jax.jit(partial(_act, stages, g), donate_argnums=0) for g in range(len(groups))]
    work = [jax.jit(partial(_work, stages, g), donate_argnums=(0, 1)) for g in range(len(groups))]
    remaining = None if stages.remaining is None else jax.jit(stages.remaining)
    active = None
    if stages.active is not None:
        is_active = stages.active
        active = [jax.jit(lambda carry, g=g: is_active(carry, g)) for g in range(len(groups))]

    def run(state, constants, beats):
        envs, carry, memory = list(state.envs), state.carry, state.memory
        done = 0
        while done < beats and (remaining is None or bool(remaining(carry))):
            for g, group in enumerate(groups):
                if active is None or bool(active[g](carry)):
                    envs[g], timestep = group.recv(envs[g])
                    carry, action = act[g](carry, memory, timestep)
                    envs[g] = group.send(envs[g], action if group.traceable else np.asarray(action))
                carry, memory = work[g](carry, memory, constants)
            done += 1
        return LoopState(tuple(envs), carry, memory), done

    return run


def _check(groups: Sequence[EnvGroup]) -> None:
    if not groups:
        raise ValueError("the loop needs at least one group of environments; two let emulators and device overlap.")


def _act(stages: Stages, g: int, carry, memory, timestep):
    return stages.act(carry, memory, g, timestep)


def _work(stages: Stages, g: int, carry, memory, constants):
    return stages.work(carry, memory, constants, g)
