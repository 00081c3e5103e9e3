"""The one loop: groups of environments take turns, so that emulators and device overlap.

    for each group g:
        timestep = recv(g)                 # wait for g's emulators
        carry, action = act(carry, g, timestep)
        send(g, action)                    # returns at once; g's emulators step in C++ threads
        carry = work(carry, g)             # device work that runs while emulators step

One pass over the groups is a *beat*, and a fixed number of beats is a *round*; `finish` ends each round, while all
groups' emulators step. The loop exists in forms with the same meaning: `traced` compiles a chunk of rounds whole;
`driven` runs it from Python around jitted `act`, `work` and `finish`, is the reference, and serves groups that cannot
be traced; `timed` is that with a stopwatch, and overlaps nothing.
"""

import time
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
    """What an algorithm does in the loop. `g` is the group's index, a Python int.

    State is split by who may change it: `act` changes `carry` (small) and only reads `memory` (large); `work` changes
    both. All read `constants`, and none changes them. Only this keeps the large state in place.

    Attributes:
      act: (carry, memory, constants, g, timestep) -> (carry, action `[B, ...]`).
      work: (carry, memory, constants, g) -> (carry, memory). Everything it does must depend on an integer scalar of
        `carry` (a count, a counter): that is what makes it wait for `send`.
      active: (carry, g) -> bool: whether the group is stepped in this beat. None: always.
      remaining: carry -> bool: whether work remains. None: always.
      finish: (carry, memory, constants) -> (carry, memory), at the end of each round, under the rule of `work`. None:
        nothing.
      episode_keys: (carry, constants, g) -> (where bool `[B]`, keys `[B]`), for `EnvGroup.rekey` before each `recv`:
        the environments that begin an episode in it, and the keys of these episodes. None: environments go on with
        their own random numbers.
    """

    act: Callable[[ArrayTree, ArrayTree, ArrayTree, int, TimeStep], tuple[ArrayTree, Array]]
    work: Callable[[ArrayTree, ArrayTree, ArrayTree, int], tuple[ArrayTree, ArrayTree]]
    active: Callable[[ArrayTree, int], Array] | None = None
    remaining: Callable[[ArrayTree], Array] | None = None
    finish: Callable[[ArrayTree, ArrayTree, ArrayTree], tuple[ArrayTree, ArrayTree]] | None = None
    episode_keys: Callable[[ArrayTree, ArrayTree, int], tuple[Array, Array]] | None = None


class LoopState(NamedTuple):
    """All that a chunk changes.

    Attributes:
      envs: The state of each group, actions in flight.
      carry: What `act` changes.
      memory: What `work` changes.
    """

    envs: tuple[ArrayTree, ...]
    carry: ArrayTree
    memory: ArrayTree


RunChunk = Callable[[LoopState, ArrayTree, int], tuple[LoopState, Any]]
"""(state, constants, rounds) -> (state, rounds done). Donates `state`; ends when `rounds` are done or nothing
remains."""


def traced(
    stages: Stages, groups: Sequence[EnvGroup], *, beats_per_round: int = 1, devices: Devices = ALONE
) -> RunChunk:
    """The fast form: a chunk of rounds as one compiled, donated program.

    Args:
      stages: The algorithm.
      groups: Traceable groups; they must outlive the returned function.
      beats_per_round: Beats of a round.
      devices: The devices that run it as one program.

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
      devices: The devices that run it as one program.

    Returns:
      A `RunChunk`.

    Raises:
      ValueError: there are no groups, they differ in size, or a round has no beat.
    """
    _check(groups, beats_per_round)
    calls = _Calls(stages, groups, devices)

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


class Times(NamedTuple):
    """Seconds that one timestep of one environment takes of each part, when nothing overlaps; means over whole rounds.

    Attributes:
      emulators: `send` to `recv`: all threads stepping one group.
      acting: `act`.
      working: `work` and `finish`.
    """

    emulators: float
    acting: float
    working: float

    def shares(self, timesteps_per_second: float, *, working: str) -> dict[str, float]:
        """What a row of metrics says about where time goes.

        Args:
          timesteps_per_second: Rate of the loop that overlaps the parts, reset timesteps included.
          working: What `work` does, e.g. "learning".

        Returns:
          `share_emulators`, `share_inference` and `share_` + `working`, which add up to 1; and `speed_over_turns`: the
          loop's rate over that of the parts taking turns. The parts are called from Python, and each call costs some
          tenths of a millisecond: with networks so small that this counts, the parts look slower than they are in the
          loop.
        """
        total = sum(self)
        return {
            "share_emulators": self.emulators / total,
            "share_inference": self.acting / total,
            f"share_{working}": self.working / total,
            "speed_over_turns": timesteps_per_second * total,
        }


