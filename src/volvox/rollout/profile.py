"""Times of the parts of the loop: the loop without overlap, each part waited for before the next begins."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from volvox._checks import integer
from volvox.rollout.driver import Loop
from volvox.rollout.pipeline import Calls, LoopState
from volvox.types import ArrayTree


class Times(NamedTuple):
    """Seconds per timestep of one environment.

    `act` and `work` are called from Python here, which takes some tenths of a millisecond per call; for very small
    networks their share is overestimated.

    Attributes:
      emulators: From `send` to `recv`: all threads step one group.
      acting: `act`.
      working: `work` and `finish`: learning, or decoding of members.
    """

    emulators: float
    acting: float
    working: float


def time_parts(
    loop: Loop, carry: ArrayTree, memory: ArrayTree, constants: ArrayTree = (), *, rounds: int
) -> tuple[ArrayTree, ArrayTree, Times]:
    """Runs a few rounds of an open loop without overlap and times the parts.

    The state changes as in the ordinary loop, which can continue from the result. `Stages.remaining` is not asked.

    Args:
      loop: The loop, which is open.
      carry: The small state; it is donated.
      memory: The large state; it is donated.
      constants: The state that no stage changes.
      rounds: Number of rounds, at least 2, or 3 if a round is one beat; the first is not timed, because it may compile.

    Returns:
      (carry, memory, times); the times are means over whole rounds.
    """
    integer("rounds", rounds, low=2)
    with loop.moving():
        state, times = _run(loop, carry, memory, constants, rounds)
    loop.envs, carry, memory = state
    return carry, memory, times


def _run(loop: Loop, carry: ArrayTree, memory: ArrayTree, constants: ArrayTree, rounds: int) -> tuple[LoopState, Times]:
    calls, envs, beats = Calls(loop.stages, loop.groups, loop.devices), list(loop.envs), loop.beats_per_round
    num_groups, group_size, last = len(loop.groups), loop.groups[0].num_envs, rounds * beats - 1
    spent: dict[str, list[float]] = {}

    def timed(part: str, call: Callable[..., Any], *args: Any) -> Any:
        began = time.perf_counter()
        result = jax.block_until_ready(call(*args))
        spent[part].append(time.perf_counter() - began)
        return result

    def step(g: int, env: ArrayTree, action: Any, carry: ArrayTree) -> Any:
        return calls.recv(g, calls.send[g](env, action), carry, constants)

    received: list[Any] = [None] * num_groups  # timesteps that no action has answered yet
    actions: list[Any] = [None] * num_groups
    for beat in range(last + 1):
        if beat in (0, beats):
            spent = {"emulators": [], "acting": [], "working": []}
        for g in range(num_groups):
            if calls.active(carry, g):
                if received[g] is None:
                    envs[g], received[g] = calls.recv(g, envs[g], carry, constants)
                carry, actions[g] = timed("acting", calls.act, carry, memory, constants, g, received[g])
                if beat == last:  # the last actions stay in flight, as in the ordinary loop
                    envs[g], received[g] = calls.send[g](envs[g], actions[g]), None
                else:
                    envs[g], received[g] = timed("emulators", step, g, envs[g], actions[g], carry)
            carry, memory = timed("working", calls.work, carry, memory, constants, g)
        if (beat + 1) % beats == 0:
            carry, memory = timed("working", calls.finish, carry, memory, constants)
    for g in range(num_groups):
        if received[g] is not None:  # the group became idle: its next `recv` must find actions in flight
            envs[g] = calls.send[g](envs[g], actions[g])
    emulators, acting = (sum(spent[part]) / max(len(spent[part]), 1) for part in ("emulators", "acting"))
    working = sum(spent["working"]) / (num_groups * (last + 1 - beats))
    times = Times(emulators / group_size, acting / group_size, working / group_size)
    return LoopState(tuple(envs), carry, memory), times
