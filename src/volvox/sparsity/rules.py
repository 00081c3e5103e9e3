"""Rules that choose the groups of a kernel's weights to keep, and schedules of the sparsity over training."""

import dataclasses
import math
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from volvox._checks import check_has, integers, number, numbers
from volvox.sparsity.masks import Kernel
from volvox.types import Array, ArrayTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cubic:
    """A sparsity that rises from 0 by a cubic: fast at first, slowly at the end (Zhu & Gupta 2017, arXiv 1710.01878).

        rule = vx.sparsity.Magnitude(schedule=vx.sparsity.Cubic(final_sparsity=0.9, begin=0, end=100_000))

    Attributes:
      final_sparsity: Sparsity from `end` on, in [0, 1).
      begin: Updates before the first change.
      end: Update at which the final sparsity is reached.

    Raises:
      ValueError: A setting is out of its range, or `end` is not after `begin`.
    """

    final_sparsity: float
    begin: int
    end: int

    def __post_init__(self):
        check_sparsity("final_sparsity", self.final_sparsity)
        integers(self, "begin", "end", low=0)
        if self.end <= self.begin:
            raise ValueError(f"end={self.end} must come after begin={self.begin}")

    def init(self) -> ArrayTree:
        """Returns (): the sparsity depends only on the step."""
        return ()

    def advance(self, state: ArrayTree, step: Array, mean_return: Array | None) -> tuple[Array, ArrayTree]:
        """Returns the sparsity from update `step` on, and the state, which is ()."""
        cubic = optax.polynomial_schedule(0.0, self.final_sparsity, 3, self.end - self.begin, self.begin)
        return jnp.asarray(cubic(step), jnp.float32), state


