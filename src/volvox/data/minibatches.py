"""Epochs of shuffled minibatches from the segments of all groups, cut into parts for one gradient computation each.

layout = minibatches.layout(PPO(), env, whole=False)
batch = layout.shuffle(key, target, advantage, valid, normalize=True)  # fields [G, T, B]
gradient, new = layout.gradient(loss, params, rings, slot, batch, j)  # of minibatch j, below layout.num_updates
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from volvox._checks import group_size, integer
from volvox.data import metrics, segments
from volvox.data.metrics import Metrics
from volvox.data.segments import Segment
from volvox.types import ALONE, Array, ArrayTree, Axis, Env, zeros

_NONE = {"bootstrap": (), "recurrent": ()}


class Batch(NamedTuple):
    """The segments of a round in the order in which they are learned: J minibatches, those of all epochs.

    A minibatch has n rows of each of G groups. A row is a timestep (L is 1), or a whole segment of an environment (L is
    T). Every epoch has each row once.

    Attributes:
      rows: int32 `[J, G, n]`.
      advantage: float32 `[J, G, L, n]`.
      target: float32 `[J, G, L, n]`: What values are moved towards.
      num_valid: float32 `[J]`: Valid timesteps, of all devices.
    """

    rows: Array
    advantage: Array
    target: Array
    num_valid: Array


class Part(NamedTuple):
    """A part of a minibatch, for one gradient computation.

    Attributes:
      segment: What happened, leaves `[L, N, ...]`; see `segments.gather`.
      advantage: float32 `[L, N]`.
      target: float32 `[L, N]`.
      num_valid: float32: Valid timesteps of the whole minibatch.
    """

    segment: Segment
    advantage: Array
    target: Array
    num_valid: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How segments are cut. Made by `layout`.

    Attributes:
      num_epochs: Number of epochs.
      num_minibatches: Minibatches of an epoch.
      segment_length: T.
      num_envs: B, environments of a group.
      num_groups: G.
      whole: Whether a row is a whole segment of an environment, and not a timestep.
      micro_batch: Rows of a group in one part of a minibatch.
      axis: The devices that each have such segments; a minibatch has as many rows of each.
    """

    num_epochs: int
    num_minibatches: int
    segment_length: int
    num_envs: int
    num_groups: int
    whole: bool
    micro_batch: int
    axis: Axis = ALONE

    @property
    def num_rows(self) -> int:
        """Rows of a group's segment."""
        return self.num_envs if self.whole else self.num_envs * self.segment_length

    @property
    def num_parts(self) -> int:
        """Parts of a minibatch."""
        return self.num_rows // self.num_minibatches // self.micro_batch

    @property
    def num_updates(self) -> int:
        """Minibatches of all epochs."""
        return self.num_epochs * self.num_minibatches

    def turn(self, beat: Array, g: int) -> tuple[Array, Array]:
        """Returns (first, end) of the minibatches that are due while group `g` steps, if they are spread evenly.

        The first are due in beat 0 when the last group has acted, because only then all segments of the round before
        are complete.
        """
        groups = self.num_groups
        turn, turns = beat * groups + g - (groups - 1), (self.segment_length - 1) * groups + 1
        first, end = (-(-self.num_updates * jnp.maximum(turn + i, 0) // turns) for i in (0, 1))
        return first, end

    def empty(self) -> Batch:
        """Returns a batch of zeros."""
        counts = self.num_epochs * self.num_minibatches, self.num_groups
        length, n = self.segment_length if self.whole else 1, self.num_rows // self.num_minibatches
        advantage, target = (jnp.zeros((*counts, length, n), jnp.float32) for _ in range(2))
        return Batch(jnp.zeros((*counts, n), jnp.int32), advantage, target, jnp.zeros(counts[0], jnp.float32))

    def shuffle(self, key: Array, target: Array, advantage: Array, valid: Array, *, normalize: bool) -> Batch:
        """Shuffles the rows anew for every epoch.

        Args:
          key: Random key.
          target: float32 `[G, T, B]`: What values are moved towards.
          advantage: float32 `[G, T, B]`.
          valid: bool `[G, T, B]`.
          normalize: Whether the advantages of a minibatch's valid timesteps are given mean 0 and standard deviation 1;
            the deviation is that of a sample, as PyTorch computes it.
        """
        groups, size = self.num_groups, (-1, self.num_rows // self.num_minibatches)
        numbers = self.axis.number() * groups + jnp.arange(groups)
        keys = jax.vmap(lambda g: jax.random.split(jax.random.fold_in(key, g), self.num_epochs))(numbers)
        permutation = jax.vmap(jax.vmap(lambda key: jax.random.permutation(key, self.num_rows)))(keys)
        rows = permutation.reshape(groups, *size).astype(jnp.int32)  # [G, J, n]

        def ordered(x: Array) -> Array:
            chex.assert_shape(x, (groups, self.segment_length, self.num_envs))
            x = x if self.whole else x.reshape(groups, 1, -1)
            return jax.vmap(lambda x, rows: x[:, rows])(x, rows).transpose(2, 0, 1, 3)

        target, advantage, held = map(ordered, (target, advantage, valid))
        each = {"axis": (1, 2, 3), "keepdims": True, "where": held}
        count = self.axis.sum(jnp.ones_like(advantage).sum(**each))
        if normalize:
            centered = advantage - self.axis.sum(advantage.sum(**each)) / jnp.maximum(count, 1)
            deviation = jnp.sqrt(self.axis.sum((centered**2).sum(**each)) / jnp.maximum(count - 1, 1))
            advantage = centered / (deviation + 1e-8)
        return Batch(rows.swapaxes(0, 1), advantage, target, count.ravel())

    def gradient(
        self,
        loss: Callable[..., tuple[Array, Metrics]],
        params: ArrayTree,
        rings: Sequence[Segment],
        slot: Array,
        batch: Batch,
        j: Array,
    ) -> tuple[ArrayTree, Metrics]:
        """Returns the gradient of a minibatch, the sum over its parts on all devices, and its metrics on this one.

        Args:
          loss: (params, part) -> (loss, metrics); the losses of a minibatch's parts add up to its own.
          params: Parameters.
          rings: The segments of each group.
          slot: Place of the segments in the rings, int32 scalar.
          batch: Their order.
          j: Number of the minibatch in all epochs, int32 scalar.
        """
        take = functools.partial(self.take, rings, slot, batch, j)

        def part(k: Array) -> tuple[ArrayTree, Metrics]:
            (_, new), gradient = jax.value_and_grad(loss, has_aux=True)(params, take(k))
            return gradient, new

        def add(k: Array, old: tuple[ArrayTree, Metrics]) -> tuple[ArrayTree, Metrics]:
            gradient, new = part(k)
            return jax.tree.map(jnp.add, old[0], gradient), metrics.add(old[1], new)

        nothing = zeros(jax.eval_shape(part, jnp.int32(0)))
        one = self.num_parts == 1
        gradient, new = part(jnp.int32(0)) if one else jax.lax.fori_loop(0, self.num_parts, add, nothing)
        return self.axis.sum(gradient), new

    def take(self, rings: Sequence[Segment], slot: Array, batch: Batch, j: Array, k: Array) -> Part:
        """Returns part `k` of minibatch `j`, both int32 scalars; for the others see `gradient`."""
        begin, size = k * self.micro_batch, self.micro_batch
        rows, advantage, target = (jax.lax.dynamic_slice_in_dim(x[j], begin, size, axis=-1) for x in batch[:3])
        if self.whole:
            t, b = jnp.arange(self.segment_length)[:, None], rows[:, None]
        else:
            t, b = rows[:, None] // self.num_envs, rows[:, None] % self.num_envs
        parts = [segments.gather(ring, slot, t if self.whole else t[g], b[g]) for g, ring in enumerate(rings)]
        joined = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *(part._replace(**_NONE) for part in parts))
        recurrent = jax.tree.map(lambda *x: jnp.concatenate(x), *(part.recurrent for part in parts))
        advantage, target = (x.swapaxes(0, 1).reshape(x.shape[1], -1) for x in (advantage, target))
        return Part(joined._replace(recurrent=recurrent), advantage, target, batch.num_valid[j])


def layout(settings: Any, env: Env, whole: bool) -> Layout:
    """Returns how segments are cut.

    Args:
      settings: They have `num_epochs`, `num_minibatches`, `segment_length` and `micro_batch`, see `Layout`. Where
        `micro_batch` is None, a part has about 64 timesteps if observations are images, so that they stay in a CPU's
        cache, and is the whole minibatch otherwise.
      env: The environments.
      whole: Whether a row is a whole segment of an environment, for recurrent policies, and not a timestep.

    Raises:
      ValueError: The rows cannot be divided so.
    """
    num_minibatches, micro_batch, length = settings.num_minibatches, settings.micro_batch, settings.segment_length
    groups, b = env.num_groups, group_size(env.num_envs, env.num_groups)
    rows = b if whole else b * length
    if rows % num_minibatches:
        kind = "environments (the policy is recurrent)" if whole else "timesteps"
        raise ValueError(
            f"num_minibatches={num_minibatches} do not divide the {rows} {kind} of a group evenly; give a divisor, or "
            "change num_envs, groups or segment_length."
        )
    share = rows // num_minibatches
    if micro_batch is not None or all(len(x.shape) < 3 for x in jax.tree.leaves(env.spec.observation)):
        micro_batch = share if micro_batch is None else micro_batch
        if share % micro_batch:
            raise ValueError(f"micro_batch={micro_batch} does not divide the {share} rows of a group in a minibatch.")
    else:
        micro_batch = segments.micro_batch_size(None, share, (length if whole else 1) * groups)
    made = Layout(
        num_epochs=settings.num_epochs,
        num_minibatches=num_minibatches,
        segment_length=length,
        num_envs=b,
        num_groups=groups,
        whole=whole,
        micro_batch=micro_batch,
        axis=env.axis,
    )
    # Counted in int32 as the updates are spread over the beats.
    integer("updates of a round times its timesteps", made.num_updates * length * groups, low=1)
    return made
