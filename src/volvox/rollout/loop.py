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

`Loop` makes the environments and runs the loop in chunks of about a second. An algorithm iterates over chunks, so that
progress, checks and interrupts are plain statements:

    loop = Loop(stages, env.make)
    loop.open(seed_of(key))
    for state, rounds in loop.run(carry, memory, rounds_left=lambda carry: goal - int(carry.round)):
        print(int(state.carry.round), "rounds")
        if interrupted():
            break
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import typed_key
from volvox.ops.order import after
from volvox.rollout.devices import SINGLE_DEVICE, Devices, join_groups
from volvox.types import Array, ArrayTree, ByValue, EnvGroup, TimeStep

Monitor = Callable[[dict[str, Any]], bool | None]
"""Progress figures of a step -> whether to stop the step."""
CHUNK_SECONDS = 1.0
"""Approximate interval in seconds at which progress and interrupts are checked: the duration of a chunk."""
_MAX_ROUNDS_PER_CHUNK = 2**20


class Stages(NamedTuple):
    """The functions that an algorithm contributes to the loop. `g` is the index of the group, a Python int.

    The state is split by the function that may change it: `act` changes `carry` (small) and only reads `memory`
    (large); `work` changes both. All read `constants`, and none changes them. The split keeps the large state in place.

    Attributes:
      act: (carry, memory, constants, g, timestep) -> (carry, action `[B, ...]`).
      work: (carry, memory, constants, g) -> (carry, memory). Its computations must depend on an integer scalar of
        `carry`, such as a counter: this dependence makes them wait for `send`.
      active: (carry, g) -> bool: whether the group is stepped in this beat. The run ends when no group is active. None:
        groups are always active.
      finish: (carry, memory, constants) -> (carry, memory), called at the end of each round. The rule of `work` holds.
      episode_keys: (carry, constants, g) -> (where bool `[B]`, keys `[B]`), for `EnvGroup.rekey` before each `recv`:
        the environments that begin an episode, and the keys of these episodes. None: environments continue with their
        own random numbers.
      due: bool `[beats, groups]`: The turns of a round in which `work` may change anything; the driven form calls it in
        these only. None: all turns.
      cache_key: Tuple that determines the functions and the environments (`ByValue.value`). On resumable groups, loops
        with equal keys share a compiled program. None: nothing is shared.
    """

    act: Callable[[ArrayTree, ArrayTree, ArrayTree, int, TimeStep], tuple[ArrayTree, Array]]
    work: Callable[[ArrayTree, ArrayTree, ArrayTree, int], tuple[ArrayTree, ArrayTree]]
    active: Callable[[ArrayTree, int], Array] | None = None
    finish: Callable[[ArrayTree, ArrayTree, ArrayTree], tuple[ArrayTree, ArrayTree]] | None = None
    episode_keys: Callable[[ArrayTree, ArrayTree, int], tuple[Array, Array]] | None = None
    due: np.ndarray | None = None
    cache_key: tuple[Any, ...] | None = None


class LoopState(NamedTuple):
    """The state that a chunk changes.

    Attributes:
      envs: The state of each group, whose actions have been sent.
      carry: The small state.
      memory: The large state.
    """

    envs: tuple[ArrayTree, ...]
    carry: ArrayTree
    memory: ArrayTree


RunChunk = Callable[[LoopState, ArrayTree, int], tuple[LoopState, Any]]
"""(state, constants, rounds) -> (state, rounds done). Donates `state`; ends early if no group is active."""


def traced(
    stages: Stages, groups: Sequence[EnvGroup], *, beats_per_round: int = 1, devices: Devices = SINGLE_DEVICE
) -> RunChunk:
    """The fast form: a chunk of rounds as one compiled, donated program.

    Args:
      stages: The algorithm.
      groups: Traceable groups; they must outlive the returned function.
      beats_per_round: Beats of a round.
      devices: The devices that run the loop as one program.

    Returns:
      A `RunChunk`.
    """

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

    def chunk(zero: Array, state: LoopState, constants: ArrayTree, rounds: Array | int):
        def unfinished(loop):
            done, state = loop
            return (done < rounds) & _any_active(stages, len(groups), state.carry)

        def body(loop):
            done, state = loop
            return done + 1, round_(state, constants, zero)

        done, state = jax.lax.while_loop(unfinished, body, (jnp.int32(0), state))
        return state, done

    mapped, zero = devices.mapped(chunk), devices.placed(jnp.int32(0))
    if stages.cache_key is None or not all(group.resumable for group in groups):
        return partial(jax.jit(mapped, donate_argnums=1), zero)
    return partial(shared_jit(ByValue((*stages.cache_key, beats_per_round, devices), mapped), donated=1), zero)


