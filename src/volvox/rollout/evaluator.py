"""Playing a whole population: the host's side of `slots`.

slots = SlotMemory(genotype, encoding, env.num_groups, env.num_envs // env.num_groups)
evaluator = Evaluator(genotype, env.make, slots, capacity=population_size)
evaluation, statistics = evaluator.evaluate(population, 1, encoding, seed=0)
print(evaluation.returns.mean(), statistics.occupancy)
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox import _resources
from volvox._checks import integer
from volvox._resources import size_of
from volvox.population.decoding import Encoding, Member
from volvox.rollout import slots as in_slots
from volvox.rollout.behaviors import Behavior, Nothing
from volvox.rollout.driver import Loop, Monitor, seed_of
from volvox.rollout.pipeline import Times
from volvox.rollout.slots import Carry, Constants, Memory, Part, Rollout
from volvox.types import ArrayTree, EnvGroup, Evaluation, Genotype, Interrupted, Population, zeros

_TIMED_BEATS = 20
_REMEDY = "take fewer environments, which are the slots, a smaller network, population or table"


class RolloutStatistics(NamedTuple):
    """How a rollout went. A beat steps every group once.

    Attributes:
      timesteps: Scored timesteps: the sum of the episodes' lengths.
      stepped: Timesteps of the emulators, those of idle slots and those that begin an episode included.
      episodes: Episodes played.
      occupancy: Timesteps of slots that had an episode to play, over `stepped`.
      makespan: Beats from the first to the last.
      makespan_over_bound: `makespan` over the larger of timesteps / slots and the longest episode: 1 is a perfect
        schedule.
      seconds: Wall-clock, decoding and scheduling included; compilation too if this was the first call.
      timesteps_per_second: `timesteps / seconds`.
      stepped_per_second: `stepped` per second of the loop, what was played with a stopwatch not counted.
      times: Seconds that the parts of a timestep take, if they were asked for.
    """

    timesteps: int
    stepped: int
    episodes: int
    occupancy: float
    makespan: int
    makespan_over_bound: float
    seconds: float
    timesteps_per_second: float
    stepped_per_second: float
    times: Times | None


class SlotMemory:
    """The parameters of every slot: allocated once, donated to each rollout, shared by pools that take turns.

    It is mutable, because it holds gigabytes that are updated in place.

    Attributes:
      groups: For each group what its slots hold, leaves `[B, ...]`.
    """

    def __init__(self, genotype: Genotype, encoding: Encoding, num_groups: int, group_size: int):
        """Allocates zeros: `num_groups` × `group_size` × what a slot holds of a member."""
        one = _slot(genotype, encoding)
        self.groups: tuple[ArrayTree, ...] = tuple(zeros(one, group_size) for _ in range(num_groups))


def check_memory(
    genotype: Genotype, encoding: Encoding, num_envs: int, state: ArrayTree, members: ArrayTree = ()
) -> None:
    """Checks, before anything is made, that slots, the noise's data and a strategy's state fit into memory.

    Args:
      genotype: The network.
      encoding: How members become parameters; shapes will do (`volvox.population.outline`).
      num_envs: Environments, and so slots.
      state: The strategy's state, or its shapes.
      members: Explicit parameters of a population, or their shapes.

    Raises:
      ValueError: They do not fit; the message has the figures.
    """
    parts = {
        f"{num_envs:,} slots": num_envs * size_of(_slot(genotype, encoding)),
        "parents or bases": size_of(state),
        "members": size_of(members),
        "noise table": 4 * encoding.noise.length(encoding.num_drawn),
    }
    _resources.check_memory(parts, _REMEDY)


def _slot(genotype: Genotype, encoding: Encoding) -> ArrayTree:
    """Shapes of what a slot holds of the member it plays."""
    bases = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), encoding.like)
    member = Member(jnp.int32(0), jnp.int32(0), jnp.float32(0), jnp.bool_(False))
    return jax.eval_shape(partial(in_slots.slot_variables, genotype), encoding, bases, member)


class Evaluator:
    """Plays populations on pools of its own.

    Attributes:
      loop: The loop over the pools; they are made by the first evaluation.
    """

    def __init__(
        self,
        genotype: Genotype,
        make_groups: Callable[[int], tuple[EnvGroup, ...]],
        slots: SlotMemory,
        *,
        capacity: int,
        behavior: Behavior | None = None,
        chunk_seconds: float = 1.0,
    ):
        """Prepares the loop.

        Args:
          genotype: The network.
          make_groups: seed -> new groups of environments, for example `env.make`. Groups that can be traced run in the
            compiled loop, others are driven from Python; the results mean the same.
          slots: Memory for as many groups of that size.
          capacity: The most episodes of one evaluation. It is a shape, so another capacity is compiled anew; the
            population's size is not a shape.
          behavior: What is recorded of each episode; None records nothing.
          chunk_seconds: About how long the loop runs before progress and interrupts are looked at.

        Raises:
          ValueError: `capacity` or `chunk_seconds` is not positive.
        """
        rollout = Rollout(genotype, Nothing() if behavior is None else behavior)
        self.loop = Loop(rollout.stages(), make_groups, chunk_seconds=chunk_seconds)
        self._begin = jax.jit(rollout.begin, static_argnums=(2, 3), donate_argnums=0)
        self._behavior_size = rollout.behavior.size
        self._slots, self._capacity = slots, integer("capacity", capacity, low=1)
        self._opened, self._evaluations = False, 0

    def evaluate(
        self,
        population: Population,
        num_episodes: int,
        encoding: Encoding,
        *,
        seed: int | None = None,
        part: Part | None = None,
        timed: bool = False,
        monitor: Monitor | None = None,
    ) -> tuple[Evaluation, RolloutStatistics]:
        """Plays a population; every environment begins a new episode.

        On environments that can be given keys (`EnvGroup.rekey`: those of pure functions), an episode depends on the
        seed, the member and the number of the episode alone: neither on slots and groups, nor on what else is played.

        Args:
          population: `N` members.
          num_episodes: E, the most episodes of any member.
          encoding: How members of the population become parameters.
          seed: Seed of the episodes; of other environments it is that of the pools when they are made, and later of
            what `EnvGroup.restart` can seed. None: the number of evaluations before; other environments go on with
            their own random numbers.
          part: Which part of a larger population this is; None: it is whole. Environments without keys that can be
            seeded have a seed for each part.
          timed: Play a few beats halfway with a stopwatch (`Loop.time_parts`).
          monitor: Called about once a second with a dict of progress figures; True stops the rollout.

        Returns:
          (`Evaluation` `[N, E]`, `RolloutStatistics`).

        Raises:
          Interrupted: the monitor returned True; the evaluator can be used again.
          ValueError: no episodes or more than `capacity` are asked for, a member asks for more than `num_episodes`, or
            low-rank noise is to play first ancestors without formed kernels (`Encoding.formed`).
          RuntimeError: the evaluator was closed, by `close` or because a rollout failed.
        """
        self._check(population, num_episodes, encoding)
        began = time.perf_counter()
        self._restart(seed, part)
        key = jax.random.key(self._evaluations if seed is None else seed)
        self._evaluations += 1
        queue = in_slots.make_queue(population._replace(bases=()), key, part, num_episodes, self._capacity)
        constants = Constants(queue, population.bases, encoding)
        memory = Memory(self._slots.groups, jnp.zeros((self._capacity, self._behavior_size)))
        begun = self._begin(memory, constants, len(self.loop.groups), self.loop.groups[0].num_envs)
        run = _Run(self.loop, self._slots, constants, began, *begun)
        if timed:
            run.play(-(-run.total // 2), monitor)  # halfway, slots take members as often as on average
            if run.played < run.total:
                run.time_parts(_TIMED_BEATS)
        run.play(run.total, monitor)
        vectors = run.memory.behaviors
        return in_slots.evaluation(run.carry, vectors, queue, population.seed.shape[0], num_episodes), run.statistics()

    def close(self) -> None:
        """Frees the pools and their threads; the evaluator cannot be used again."""
        self._opened = True
        self.loop.close()

    def _check(self, population: Population, num_episodes: int, encoding: Encoding) -> None:
        if self._opened and not self.loop.groups:
            raise RuntimeError("this evaluator was closed and its pools are gone; make another.")
        total, most = int(population.episodes.sum()), int(population.episodes.max())
        if not 0 < total <= self._capacity:
            raise ValueError(
                f"{total} episodes are asked for, and this evaluator holds 1 to {self._capacity}: ask for fewer, or "
                "make it with a larger capacity."
            )
        if most > num_episodes:
            raise ValueError(f"a member asks for {most} episodes, but num_episodes={num_episodes}.")
        if encoding.rank is not None and not encoding.formed and bool(population.initial.any()):
            raise ValueError(
                "first ancestors have full noise, and these slots hold noise of low rank: take "
                "encoding.replace(formed=True) for the slots and for this call."
            )

    def _restart(self, seed: int | None, part: Part | None) -> None:
        if not self._opened:
            self._opened = True
            self.loop.open(0 if seed is None else seed)
        if seed is not None and part is not None:  # parts are to have other episodes
            seed = seed_of(jax.random.key(seed), int(part.member[0]), int(part.episode[0]))
        self.loop.restart(seed)


class _Run:
    """One rollout on its way.

    Attributes:
      total: Episodes to play.
      times: What the stopwatch showed, if it ran.
      left_out: Seconds and emulators' timesteps that were played with the stopwatch.
    """

    def __init__(self, loop: Loop, slots: SlotMemory, constants: Constants, began: float, carry: Carry, memory: Memory):
        self.loop, self.slots, self.constants, self.began = loop, slots, constants, began
        self.total = int(constants.queue.num_entries)
        self.times: Times | None = None
        self.left_out = (0.0, 0)
        self.stepped = self.busy = 0
        self.counted = (0, 0)
        self.reach(carry, memory)

    def reach(self, carry: Carry, memory: Memory) -> None:
        """Takes the state after a part of the rollout; the slots' parameters were donated to it."""
        # The device's counts are of 32 bits, and a rollout may have more timesteps.
        self.stepped += (int(carry.stepped) - self.counted[0]) % 2**32
        self.busy += (int(carry.busy) - self.counted[1]) % 2**32
        self.counted = int(carry.stepped), int(carry.busy)
        self.carry, self.memory, self.slots.groups = carry, memory, memory.variables
        self.played, self.occupancy = int(carry.played.sum()), self.busy / max(self.stepped, 1)

    def play(self, until: int, monitor: Monitor | None) -> None:
        """Runs the loop until that many episodes were played, or a chunk more."""
        for chunk in self.loop.run(self.carry, self.memory, self.constants):
            self.reach(chunk.carry, chunk.memory)
            stopped = monitor is not None and monitor(self.progress())
            if stopped and self.played < self.total:
                raise Interrupted(f"{self.played} of {self.total} episodes were played and are dropped")
            if self.played >= until:
                return
        if self.played < until:
            raise RuntimeError(f"{self.played} of {self.total} episodes were played; this is a bug in the loop.")

    def time_parts(self, beats: int) -> None:
        """Plays a few beats with a stopwatch."""
        began, before = time.perf_counter(), self.stepped
        *state, self.times = self.loop.time_parts(self.carry, self.memory, self.constants, rounds=beats)
        self.reach(*state)
        self.left_out = (time.perf_counter() - began, self.stepped - before)

    def progress(self) -> dict[str, Any]:
        """What a monitor is given."""
        rate = self.stepped / (time.perf_counter() - self.began)
        figures = {"done": self.played, "total": self.total, "stepped": self.stepped, "occupancy": self.occupancy}
        return {**figures, "timesteps_per_second": rate}

    def statistics(self) -> RolloutStatistics:
        """How the whole rollout went."""
        lengths = np.asarray(self.carry.lengths)
        timesteps, makespan = int(lengths.sum(dtype=np.int64)), int(self.carry.group_beats.max())
        num_slots = sum(slots.entry.size for slots in self.carry.slots)
        seconds = time.perf_counter() - self.began
        return RolloutStatistics(
            timesteps=timesteps,
            stepped=self.stepped,
            episodes=self.played,
            occupancy=self.occupancy,
            makespan=makespan,
            makespan_over_bound=makespan / max(timesteps / num_slots, int(lengths.max()), 1),
            seconds=seconds,
            timesteps_per_second=timesteps / seconds,
            stepped_per_second=(self.stepped - self.left_out[1]) / (seconds - self.left_out[0]),
            times=self.times,
        )
