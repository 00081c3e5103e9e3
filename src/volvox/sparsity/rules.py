"""Rules for which groups of a kernel's weights live."""

import dataclasses
import math
import re
from typing import Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from volvox._checks import integers, numbers
from volvox.sparsity.masks import Kernel
from volvox.sparsity.schedules import Schedule, check_sparsity
from volvox.types import Array


@runtime_checkable
class Rule(Protocol):
    """Which groups of weights live, and when that changes.

    A rule of your own is any object with these members; a frozen dataclass is described in `config.json`. A mask is
    bool `[R, 1, F]` and says which of the R groups in each of the F columns of a kernel `[R, g, F]` live. Under `vmap`
    a rule is mapped over learners.

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
        """Schedule of the sparsity; None where the rule needs none."""
        ...

    def init(self, key: Array, kernels: dict[str, Kernel]) -> dict[str, Array]:
        """Returns the first masks of kernels, by name; their shapes cut the kernels into groups from then on.

        Raises:
          ValueError: a kernel does not fit the rule.
        """
        ...

    def update(self, key: Array, mask: Array, kernel: Array, gradient: Array, step: Array, sparsity: Array) -> Array:
        """Returns the next mask of one kernel.

        Args:
          key: Key of random draws.
          mask: The present mask.
          kernel: `[R, g, F]`: Its weights after this update, 0 where masked.
          gradient: `[R, g, F]`: The gradient of all weights, masked ones too.
          step: int32: The number of this update.
          sparsity: float32: The share of groups that the schedule asks to be dead; 0 without a schedule.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Magnitude:
    """Prunes the smallest weights of each kernel, or the smallest groups of them, as many as a schedule says.

        rule = vx.sparsity.Magnitude(schedule=vx.sparsity.Cubic(final_sparsity=0.9, begin=0, end=100_000))
        optimizer = vx.sparsity.sparse(optax.adam(3e-4), rule)

    The size of a group is its root mean square. At least one group of each kernel lives. Where the sparsity falls, the
    dead groups with the largest gradients live again, from 0.

    Attributes:
      schedule: Schedule of the sparsity, e.g. `Cubic` or `RewardAware`. A block-circulant kernel stores one of b
        weights anyway, so its groups die only where the sparsity exceeds `1 - 1 / b`.
      group: Weights in a group, consecutive along the input axis of one column. The groups of a block-circulant kernel
        are its blocks.
      every: Updates from one pruning to the next.

    Raises:
      ValueError: no schedule, or a number that is not positive; from `sparse`, a kernel whose input axis is no multiple
        of `group`.
    """

    schedule: Schedule
    group: int = 1
    every: int = 100

    def __post_init__(self):
        if not isinstance(self.schedule, Schedule):
            raise ValueError(
                f"Magnitude needs a schedule, such as Cubic(...) or RewardAware(...); got {self.schedule!r}."
            )
        integers(self, "group", "every", low=1)

    def init(self, key: Array, kernels: dict[str, Kernel]) -> dict[str, Array]:
        """Returns masks of groups that all live."""
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
        # The dead come first, among them the one with the largest gradient last; then those that live, by size.
        sizes = jnp.where(mask, _size(kernel), _size(gradient))
        order = jnp.lexsort((sizes.ravel(), mask.ravel()))
        dead = jnp.minimum(jnp.round(sparsity * mask.size).astype(jnp.int32), mask.size - 1)
        return jnp.zeros(mask.size, bool).at[order].set(jnp.arange(mask.size) >= dead).reshape(mask.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeepNOfM:
    """Keeps the `n` largest of every `m` weights along the input axis (Mishra et al. 2021, arXiv 2104.08378).

        optimizer = vx.sparsity.sparse(optax.adam(3e-4), vx.sparsity.KeepNOfM(n=2, m=4))

    In a block-circulant kernel these are `n` of every `m` blocks. A weight that is not kept stays 0 and does not come
    back by itself. With `drop`, the smallest weights of a kernel are replaced by others of their `m`, those with the
    largest gradients.

    Attributes:
      n: Weights that live, of each `m`.
      m: Number of consecutive weights among which `n` live.
      begin: Updates with all weights before the first choice; with 0 the initial weights decide.
      drop: Share of a kernel's living weights that are replaced at each change, in [0, 1].
      every: Updates from one change to the next.

    Raises:
      ValueError: `n` above `m`, a number that is not positive, or a share outside [0, 1]; from `sparse`, a kernel whose
        input axis is no multiple of `m`.
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
            raise ValueError(f"n={self.n} exceeds m={self.m}: n of every m weights live.")

    def init(self, key: Array, kernels: dict[str, Kernel]) -> dict[str, Array]:
        """Returns masks of the largest initial weights, or with `begin` masks with which all weights live."""
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
            # Nothing is replaced at the first choice, which has just compared all weights.
            dying = jnp.where((kept == mask).all(), jnp.round(self.drop * kept.sum()), 0.0)
            small = kept & (_rank(jnp.where(kept, sizes, jnp.inf).ravel()) < dying).reshape(kept.shape)
            # First those that stay, then the dead by gradient; where these are too few, the small ones stay, too.
            kept = self._largest(jnp.where(kept, jnp.where(small, -1.0, jnp.inf), _size(gradient)))
        return jnp.where(step >= self.begin, kept, mask)

    def _largest(self, sizes: Array) -> Array:
        """Returns whether each of `[R, 1, F]` is among the `n` largest of its `m`."""
        of_m = sizes.reshape(-1, self.m, sizes.shape[-1])
        order = jnp.argsort(jnp.argsort(of_m, axis=1, stable=True, descending=True), axis=1)
        return (order < self.n).reshape(sizes.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dynamic:
    """Keeps the sparsity of a kernel constant, and now and then replaces its smallest weights by others.

        optimizer = vx.sparsity.sparse(optax.adam(3e-4), vx.sparsity.Dynamic(sparsity=0.9))

    Densities of layers are those of Erdős–Rényi graphs: a kernel `[K, N]` has one in proportion to `(K + N) / (K N)`.
    Two things differ from the papers. The smallest weights are those of smallest size, while Sokar et al. take a share
    of either sign; and a weight that has just died does not come back at once, while in RigL it may.

    Attributes:
      sparsity: Share of all these kernels' weights that are 0 or need not be stored, in [0, 1).
      drop: Share of a kernel's living weights that die at each change, in [0, 1].
      every: Updates from one change to the next.
      end: Update at which changes end; until there `drop` falls to 0 by half a cosine, as in RigL. None: it stays.
      grow: Which weights begin to live: random ones (Sokar et al. 2021, arXiv 2106.04217), or those with the largest
        gradients (RigL, Evci et al. 2020, arXiv 1911.11134).

    Raises:
      ValueError: a sparsity outside [0, 1), a share outside [0, 1], an end that is not positive, or an unknown way to
        grow.
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
            raise ValueError(f"grow={self.grow!r} is unknown; there are random and gradient.")

    def init(self, key: Array, kernels: dict[str, Kernel]) -> dict[str, Array]:
        """Returns random masks that together have the sparsity; see `erdos_renyi`."""
        sides = {name: kernel.sides for name, kernel in kernels.items()}
        most = {name: 1.0 / kernel.block for name, kernel in kernels.items()}
        masks = {}
        for i, (name, density) in enumerate(erdos_renyi(sides, 1.0 - self.sparsity, most).items()):
            shape = kernels[name].mask_shape
            living = max(round(density * kernels[name].block * math.prod(shape)), 1)
            draws = jax.random.permutation(jax.random.fold_in(key, i), math.prod(shape))
            masks[name] = (draws < living).reshape(shape)
        return masks

    def update(self, key: Array, mask: Array, kernel: Array, gradient: Array, step: Array, sparsity: Array) -> Array:
        """See `Rule.update`."""
        del sparsity
        living, size = mask.ravel(), mask.size
        left = 1.0 if self.end is None else (1.0 + jnp.cos(jnp.pi * jnp.minimum(step / self.end, 1.0))) / 2
        dying = jnp.round(self.drop * left * living.sum()).astype(jnp.int32)
        dying = jnp.minimum(dying, size - living.sum())  # no more than can begin to live
        stays = living & (_rank(jnp.where(living, _size(kernel).ravel(), jnp.inf)) >= dying)
        preference = jax.random.uniform(key, (size,)) if self.grow == "random" else _size(gradient).ravel()
        # Those that have just died may not come back at once.
        begins = _rank(jnp.where(living, jnp.inf, -preference)) < dying
        return (stays | begins).reshape(mask.shape)


def erdos_renyi(sides: dict[str, tuple[int, int]], density: float, most: dict[str, float]) -> dict[str, float]:
    """Returns densities of kernels `[K, N]` in proportion to `(K + N) / (K N)` that make up one density together.

    Args:
      sides: (K, N) by name.
      density: Share of all weights that live.
      most: Greatest density of each kernel, by name.

    Returns:
      Density by name, none above its greatest; what that cuts off is given to the others.
    """
    weights = {name: k * n for name, (k, n) in sides.items()}
    full: set[str] = set()
    while True:
        left = density * sum(weights.values()) - sum(most[name] * weights[name] for name in full)
        scale = max(left, 0.0) / max(sum(sum(sides[name]) for name in sides if name not in full), 1)
        found = {name: most[name] if name in full else scale * (k + n) / (k * n) for name, (k, n) in sides.items()}
        above = {name for name, one in found.items() if one > most[name]}
        if not above:
            return found
        full |= above


def _check_divides(setting: str, value: int, name: str, rows: int) -> None:
    if rows % value:
        ending = re.sub(r"^(\d+/)+", "", name)  # a learner's other networks do not have its number in their paths
        raise ValueError(
            f"{setting}={value} does not divide the input axis of {name}, {rows} long; take another {setting}, or "
            f"leave it whole, and what is called so in each network: sparse(..., dense=({ending!r},))."
        )


def _size(groups: Array) -> Array:
    """Returns the root mean square of each group: `[R, g, F]` -> `[R, 1, F]`."""
    return jnp.sqrt((groups.astype(jnp.float32) ** 2).mean(axis=1, keepdims=True))  # float16 would underflow


def _rank(values: Array) -> Array:
    """Returns the position of each value in ascending order; equal ones keep their order."""
    order = jnp.argsort(values, stable=True)
    return jnp.zeros_like(order).at[order].set(jnp.arange(len(values)))
