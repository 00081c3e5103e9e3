"""Rules that choose the groups of a kernel's weights to keep."""

import dataclasses
import math
from typing import Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from volvox._checks import check_type, integers, numbers
from volvox.sparsity.masks import Kernel
from volvox.sparsity.schedules import Schedule, check_sparsity
from volvox.types import Array


@runtime_checkable
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
    def schedule(self) -> Schedule | None:
        """Schedule of the sparsity, or None."""
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
      schedule: Schedule of the sparsity, e.g. `Cubic` or `RewardAware`. A block-circulant kernel stores one of b
        weights anyway, so its groups are pruned only if the sparsity exceeds `1 - 1 / b`.
      group: Weights in a group, consecutive along the input axis of one column. The groups of a block-circulant kernel
        are its blocks.
      every: Updates from one pruning to the next.

    Raises:
      TypeError: `schedule` is no schedule.
      ValueError: A number is not positive. `sparse` raises it if the input axis of a kernel is no multiple of `group`.
    """

    schedule: Schedule
    group: int = 1
    every: int = 100

    def __post_init__(self):
        check_type("schedule", self.schedule, Schedule, "volvox.sparsity.Cubic or another schedule")
        integers(self, "group", "every", low=1)

    def init(self, key: Array, kernels: dict[str, Kernel]) -> dict[str, Array]:
        """Returns masks that keep all groups."""
        del key
        masks = {}
        for name, kernel in kernels.items():
            rows, _, columns = kernel.mask_shape
            group = self.group if kernel.block == 1 else 1
            _check_divides("group", group, name, rows)
            masks[name] = jnp.ones((rows // group, 1, columns), bool)
        return masks

    def update(self, key: Array, mask: Array, kernel: Array, gradient: Array, step: Array, sparsity: Array) -> Array:
        """See `Rule.update`."""
        del key, step
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
      begin: Updates with all weights before the first pruning; with 0 the initial weights are pruned.
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
        del key
        for name, kernel in kernels.items():
            _check_divides("m", self.m, name, len(kernel.weights))
        sizes = {name: _size(kernel.weights) for name, kernel in kernels.items()}
        return {name: jnp.ones(x.shape, bool) if self.begin else self._largest(x) for name, x in sizes.items()}

    def update(self, key: Array, mask: Array, kernel: Array, gradient: Array, step: Array, sparsity: Array) -> Array:
        """See `Rule.update`."""
        del key, sparsity
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
        del sparsity
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
    order = jnp.argsort(values, stable=True)
    return jnp.zeros_like(order).at[order].set(jnp.arange(len(values)))
