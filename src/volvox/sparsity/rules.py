"""Rules for which groups of a kernel's weights live."""

from typing import Literal

import jax
import jax.numpy as jnp

from volvox.sparsity.masks import Rule
from volvox.sparsity.schedules import Schedule, check_sparsity
from volvox.types import Array
from volvox.validation import integer


def magnitude(schedule: Schedule, *, group: int = 1, every: int = 100) -> Rule:
    """Prunes the smallest weights of each kernel, or the smallest groups of them, as many as a schedule says.

    The size of a group is its root mean square. Where the sparsity falls, the dead groups with the largest gradients
    begin to live again, at 0.

    Args:
      schedule: of the sparsity, e.g. `cubic` or `reward_aware`. Of a block-circulant kernel, of which only every b-th
        weight is stored, groups die where it exceeds `1 - 1 / b`.
      group: weights in a group, one after the other along the input axis, in one column. The groups of a
        block-circulant kernel are its blocks.
      every: steps from one pruning to the next.

    Returns:
      `Rule`. Making an optimiser with it raises ValueError for a kernel whose input axis has no whole number of groups.
    """
    integer("group", group, low=1)
    integer("every", every, low=1)

    def update(key, mask, kernel, gradient, step, share):
        del key, step
        # The dead come first, among them the one with the largest gradient last; then those that live, by size.
        sizes = jnp.where(mask, _size(kernel), _size(gradient))
        order = jnp.lexsort((sizes.ravel(), mask.ravel()))
        dead = jnp.round(share * mask.size).astype(jnp.int32)
        return jnp.zeros(mask.size, bool).at[order].set(jnp.arange(mask.size) >= dead).reshape(mask.shape)

    config = {"rule": "magnitude", "group": group, "every": every, **schedule.config}
    return Rule(
        lambda key, kernel, share: jnp.ones((kernel.shape[0], 1, kernel.shape[2]), bool),
        update,
        every,
        group,
        lambda kernels: dict.fromkeys(kernels, 1.0),
        schedule,
        config,
    )


def keep_n_of_m(n: int = 2, m: int = 4, *, begin: int = 0, every: int = 100) -> Rule:
    """Keeps the `n` largest of every `m` weights along the input axis (Mishra et al. 2021, arXiv 2104.08378).

    Of a block-circulant kernel, of every `m` blocks.

    Args:
      n: weights that live.
      m: of so many, one after the other.
      begin: steps with all weights, before the first choice.
      every: steps from one choice to the next. A dead weight is 0 and does not come back: after the first choice
        nothing changes.

    Returns:
      `Rule`. Making an optimiser with it raises ValueError for a kernel whose input axis is no multiple of `m`.

    Raises:
      ValueError: `n` above `m`, or a number that is not positive.
    """
    integer("m", m, low=1)
    if integer("n", n, low=1) > m:
        raise ValueError(f"n={n} exceeds m={m}: n of every m weights live.")
    integer("begin", begin, low=0)
    integer("every", every, low=1)

    def densities(kernels):
        for name, kernel in kernels.items():
            if kernel.rows % m:
                raise ValueError(f"m={m} does not divide the input axis of {name}, {kernel.rows} long.")
        return dict.fromkeys(kernels, n / m)

    def largest(sizes: Array) -> Array:
        of_m = sizes.reshape(-1, m, sizes.shape[-1])
        order = jnp.argsort(jnp.argsort(of_m, axis=1, stable=True, descending=True), axis=1)
        return (order < n).reshape(sizes.shape)

    def init(key, kernel, share):
        del key, share
        sizes = _size(kernel)
        return largest(sizes) if begin == 0 else jnp.ones(sizes.shape, bool)

    def update(key, mask, kernel, gradient, step, share):
        del key, gradient, share
        return jnp.where(step >= begin, largest(jnp.where(mask, _size(kernel), 0.0)), mask)

    config = {"rule": "keep_n_of_m", "n": n, "m": m, "begin": begin, "every": every}
    return Rule(init, update, every, 1, densities, None, config)


def dynamic(
    *,
    sparsity: float,
    drop: float = 0.05,
    every: int = 1_000,
    grow: Literal["random", "gradient"] = "random",
) -> Rule:
    """Sparse from the first update on: now and then the smallest weights die, and as many others begin at 0.

    Layers are as dense as Erdős–Rényi graphs of one degree: a kernel `[K, N]` in proportion to `(K + N) / (K N)`.

    Args:
      sparsity: share of all weights that are 0, over all kernels together.
      drop: share of a kernel's living weights that die at once.
      every: steps from one change to the next.
      grow: which begin to live: at random (Sokar et al. 2021, arXiv 2106.04217), or those with the largest gradient
        (RigL, Evci et al. 2020, arXiv 1911.11134).

    Returns:
      `Rule`.

    Raises:
      ValueError: a sparsity outside [0, 1), a share outside [0, 1], or an unknown way to grow.
    """
    check_sparsity("sparsity", sparsity)
    integer("every", every, low=1)
    if not 0 <= drop <= 1:
        raise ValueError(f"drop={drop}: give a share from 0 to 1.")
    if grow not in ("random", "gradient"):
        raise ValueError(f"grow={grow!r} is unknown; there are random and gradient.")

    def densities(kernels):
        return erdos_renyi({name: kernel.sides for name, kernel in kernels.items()}, 1.0 - sparsity)

    def init(key, kernel, share):
        sizes = _size(kernel)
        return (jax.random.permutation(key, sizes.size) < round(share * sizes.size)).reshape(sizes.shape)

    def update(key, mask, kernel, gradient, step, share):
        del step, share
        living, size = mask.ravel(), mask.size
        dying = jnp.round(drop * living.sum()).astype(jnp.int32)
        dying = jnp.minimum(dying, size - living.sum())  # no more than can begin to live
        rank = _rank(jnp.where(living, _size(kernel).ravel(), jnp.inf))
        stays = living & (rank >= dying)
        drawn = jax.random.uniform(key, (size,)) if grow == "random" else _size(gradient).ravel()
        # Those that have just died may not come back at once.
        begins = _rank(jnp.where(living, jnp.inf, -drawn)) < dying
        return (stays | begins).reshape(mask.shape)

    config = {"rule": "dynamic", "sparsity": sparsity, "drop": drop, "every": every, "grow": grow}
    return Rule(init, update, every, 1, densities, None, config)


def erdos_renyi(sides: dict[str, tuple[int, int]], density: float) -> dict[str, float]:
    """Densities of kernels `[K, N]` in proportion to `(K + N) / (K N)`, none above 1, so that all together have one.

    Args:
      sides: (K, N) by name.
      density: share of all weights that live.

    Returns:
      Density by name.
    """
    whole: set[str] = set()
    while True:
        weights = {name: k * n for name, (k, n) in sides.items()}
        left = density * sum(weights.values()) - sum(weights[name] for name in whole)
        scale = max(left, 0.0) / max(sum(sum(sides[name]) for name in sides if name not in whole), 1)
        found = {name: 1.0 if name in whole else scale * (k + n) / (k * n) for name, (k, n) in sides.items()}
        above = {name for name, one in found.items() if one > 1.0}
        if not above:
            return found
        whole |= above


def _size(groups: Array) -> Array:
    """Root mean square of each group: `[R, g, F]` -> `[R, 1, F]`."""
    return jnp.sqrt((groups**2).mean(axis=1, keepdims=True))


def _rank(values: Array) -> Array:
    """Place of each in ascending order, ties in their own."""
    return jnp.argsort(jnp.argsort(values, stable=True), stable=True)
