"""Evaluation of a whole population on the environments of this process.

evaluator = PopulationEvaluator(genotype, Table(), env, Nothing(), capacity=population_size)
evaluation, statistics = evaluator.evaluate(population, 1, max_episode_steps=600, seed=0, pool_seed=0)
print(evaluation.returns.mean(), statistics.occupancy)
"""

import dataclasses
import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox import _checks
from volvox._checks import size_of
from volvox.population.decoding import Encoding, Member, encoding
from volvox.population.noise import Noise
from volvox.rollout import slots as in_slots
from volvox.rollout.behaviors import Behavior
from volvox.rollout.loop import Loop, Monitor, seed_of, time_parts
from volvox.rollout.slots import Carry, Constants, Memory, Rollout
from volvox.types import Array, ArrayTree, Env, Evaluation, Genotype, Interrupted, Population, zeros


class RolloutStatistics(NamedTuple):
    """Statistics of a rollout. A beat steps every group once.

    Attributes:
      stepped: Timesteps of the emulators, including those of idle slots and those that begin an episode.
      busy: Timesteps of the episodes, including those that begin one.
      makespan: Beats from the first to the last.
      num_slots: Number of slots.
    """

    stepped: int
    busy: int
    makespan: int
    num_slots: int

    @property
    def occupancy(self) -> float:
        """Fraction of timesteps in which a slot plays an episode."""
        return self.busy / max(self.stepped, 1)

    def makespan_over_bound(self, lengths: np.ndarray) -> float:
        """`makespan` over the larger of timesteps / slots and the longest episode: 1 is a perfect schedule."""
        return self.makespan / max(int(lengths.sum(dtype=np.int64)) / self.num_slots, int(lengths.max()), 1)


