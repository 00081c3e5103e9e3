"""Episodes of a population, played in slots (continuous batching).

Episodes wait in a queue. A slot, which is one environment, takes the next episode when its own ends, so that slots stay
busy however unequal the episodes are. Episodes that are expected to be long go first. Only slots hold parameters: a
member is decoded when a slot takes it.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from volvox.ops.batching import where_rows
from volvox.ops.low_rank import with_bases, without_bases
from volvox.population.decoding import Encoding, Member, member_params, members_of
from volvox.rollout import behaviors
from volvox.rollout.behaviors import Behavior
from volvox.rollout.loop import Stages
from volvox.types import Array, ArrayTree, Evaluation, Genotype, Population, TimeStep, pick, replaced


class Queue(NamedTuple):
    """Episodes to play, in the order in which they start; `C` is the queue's capacity. Constant during a rollout.

    Attributes:
      members: Each field `[C]`.
      member: int32 `[C]`: Index into the population; out of range past `num_entries`.
      episode: int32 `[C]`: Index of the episode among its member's episodes.
      key: Keys `[C]`: The key of each episode, for environments that take keys.
      num_entries: int32: Entries in use.
    """

    members: Member
    member: Array
    episode: Array
    key: Array
    num_entries: Array


class Slots(NamedTuple):
    """The `B` slots of one group.

    Attributes:
      entry: int32 `[B]`: Queue entry that is played; -1 if idle.
      started: bool `[B]`: The first observation of the entry was seen.
      due: bool `[B]`: The entry's parameters must be decoded before its first timestep.
      episode_return: float32 `[B]`: Sum of the rewards so far.
      length: int32 `[B]`: Timesteps so far.
      recurrent: The policy's state, leaves `[B, 1, ...]`.
      records: Records of the behaviour, leaves `[B, ...]`.
      ended: int32 `[B]`: Queue entry whose episode ended in this beat; out of range if none ended.
    """

    entry: Array
    started: Array
    due: Array
    episode_return: Array
    length: Array
    recurrent: ArrayTree
    records: ArrayTree
    ended: Array


class Carry(NamedTuple):
    """The small state of a rollout.

    Attributes:
      taken: int32: Entries that slots have taken.
      slots: The slots of each group.
      returns: float32 `[C]`, by queue entry.
      lengths: int32 `[C]`; 0 until the episode has ended.
      group_beats: int32 `[groups]`: Beats in which each group was stepped.
      num_due: int32: Slots to decode in the next `work`. It makes `work` wait for `send`.
      num_ended: int32: Slots whose behaviour the next `work` stores. It also makes `work` wait for `send`.
    """

    taken: Array
    slots: tuple[Slots, ...]
    returns: Array
    lengths: Array
    group_beats: Array
    num_due: Array
    num_ended: Array


Memory = tuple[tuple[ArrayTree, ...], Array]
"""The large state of a rollout: variables of the slots of each group (`slot_variables`, leaves `[B, ...]`), and
behaviours by queue entry (float32 `[C, D]`)."""
Constants = tuple[Queue, ArrayTree, Encoding]
"""The episodes to play, the bases (leaves `[P, ...]`), and the encoding that turns members into parameters."""


@functools.partial(jax.jit, static_argnums=(3, 4))
def make_queue(
    population: Population, key: Array, part: tuple[Array, Array] | None, num_episodes: int, capacity: int
) -> Queue:
    """Makes the queue of a population's episodes, with the largest priority first.

    The key of an episode depends on the member's index in the whole population and on the number of the episode alone,
    so that results do not depend on the layout.

    Args:
      population: `N` members that play `episodes[i] <= num_episodes` episodes each; the bases are ignored.
      key: The key from which the keys of episodes are derived.
      part: Places of the members in a larger population, both int32 `[N]`: index of the member, and number of the first
        episode that it plays. None: the population is whole.
      num_episodes: E, the largest number of episodes of a member.
      capacity: C, at least the sum of `episodes`.

    Returns:
      `Queue`.
    """
    n = population.seed.shape[0]
    member, episode = jnp.divmod(jnp.arange(n * num_episodes, dtype=jnp.int32), num_episodes)
    wanted = episode < population.episodes[member]
    order = jnp.lexsort((-jnp.nan_to_num(population.priority)[member], ~wanted))[:capacity]
    order = jnp.pad(order, (0, capacity - order.size))
    num_entries = wanted.sum(dtype=jnp.int32)
    # Unused entries index past the end: gathers clip, scatters drop.
    member = jnp.where(jnp.arange(capacity) < num_entries, member[order], n)
    members = jax.tree.map(lambda x: x.at[member].get(mode="clip"), members_of(population))
    episode = episode[order]
    index, number = member, episode
    if part is not None:
        index, first = (x.at[member].get(mode="clip") for x in part)
        number = first + episode
    keys = jax.vmap(lambda index, number: jax.random.fold_in(jax.random.fold_in(key, index), number))(index, number)
    return Queue(members, member, episode, keys, num_entries)


@functools.partial(jax.jit, static_argnums=(3, 4))
def evaluation(carry: Carry, vectors: Array, queue: Queue, num_members: int, num_episodes: int) -> Evaluation:
    """Sorts the results and behaviours (`vectors` `[C, D]`) of the queue's entries by member and episode."""

    def scatter(values: Array) -> Array:
        empty = jnp.zeros((num_members, num_episodes, *values.shape[1:]), values.dtype)
        return empty.at[queue.member, queue.episode].set(values, mode="drop")

    lengths = scatter(carry.lengths)
    return Evaluation(scatter(carry.returns), lengths, lengths > 0, scatter(vectors))


