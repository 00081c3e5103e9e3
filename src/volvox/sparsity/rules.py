"""Rules for which groups of a kernel's weights live."""

from typing import Literal

import jax
import jax.numpy as jnp

from volvox._checks import integer
from volvox.sparsity.masks import Rule
from volvox.sparsity.schedules import Schedule, check_sparsity
from volvox.types import Array


def magnitude(schedule: Schedule, *, group: int = 1, every: int = 100) -> Rule:
    """Prunes the smallest weights of each kernel, or the smallest groups of them, as many as a schedule says.

    The size of a group is its root mean square. One group of a kernel always lives. Where the sparsity falls, the dead
    groups with the largest gradients begin to live again, at 0.

    Args:
      schedule: of the sparsity, e.g. `cubic` or `reward_aware`. Of a block-circulant kernel, of which only every b-th
        weight is stored, groups die where it exceeds `1 - 1 / b`.
      group: weights in a group, one after the other along the input axis, in one column. The groups of a
        block-circulant kernel are its blocks.
      every: steps from one pruning to the next.

    Returns:
      `Rule`. Making an optimiser with it raises ValueError for a kernel whose input axis has no whole number of groups.
    """
    if not isinstance(schedule, Schedule):
        raise ValueError(f"magnitude needs a schedule, such as cubic(...) or reward_aware(...); got {schedule!r}.")
    integer("group", group, low=1)
    integer("every", every, low=1)

    def update(key, mask, kernel, gradient, step, share):
        del key, step
        # The dead come first, among them the one with the largest gradient last; then those that live, by size.
        sizes = jnp.where(mask, _size(kernel), _size(gradient))
        order = jnp.lexsort((sizes.ravel(), mask.ravel()))
        dead = jnp.minimum(jnp.round(share * mask.size).astype(jnp.int32), mask.size - 1)
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


def keep_n_of_m(n: int = 2, m: int = 4, *, begin: int = 0, drop: float = 0.0, every: int = 100) -> Rule:
    """Keeps the `n` largest of every `m` weights along the input axis (Mishra et al. 2021, arXiv 2104.08378).

    Of a block-circulant kernel, of every `m` blocks. What is not kept does not come back by itself, for it stays 0.
    With `drop`, the smallest of a kernel make room for others of their m, those with the largest gradients.

    Args:
      n: weights that live.
      m: of so many, one after the other.
      begin: steps with all weights, before the first choice; with 0, what is kept is chosen by the initial weights.
      drop: share of a kernel's living weights that make room at once.
      every: steps from one change to the next.

    Returns:
      `Rule`. Making an optimiser with it raises ValueError for a kernel whose input axis is no multiple of `m`.

    Raises:
      ValueError: `n` above `m`, a number that is not positive, or a share outside [0, 1].
    """
    integer("m", m, low=1)
    if integer("n", n, low=1) > m:
        raise ValueError(f"n={n} exceeds m={m}: n of every m weights live.")
    integer("begin", begin, low=0)
    integer("every", every, low=1)
    _check_drop(drop)

    def densities(kernels):
        for name, kernel in kernels.items():
            if kernel.rows % m:
                raise ValueError(
                    f"m={m} does not divide the input axis of {name}, {kernel.rows} long; take another m, or leave it "
                    f"whole: sparse(..., dense=({name!r},))."
                )
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
        del key, share
        sizes = _size(kernel)
        kept = largest(jnp.where(mask, sizes, -1.0))
        if drop > 0:
            # Not at the first choice, which has just looked at all weights.
            dying = jnp.where((kept == mask).all(), jnp.round(drop * kept.sum()), 0.0)
            small = kept & (_rank(jnp.where(kept, sizes, jnp.inf).ravel()) < dying).reshape(kept.shape)
            # First those that stay, then the dead by gradient; where these are too few, the small stay, too.
            kept = largest(jnp.where(kept, jnp.where(small, -1.0, jnp.inf), _size(gradient)))
        return jnp.where(step >= begin, kept, mask)

    config = {"rule": "keep_n_of_m", "n": n, "m": m, "begin": begin, "drop": drop, "every": every}
    return Rule(init, update, every, 1, densities, None, config)