class PopulationEvaluator:
    """Plays populations on the environments of this process.

    The noise table, the environments and the slots are made when they are first needed, and are never part of an
    algorithm's state. The parameters of the slots are allocated once, donated to each rollout and updated in place.
    Training and validation share a loop; test episodes are driven from Python.
    """

    def __init__(self, genotype: Genotype, noise: Noise, env: Env, behavior: Behavior, capacity: int):
        """Stores the arguments; makes nothing yet.

        Args:
          genotype: The network.
          noise: The source of noise.
          env: The environments; its `num_envs` is the number of slots.
          behavior: The record of each episode.
          capacity: The largest number of episodes of an evaluation. It is a shape: an evaluation with more episodes is
            compiled anew. The size of the population is not a shape.
        """
        self._genotype, self._noise, self._env, self._capacity = genotype, noise, env, capacity
        self._rollout = Rollout(genotype, behavior)
        self._begin = jax.jit(self._rollout.begin, static_argnums=(2, 3), donate_argnums=0)
        self._loops: dict[tuple[bool, int, bool], Loop] = {}  # by test, max_episode_steps, formed
        self._slots: tuple[ArrayTree, ...] | None = None

    @functools.cached_property
    def encoding(self) -> Encoding:
        """The encoding, which turns members into parameters; it holds the noise table."""
        return encoding(self._genotype, self._noise)

    def evaluate(
        self,
        population: Population,
        num_episodes: int,
        *,
        max_episode_steps: int,
        seed: int,
        pool_seed: int,
        test: bool = False,
        part: tuple[Array, Array] | None = None,
        lineage: Member | None = None,
        monitor: Monitor | None = None,
    ) -> tuple[Evaluation, RolloutStatistics]:
        """Plays a population; every environment begins a new episode.

        On environments that take keys (`EnvGroup.rekey`: pure functions), an episode depends on the seed, the member
        and the number of the episode alone, and not on slots, groups or the rest of the population.

        Args:
          population: `N` members.
          num_episodes: E, the largest number of episodes of a member.
          max_episode_steps: Cutoff of episodes, timesteps.
          seed: Seed of the episodes; on environments without keys it seeds `EnvGroup.restart`.
          pool_seed: Seed of the environments if they must be made.
          test: Play test episodes: the loop is driven from Python.
          part: Places of the members in a larger population, see `make_queue`; None: the population is whole.
          lineage: Ignored; evaluators in other processes rebuild the bases from it.
          monitor: Called about once a second with a dict of progress figures; True stops the rollout.

        Returns:
          (`Evaluation` `[N, E]`, `RolloutStatistics`).

        Raises:
          Interrupted: The monitor returned True. The next evaluation makes new environments.
        """
        began, total = time.perf_counter(), int(np.asarray(population.episodes).sum())
        self._capacity = max(self._capacity, total)
        try:
            loop, carry, memory, constants = self._start(
                population, num_episodes, test, max_episode_steps, seed, pool_seed, part, monitor
            )
            stepped = played = 0
            for state, _ in loop.run(carry, memory, constants):
                carry, memory = state.carry, state.memory
                self._slots = memory[0]
                played = int((np.asarray(carry.lengths) > 0).sum())
                stepped = int(np.asarray(carry.group_beats).sum()) * (self._env.num_envs // self._env.num_groups)
                rate = stepped / (time.perf_counter() - began)
                figures = {"done": played, "total": total, "stepped": stepped, "timesteps_per_second": rate}
                if monitor is not None and monitor(figures) and played < total:
                    raise Interrupted(f"{played} of {total} episodes were played and are dropped")
        except BaseException:
            self.close()  # donated buffers and environments in flight cannot be trusted any more
            raise
        result = in_slots.evaluation(carry, memory[1], constants[0], population.seed.shape[0], num_episodes)
        busy = int(np.asarray(carry.lengths).sum(dtype=np.int64)) + played
        return result, RolloutStatistics(stepped, busy, int(np.asarray(carry.group_beats).max()), self._env.num_envs)

    def profile(
        self, population: Population, num_episodes: int, *, max_episode_steps: int, seed: int, seconds: float
    ) -> tuple[float, float, float]:
        """Plays a part of a population without overlap, times the parts of the loop, and drops the results.

        Args:
          population: `N` members.
          num_episodes: E, the largest number of episodes of a member.
          max_episode_steps: Cutoff of episodes, timesteps.
          seed: Seed of the episodes and the environments.
          seconds: Approximate duration, without compilation.

        Returns:
          Seconds per timestep of emulators, inference and decoding.
        """
        try:
            started = self._start(population, num_episodes, False, max_episode_steps, seed, seed, None, None)
            return time_parts(*started, seconds=seconds)
        finally:
            self.close()

    def figures(self) -> dict[str, Any]:
        """Returns further metrics of a generation: none."""
        return {}

    def close(self) -> None:
        """Frees environments and slots, and keeps the noise table; the next evaluation makes them anew."""
        for key in list(self._loops):
            self._loops.pop(key).close()
        self._slots = None

    def _start(
        self,
        population: Population,
        num_episodes: int,
        test: bool,
        max_episode_steps: int,
        seed: int,
        pool_seed: int,
        part: tuple[Array, Array] | None,
        monitor: Monitor | None,
    ) -> tuple[Loop, Carry, Memory, Constants]:
        """Opens the loop, restarts its environments, makes the queue, and gives the slots their first episodes."""
        # Slots of low-rank noise hold factors alone, unless they play first ancestors, whose noise is full.
        formed = self.encoding.rank is not None and bool(population.initial.any())
        encoding = dataclasses.replace(self.encoding, formed=formed)
        num_groups, group_size = self._env.num_groups, self._env.num_envs // self._env.num_groups
        if (loop := self._loops.get((test, max_episode_steps, formed))) is None:
            if monitor is not None and monitor({"phase": "compiling"}):
                raise Interrupted("before the loop was compiled")
            for other in list(self._loops):
                if other[0] == test or other[2] != formed:  # slots of both kinds would take the memory of both
                    self._loops.pop(other).close()
            if not self._loops:
                slot = _slot(self._genotype, encoding)
                self._slots = None  # frees the old slots before new ones are allocated
                self._slots = tuple(zeros(slot, group_size) for _ in range(num_groups))
            make = functools.partial(self._env.make, max_episode_steps=max_episode_steps, host=test)
            loop = Loop(self._rollout.stages(), make)
            self._loops[test, max_episode_steps, formed] = loop
            loop.open(pool_seed)
        key = jax.random.key(seed)
        # Environments without keys must play other episodes for each part.
        loop.restart(seed if part is None else seed_of(key, *(int(x[0]) for x in part)))
        queue = in_slots.make_queue(population._replace(bases=()), key, part, num_episodes, self._capacity)
        constants: Constants = (queue, population.bases, encoding)
        vectors = jnp.zeros((self._capacity, self._rollout.behavior.size), jnp.float32)
        assert self._slots is not None  # made with the first loop
        carry, memory = self._begin((self._slots, vectors), constants, num_groups, group_size)
        self._slots = memory[0]
        return loop, carry, memory, constants


def check_memory(genotype: Genotype, encoding: Encoding, num_envs: int, state: ArrayTree, bases: ArrayTree) -> None:
    """Raises ValueError unless slots, noise table, a strategy's state and a population's bases fit into memory.

    Arrays may be shapes, as in the encoding of `volvox.population.decoding.outline`.
    """
    slot = size_of(_slot(genotype, encoding))
    parts = {
        f"{num_envs:,} slots": num_envs * slot,
        "state of the strategy": size_of(state),
        "bases": size_of(bases),
        "noise table": 4 * encoding.noise.length(encoding.num_drawn),
    }
    _checks.check_memory(
        parts, "take fewer environments, a smaller network, population or noise table", each=("slots", num_envs, slot)
    )


def _slot(genotype: Genotype, encoding: Encoding) -> ArrayTree:
    """Returns the shapes of the variables that a slot holds."""
    bases = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), encoding.like)
    member = Member(jnp.int32(0), jnp.int32(0), jnp.float32(0), jnp.bool_(False))
    return jax.eval_shape(functools.partial(in_slots.slot_variables, genotype), encoding, bases, member)