@lru_cache(maxsize=16)
def shared_jit(function: ByValue, *, donated: tuple[int, ...] | int = ()) -> Any:
    """Returns the compiled function. Equal functions share it, and the latest 16 are kept."""
    return jax.jit(function.function, donate_argnums=donated)


def driven(
    stages: Stages, groups: Sequence[EnvGroup], *, beats_per_round: int = 1, devices: Devices = SINGLE_DEVICE
) -> RunChunk:
    """The reference form of `traced`: the same loop in Python, around jitted `act`, `work` and `finish`.

    Groups may be of any kind; they are made with `host=True` where they cannot be traced.
    """
    calls, turns = Calls(stages, groups, devices), _turns(stages, len(groups), beats_per_round)

    def run(state, constants, rounds):
        envs, carry, memory = list(state.envs), state.carry, state.memory
        done = 0
        while done < rounds and calls.any_active(carry):
            for g, due in turns:
                if calls.active(carry, g):
                    envs[g], timestep = calls.recv(g, envs[g], carry, constants)
                    carry, action = calls.act[g](carry, memory, constants, timestep)
                    envs[g] = calls.send[g](envs[g], action)
                if due:
                    carry, memory = calls.work[g](carry, memory, constants)
            carry, memory = calls.finish(carry, memory, constants)
            done += 1
        return LoopState(tuple(envs), carry, memory), done

    return run


def _any_active(stages: Stages, num_groups: int, carry: ArrayTree) -> Any:
    """Returns whether any group is stepped in the next beat."""
    return stages.active is None or jnp.stack([stages.active(carry, g) for g in range(num_groups)]).any()


def _turns(stages: Stages, num_groups: int, beats_per_round: int) -> list[tuple[int, bool]]:
    """Returns (group, whether `work` is called) of each turn of a round."""
    due = np.ones((beats_per_round, num_groups), bool) if stages.due is None else stages.due
    return [(g, bool(due[beat, g])) for beat in range(beats_per_round) for g in range(num_groups)]


class Calls:
    """The stages and the groups as compiled functions that Python calls one by one."""

    def __init__(self, stages: Stages, groups: Sequence[EnvGroup], devices: Devices = SINGLE_DEVICE):
        """Compiles nothing yet; each function is compiled by its first call."""

        def compiled(function: Callable[..., Any], *donated: int) -> Callable[..., Any]:
            return jax.jit(devices.mapped(function), donate_argnums=donated)

        def work(g: int, carry: ArrayTree, memory: ArrayTree, constants: ArrayTree) -> Any:
            return stages.work(carry, memory, constants, g)

        def act(g: int, carry: ArrayTree, memory: ArrayTree, constants: ArrayTree, timestep: TimeStep) -> Any:
            return stages.act(carry, memory, constants, g, timestep)

        indices = range(len(groups))
        self.act = [compiled(partial(act, g), 0) for g in indices]
        self.work = [compiled(partial(work, g), 0, 1) for g in indices]
        self.finish = compiled(stages.finish, 0, 1) if stages.finish else lambda carry, memory, _: (carry, memory)
        self.active = jax.jit(stages.active, static_argnums=1) if stages.active else lambda carry, g: True
        self.any_active = jax.jit(partial(_any_active, stages, len(groups))) if stages.active else lambda carry: True
        self.send = [compiled(group.send) if group.traceable else group.send for group in groups]
        self._recv = [compiled(group.recv) if group.traceable else group.recv for group in groups]
        self._groups, self._stages = groups, stages
        if stages.episode_keys is not None:
            self._stages = stages._replace(episode_keys=jax.jit(stages.episode_keys, static_argnums=2))

    def recv(self, g: int, env: ArrayTree, carry: ArrayTree, constants: ArrayTree) -> tuple[ArrayTree, TimeStep]:
        """Sets the keys of the episodes that begin, and waits for group `g`."""
        return self._recv[g](_keyed(self._stages, self._groups[g], g, env, carry, constants))


