"""Sparse training as a wrapper of any optax optimiser: masked weights are exactly 0, and so is what it keeps of them.

A `Rule` says which groups of a kernel's weights live and when that changes; `sparse` applies it to every kernel of any
pytree of parameters. Masks save no time on dense arithmetic: what they save is what must be stored.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from volvox._checks import integer
from volvox.ops.flat import is_kernel, leaf_path
from volvox.sparsity.schedules import Schedule
from volvox.types import Array, ArrayTree, Config


class Kernel(NamedTuple):
    """How a kernel is cut into groups of weights, which live or die together: `[rows, group, columns]`.

    Attributes:
      rows: R, groups along the input axis.
      group: g, numbers in a group, one after the other along the input axis, in one column.
      columns: F.
      block: Weights that each number stands for: b of a block-circulant kernel, whose groups are its blocks; 1 of
        others.
    """

    rows: int
    group: int
    columns: int
    block: int

    @property
    def sides(self) -> tuple[int, int]:
        """(inputs, outputs) of the matrix it stands for."""
        return self.rows * self.group, self.columns * self.block


class Rule(NamedTuple):
    """Which groups of one kernel live; kernels are `[R, g, F]`, masks bool `[R, 1, F]`.

    Attributes:
      init: (key, kernel, share of groups that live) -> mask. The share is of use where the rule spreads it over layers.
      update: (key, mask, kernel, gradient, step, share of groups that are 0) -> mask. The gradient is that of all
        weights, masked ones too; the share is the schedule's, where there is one.
      every: Steps from one change of the masks to the next.
      group: Weights in a group; a block-circulant kernel has its own.
      densities: Kernels by name -> density of each; raises ValueError where a kernel does not fit the rule.
      schedule: Of the sparsity, where it changes.
    """

    init: Callable[[Array, Array, float], Array]
    update: Callable[[Array, Array, Array, Array, Array, Array], Array]
    every: int
    group: int
    densities: Callable[[dict[str, Kernel]], dict[str, float]]
    schedule: Schedule | None
    config: Config


class SparseState(NamedTuple):
    """State of the wrapped optimiser.

    Attributes:
      masks: As the parameters: bool `[R, 1, F]` of a kernel `[R, g, F]`, or a scalar True where all weights live.
      schedule: Of the rule's schedule; () where it has none.
      step: int32: the latest.
      key: uint32 `[2]`: from which, and the step, the rule draws.
    """

    inner: ArrayTree
    masks: ArrayTree
    schedule: ArrayTree
    step: Array
    key: Array


class SparseOptimizer(optax.GradientTransformationExtraArgs):
    """What `sparse` makes: an optimiser that says what it does to the masks."""

    config: Config


def sparse(
    optimizer: optax.GradientTransformation,
    rule: Rule,
    *,
    dense: Collection[str] = (),
    min_side: int = 1,
    only_circulant: bool = False,
    seed: int = 0,
) -> SparseOptimizer:
    """Wraps an optimiser so that kernels stay as sparse as a rule says.

    Kernels are the parameters of two or more dimensions, `[inputs..., outputs]`, but for those named "bias" or "scale".
    An update of a masked weight is minus the weight, so after the
    first one all masked weights are 0; `pruned` makes them so before it.

    Args:
      optimizer: any of optax's, made. Gradients are clipped in it rather than before it, where those of dead weights
        would count.
      rule: which weights live.
      dense: names of kernels that stay whole, or what the names of several end with, e.g. `"Dense_2/kernel"`.
      min_side: kernels with fewer inputs or outputs stay whole.
      only_circulant: all kernels but block-circulant ones stay whole.
      seed: of what the rule draws; other parameters draw something else.

    Returns:
      The optimiser; its state is `SparseState`, its `config` holds JSON values. Its `update` takes `step` (default: its
      own updates) by which schedules go, and `mean_return`, which some of them need; both and all others are passed on
      to `optimizer`. What that keeps of a kernel in another shape, such as factored moments, is left to it.

    Raises:
      ValueError: no optimiser, or no rule; (from `init`) a name in `dense` that is no kernel's, a kernel that does not
        fit the rule, or an optimiser of which it cannot be told what it keeps of which parameter (`optax.sm3`); (from
        `update`) other parameters.
    """
    integer("min_side", min_side, low=1)
    integer("seed", seed, low=0)
    if isinstance(dense, str):
        raise ValueError(f"dense={dense!r}: give names in a tuple or a list, ({dense!r},).")
    if not isinstance(optimizer, optax.GradientTransformation) or isinstance(optimizer, SparseOptimizer):
        raise ValueError(f"sparse needs an optax.GradientTransformation that is not sparse already; got {optimizer!r}.")
    if not isinstance(rule, Rule):
        raise ValueError(f"sparse needs a rule, such as magnitude(schedule) or dynamic(...); got {rule!r}.")
    inner_optimizer = optax.with_extra_args_support(optimizer)

    def forgotten(inner: ArrayTree, masks: ArrayTree, params: ArrayTree) -> ArrayTree:
        return optax.tree_map_params(optimizer, _forgotten, inner, masks, params, is_leaf=_is_masked_node)

    def init(params: ArrayTree) -> SparseState:
        found = kernels(params)
        whole = {name for name in found for end in dense if f"/{name}".endswith(f"/{end}")}
        if unknown := sorted(end for end in dense if not any(f"/{name}".endswith(f"/{end}") for name in whole)):
            raise ValueError(
                f"dense names no kernel of these parameters: {', '.join(unknown)}; they have "
                f"{', '.join(sorted(found))}."
            )
        chosen = {
            name: _cut(name, kernel, rule.group)
            for name, kernel in found.items()
            if name not in whole and min(kernel.sides) >= min_side and (kernel.block > 1 or not only_circulant)
        }
        densities = rule.densities(chosen)
        key = jax.random.key(seed)
        for leaf in jax.tree.leaves(params):  # so that learners side by side have masks of their own
            if leaf.ndim >= 2:
                bits = jax.lax.bitcast_convert_type(leaf.ravel()[0].astype(jnp.float32), jnp.uint32)
                key = jax.random.fold_in(key, bits)

        def one(path, leaf):
            name = "/".join(leaf_path(path))
            if name not in chosen:
                return jnp.ones((), bool)
            number, kernel = list(chosen).index(name), chosen[name]
            share = min(densities[name] * kernel.block, 1.0)
            return rule.init(jax.random.fold_in(key, number), leaf.reshape(kernel[:3]), share)

        masks = jax.tree_util.tree_map_with_path(one, params)
        schedule = () if rule.schedule is None else rule.schedule.init()
        inner = optimizer.init(params)
        try:
            jax.eval_shape(forgotten, inner, masks, params)
        except ValueError as error:
            raise ValueError(
                "sparse cannot tell what this optimiser keeps of which parameter; take another, e.g. optax.adam."
            ) from error
        return SparseState(inner, masks, schedule, jnp.int32(0), jax.random.key_data(key))

    def update(
        updates: ArrayTree,
        state: Any,
        params: ArrayTree | None = None,
        *,
        step: Array | None = None,
        mean_return: Array | None = None,
        **others: Any,
    ):
        if params is None:
            raise ValueError("a sparse optimiser needs the parameters: update(gradient, state, params).")
        gradient, masks = updates, state.masks
        check_masks(params, masks)
        now = state.step + 1 if step is None else jnp.asarray(step, jnp.int32)
        passed = {"step": now, "mean_return": mean_return, **others}
        updates, inner = inner_optimizer.update(_masked(gradient, masks), state.inner, params, **passed)
        key = jax.random.wrap_key_data(state.key)
        blocks = {name: kernel.block for name, kernel in kernels(params).items()}

        def changed(masks: ArrayTree, schedule: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
            sparsity = jnp.float32(0)
            if rule.schedule is not None:
                sparsity, schedule = rule.schedule.advance(schedule, now, mean_return)
            moved = _masked(optax.apply_updates(params, updates), masks)
            keys = jax.random.split(jax.random.fold_in(key, now), len(jax.tree.leaves(masks)))
            numbers = jax.tree.unflatten(jax.tree.structure(masks), list(range(len(keys))))

            def one(path, mask, kernel, slope, i):
                if mask.ndim == 0:
                    return mask
                shape = (mask.shape[0], -1, mask.shape[2])
                share = jnp.maximum(1.0 - (1.0 - sparsity) * blocks["/".join(leaf_path(path))], 0.0)
                return rule.update(keys[i], mask, kernel.reshape(shape), slope.reshape(shape), now, share)

            new = jax.tree_util.tree_map_with_path(one, masks, moved, gradient, numbers), schedule
            return jax.tree.map(lambda new, old: jnp.where(due, new, old), new, (masks, state.schedule))

        due = now // rule.every > state.step // rule.every
        masks, schedule = jax.lax.cond(_of_any(due), changed, lambda *given: given, masks, state.schedule)
        # What has just begun to live, and what has died, is 0 next.
        alive = jax.tree.map(jnp.logical_and, masks, state.masks)
        updates = jax.tree.map(lambda u, p, mask: _where(mask, u, -p), updates, params, alive)
        inner = forgotten(inner, masks, params)
        return updates, SparseState(inner, masks, schedule, now, state.key)

    made = SparseOptimizer(init, update)
    made.config = {**rule.config, "dense": list(dense), "min_side": min_side, "only_circulant": only_circulant}
    made.config |= {"seed": seed}
    return made


def pruned(params: ArrayTree, state: ArrayTree) -> ArrayTree:
    """The parameters with 0 where the masks in an optimiser's state say so.

    Raises:
      ValueError: there are no masks, or they are of other parameters.
    """
    masks = masks_of(state)
    check_masks(params, masks)
    return _masked(params, masks)


def masks_of(state: ArrayTree) -> ArrayTree:
    """The masks in an optimiser's state, wherever `sparse` stands in it: see `SparseState.masks` for their shapes.

    `pruned` puts them on parameters, which do not have the same. Of several, the first's.

    Raises:
      ValueError: there are none.
    """
    if not (found := sparse_states(state)):
        raise ValueError("this state is of no sparse optimiser: make it by volvox.sparsity.sparse.")
    return found[0].masks


def is_sparse(state: ArrayTree) -> bool:
    """Whether there are masks in an optimiser's state."""
    return bool(sparse_states(state))


