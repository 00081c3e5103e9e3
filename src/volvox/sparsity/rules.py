"""Rules for which weights of a kernel live."""

import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from volvox.sparsity.masks import Rule
from volvox.types import Array
from volvox.validation import integer


def cubic(*, final_sparsity: float, begin: int, end: int) -> Callable[[Array], Array]:
    """A sparsity that rises from 0 by a cubic: fast at first, slowly at the end (Zhu & Gupta 2017, arXiv 1710.01878).

    Args:
      final_sparsity: share of weights that are 0 in the end.
      begin: updates before the first.
      end: updates at which the final sparsity is reached.

    Returns:
      updates made -> sparsity.

    Raises:
      ValueError: a sparsity outside [0, 1), or an end that is not after the beginning.
    """
    _check_sparsity("final_sparsity", final_sparsity)
    if integer("end", end, low=1) <= integer("begin", begin, low=0):
        raise ValueError(f"end={end} must come after begin={begin}.")

    def sparsity(count: Array) -> Array:
        left = 1.0 - jnp.clip((count - begin) / (end - begin), 0.0, 1.0)
        return jnp.asarray(final_sparsity * (1.0 - left**3), jnp.float32)

    return sparsity


def magnitude(sparsity: Callable[[Array], Array], *, group: int = 1, every: int = 100) -> Rule:
    """Prunes the smallest weights of each kernel, or the smallest groups of them, more and more.

    A group is `group` weights one after the other along the input axis, in one column: with a block-circulant kernel
    and its block as the group, a circulant block. Its size is its root mean square.

    Args:
      sparsity: updates made -> share of groups that are 0, e.g. `cubic`.
      group: weights in a group.
      every: updates from one pruning to the next.

    Returns:
      `Rule`. Making an optimiser with it raises ValueError for a kernel whose input axis has no whole number of groups.
    """
    integer("group", group, low=1)
    integer("every", every, low=1)

    def densities(shapes):
        _check_divides("group", group, shapes)
        return dict.fromkeys(shapes, 1.0)

    def update(key, mask, kernel, gradient, count):
        del key, gradient
        sizes = jnp.sqrt((_groups(kernel, group) ** 2).mean(axis=1))
        # What is masked stays so: its size is 0, and among equals the first go first.
        order = jnp.argsort(jnp.where(_groups(mask, group).any(axis=1), sizes, -1.0).ravel(), stable=True)
        dead = jnp.round(sparsity(count) * sizes.size).astype(jnp.int32)
        live = jnp.zeros(sizes.size, bool).at[order].set(jnp.arange(sizes.size) >= dead).reshape(sizes.shape)
        return jnp.broadcast_to(live[:, None], (live.shape[0], group, live.shape[1])).reshape(kernel.shape)

    config = {"rule": "magnitude", "group": group, "every": every}
    return Rule(lambda key, kernel, density: jnp.ones(kernel.shape, bool), update, every, densities, config)


def keep_n_of_m(n: int = 2, m: int = 4, *, begin: int = 0, every: int = 100) -> Rule:
    """Keeps the `n` largest of every `m` weights along the input axis (Mishra et al. 2021, arXiv 2104.08378).

    Args:
      n: weights that live.
      m: of so many, one after the other.
      begin: updates made with all weights, before the first choice.
      every: updates from one choice to the next. A dead weight is 0 and does not come back: after the first choice
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

    def densities(shapes):
        _check_divides("m", m, shapes)
        return dict.fromkeys(shapes, n / m)

    def largest(kernel: Array) -> Array:
        order = jnp.argsort(jnp.argsort(jnp.abs(_groups(kernel, m)), axis=1, stable=True, descending=True), axis=1)
        return (order < n).reshape(kernel.shape)

    def init(key, kernel, density):
        del key, density
        return largest(kernel) if begin == 0 else jnp.ones(kernel.shape, bool)

    def update(key, mask, kernel, gradient, count):
        del key, gradient
        return jnp.where(count >= begin, largest(jnp.where(mask, kernel, 0.0)), mask)

    config = {"rule": "keep_n_of_m", "n": n, "m": m, "begin": begin, "every": every}
    return Rule(init, update, every, densities, config)


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
      every: updates from one change to the next.
      grow: which begin to live: at random (Sokar et al. 2021, arXiv 2106.04217), or those with the largest gradient
        (RigL, Evci et al. 2020, arXiv 1911.11134).

    Returns:
      `Rule`.

    Raises:
      ValueError: a sparsity outside [0, 1), a share outside [0, 1], or an unknown way to grow.
    """
    _check_sparsity("sparsity", sparsity)
    integer("every", every, low=1)
    if not 0 <= drop <= 1:
        raise ValueError(f"drop={drop}: give a share from 0 to 1.")
    if grow not in ("random", "gradient"):
        raise ValueError(f"grow={grow!r} is unknown; there are random and gradient.")

    def densities(shapes):
        sides = {name: (math.prod(shape[:-1]), shape[-1]) for name, shape in shapes.items()}
        return erdos_renyi(sides, 1.0 - sparsity)

    def init(key, kernel, density):
        count = round(density * kernel.size)
        return (jax.random.permutation(key, kernel.size) < count).reshape(kernel.shape)

    def update(key, mask, kernel, gradient, count):
        del count
        living, size = mask.ravel(), kernel.size
        dying = jnp.round(drop * living.sum()).astype(jnp.int32)
        dying = jnp.minimum(dying, size - living.sum())  # no more than can begin to live
        rank = _rank(jnp.where(living, jnp.abs(kernel).ravel(), jnp.inf))
        stays = living & (rank >= dying)
        drawn = jax.random.uniform(key, (size,)) if grow == "random" else jnp.abs(gradient).ravel()
        # Those that have just died may not come back at once.
        begins = _rank(jnp.where(living, jnp.inf, -drawn)) < dying
        return (stays | begins).reshape(kernel.shape)

    config = {"rule": "dynamic", "sparsity": sparsity, "drop": drop, "every": every, "grow": grow}
    return Rule(init, update, every, densities, config)


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


def _check_sparsity(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name}={value}: give a share of at least 0 and below 1.")


def _check_divides(name: str, value: int, shapes: dict[str, tuple[int, ...]]) -> None:
    for kernel, shape in shapes.items():
        if (rows := math.prod(shape[:-1])) % value:
            raise ValueError(f"{name}={value} does not divide the input axis of {kernel} {list(shape)}, {rows} long.")


def _groups(kernel: Array, group: int) -> Array:
    """`[..., F]` -> `[rows / group, group, F]`, the first axes read as one."""
    return kernel.reshape(-1, group, kernel.shape[-1])


def _rank(values: Array) -> Array:
    """Place of each in ascending order, ties in their own."""
    return jnp.argsort(jnp.argsort(values, stable=True), stable=True)