def _keyed(
    stages: Stages, group: EnvGroup, g: int, env: ArrayTree, carry: ArrayTree, constants: ArrayTree
) -> ArrayTree:
    """Returns the state of a group after setting the keys of the episodes that begin."""
    if stages.episode_keys is None or group.rekey is None:
        return env
    return group.rekey(env, *stages.episode_keys(carry, constants, g))


class Loop:
    """The loop over its own environments, run in chunks.

    It owns the groups of environments, the compiled loop and the states of the environments, whose actions are in
    flight between two chunks. A loop is never part of an algorithm's state. Groups that can be traced run in the
    compiled loop, others are driven from Python. After an error the loop must be closed, because donated buffers and
    actions in flight cannot be trusted any more.

    Attributes:
      stages: The algorithm's part in the loop.
      make_groups: seed -> new groups of environments, of one size; for example `env.make`. With several devices (seed,
        number of the device) -> its groups.
      beats_per_round: Beats of a round.
      devices: The devices that run the loop as one program, each with groups of its own. With several, `carry`,
        `memory` and `constants` are as `Devices.placed` makes them.
      groups: The groups, as many as one device has; () while closed.
      envs: The environments' states between two chunks, one per group. The next chunk donates them.
      run_chunk: The form of the loop that is used; None while closed.
      continuation: (learning, carry, memory) from which the loop can continue, set by the caller; None after a step.
    """

    def __init__(
        self,
        stages: Stages,
        make_groups: Callable[..., tuple[EnvGroup, ...]],
        *,
        beats_per_round: int = 1,
        devices: Devices = SINGLE_DEVICE,
    ):
        """Prepares the loop; `open` makes the environments."""
        self.stages = stages
        self.make_groups = make_groups
        self.beats_per_round = beats_per_round
        self.devices = devices
        self.groups: tuple[EnvGroup, ...] = ()
        self.envs: tuple[ArrayTree, ...] = ()
        self.run_chunk: Any = None
        self.continuation: Any = None
        self._rounds_per_chunk = 1

    def open(self, seed: int, envs: tuple[ArrayTree, ...] = ()) -> None:
        """Makes new environments, and closes the old ones.

        Args:
          seed: Seed of the environments, each of which begins its first episode.
          envs: States of resumable groups (`EnvGroup.resumable`), which continue from there. They are not donated.
        """
        self.close()
        if self.devices.mesh is None:
            self.groups = tuple(self.make_groups(seed))
        else:
            groups = [self.make_groups(seed, number) for number in self.devices.numbers]
            self.groups = join_groups(self.devices, groups)
        form = traced if all(group.traceable for group in self.groups) else driven
        self.run_chunk = form(self.stages, self.groups, beats_per_round=self.beats_per_round, devices=self.devices)
        self.envs = copied(envs) if envs else tuple(group.init() for group in self.groups)

    def restart(self, seed: int | None = None) -> None:
        """Drops all episodes and begins new ones in the same environments, seeded by `seed` where they can be."""
        self.continuation, envs = None, []
        for group, env in zip(self.groups, self.envs, strict=True):
            recv = jax.jit(group.recv) if group.traceable else group.recv
            env, _ = jax.block_until_ready(recv(env))  # the actions in flight must land first
            envs.append(group.restart(env, seed))
        self.envs = tuple(envs)

    def run(
        self,
        carry: ArrayTree,
        memory: ArrayTree,
        constants: ArrayTree = (),
        *,
        rounds_left: Callable[[ArrayTree], int] | None = None,
    ) -> Iterator[tuple[LoopState, int]]:
        """Runs the loop, chunk by chunk; `carry` and `memory` are donated.

        Iterating may stop after any chunk; a later run continues with the carry and the memory of that chunk.

        Args:
          carry: The small state.
          memory: The large state.
          constants: The state that no stage changes.
          rounds_left: carry -> rounds that may still be run. It is asked before each chunk, and 0 ends the run. None:
            the run ends when no group is active (`Stages.active`).

        Yields:
          (state after the chunk, rounds of the chunk); the last chunk may have no rounds, if no group was active.
        """
        while (left := _MAX_ROUNDS_PER_CHUNK if rounds_left is None else rounds_left(carry)) > 0:
            self.continuation = None
            began, rounds = time.perf_counter(), min(self._rounds_per_chunk, left)
            state, done = self.run_chunk(LoopState(self.envs, carry, memory), constants, rounds)
            done = int(self.devices.local(done))
            # The maximum, so that all make chunks of one length.
            seconds = self.devices.max_over_processes(time.perf_counter() - began)
            self.envs, carry, memory = state
            if done == self._rounds_per_chunk:  # the duration of a chunk that was cut short says little about a round
                # Towards chunks of the wanted length, at most doubling: the first chunks include compilation.
                factor = min(max(CHUNK_SECONDS / max(seconds, 1e-6), 0.5), 2.0)
                self._rounds_per_chunk = min(max(1, int(self._rounds_per_chunk * factor)), _MAX_ROUNDS_PER_CHUNK)
            yield state, done
            if done < rounds:
                return

    def close(self) -> None:
        """Frees the environments and their threads; `open` makes others."""
        for group in self.groups:
            group.close()
        self.groups, self.envs, self.run_chunk, self.continuation = (), (), None, None


