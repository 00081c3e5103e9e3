"""Optimisers of learners and strategies, sparse or not.

`sparse` wraps any optax optimiser, and keeps masked weights and their moments at exactly 0.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import chex
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from volvox._checks import check_has, check_type, integer, integers
from volvox.networks.interception import Grouped
from volvox.ops.batching import min_over_rows
from volvox.sparsity import masks as masking
from volvox.sparsity.masks import SparseState, apply_masks, is_sparse, pruned_if_sparse, where
from volvox.sparsity.rules import Cubic, Magnitude, RewardAware, Rule, check_sparsity
from volvox.types import Array, ArrayTree

Optimizer = optax.GradientTransformation | Callable[..., optax.GradientTransformation]
"""The setting `optimizer`: a function of the learning rate, such as `optax.adam`, or a ready-made transformation."""
OptimizerT = TypeVar("OptimizerT", bound=Optimizer)
"""An optax transformation, or a function that makes one for a learning rate."""


def sparse(
    optimizer: OptimizerT,
    rule: Rule,
    learning_rate: Any = None,
    *,
    dense: Collection[str] = (),
    min_side: int = 1,
    only_circulant: bool = False,
    seed: int = 0,
) -> OptimizerT:
    """Wraps an optimiser so that kernels stay as sparse as a rule says.

        rule = vx.sparsity.Dynamic(sparsity=0.9)
        optimizer = vx.sparsity.sparse(optax.adam(3e-4), rule)
        settings = vx.TD3(optimizer=vx.sparsity.sparse(optax.adam, rule), learning_rate=3e-4)

    The update of a masked weight is minus the weight, so that all masked weights are 0 after the first update; `pruned`
    sets them to 0 before it. Updates must therefore be applied as they are: a learning rate belongs inside `optimizer`.

    The random key of the rule is part of the state. It depends on `seed` and on the initial parameters, so that several
    networks with one optimiser, and several learners under `vmap`, have different masks.

    Args:
      optimizer: Any `optax.GradientTransformation`, or a function that makes one for a learning rate, such as
        `optax.adam`. Clip gradients inside it, or by `clipped` around it: with `optax.clip_by_global_norm` before it,
        gradients of pruned weights would count.
      rule: Rule that chooses the weights to keep: `Magnitude`, `KeepNOfM`, `Dynamic`, or your own (see `Rule`).
      learning_rate: Learning rate, if `optimizer` is a function of it; None returns a function of the learning rate.
      dense: Kernels that stay dense, by name or by the end of the name, e.g. `("Dense_2/kernel",)`. Each network that
        has an optimiser of its own, such as actor and critics of `TD3`, must have a kernel of each name.
      min_side: Kernels with fewer inputs or outputs stay dense.
      only_circulant: Whether all kernels but the block-circulant ones stay dense.
      seed: Seed of the rule's random key.

    Returns:
      An `optax.GradientTransformationExtraArgs`, whose state is a `SparseState`, or a function of the learning rate
      that makes it. Its `update` takes `step` (the number of this update, from 1; default: its own count), which rules
      and schedules use, and `mean_return`, which some schedules need. All extra arguments are passed on to `optimizer`.
      State that `optimizer` keeps of a kernel in another shape, such as factored moments, is left as it is.

    Raises:
      TypeError: `optimizer` is no optimiser, or `rule` is no rule.
      ValueError: A setting is out of its range, or the learning rate is given twice. `init` raises it for a name in
        `dense` that is no kernel's, a kernel that does not fit the rule, and an optimiser that is sparse already.
    """
    check_has("rule", rule, ("every", "schedule", "init", "update"), "volvox.sparsity.Dynamic(...) or another rule")
    if isinstance(dense, str):
        raise TypeError(f"{dense=}: give a tuple of names, ({dense!r},)")
    integer("min_side", min_side, low=1)
    integer("seed", seed, low=0)
    if callable(optimizer) and learning_rate is None:
        options = {"dense": tuple(dense), "min_side": min_side, "only_circulant": only_circulant, "seed": seed}
        made: Any = functools.partial(sparse, optimizer, rule, **options)
        return made
    inner_optimizer = make_optimizer(optimizer, learning_rate)

    def init_fn(params: ArrayTree) -> SparseState:
        key = _initial_key(seed, params)
        drawn = rule.init(key, _sparse_kernels(params, dense, min_side, only_circulant))
        flags = [drawn.get(name, jnp.ones((), bool)) for name in masking.by_name(params)]
        masks = jax.tree.unflatten(jax.tree.structure(params), flags)
        inner = inner_optimizer.init(params)
        if is_sparse(inner):
            raise ValueError("sparse needs an optimiser that is not sparse already")
        schedule = () if rule.schedule is None else rule.schedule.init()
        return SparseState(mask_inner(inner, masks, params), masks, schedule, jnp.int32(0), key)

    def update_fn(updates, state, params=None, *, step=None, mean_return=None, **extra_args):
        gradient = updates
        if params is None:
            raise ValueError("a sparse optimiser needs the parameters: update(gradient, state, params)")
        chex.assert_trees_all_equal_shapes(gradient, params)
        step = state.step + 1 if step is None else jnp.asarray(step, jnp.int32)
        extra_args |= {"step": step, "mean_return": mean_return}
        updates, inner = inner_optimizer.update(apply_masks(gradient, state.masks), state.inner, params, **extra_args)

        def updated_masks() -> tuple[ArrayTree, ArrayTree]:
            sparsity, schedule = jnp.float32(0), state.schedule
            if rule.schedule is not None:
                sparsity, schedule = rule.schedule.advance(schedule, step, mean_return)
            new_params = apply_masks(optax.apply_updates(params, updates), state.masks)
            masks = _updated_masks(rule, state._replace(step=step), new_params, gradient, sparsity)
            # Under `vmap` the branch is taken for all rows if one of them is due.
            return optax.tree.where(due, (masks, schedule), (state.masks, state.schedule))

        due = step // rule.every > state.step // rule.every
        # The branches must not use the inner state, which may be updated in place.
        masks, schedule = jax.lax.cond(~min_over_rows(~due), updated_masks, lambda: (state.masks, state.schedule))
        # Weights that have just been pruned, or just been restored, are 0 next.
        kept = jax.tree.map(jnp.logical_and, masks, state.masks)
        updates = jax.tree.map(lambda u, p, mask: where(mask, u, -p), updates, params, kept)
        return updates, SparseState(mask_inner(inner, masks, params), masks, schedule, step, state.key)

    def mask_inner(inner: ArrayTree, masks: ArrayTree, params: ArrayTree) -> ArrayTree:
        """Sets the moments of pruned weights to 0."""

        def mask_moment(x, mask, param):
            if isinstance(x, optax.MaskedNode) or x.shape != param.shape:
                return x
            return where(mask, x, jnp.zeros_like(x))

        is_leaf = lambda x: isinstance(x, optax.MaskedNode)  # noqa: E731
        return optax.tree_map_params(inner_optimizer, mask_moment, inner, masks, params, is_leaf=is_leaf)

    transformation: Any = optax.GradientTransformationExtraArgs(init_fn, update_fn)
    return transformation


def _initial_key(seed: int, params: ArrayTree) -> Array:
    """Returns a key that depends on a seed and on the bits of parameters."""
    bits = jnp.uint32(0)
    for leaf in jax.tree.leaves(params):
        bits ^= jnp.bitwise_xor.reduce(jax.lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32).ravel())
    return jax.random.fold_in(jax.random.key(seed), bits)


def _sparse_kernels(
    params: ArrayTree, dense: Collection[str], min_side: int, only_circulant: bool
) -> dict[str, masking.Kernel]:
    """Returns the kernels to which the rule applies."""
    found, ends = masking.kernels(params), tuple(f"/{end}" for end in dense)
    if unknown := [end[1:] for end in ends if not any(f"/{name}".endswith(end) for name in found)]:
        raise ValueError(f"dense={unknown} names no kernel of these parameters; they have {', '.join(sorted(found))}")
    return {
        name: kernel
        for name, kernel in found.items()
        if min(kernel.sides) >= min_side and not f"/{name}".endswith(ends) and (kernel.block > 1 or not only_circulant)
    }


def _updated_masks(
    rule: Rule, state: SparseState, params: ArrayTree, gradient: ArrayTree, sparsity: Array
) -> ArrayTree:
    masks, treedef = jax.tree.flatten(state.masks)
    keys = jax.random.split(jax.random.fold_in(state.key, state.step), len(masks))
    blocks = {name: kernel.block for name, kernel in masking.kernels(params).items()}
    gradients = jax.tree.leaves(gradient)
    for i, (name, leaf) in enumerate(masking.by_name(params).items()):
        if masks[i].ndim:
            # A block-circulant kernel stores one of b weights, and its groups need only provide the rest.
            pruned_share = jnp.maximum(1.0 - (1.0 - sparsity) * blocks[name], 0.0)
            kernel, slope = (masking.in_groups(x, masks[i]) for x in (leaf, gradients[i]))
            new = rule.update(keys[i], masks[i], kernel, slope, state.step, pruned_share)
            chex.assert_equal_shape((new, masks[i]))
            masks[i] = new
    return jax.tree.unflatten(treedef, masks)


def make_optimizer(optimizer: Optimizer, learning_rate: Any) -> optax.GradientTransformationExtraArgs:
    """Returns the optimiser of settings, sparse or not.

    Args:
      optimizer: A function of the learning rate, such as `optax.adam`, or a ready-made transformation.
      learning_rate: Number or schedule for such a function; None for a ready-made transformation.

    Raises:
      TypeError: `optimizer` is neither.
      ValueError: The learning rate is given twice or not at all.
    """
    if callable(optimizer) == (learning_rate is None):
        raise ValueError(
            f"{optimizer=}: give a learning_rate with a function such as optax.adam, and learning_rate=None with a "
            "ready-made optimizer, which has its own rate."
        )
    made = optimizer(learning_rate) if callable(optimizer) else optimizer
    check_type("optimizer", made, optax.GradientTransformation, "a function such as optax.adam")
    return optax.with_extra_args_support(made)


def init_optimizers(
    optimizer: optax.GradientTransformation, networks: Sequence[ArrayTree]
) -> tuple[tuple[ArrayTree, ...], tuple[ArrayTree, ...]]:
    """Initialises one optimiser, sparse or not, for each of several networks.

        (actor, critics), states = init_optimizers(optimizer, (actor, critics))

    Args:
      optimizer: Any optimiser.
      networks: Parameters of each network that is updated separately. Without parameters, e.g. (), the state is ().

    Returns:
      (parameters of each network, 0 where masked; state of the optimiser for each).

    Raises:
      ValueError: The optimiser is sparse, but no kernel of any network is; see also `sparse`.
    """
    states = tuple(optimizer.init(params) if jax.tree.leaves(params) else () for params in networks)
    masks = jax.tree.leaves([state.masks for state in masking.sparse_states(states)])
    if masks and all(mask.ndim == 0 for mask in masks):
        raise ValueError(
            "the optimiser is sparse, but all kernels of these networks stay dense: they have fewer than min_side "
            "inputs or outputs, are named in dense, or are not block-circulant; change these arguments of sparse"
        )
    return tuple(map(pruned_if_sparse, networks, states)), states


def clipped(optimizer: optax.GradientTransformation, max_norm: float | None) -> optax.GradientTransformationExtraArgs:
    """Clips gradients by their global norm before an optimiser; gradients of masked weights do not count.

        optimizer = clipped(sparse(optax.adam(3e-4), rule), 0.5)
        optimizer = clipped(optax.adam(3e-4), 0.5)  # optax.chain(optax.clip_by_global_norm(0.5), ...)

    Rules see the clipped gradients of masked weights, too, as `Dynamic` grows weights by them.

    Args:
      optimizer: Any optimiser.
      max_norm: Largest global norm; None returns the optimiser as it is.
    """
    optimizer = optax.with_extra_args_support(optimizer)
    if max_norm is None:
        return optimizer

    def update_fn(updates, state, params=None, **extra_args):
        norm = optax.tree.norm(pruned_if_sparse(updates, state))
        updates = jax.tree.map(lambda g: jnp.where(norm < max_norm, g, g / norm.astype(g.dtype) * max_norm), updates)
        return optimizer.update(updates, state, params, **extra_args)

    return optax.GradientTransformationExtraArgs(optimizer.init, update_fn)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupSparse:
    """Settings of group-sparse training: few weights from the start, and fewer while returns stay near their best.

        gst = vx.sparsity.GroupSparse(block=4, final_sparsity=0.9)
        networks = vx.networks.ActorAndCritic(gst.network(actor), gst.network(critic))
        algorithm = vx.learn(vx.TD3(optimizer=gst.optimizer(optax.adam)), networks, env)
        algorithm = vx.learn(vx.A3C(optimizer=gst.optimizer(optax.adam)), gst.network(actor_critic), env)

    Lee et al. (2021, arXiv 2101.09650) publish the idea and not the rule; this rule is ours. Large dense layers are
    block-circulant from the first update on (`networks.Grouped`), which leaves `1 / block` of their weights. The
    smallest blocks are also pruned, under a sparsity that rises while the recent mean return stays within `tolerance`
    of its best and falls when it drops (`RewardAware`). Small layers, such as outputs, and all parameters outside dense
    layers stay dense. With `block=1` there are no groups, and all kernels that are large enough are pruned, including
    those of convolutions and LSTMs.

    Attributes:
      block: Side b of the circulant blocks; with 1, single weights are pruned.
      final_sparsity: Share of a large layer's weights that need not be stored, by grouping and pruning together.
      increment: Size of each change of that share, in (0, 1]; without effect if `end` is given.
      tolerance: Share of the range of returns by which they may be below their best; see `RewardAware`. Without effect
        if `end` is given.
      begin: Update before which nothing is pruned.
      every: Updates from one change to the next.
      min_side: Layers with fewer inputs or outputs stay dense.
      end: Update until which the sparsity rises by a cubic, independent of returns (`Cubic`). None: `RewardAware`.

    Raises:
      ValueError: A number is out of its range, or `final_sparsity` is less than grouping alone reaches.
    """

    block: int = 4
    final_sparsity: float = 0.9
    increment: float = 0.01
    tolerance: float = 0.1
    begin: int = 0
    every: int = 5_000
    min_side: int = 32
    end: int | None = None

    def __post_init__(self):
        integers(self, "block", "min_side", low=1)
        check_sparsity("final_sparsity", self.final_sparsity)
        if self.final_sparsity < (grouped := 1.0 - 1.0 / self.block):
            raise ValueError(
                f"final_sparsity={self.final_sparsity} is below {grouped:g}, which block={self.block} alone reaches; "
                "raise it, or only group the layers with volvox.networks.Grouped"
            )
        _ = self.rule  # checks the other settings

    @property
    def rule(self) -> Magnitude:
        """Rule that prunes blocks."""
        if self.end is not None:
            schedule = Cubic(final_sparsity=self.final_sparsity, begin=self.begin, end=self.end)
        else:
            schedule = RewardAware(
                final_sparsity=self.final_sparsity,
                initial_sparsity=min(1.0 - 1.0 / self.block, self.final_sparsity),
                increment=self.increment,
                tolerance=self.tolerance,
                begin=self.begin,
            )
        return Magnitude(schedule=schedule, every=self.every)

    def network(self, module: nn.Module) -> nn.Module:
        """Returns the module with block-circulant layers; it raises ValueError when called if it has none."""
        return Grouped(module, self.block, self.min_side) if self.block > 1 else module

    def optimizer(self, optimizer: OptimizerT) -> OptimizerT:
        """Returns the optimiser, a transformation or a function of the learning rate, wrapped by `sparse`."""
        return sparse(optimizer, self.rule, min_side=self.min_side, only_circulant=self.block > 1)
