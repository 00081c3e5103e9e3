"""The driver of the loop: it makes the environments and runs the loop in chunks of about a second.

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
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import typed_key
from volvox.rollout import pipeline
from volvox.rollout.devices import ALONE, Devices, joined
from volvox.rollout.pipeline import LoopState, RunChunk, Stages
from volvox.types import Array, ArrayTree, EnvGroup

Monitor = Callable[[dict[str, Any]], bool | None]
"""Progress figures of a step -> whether to stop the step."""
_MAX_ROUNDS = 2**20  # of one chunk


class Chunk(NamedTuple):
    """The state of the loop after some rounds.

    Attributes:
      carry: The small state.
      memory: The large state.
      rounds: Rounds of this chunk.
      seconds: Wall-clock time of this chunk, including compilation if it was the first.
    """

    carry: ArrayTree
    memory: ArrayTree
    rounds: int
    seconds: float


class Loop:
    """The loop over its own environments, run in chunks.

    It owns the groups of environments, the compiled loop and the states of the environments, whose actions are in
    flight between two chunks. A loop is never part of an algorithm's state. Groups that can be traced run in the
    compiled loop, others are driven from Python. If an error occurs while environments step, the groups are closed,
    because donated buffers and actions in flight cannot be trusted any more.

    Attributes:
      stages: The algorithm's part in the loop.
      make_groups: seed -> new groups.
      beats_per_round: Beats of a round.
      devices: The devices that run the loop. With several, `carry`, `memory` and `constants` are as `Devices.placed`
        makes them.
      groups: The groups, as many as one device has; () while closed.
      envs: The environments' states between two chunks, one per group. The next chunk donates them.
      run_chunk: The form of the loop that is used; tests read its compiled program.
      standing: Set by the caller, to recognise the state from which the loop can continue. It is reset to None
        whenever the loop moves.
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
        """Prepares the loop; `open` makes the environments.

        Args:
          stages: The algorithm's part in the loop.
          make_groups: seed -> new groups of environments, of one size; for example `env.make`. With several devices
            (seed, number of the device) -> its groups.
          beats_per_round: Beats of a round.
          chunk_seconds: Approximate duration of a chunk: the interval at which progress and interrupts are checked.
          devices: The devices that run the loop as one program, each with groups of its own.

        Raises:
          ValueError: `chunk_seconds` is not a positive number.
        """
        if not 0 < chunk_seconds < float("inf"):
            raise ValueError(f"chunk_seconds={chunk_seconds}: give a positive number of seconds.")
        self.stages, self.make_groups, self.devices = stages, make_groups, devices
        self.beats_per_round, self._chunk_seconds = beats_per_round, chunk_seconds
        self.groups: tuple[EnvGroup, ...] = ()
        self.envs: tuple[ArrayTree, ...] = ()
        self.run_chunk: RunChunk = _not_open
        self.standing: Any = None
        self._rounds = 1  # of the next chunk

    def open(self, seed: int, envs: tuple[ArrayTree, ...] = ()) -> None:
        """Makes new environments, and closes the old ones.

        Args:
          seed: Seed of the environments, each of which begins its first episode.
          envs: States of resumable groups (`EnvGroup.resumable`), which continue from there. They are not donated.
        """
        self.close()
        with self._closed_on_failure():
            if self.devices.mesh is None:
                self.groups = tuple(self.make_groups(seed))
            else:
                groups = [self.make_groups(seed, number) for number in self.devices.numbers]
                self.groups = joined(self.devices, groups)
            form = pipeline.traced if all(group.traceable for group in self.groups) else pipeline.driven
            self.run_chunk = form(self.stages, self.groups, beats_per_round=self.beats_per_round, devices=self.devices)
            self.envs = copied(envs) or tuple(group.init() for group in self.groups)

    def restart(self, seed: int | None = None) -> None:
        """Drops all episodes and begins new ones in the same environments, seeded by `seed` where they can be."""
        with self.moving():
            envs = []
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
    ) -> Iterator[Chunk]:
        """Runs the loop, chunk by chunk; `carry` and `memory` are donated.

        Iterating may stop after any chunk; a later run continues with the carry and the memory of that chunk.

        Args:
          carry: The small state.
          memory: The large state.
          constants: The state that no stage changes.
          rounds_left: carry -> rounds that may still be run. It is asked before each chunk, and 0 ends the run. None:
            the run ends when no work remains (`Stages.remaining`).

        Yields:
          `Chunk`; the last may have no rounds, if no work remained.

        Raises:
          RuntimeError: the loop is not open.
          ConnectionError: Another process of this run ended, or does not answer.
        """
        while (left := _MAX_ROUNDS if rounds_left is None else rounds_left(carry)) > 0:
            began, rounds = time.perf_counter(), min(self._rounds, left)
            with self.moving():
                state, done = self.run_chunk(LoopState(self.envs, carry, memory), constants, rounds)
                done = int(self.devices.local(done))
                seconds = self.devices.largest(time.perf_counter() - began)  # so that all make chunks of one length
            self.envs, carry, memory = state
            if done == self._rounds:  # the duration of a chunk that was cut short says little about a round
                # Towards chunks of the wanted length, at most doubling: the first chunks include compilation.
                factor = min(max(self._chunk_seconds / max(seconds, 1e-6), 0.5), 2.0)
                self._rounds = min(max(1, int(self._rounds * factor)), _MAX_ROUNDS)
            yield Chunk(carry, memory, done, seconds)
            if done < rounds:
                return

    def close(self) -> None:
        """Frees the environments and their threads; `open` makes others."""
        for group in self.groups:
            group.close()
        self.groups, self.envs, self.run_chunk, self.standing = (), (), _not_open, None

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """Marks a section that steps the environments; an error in it closes them.

        Raises:
          RuntimeError: the loop is not open.
        """
        self.standing = None
        if not self.groups:
            _not_open()
        with self._closed_on_failure():
            yield

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise


def copied(tree: ArrayTree) -> ArrayTree:
    """Returns a copy of all arrays of a tree, for a program to which the copy is donated."""
    return jax.tree.map(jnp.copy, tree)


def seed_of(key: Array, *numbers: int) -> int:
    """Makes a seed of environments: an integer in [0, 2**31) that depends on a key and on numbers.

    Args:
      key: A typed key, or raw key data.
      *numbers: Non-negative integers, for example a generation; zeros at the end make no difference.

    Returns:
      The seed.
    """
    entropy = [*np.asarray(jax.random.key_data(typed_key(key))).ravel().tolist(), *numbers]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)


def _not_open(*args: Any) -> Any:
    del args
    raise RuntimeError("the loop is not open, or was closed: open(seed) makes new environments.")