def slot_variables(genotype: Genotype, encoding: Encoding, bases: ArrayTree, member: Member) -> ArrayTree:
    """Computes the variables of a slot: those of its member without the shared bases, which `with_bases` adds."""
    return without_bases(genotype.prepare(member_params(encoding, bases, member)))


def active(carry: Carry, g: int) -> Array:
    """Whether a slot of group `g` has an episode to play. As long as entries wait, a slot of some group has one."""
    return (carry.slots[g].entry >= 0).any()


def episode_keys(carry: Carry, constants: Constants, g: int) -> tuple[Array, Array]:
    """Slots that begin an entry at the next timestep, bool `[B]`, and the keys `[B]` of these episodes."""
    slots = carry.slots[g]
    return (slots.entry >= 0) & ~slots.started, constants[0].key[slots.entry]


@dataclasses.dataclass(frozen=True, eq=False)
class Rollout:
    """The stages of the loop for a population: the network of each slot acts, and members that are due are decoded.

    Attributes:
      genotype: The network.
      behavior: The record of each episode.
    """

    genotype: Genotype
    behavior: Behavior

    def stages(self) -> Stages:
        """Returns the stages of the loop, over `Carry`, `Memory` and `Constants`."""
        return Stages(self.act, self.work, active, episode_keys=episode_keys)

    def begin(self, memory: Memory, constants: Constants, num_groups: int, group_size: int) -> tuple[Carry, Memory]:
        """Hands the first entries to the slots and decodes their members; before the first beat.

        Entries go round robin over the groups, so that each group gets its share of long ones.
        """
        queue, b, zero = constants[0], group_size, jnp.int32(0)
        capacity, num_entries = queue.member.shape[0], queue.num_entries
        slots = []
        for g in range(num_groups):
            number = jnp.arange(b, dtype=jnp.int32) * num_groups + g
            entry = jnp.where(number < num_entries, number, -1)
            recurrent = self.genotype.policy.initial_state(1)
            slots.append(
                Slots(
                    entry=entry,
                    started=jnp.zeros(b, bool),
                    due=entry >= 0,
                    episode_return=jnp.zeros(b, jnp.float32),
                    length=jnp.zeros(b, jnp.int32),
                    recurrent=jax.tree.map(lambda x: jnp.broadcast_to(x, (b, *x.shape)), recurrent),
                    records=behaviors.start(self.behavior, b),
                    ended=jnp.full(b, capacity, jnp.int32),
                )
            )
        carry = Carry(
            taken=jnp.minimum(num_entries, b * num_groups),
            slots=tuple(slots),
            returns=jnp.zeros(capacity, jnp.float32),
            lengths=jnp.zeros(capacity, jnp.int32),
            group_beats=jnp.zeros(num_groups, jnp.int32),
            num_due=zero,
            num_ended=zero,
        )
        for g in range(num_groups):
            carry = carry._replace(num_due=carry.slots[g].due.sum(dtype=jnp.int32))
            carry, memory = self.work(carry, memory, constants, g)
        return carry, memory

    def act(
        self, carry: Carry, memory: Memory, constants: Constants, g: int, timestep: TimeStep
    ) -> tuple[Carry, Array]:
        """Scores the timestep, hands out entries to slots whose episode ended, and lets every slot's network act."""
        slots, policy, (queue, bases, _) = carry.slots[g], self.genotype.policy, constants
        # A slot that took an entry waits for the timestep that begins an episode; it has no reward and no length.
        started = slots.started | ((slots.entry >= 0) & timestep.first)
        live = started & ~timestep.first
        episode_return = slots.episode_return + jnp.where(live, timestep.reward, 0.0)
        for leaf in jax.tree.leaves(timestep.observation):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                continue
            # Most networks act on NaN without an error; such an episode has no return.
            is_nan = jnp.isnan(leaf).reshape(live.size, -1).any(axis=1)
            episode_return = jnp.where(started & is_nan, jnp.nan, episode_return)
        length = slots.length + live
        ended = live & (timestep.terminated | timestep.truncated)
        entry_ended = jnp.where(ended, slots.entry, carry.returns.shape[0])  # out of range: dropped

        candidate = carry.taken + jnp.cumsum(ended, dtype=jnp.int32) - 1
        refilled = ended & (candidate < queue.num_entries)
        num_refilled = refilled.sum(dtype=jnp.int32)

        def apply(variables, observation, state):
            return policy.apply(with_bases(variables, bases), observation, state)

        recurrent = where_rows(timestep.first, policy.initial_state(1), slots.recurrent)
        observation = jax.tree.map(lambda x: x[:, None], timestep.observation)
        output, recurrent = jax.vmap(apply)(memory[0][g], observation, recurrent)

        next_slots = Slots(
            entry=jnp.where(ended, jnp.where(refilled, candidate, -1), slots.entry),
            started=started & ~ended,
            due=refilled,
            episode_return=jnp.where(ended, 0.0, episode_return),
            length=jnp.where(ended, 0, length),
            recurrent=recurrent,
            records=behaviors.advance(self.behavior, slots.records, timestep),
            ended=entry_ended,
        )
        carry = carry._replace(
            taken=carry.taken + num_refilled,
            slots=replaced(carry.slots, g, next_slots),
            returns=carry.returns.at[entry_ended].set(episode_return, mode="drop"),
            lengths=carry.lengths.at[entry_ended].set(length, mode="drop"),
            group_beats=carry.group_beats.at[g].add(1),
            num_due=num_refilled,
            num_ended=ended.sum(dtype=jnp.int32),
        )
        return carry, policy.mode(output[:, 0])

    def work(self, carry: Carry, memory: Memory, constants: Constants, g: int) -> tuple[Carry, Memory]:
        """Decodes the members of slots that are due, and stores the behaviours of episodes that ended."""
        slots, behavior, (variables, vectors) = carry.slots[g], self.behavior, memory
        queue, bases, encoding = constants
        due_first = jnp.argsort(~slots.due, stable=True)

        def decode(i, variables):
            slot = due_first[i]
            member = pick(queue.members, slots.entry[slot])
            one = slot_variables(self.genotype, encoding, bases, member)
            return jax.tree.map(lambda all_, new: all_.at[slot].set(new), variables, one)

        decoded = jax.lax.fori_loop(0, carry.num_due, decode, variables[g])
        ended_first = jnp.argsort(slots.ended >= vectors.shape[0], stable=True)

        def store(i, vectors):
            slot = ended_first[i]
            vector = behavior.final(pick(slots.records, slot))
            return vectors.at[slots.ended[slot]].set(vector)

        if behavior.size:
            vectors = jax.lax.fori_loop(0, carry.num_ended, store, vectors)
        memory = replaced(variables, g, decoded), vectors
        return carry._replace(num_due=jnp.int32(0), num_ended=jnp.int32(0)), memory