def dynamic(
    *,
    sparsity: float,
    drop: float = 0.05,
    every: int = 1_000,
    end: int | None = None,
    grow: Literal["random", "gradient"] = "random",
) -> Rule:
    """Sparse from the first update on: now and then the smallest weights die, and as many others begin at 0.

    Layers are as dense as Erdős–Rényi graphs of one degree: a kernel `[K, N]` in proportion to `(K + N) / (K N)`. Two
    things differ from the papers: the smallest are so by size alone, where Sokar et al. take shares of either sign, and
    what has just died does not come back at once, as with RigL it may.

    Args:
      sparsity: share of all weights that are 0, or need not be stored, over all kernels together.
      drop: share of a kernel's living weights that die at once.
      every: steps from one change to the next.
      end: step at which changes end; until there `drop` falls by half a cosine to 0, as in RigL. None: it stays.
      grow: which begin to live: at random (Sokar et al. 2021, arXiv 2106.04217), or those with the largest gradient
        (RigL, Evci et al. 2020, arXiv 1911.11134).

    Returns:
      `Rule`.

    Raises:
      ValueError: a sparsity outside [0, 1), a share outside [0, 1], an end that is not positive, or an unknown way to
        grow.
    """
    check_sparsity("sparsity", sparsity)
    integer("every", every, low=1)
    _check_drop(drop)
    if end is not None:
        integer("end", end, low=1)
    if grow not in ("random", "gradient"):
        raise ValueError(f"grow={grow!r} is unknown; there are random and gradient.")

    def densities(kernels):
        sides = {name: kernel.sides for name, kernel in kernels.items()}
        return erdos_renyi(sides, 1.0 - sparsity, most={name: 1.0 / kernel.block for name, kernel in kernels.items()})

    def init(key, kernel, share):
        sizes = _size(kernel)
        living = max(round(share * sizes.size), 1)
        return (jax.random.permutation(key, sizes.size) < living).reshape(sizes.shape)

    def update(key, mask, kernel, gradient, step, share):
        del share
        living, size = mask.ravel(), mask.size
        left = 1.0 if end is None else (1.0 + jnp.cos(jnp.pi * jnp.minimum(step / end, 1.0))) / 2
        dying = jnp.round(drop * left * living.sum()).astype(jnp.int32)
        dying = jnp.minimum(dying, size - living.sum())  # no more than can begin to live
        rank = _rank(jnp.where(living, _size(kernel).ravel(), jnp.inf))
        stays = living & (rank >= dying)
        drawn = jax.random.uniform(key, (size,)) if grow == "random" else _size(gradient).ravel()
        # Those that have just died may not come back at once.
        begins = _rank(jnp.where(living, jnp.inf, -drawn)) < dying
        return (stays | begins).reshape(mask.shape)

    config = {"rule": "dynamic", "sparsity": sparsity, "drop": drop, "every": every, "end": end, "grow": grow}
    return Rule(init, update, every, 1, densities, None, config)


def erdos_renyi(
    sides: dict[str, tuple[int, int]], density: float, *, most: dict[str, float] | None = None
) -> dict[str, float]:
    """Densities of kernels `[K, N]` in proportion to `(K + N) / (K N)`, so that all together have one.

    Args:
      sides: (K, N) by name.
      density: share of all weights that live.
      most: greatest density of each; None: 1.

    Returns:
      Density by name, none above its greatest; what that cuts off is given to the others.
    """
    most = dict.fromkeys(sides, 1.0) if most is None else most
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


def _check_drop(drop: float) -> None:
    if not 0 <= drop <= 1:
        raise ValueError(f"drop={drop}: give a share from 0 to 1.")


def _size(groups: Array) -> Array:
    """Root mean square of each group: `[R, g, F]` -> `[R, 1, F]`."""
    return jnp.sqrt((groups**2).mean(axis=1, keepdims=True))


def _rank(values: Array) -> Array:
    """Place of each in ascending order, ties in their own."""
    order = jnp.argsort(values, stable=True)
    return jnp.zeros_like(order).at[order].set(jnp.arange(len(values)))