class RewardAwareState(NamedTuple):
    """State of `RewardAware`, float32 scalars.

    Attributes:
      sparsity: Current sparsity.
      best: Largest mean return so far; -inf before the first.
      worst: Smallest mean return so far; inf before the first.
      failed_sparsity: Sparsity at which returns last began to fall; inf once they have been within the tolerance there.
      num_failures: Number of times that returns began to fall since they were last within the tolerance there.
      is_failing: 1 from the beginning of a fall until returns are within the tolerance again, else 0.
      num_skipped: Number of increases skipped since the last change, because of `failed_sparsity`.
    """

    sparsity: Array
    best: Array
    worst: Array
    failed_sparsity: Array
    num_failures: Array
    is_failing: Array
    num_skipped: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardAware:
    """A sparsity that rises only while the recent mean return stays within `tolerance` of its best.

        rule = vx.sparsity.Magnitude(schedule=vx.sparsity.RewardAware(final_sparsity=0.9), every=5_000)
        schedule = vx.sparsity.RewardAware(final_sparsity=0.8, increment=0.05, begin=10_000)

    Group-sparse training (Lee et al. 2021, arXiv 2101.09650) adapts its target to the reward. The paper does not
    publish the rule, so this rule is ours. It measures the distance of the mean return below its best so far, as a
    share of the range from its worst to its best. If the share is within `tolerance`, the sparsity rises by
    `increment`. If it is within twice the tolerance, the sparsity stays. Otherwise the sparsity falls by `increment`.
    Shifting and scaling rewards therefore changes nothing. The range of returns must have grown to several times their
    noise before the rule can tell a drop from noise. A constant return is always within the tolerance.

    A sparsity at which returns fell is tried again when returns are within the tolerance. If they fall again, it is
    tried only at the 2nd time that they are within it, then at the 4th, the 8th and so on. Otherwise a network that
    needs its weights would lose and regrow some of them at every other change.

    Attributes:
      final_sparsity: Largest sparsity, in [0, 1).
      initial_sparsity: Sparsity at the beginning, and the smallest.
      increment: Size of each change, in (0, 1].
      tolerance: Share of the range of returns by which the mean return may be below its best, in (0, 1].
      begin: Update before which nothing changes.

    Raises:
      ValueError: A setting is out of its range. `advance` raises it without a mean return.
    """

    final_sparsity: float
    initial_sparsity: float = 0.0
    increment: float = 0.02
    tolerance: float = 0.1
    begin: int = 0

    def __post_init__(self):
        check_sparsity("final_sparsity", self.final_sparsity)
        check_sparsity("initial_sparsity", self.initial_sparsity)
        integers(self, "begin", low=0)
        if self.initial_sparsity > self.final_sparsity:
            raise ValueError(f"initial_sparsity={self.initial_sparsity} exceeds final_sparsity={self.final_sparsity}")
        numbers(self, "increment", "tolerance", above=0, high=1)

    def init(self) -> RewardAwareState:
        """Returns the state before the first return."""
        values = (self.initial_sparsity, -jnp.inf, jnp.inf, jnp.inf, 0.0, 0.0, 0.0)
        return RewardAwareState(*map(jnp.float32, values))

    def advance(
        self, state: RewardAwareState, step: Array, mean_return: Array | None
    ) -> tuple[Array, RewardAwareState]:
        """Returns the sparsity from this update on, and the next state.

        Args:
          state: State of the schedule.
          step: int32: Number of this update.
          mean_return: float32: Mean return of recent episodes; NaN before the first.
        """
        if mean_return is None:
            raise ValueError("RewardAware needs the mean return: update(gradient, state, params, mean_return=...)")
        mean_return = jnp.where(jnp.isfinite(mean_return), mean_return, jnp.nan)  # an infinite best would stay
        best, worst = jnp.fmax(state.best, mean_return), jnp.fmin(state.worst, mean_return)
        below = (best - mean_return) / jnp.maximum(best - worst, 1e-8)
        # There is no return before the first episode has ended.
        decides = jnp.isfinite(mean_return) & (step >= self.begin)
        within, drops = decides & (below <= self.tolerance), decides & (below > 2 * self.tolerance)

        passed = within & self._reaches(state.sparsity, state.failed_sparsity)
        begins = drops & (state.is_failing == 0)
        failed_sparsity = jnp.where(passed, jnp.inf, jnp.where(begins, state.sparsity, state.failed_sparsity))
        num_failures = jnp.where(passed, 0.0, state.num_failures + begins)
        tries_again = state.num_skipped + 1 >= 2.0 ** (num_failures - 1)
        skips = within & self._reaches(state.sparsity + self.increment, failed_sparsity) & ~tries_again

        change = jnp.where(drops, -self.increment, jnp.where(within & ~skips, self.increment, 0.0))
        sparsity = jnp.clip(state.sparsity + change, self.initial_sparsity, self.final_sparsity)
        is_failing = jnp.where(drops, 1.0, jnp.where(within, 0.0, state.is_failing))
        num_skipped = jnp.where(skips, state.num_skipped + 1, jnp.where(change == 0, state.num_skipped, 0.0))
        return sparsity, RewardAwareState(sparsity, best, worst, failed_sparsity, num_failures, is_failing, num_skipped)

    def _reaches(self, sparsity: Array, level: Array) -> Array:
        return sparsity > level - self.increment / 2  # robust to rounding


def check_sparsity(name: str, value: Any) -> None:
    """Raises ValueError unless a sparsity is a number in [0, 1)."""
    if number(name, value, low=0, high=1) == 1:
        raise ValueError(f"{name}={value!r}: give a share below 1")