def kernels(params: ArrayTree) -> dict[str, Kernel]:
    """The kernels among parameters, by name: those named "circulant", `[K / b, b, N / b]`, cut into their blocks.

    Raises:
      ValueError: a block-circulant kernel with further axes, as of several learners.
    """
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        names = leaf_path(path)
        if names[-1] == "circulant":
            if leaf.ndim != 3:
                raise ValueError(
                    f"{'/'.join(names)} is {list(leaf.shape)}, a block-circulant kernel [K / b, b, N / b]: of several "
                    "learners or members, give the parameters of one."
                )
            rows, block, columns = leaf.shape
            found["/".join(names)] = Kernel(rows, block, columns, block)
        elif is_kernel(path, leaf):
            found["/".join(names)] = Kernel(leaf.size // leaf.shape[-1], 1, leaf.shape[-1], 1)
    return found


def check_masks(params: ArrayTree, masks: ArrayTree) -> None:
    """Raises ValueError for masks that do not match parameters, naming the first difference."""
    wanted = {"/".join(leaf_path(path)): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]}
    given = {"/".join(leaf_path(path)): mask for path, mask in jax.tree_util.tree_flatten_with_path(masks)[0]}
    for name in dict.fromkeys([*wanted, *given]):
        if name not in wanted or name not in given:
            raise ValueError(f"masks do not match the parameters: {name} is only in the one of them.")
        leaf, mask = wanted[name], given[name]
        fits = mask.ndim == 0 or (
            mask.ndim == 3
            and leaf.ndim >= 2
            and (leaf.size // leaf.shape[-1]) % mask.shape[0] == 0
            and mask.shape[1:] == (1, leaf.shape[-1])
        )
        if not fits:
            raise ValueError(
                f"masks do not match the parameters: {name} is {list(leaf.shape)}, its mask {list(mask.shape)}."
            )


def _cut(name: str, kernel: Kernel, group: int) -> Kernel:
    """A kernel cut into a rule's groups, if it has none of its own."""
    if kernel.block > 1 or kernel.group > 1:
        return kernel
    if kernel.rows % group:
        raise ValueError(
            f"group={group} does not divide the input axis of {name}, {kernel.rows} long; take another group, or leave "
            f"it whole: sparse(..., dense=({name!r},))."
        )
    return kernel._replace(rows=kernel.rows // group, group=group)


def sparse_states(state: ArrayTree) -> list[SparseState]:
    """All states of sparse optimisers in a state, in its order."""
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, SparseState))
    return [x for x in leaves if isinstance(x, SparseState)]