def timed(
    stages: Stages,
    groups: Sequence[EnvGroup],
    *,
    beats_per_round: int = 1,
    devices: Devices = ALONE,
    answers: Any = None,
) -> Callable[[LoopState, ArrayTree, int], tuple[LoopState, Times]]:
    """The same loop with a stopwatch: driven from Python, each part waited for before the next begins.

    It does to carry and memory what the other forms do, so a run can go through a few rounds of it to see where time
    goes. A group that becomes idle meanwhile is sent its last actions once more, so that its next `recv` has something
    to wait for.

    Args:
      stages: The algorithm.
      groups: Groups of one size.
      beats_per_round: Beats of a round.
      devices: The devices that run it as one program.
      answers: What waits for groups with a limit; None waits without one.

    Returns:
      (state, constants, rounds) -> (state, times). `rounds` is at least 2: the first one, which may compile, is not
      timed. It does not ask `remaining`. Donates `state`.

    Raises:
      ValueError: there are no groups, they differ in size, a round has no beat, or (when called) there are too few
        rounds.
    """
    _check(groups, beats_per_round)
    calls, num_groups, group_size = _Calls(stages, groups, devices, answers), len(groups), groups[0].num_envs

    def run(state: LoopState, constants: ArrayTree, rounds: int) -> tuple[LoopState, Times]:
        integer("rounds", rounds, low=2)
        envs, carry, memory = list(state.envs), state.carry, state.memory
        waiting: list[TimeStep | None] = [None] * num_groups  # received, and not acted on yet
        actions: list[Any] = [None] * num_groups
        spent: dict[str, list[float]] = {"emulators": [], "acting": [], "working": []}
        last = rounds * beats_per_round - 1
        for beat in range(last + 1):
            if beat == beats_per_round:
                spent = {part: [] for part in spent}  # the first round may have compiled
            for g in range(num_groups):
                if calls.active(carry, g):
                    if waiting[g] is None:
                        envs[g], waiting[g] = calls.answered([], calls.recv, g, envs[g], carry, constants)
                    carry, actions[g] = calls.stopped(
                        spent["acting"], calls.act, carry, memory, constants, g, waiting[g]
                    )
                    if beat == last:  # the last actions stay in flight, as in the other forms
                        envs[g], waiting[g] = calls.send[g](envs[g], actions[g]), None
                    else:
                        given = (g, envs[g], actions[g], carry, constants)
                        envs[g], waiting[g] = calls.answered(spent["emulators"], calls.step, *given)
                carry, memory = calls.stopped(spent["working"], calls.work, carry, memory, constants, g)
            if (beat + 1) % beats_per_round == 0:
                carry, memory = calls.stopped(spent["working"], calls.finish, carry, memory, constants)
        for g in range(num_groups):
            if waiting[g] is not None:
                envs[g] = calls.send[g](envs[g], actions[g])
        emulators, acting = (sum(spent[part]) / max(len(spent[part]), 1) for part in ("emulators", "acting"))
        working = sum(spent["working"]) / (num_groups * (last + 1 - beats_per_round))
        times = Times(emulators / group_size, acting / group_size, working / group_size)
        return LoopState(tuple(envs), carry, memory), times

    return run


class _Calls:
    """The groups' functions and the stages, as Python calls them."""

    def __init__(self, stages: Stages, groups: Sequence[EnvGroup], devices: Devices, answers: Any = None):
        self._recv = [compiled(group.recv, devices) if group.traceable else group.recv for group in groups]
        self._groups, self._stages, self._answers = groups, stages, answers
        self._wait = jax.block_until_ready if devices.mesh is None else devices.waited
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
        """Waits for a group; episodes that begin have their keys."""
        return self._recv[g](_keyed(self._stages, self._groups[g], g, env, carry, constants))

    def stopped(self, spent: list[float], call: Callable[..., Any], *args: Any) -> Any:
        """Calls, waits for the result, and adds the seconds it took; the arguments are ready before."""
        began = time.perf_counter()
        result = self._wait(call(*args))
        spent.append(time.perf_counter() - began)
        return result

    def answered(self, spent: list[float], call: Callable[..., Any], *args: Any) -> Any:
        """As `stopped`, of what waits for environments: with a limit, if there are `answers`."""
        stopped = partial(self.stopped, spent, call, *args)
        return stopped() if self._answers is None else self._answers.of(stopped, self._groups[0].spec.name)

    def step(self, g: int, env: ArrayTree, action: Array, carry: ArrayTree, constants: ArrayTree) -> Any:
        """Sends actions to a group, and receives what they led to."""
        return self.recv(g, self.send[g](env, action), carry, constants)


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