@jax.jit  # one call instead of one for each array
def copied(tree: ArrayTree) -> ArrayTree:
    """Returns a copy of all arrays of a tree, for a program to which the copy is donated."""
    return jax.tree.map(jnp.copy, tree)


def seed_of(key: Array, *numbers: int) -> int:
    """Makes a seed of environments: an integer in [0, 2**31) that depends on a key and on numbers.

    Args:
      key: A typed key, or raw key data.
      *numbers: Non-negative integers, for example a generation. Zeros at the end make no difference as long as key and
        numbers have at most four words together; a key has two, or four with `rbg`.

    Returns:
      The seed.
    """
    entropy = [*np.asarray(jax.random.key_data(typed_key(key))).ravel().tolist(), *numbers]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)


def time_parts(
    loop: Loop,
    carry: ArrayTree,
    memory: ArrayTree,
    constants: ArrayTree = (),
    *,
    seconds: float,
    untimed_rounds: int = 1,
) -> tuple[float, float, float]:
    """Runs an open loop without overlap and times its parts; it must be closed afterwards.

    `act` and `work` are called from Python here, which takes some tenths of a millisecond per call; for very small
    networks their share is overestimated.

    Args:
      loop: The loop, which is open.
      carry: The small state; it is donated.
      memory: The large state; it is donated.
      constants: The state that no stage changes.
      seconds: Approximate duration, without compilation.
      untimed_rounds: Rounds at the beginning that are not timed; the first may compile.

    Returns:
      Seconds per timestep of one environment, as means over whole rounds: emulators (from `send` to `recv`, while all
      threads step one group), `act`, and `work` with `finish`.
    """
    mesh, num_groups = loop.devices.mesh, len(loop.groups)
    group_size = loop.groups[0].num_envs * (1 if mesh is None else mesh.size)  # of all devices
    calls = Calls(loop.stages, loop.groups, loop.devices)
    turns = _turns(loop.stages, num_groups, loop.beats_per_round)
    spent: dict[str, list[float]] = {}

    def timed(part: str, call: Callable[..., Any], *args: Any) -> Any:
        began = time.perf_counter()
        result = jax.block_until_ready(call(*args))
        spent[part].append(time.perf_counter() - began)
        return result

    def step(g: int, env: ArrayTree, action: Any, carry: ArrayTree) -> Any:
        return calls.recv(g, calls.send[g](env, action), carry, constants)

    received = [calls.recv(g, env, carry, constants) for g, env in enumerate(loop.envs)]
    rounds, end = -untimed_rounds, 0.0
    while rounds < 1 or (time.perf_counter() < end and calls.any_active(carry)):
        if rounds in (-untimed_rounds, 0):
            spent, end = {"emulators": [], "acting": [], "working": []}, time.perf_counter() + seconds
        for g, due in turns:
            if calls.active(carry, g):
                env, timestep = received[g]
                carry, action = timed("acting", calls.act[g], carry, memory, constants, timestep)
                received[g] = timed("emulators", step, g, env, action, carry)
            if due:
                carry, memory = timed("working", calls.work[g], carry, memory, constants)
        carry, memory = timed("working", calls.finish, carry, memory, constants)
        rounds += 1
    emulators, acting = (sum(spent[part]) / max(len(spent[part]), 1) for part in ("emulators", "acting"))
    working = sum(spent["working"]) / (num_groups * loop.beats_per_round * rounds)
    return emulators / group_size, acting / group_size, working / group_size