class Rule(Protocol):
    """Chooses the groups of weights to keep, now and then.

    Your own rule is any object with these members; a frozen dataclass can be saved with a run. A mask is bool
    `[R, 1, F]`: True keeps one of the R groups in one of the F columns of a kernel `[R, g, F]`. Under `vmap` a rule is
    mapped over learners.

        @dataclasses.dataclass(frozen=True, kw_only=True)
        class RandomMask:
            every: int = 1_000
            schedule = None  # not a field

            def init(self, key, kernels):
                keys = jax.random.split(key, len(kernels))
                chosen = zip(keys, kernels.items(), strict=True)
                return {name: jax.random.bernoulli(key, 0.5, kernel.mask_shape) for key, (name, kernel) in chosen}

            def update(self, key, mask, kernel, gradient, step, sparsity):
                return jax.random.permutation(key, mask)
    """

    @property
    def every(self) -> int:
        """Updates from one change of the masks to the next."""
        ...

    @property
    def schedule(self) -> Any:
        """Schedule of the sparsity, see `Magnitude`, or None."""
        ...

    def init(self, key: Array, kernels: dict[str, Kernel]) -> dict[str, Array]:
        """Returns the first masks of kernels, by name; their shapes cut the kernels into groups from then on.

        Raises:
          ValueError: A kernel does not fit the rule.
        """
        ...

    def update(self, key: Array, mask: Array, kernel: Array, gradient: Array, step: Array, sparsity: Array) -> Array:
        """Returns the next mask of one kernel.

        Args:
          key: Random key.
          mask: The current mask.
          kernel: `[R, g, F]`: Weights after this update, 0 where masked.
          gradient: `[R, g, F]`: Gradient of all weights, including masked ones.
          step: int32: Number of this update.
          sparsity: float32: Share of groups to prune by the schedule; 0 without a schedule.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Magnitude:
    """Prunes the smallest weights of each kernel, or the smallest groups, up to the sparsity of a schedule.

        rule = vx.sparsity.Magnitude(schedule=vx.sparsity.Cubic(final_sparsity=0.9, begin=0, end=100_000))
        optimizer = vx.sparsity.sparse(optax.adam(3e-4), rule)

    The size of a group is its root mean square. At least one group of each kernel is kept. If the sparsity falls, the
    pruned groups with the largest gradients are restored, from 0.

    Attributes:
      schedule: Schedule of the sparsity: `Cubic`, `RewardAware`, or any object with their methods `init` and
        `advance`. A block-circulant kernel stores one of b weights anyway, so its groups are pruned only if the
        sparsity exceeds `1 - 1 / b`.
      group: Weights in a group, consecutive along the input axis of one column. The groups of a block-circulant kernel
        are its blocks.
      every: Updates from one pruning to the next.

    Raises:
      TypeError: `schedule` is no schedule.
      ValueError: A number is not positive. `sparse` raises it if the input axis of a kernel is no multiple of `group`.
    """

    schedule: Any
    group: int = 1
    every: int = 100

    def __post_init__(self):
        check_has("schedule", self.schedule, ("init", "advance"), "volvox.sparsity.Cubic(...) or another schedule")
        integers(self, "group", "every", low=1)

    def init(self, key: Array, kernels: dict[str, Kernel]) -> dict[str, Array]:
        """Returns masks that keep all groups."""
        masks = {}
        for name, kernel in kernels.items():
            rows, _, columns = kernel.mask_shape
            group = self.group if kernel.block == 1 else 1
            _check_divides("group", group, name, rows)
            masks[name] = jnp.ones((rows // group, 1, columns), bool)
        return masks

    def update(self, key: Array, mask: Array, kernel: Array, gradient: Array, step: Array, sparsity: Array) -> Array:
        """See `Rule.update`."""
        # Sort pruned groups by gradient magnitude, then kept groups by magnitude.
        sizes = jnp.where(mask, _size(kernel), _size(gradient))
        order = jnp.lexsort((sizes.ravel(), mask.ravel()))
        num_pruned = jnp.minimum(jnp.round(sparsity * mask.size).astype(jnp.int32), mask.size - 1)
        return jnp.zeros(mask.size, bool).at[order].set(jnp.arange(mask.size) >= num_pruned).reshape(mask.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeepNOfM:
    """Keeps the `n` largest of every `m` weights along the input axis (Mishra et al. 2021, arXiv 2104.08378).

        optimizer = vx.sparsity.sparse(optax.adam(3e-4), vx.sparsity.KeepNOfM(n=2, m=4))

    In a block-circulant kernel, `n` of every `m` blocks are kept. A pruned weight stays 0. With `drop`, the smallest
    kept weights of a kernel are replaced by the pruned weights of the same `m` with the largest gradients.

    Attributes:
      n: Weights that are kept, of each `m`.
      m: Number of consecutive weights.
      begin: Updates before which nothing is pruned; with 0 the initial weights are pruned.
      drop: Share of a kernel's kept weights that are replaced at each change, in [0, 1].
      every: Updates from one change to the next.

    Raises:
      ValueError: A setting is out of its range. `sparse` raises it if the input axis of a kernel is no multiple of `m`.
    """

    n: int = 2
    m: int = 4
    begin: int = 0
    drop: float = 0.0
    every: int = 100
    schedule = None  # not a field

    def __post_init__(self):
        integers(self, "n", "m", "every", low=1)
        integers(self, "begin", low=0)
        numbers(self, "drop", low=0, high=1)
        if self.n > self.m:
            raise ValueError(f"n={self.n} exceeds m={self.m}; n of every m weights are kept")

    def init(self, key: Array, kernels: dict[str, Kernel]) -> dict[str, Array]:
        """Returns masks that keep the largest initial weights, or all weights with `begin`."""
        for name, kernel in kernels.items():
            _check_divides("m", self.m, name, len(kernel.weights))
        sizes = {name: _size(kernel.weights) for name, kernel in kernels.items()}
        return {name: jnp.ones(x.shape, bool) if self.begin else self._largest(x) for name, x in sizes.items()}

    def update(self, key: Array, mask: Array, kernel: Array, gradient: Array, step: Array, sparsity: Array) -> Array:
        """See `Rule.update`."""
        sizes = _size(kernel)
        kept = self._largest(jnp.where(mask, sizes, -1.0))
        if self.drop > 0:
            # Nothing is replaced at the first pruning, which has just compared all weights.
            num_dropped = jnp.where((kept == mask).all(), jnp.round(self.drop * kept.sum()), 0.0)
            small = kept & (_rank(jnp.where(kept, sizes, jnp.inf).ravel()) < num_dropped).reshape(kept.shape)
            # Rank large kept weights first, then pruned weights by gradient, then small kept weights.
            kept = self._largest(jnp.where(kept, jnp.where(small, -1.0, jnp.inf), _size(gradient)))
        return jnp.where(step >= self.begin, kept, mask)

    def _largest(self, sizes: Array) -> Array:
        """Returns whether each of `[R, 1, F]` is among the `n` largest of its `m`."""
        of_m = sizes.reshape(-1, self.m, sizes.shape[-1])
        order = jnp.argsort(jnp.argsort(of_m, axis=1, stable=True, descending=True), axis=1)
        return (order < self.n).reshape(sizes.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dynamic:
    """Keeps the sparsity of a kernel constant, and regularly replaces its smallest weights by others.

        optimizer = vx.sparsity.sparse(optax.adam(3e-4), vx.sparsity.Dynamic(sparsity=0.9))

    Densities of layers are those of Erdős–Rényi graphs: the density of a kernel `[K, N]` is proportional to
    `(K + N) / (K N)`. Two details differ from the papers. Weights are pruned by magnitude, while Sokar et al. prune a
    share of either sign. A weight that has just been pruned is not restored at once, while RigL allows it.

    Attributes:
      sparsity: Share of the weights of all these kernels that are 0 or need not be stored, in [0, 1).
      drop: Share of a kernel's kept weights that are pruned at each change, in [0, 1].
      every: Updates from one change to the next.
      end: Update at which changes end; until then `drop` falls to 0 by half a cosine, as in RigL. None keeps `drop`.
      grow: Choice of the weights to restore: at random (Sokar et al. 2021, arXiv 2106.04217), or by the largest
        gradients (RigL, Evci et al. 2020, arXiv 1911.11134).

    Raises:
      ValueError: A setting is out of its range.
    """

    sparsity: float
    drop: float = 0.05
    every: int = 1_000
    end: int | None = None
    grow: Literal["random", "gradient"] = "random"
    schedule = None  # not a field

    def __post_init__(self):
        check_sparsity("sparsity", self.sparsity)
        integers(self, "every", "end", low=1)
        numbers(self, "drop", low=0, high=1)
        if self.grow not in ("random", "gradient"):
            raise ValueError(f"grow={self.grow!r}: give 'random' or 'gradient'")

    def init(self, key: Array, kernels: dict[str, Kernel]) -> dict[str, Array]:
        """Returns random masks that together have the sparsity; see `erdos_renyi`."""
        sides = {name: kernel.sides for name, kernel in kernels.items()}
        most = {name: 1.0 / kernel.block for name, kernel in kernels.items()}
        masks = {}
        for i, (name, density) in enumerate(erdos_renyi(sides, 1.0 - self.sparsity, most).items()):
            shape = kernels[name].mask_shape
            num_kept = max(round(density * kernels[name].block * math.prod(shape)), 1)
            draws = jax.random.permutation(jax.random.fold_in(key, i), math.prod(shape))
            masks[name] = (draws < num_kept).reshape(shape)
        return masks

    def update(self, key: Array, mask: Array, kernel: Array, gradient: Array, step: Array, sparsity: Array) -> Array:
        """See `Rule.update`."""
        kept, size = mask.ravel(), mask.size
        decay = 1.0 if self.end is None else (1.0 + jnp.cos(jnp.pi * jnp.minimum(step / self.end, 1.0))) / 2
        num_replaced = jnp.round(self.drop * decay * kept.sum()).astype(jnp.int32)
        num_replaced = jnp.minimum(num_replaced, size - kept.sum())
        stays = kept & (_rank(jnp.where(kept, _size(kernel).ravel(), jnp.inf)) >= num_replaced)
        preference = jax.random.uniform(key, (size,)) if self.grow == "random" else _size(gradient).ravel()
        # Only weights that were pruned before are restored.
        restored = _rank(jnp.where(kept, jnp.inf, -preference)) < num_replaced
        return (stays | restored).reshape(mask.shape)


def erdos_renyi(sides: dict[str, tuple[int, int]], density: float, most: dict[str, float]) -> dict[str, float]:
    """Returns densities of kernels `[K, N]`, proportional to `(K + N) / (K N)`, with a given density in all.

    Args:
      sides: (K, N) by name.
      density: Share of all weights that are kept.
      most: Largest density of each kernel, by name.

    Returns:
      Density by name, at most the largest. The others grow in proportion.
    """
    weights = {name: k * n for name, (k, n) in sides.items()}
    full: set[str] = set()
    while True:
        left = density * sum(weights.values()) - sum(most[name] * weights[name] for name in full)
        scale = max(left, 0.0) / max(sum(sum(sides[name]) for name in sides if name not in full), 1)
        densities = {name: most[name] if name in full else scale * (k + n) / (k * n) for name, (k, n) in sides.items()}
        above = {name for name in sides if densities[name] > most[name]}
        if not above:
            return densities
        full |= above


def _check_divides(setting: str, value: int, name: str, rows: int) -> None:
    if rows % value:
        raise ValueError(
            f"{setting}={value} does not divide the input axis of {name}, which has length {rows}; take another "
            f"{setting}, or keep the kernel dense: sparse(..., dense=({name!r},))"
        )


def _size(groups: Array) -> Array:
    """Root mean square of each group: `[R, g, F]` -> `[R, 1, F]`."""
    return jnp.sqrt((groups.astype(jnp.float32) ** 2).mean(axis=1, keepdims=True))  # float16 would underflow


def _rank(values: Array) -> Array:
    """Position of each value in ascending order; equal values keep their order."""
    return jnp.argsort(jnp.argsort(values, stable=True))
