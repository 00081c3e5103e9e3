"""The one driver of the loop: pools, chunks of about a second, and a stopwatch.

An algorithm iterates over chunks, so that progress, checks and interrupts are plain statements:

    loop = Loop(stages, env.make)
    loop.open(seed_of(key))
    for chunk in loop.run(carry, memory, rounds_left=lambda carry: goal - int(carry.round)):
        carry, memory = chunk.carry, chunk.memory
        print(int(carry.round), "rounds")
        if interrupted():
            break
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import typed_key
from volvox.rollout import pipeline
from volvox.rollout.devices import ALONE, Devices, joined
from volvox.rollout.pipeline import LoopState, RunChunk, Stages, Times
from volvox.types import Array, ArrayTree, EnvGroup

Monitor = Callable[[dict[str, Any]], bool | None]
"""Figures that say how far a step is -> whether to stop it."""
TIMED_EVERY = 10
"""One of so many generations, or iterations of a learner, is timed; 1: none is. See `is_timed`."""
_MOST_ROUNDS = 2**20  # in one chunk
_FASTER = "If a round of learning takes that long, take fewer environments, or learn from less in a round."
_abandoned: list[EnvGroup] = []
"""Pools whose program never ended. A compiled program holds their address, so that they may not be freed."""


class Chunk(NamedTuple):
    """The loop after some rounds.

    Attributes:
      carry: What `act` changes.
      memory: What `work` changes.
      rounds: Rounds of this chunk.
      seconds: Wall-clock time of this chunk, compilation included where it was the first.
    """

    carry: ArrayTree
    memory: ArrayTree
    rounds: int
    seconds: float


class Loop:
    """The loop over pools of its own, run in chunks.

    It owns the pools, the compiled forms of the loop and the environments' states, whose actions are in flight between
    two chunks. Nothing else does, and a loop is never part of an algorithm's state. Groups that can be traced run in
    the compiled loop, others are driven from Python. If anything fails while environments step, the pools are closed:
    donated buffers and actions in flight cannot be trusted any more.

    Attributes:
      make_groups: seed -> new groups.
      devices: The devices that run the loop. With several, `carry`, `memory` and `constants` are as `Devices.placed`
        makes them.
      groups: The pools, as many as one device has; () while closed.
      envs: The environments' states between two chunks, one a group. The next chunk donates them.
      run_chunk: The form of the loop that runs them, for tests that read what was compiled.
      standing: Set by the caller, to recognise the state from which the loop can continue; reset to None by `open`,
        `restart`, `close`, `run` and `time_parts`.
    """

    def __init__(
        self,
        stages: Stages,
        make_groups: Callable[..., tuple[EnvGroup, ...]],
        *,
        beats_per_round: int = 1,
        chunk_seconds: float = 1.0,
        devices: Devices = ALONE,
    ):
        """Prepares the loop; pools are made by `open`.

        Args:
          stages: The algorithm's part in the loop.
          make_groups: seed -> new groups of environments, of one size; for example `env.make`. With several devices
            (seed, number of the device) -> its groups.
          beats_per_round: Beats of a round.
          chunk_seconds: About how long a chunk takes: how often progress and interrupts are looked at.
          devices: The devices that run the loop as one program, each with groups of its own.

        Raises:
          ValueError: `chunk_seconds` is not a positive number.
        """
        if not 0 < chunk_seconds < float("inf"):
            raise ValueError(f"chunk_seconds={chunk_seconds}: give a positive number of seconds.")
        self._stages, self.make_groups, self.devices = stages, make_groups, devices
        self._beats_per_round, self._chunk_seconds = beats_per_round, chunk_seconds
        self.envs: tuple[ArrayTree, ...] = ()
        self._rounds = 1  # of the next chunk
        self.run_chunk: RunChunk = _not_open
        self._time_parts: Callable[..., tuple[LoopState, Times]] = _not_open
        self._recv: list[Callable[[ArrayTree], tuple[ArrayTree, Any]]] = []
        self._answers: Any = None
        self.groups: tuple[EnvGroup, ...] = ()
        self.standing: Any = None

    def open(self, seed: int, envs: tuple[ArrayTree, ...] = ()) -> None:
        """Makes new pools, and closes the old ones.

        Args:
          seed: Seed of the pools, in which every environment begins its first episode.
          envs: States of resumable groups (`EnvGroup.resumable`), which go on from there. They are not donated.
        """
        self.close()
        with self._closed_on_failure():
            self.groups = self._made(seed)
            form = pipeline.traced if all(group.traceable for group in self.groups) else pipeline.driven
            how = {"beats_per_round": self._beats_per_round, "devices": self.devices}
            self.run_chunk = form(self._stages, self.groups, **how)
            self._time_parts = pipeline.timed(self._stages, self.groups, answers=self._answers, **how)
            self._recv = [jax.jit(group.recv) if group.traceable else group.recv for group in self.groups]
            self.envs = copied(envs) or tuple(group.init() for group in self.groups)

    def _made(self, seed: int) -> tuple[EnvGroup, ...]:
        """Makes the pools of this process's devices."""
        if self.devices.mesh is None:
            return tuple(self.make_groups(seed))
        return joined(self.devices, [self.make_groups(seed, number) for number in self.devices.numbers])

    def restart(self, seed: int | None = None) -> None:
        """Drops all episodes and begins new ones in the same pools, seeded by `seed` where they can be.

        Raises:
          TimeoutError: the environments did not answer within ten minutes; see `run`.
        """
        self.standing = None
        with self._closed_on_failure():
            # What is in flight (the first episodes, or the actions of the last beat) must land first.
            waited = [lambda env, recv=recv: jax.block_until_ready(recv(env)[0]) for recv in self._recv]
            landed = [self._answer(recv, env) for recv, env in zip(waited, self.envs, strict=True)]
            together = zip(self.groups, landed, strict=True)
            self.envs = tuple(self._answer(group.restart, env, seed) for group, env in together)

    def _answer(self, call: Callable[..., Any], *args: Any) -> Any:
        """Calls what waits for environments, with a limit where they are stepped in C++."""
        if self._answers is None:
            return call(*args)
        return self._answers.of(functools.partial(call, *args), self.groups[0].spec.name)

    def run(
        self,
        carry: ArrayTree,
        memory: ArrayTree,
        constants: ArrayTree = (),
        *,
        rounds_left: Callable[[ArrayTree], int] | None = None,
    ) -> Iterator[Chunk]:
        """Runs the loop, chunk by chunk; `carry` and `memory` are donated.

        Iterating may stop after any chunk; a later run goes on with the carry and the memory of that chunk.

        Args:
          carry: What `act` changes.
          memory: What `work` changes.
          constants: What the loop only reads.
          rounds_left: carry -> rounds that may still be run; asked before each chunk, and none left ends the run. None:
            the run ends when nothing remains (`Stages.remaining`).

        Yields:
          `Chunk`; the last may have no rounds, where nothing remained.

        Raises:
          RuntimeError: the loop is not open.
          TimeoutError: the environments did not answer within ten minutes. A chunk lasts about a second, or as long as
            a round if that is longer. Their program cannot be stopped, and keeps the process from ending in the usual
            way: end it by `os._exit`.
          ConnectionError: Another process of this run ended, or does not answer.
        """
        self.standing = None
        while (left := _MOST_ROUNDS if rounds_left is None else rounds_left(carry)) > 0:
            began, rounds = time.perf_counter(), min(self._rounds, left)
            with self._closed_on_failure():
                state, done = self.run_chunk(LoopState(self.envs, carry, memory), constants, rounds)
                done = int(self.devices.waited(done, 600.0, on_timeout=_FASTER))
                seconds = self.devices.largest(time.perf_counter() - began)  # so that all make chunks of one length
            self.envs, carry, memory = state
            if done == self._rounds:  # a chunk that was cut short says little of how long a round takes
                # Towards chunks of the asked length, at most doubling: the first chunks include compilation.
                factor = min(max(self._chunk_seconds / max(seconds, 1e-6), 0.5), 2.0)
                self._rounds = min(max(1, int(self._rounds * factor)), _MOST_ROUNDS)
            yield Chunk(carry, memory, done, seconds)
            if done < rounds:
                return

    def time_parts(
        self, carry: ArrayTree, memory: ArrayTree, constants: ArrayTree = (), *, rounds: int
    ) -> tuple[ArrayTree, ArrayTree, Times]:
        """Runs a few rounds in which nothing overlaps, with a stopwatch; `carry` and `memory` are donated.

        Args:
          carry: What `act` changes.
          memory: What `work` changes.
          constants: What the loop only reads.
          rounds: At least 2; the first is not timed.

        Returns:
          (carry, memory, seconds of each part).

        Raises:
          RuntimeError: the loop is not open.
          TimeoutError: the environments did not answer within ten minutes; see `run`.
        """
        self.standing = None
        with self._closed_on_failure():
            state, times = self._time_parts(LoopState(self.envs, carry, memory), constants, rounds)
        self.envs, carry, memory = state
        return carry, memory, times

    def close(self) -> None:
        """Frees the pools and their threads; `open` makes others."""
        if self._answers is not None and not self._answers.close():
            _abandoned.extend(self.groups)
            self.groups = ()
        for group in self.groups:
            group.close()
        self._answers = None
        self.run_chunk = self._time_parts = _not_open
        self.groups, self.envs, self.standing = (), (), None

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except (ConnectionError, TimeoutError):
            if any(group.traceable for group in self.groups):  # the program may still run; others raise these, too
                _abandoned.extend(self.groups)
                self.groups = ()
            self.close()
            raise
        except BaseException:
            self.close()
            raise


def copied(tree: ArrayTree) -> ArrayTree:
    """Returns a copy of all arrays of a tree, for a program to which the copy is donated."""
    return jax.tree.map(jnp.copy, tree)


def is_timed(count: int) -> bool:
    """Whether the next generation, or iteration of a learner, is timed, after `count` of them.

    The second is, because the first is mostly compilation, and every tenth from there.
    """
    return count % TIMED_EVERY == 1


def seed_of(key: Array, *numbers: int) -> int:
    """Makes the seed of pools: an integer in [0, 2**31) that depends on a key and on numbers, for example a generation.

    Args:
      key: typed, or raw key data.
      *numbers: Non-negative integers; zeros at the end make no difference.

    Returns:
      The seed.
    """
    entropy = [*np.asarray(jax.random.key_data(typed_key(key))).ravel().tolist(), *numbers]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)


def _not_open(*args: Any) -> Any:
    del args
    raise RuntimeError("the loop is not open, or was closed and its pools are gone; open(seed) makes new ones.")