def _masked(tree: ArrayTree, masks: ArrayTree) -> ArrayTree:
    return jax.tree.map(lambda x, mask: _where(mask, x, jnp.zeros_like(x)), tree, masks)


def _is_masked_node(x: Any) -> bool:
    """What `optax.masked` has in the place of parameters that are not its own."""
    return isinstance(x, optax.MaskedNode)


def _forgotten(x: Any, mask: Array, param: Array) -> Any:
    """What an optimiser keeps of a parameter, with 0 for dead weights where it is of the parameter's shape."""
    if _is_masked_node(x) or jnp.shape(x) != param.shape:
        return x
    return _where(mask, x, jnp.zeros_like(x))


def _where(mask: Array, x: Array, other: Array) -> Array:
    """`jnp.where` of a leaf and its mask, a scalar or `[R, 1, F]`."""
    if mask.ndim == 0:
        return jnp.where(mask, x, other)
    shape = (mask.shape[0], -1, mask.shape[2])
    return jnp.where(mask, x.reshape(shape), other.reshape(shape)).reshape(x.shape)


@jax.custom_batching.custom_vmap
def _of_any(due: Array) -> Array:
    """Itself; under `vmap` whether it is so of any row, so that a condition on it stays one and not a selection."""
    return due


@_of_any.def_vmap
def _(axis_size, in_batched, due):
    del axis_size
    return (due.any(axis=0) if in_batched[0] else due), False
