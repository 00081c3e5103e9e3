"""Sparse training as a wrapper of any optax optimiser, which keeps masked weights and their moments at exactly 0."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import chex
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from volvox._checks import integers
from volvox.networks.circulant import Grouped
from volvox.sparsity import masks as masking
from volvox.sparsity.masks import Kernel, SparseState, is_sparse, pruned, where
from volvox.sparsity.rules import Magnitude, Rule
from volvox.sparsity.schedules import Cubic, RewardAware, check_sparsity
from volvox.types import Array, ArrayTree

Optimizer = TypeVar("Optimizer")
"""An optimiser as a learner's settings hold it: an optax transformation, or a function of the learning rate."""


def sparse(
    optimizer: Optimizer,
    rule: Rule,
    *,
    dense: Collection[str] = (),
    min_side: int = 1,
    only_circulant: bool = False,
    seed: int = 0,
) -> Optimizer:
    """Wraps an optimiser so that kernels stay as sparse as a rule says.

        rule = vx.sparsity.Dynamic(sparsity=0.9)
        optimizer = vx.sparsity.sparse(optax.adam(3e-4), rule)
        settings = vx.TD3(optimizer=vx.sparsity.sparse(optax.adam, rule), learning_rate=3e-4)

    See `kernels` for what a kernel is. The update of a masked weight is minus the weight, so that all masked weights
    are 0 after the first update; `pruned` makes them 0 before it. Updates must therefore be applied as they are: a
    learning rate belongs inside of `optimizer`.

    The rule draws from `seed`. An optimiser of several learners under `vmap` would draw the same for each;
    `init_optimizers` gives each network of each learner draws of its own.

    Args:
      optimizer: Any `optax.GradientTransformation`, or a function that makes one for a learning rate, such as
        `optax.adam`. Clip gradients inside of it, or by `clipped` around it: with `optax.clip_by_global_norm` before
        it, gradients of dead weights would count. Put `optax.MultiSteps` inside of it, too: around it, it would hide
        the masks from `init_optimizers`.
      rule: Which weights live; `Magnitude`, `KeepNOfM`, `Dynamic`, or one of your own (see `Rule`).
      dense: Names of kernels that stay whole, or what the names of several end with, e.g. `"Dense_2/kernel"`.
        Each network that has an optimiser of its own, such as actor and critics of `TD3`, must have one of each name.
      min_side: Kernels with fewer inputs or outputs stay whole.
      only_circulant: All kernels stay whole except block-circulant ones.
      seed: Seed of the rule's draws.

    Returns:
      An `optax.GradientTransformationExtraArgs`, whose state is a `SparseState`; if `optimizer` is a function of the
      learning rate, such a function, which `config.json` then describes in full. The transformation's `update` takes
      `step` (the number of this update, from 1; default: its own count), by which rules and schedules go, and
      `mean_return`, which some schedules need. Both and all others are passed on to `optimizer`. What `optimizer` keeps
      of a kernel in another shape, such as factored moments, is left as it is.

    Raises:
      ValueError: no optimiser, no rule, or a setting out of its range; from `init`, a name in `dense` that is no
        kernel's, a kernel that does not fit the rule, an optimiser that is sparse already, or one that does not say
        what it keeps of which parameter (`optax.sm3`); from `update`, other parameters.
    """
    if isinstance(dense, str):
        raise ValueError(f"dense={dense!r}: give names in a tuple or a list, ({dense!r},).")
    settings: Any = _Sparse(optimizer, rule, tuple(dense), min_side, only_circulant, seed)
    return settings if callable(optimizer) else settings.transformation()


def init_optimizers(
    optimizer: optax.GradientTransformation, networks: Sequence[ArrayTree], key: Array
) -> tuple[tuple[ArrayTree, ...], tuple[ArrayTree, ...]]:
    """Begins to train networks with one optimiser, whether it is sparse or not.

        (actor, critics), states = vx.sparsity.init_optimizers(optimizer, (actor, critics), key)
        begin = functools.partial(vx.sparsity.init_optimizers, optimizer)
        (actor, critics), states = jax.vmap(begin)((actor, critics), keys)  # of many learners

    Args:
      optimizer: Any optimiser; if `sparse` is part of it, each network's masks are drawn from `key`. Under `vmap` over
        keys, each learner has masks of its own.
      networks: Parameters of each network that is updated by itself; one without parameters, e.g. (), has the state ().
      key: Key of the rules' draws, together with the `seed` of `sparse`.

    Returns:
      (parameters of each network, 0 where masked; state of the optimiser for each).

    Raises:
      ValueError: the optimiser is sparse, but no kernel of any network is; see also `sparse`.
    """
    keys = jax.random.split(key, len(networks))
    params, states = zip(*(_begin(optimizer, *given) for given in zip(networks, keys, strict=True)), strict=True)
    masks = jax.tree.leaves([state.masks for state in masking.sparse_states(states)])
    if masks and all(mask.ndim == 0 for mask in masks):
        raise ValueError(
            "the optimiser is sparse, but nothing would be: each kernel of these networks has fewer than min_side "
            "inputs or outputs, is named in dense, or is not block-circulant; lower min_side, or name fewer in dense."
        )
    return params, states


def clipped(optimizer: optax.GradientTransformation, max_norm: float | None) -> optax.GradientTransformationExtraArgs:
    """Clips gradients by their global norm before an optimiser; those of masked weights do not count.

        optimizer = vx.sparsity.clipped(vx.sparsity.sparse(optax.adam(3e-4), rule), 0.5)
        optimizer = vx.sparsity.clipped(optax.adam(3e-4), 0.5)  # optax.chain(optax.clip_by_global_norm(0.5), ...)

    Rules see the clipped gradients of masked weights, too, as `Dynamic` grows weights by them.

    Args:
      optimizer: Any optimiser.
      max_norm: Largest global norm; None returns the optimiser as it is.
    """
    if max_norm is None:
        return optax.with_extra_args_support(optimizer)
    chain = optax.chain(optax.clip_by_global_norm(max_norm), optimizer)

    def update(updates, state, params=None, **others):
        clip_state, inner = state
        if not is_sparse(inner):
            return chain.update(updates, state, params, **others)
        norm = optax.tree.norm(masking.masked(updates, masking.masks_of(inner)))
        updates = jax.tree.map(lambda g: jnp.where(norm < max_norm, g, g / norm.astype(g.dtype) * max_norm), updates)
        changes, inner = optax.with_extra_args_support(optimizer).update(updates, inner, params, **others)
        return changes, (clip_state, inner)

    return optax.GradientTransformationExtraArgs(chain.init, update)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupSparse:
    """Settings of group-sparse training: few weights from the first update on, and fewer while returns hold up.

        gst = vx.sparsity.GroupSparse(block=4, final_sparsity=0.9)
        networks = vx.networks.ActorAndCritic(gst.network(actor), gst.network(critic))
        algorithm = vx.learn(vx.TD3(optimizer=gst.optimizer(optax.adam)), networks, env)
        algorithm = vx.learn(vx.A3C(optimizer=gst.optimizer(optax.adam)), gst.network(actor_critic), env)

    Lee et al. (2021, arXiv 2101.09650) publish the idea and not the rule; this one is ours. Large dense layers are
    block-circulant from the first update on (`networks.Grouped`), which leaves `1 / block` of their weights. The
    smallest blocks are also pruned, as many as a sparsity says that rises while the recent mean return holds up and
    falls when it drops (`RewardAware`). Small layers, among them outputs, stay dense, and so does all that is no dense
    layer. With `block=1` there are no groups, and all kernels that are large enough are pruned, those of convolutions
    and LSTMs as well.

    Attributes:
      block: Side b of the circulant blocks; 1 groups nothing, so that single weights are pruned.
      final_sparsity: Share of a large layer's weights that need not be stored, by grouping and pruning together.
      increment: Change of that share at once, in (0, 1]; not with `end`.
      tolerance: Share of the range of returns by which they may be below their best; see `RewardAware`. Not with `end`.
      begin: Update before which nothing is pruned.
      every: Updates from one change to the next.
      min_side: Layers with fewer inputs or outputs stay dense.
      pruning: Whether to prune at all.
      end: Update until which the sparsity rises by a cubic, whatever the returns (`Cubic`). None: `RewardAware`.

    Raises:
      ValueError: a number out of its range, or settings that leave nothing to do.
    """

    block: int = 4
    final_sparsity: float = 0.9
    increment: float = 0.01
    tolerance: float = 0.1
    begin: int = 0
    every: int = 5_000
    min_side: int = 32
    pruning: bool = True
    end: int | None = None

    def __post_init__(self):
        integers(self, "block", "min_side", low=1)
        check_sparsity("final_sparsity", self.final_sparsity)
        if not self.pruning and self.block == 1:
            raise ValueError("block=1 and pruning=False leave nothing to do; take either back.")
        if self.pruning and self.final_sparsity < (alone := 1.0 - 1.0 / self.block):
            raise ValueError(
                f"final_sparsity={self.final_sparsity} is below {alone:g}, which block={self.block} alone reaches; "
                "raise it, or take pruning=False."
            )
        own = (self.increment, self.tolerance)
        if self.end is not None and own != (GroupSparse.increment, GroupSparse.tolerance):
            raise ValueError(
                f"increment={own[0]} and tolerance={own[1]} belong to a sparsity that follows returns; leave them out, "
                f"or leave out end={self.end}."
            )
        _ = self.rule  # which checks the rest

    @property
    def rule(self) -> Magnitude:
        """Rule by which blocks are pruned."""
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

    def optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Returns the optimiser, a transformation or a function of the learning rate, wrapped by `sparse`."""
        if not self.pruning:
            return optimizer
        return sparse(optimizer, self.rule, min_side=self.min_side, only_circulant=self.block > 1)


@dataclasses.dataclass(frozen=True, eq=False)  # hashable, even if a user's rule is not
class _Sparse:
    """Settings of `sparse`, with the transformation as methods; called with a learning rate, it makes the latter."""

    optimizer: Any
    rule: Rule
    dense: tuple[str, ...]
    min_side: int
    only_circulant: bool
    seed: int

    def __post_init__(self):
        integers(self, "min_side", low=1)
        integers(self, "seed", low=0)
        if not isinstance(self.optimizer, optax.GradientTransformation) and not callable(self.optimizer):
            raise ValueError(f"sparse needs an optax.GradientTransformation, or optax.adam; got {self.optimizer!r}.")
        if not isinstance(self.rule, Rule):
            raise ValueError(f"sparse needs a rule, such as Magnitude(...) or Dynamic(...); got {self.rule!r}.")

    def __call__(self, learning_rate: Any) -> optax.GradientTransformationExtraArgs:
        return dataclasses.replace(self, optimizer=self.optimizer(learning_rate)).transformation()

    def transformation(self) -> optax.GradientTransformationExtraArgs:
        return optax.GradientTransformationExtraArgs(self.init, self.update)

    def init(self, params):
        return self._init(params, jax.random.key(self.seed))

    def update(self, updates, state, params=None, *, step=None, mean_return=None, mask_key=None, **others):
        if params is None:
            raise ValueError("a sparse optimiser needs the parameters: update(gradient, state, params).")
        if mask_key is not None:  # see `_begin`
            return updates, self._init(params, jax.random.fold_in(mask_key, self.seed))
        masking.check_masks(params, state.masks)
        chex.assert_trees_all_equal_shapes(updates, params)
        gradient, now = updates, state.step + 1 if step is None else jnp.asarray(step, jnp.int32)
        others |= {"step": now, "mean_return": mean_return}
        inner_update = optax.with_extra_args_support(self.optimizer).update
        updates, inner = inner_update(masking.masked(gradient, state.masks), state.inner, params, **others)
        due = now // self.rule.every > state.step // self.rule.every
        # Without the inner state, which may be updated in place.
        given = (state._replace(inner=(), step=now), params, updates, gradient, mean_return, due)
        unchanged = lambda state, *_: (state.masks, state.schedule)  # noqa: E731
        masks, schedule = jax.lax.cond(_of_any(due), self._changed, unchanged, *given)
        # What has just begun to live, and what has died, is 0 next.
        alive = jax.tree.map(jnp.logical_and, masks, state.masks)
        updates = jax.tree.map(lambda u, p, mask: where(mask, u, -p), updates, params, alive)
        return updates, SparseState(self._forgotten(inner, masks, params), masks, schedule, now, state.key)

    def _init(self, params: ArrayTree, key: Array) -> SparseState:
        drawn = self.rule.init(key, self._chosen(masking.kernels(params)))
        masks = [drawn.get(name, jnp.ones((), bool)) for name in masking.by_name(params)]
        masks = jax.tree.unflatten(jax.tree.structure(params), masks)
        masking.check_masks(params, masks)
        inner = self.optimizer.init(params)
        if is_sparse(inner):
            raise ValueError("sparse needs an optimiser that is not sparse already.")
        try:
            jax.eval_shape(self._forgotten, inner, masks, params)
        except ValueError as error:
            raise ValueError(
                "sparse cannot tell what this optimiser keeps of which parameter; take another, e.g. optax.adam."
            ) from error
        schedule = () if self.rule.schedule is None else self.rule.schedule.init()
        return SparseState(inner, masks, schedule, jnp.int32(0), key)

    def _chosen(self, found: dict[str, Kernel]) -> dict[str, Kernel]:
        """Returns the kernels to which the rule applies."""
        ends = tuple(f"/{end}" for end in self.dense)
        if unknown := sorted(end[1:] for end in ends if not any(f"/{name}".endswith(end) for name in found)):
            names = ", ".join(sorted(found))
            raise ValueError(f"dense names no kernel of these parameters: {', '.join(unknown)}; they have {names}.")
        return {
            name: kernel
            for name, kernel in found.items()
            if min(kernel.sides) >= self.min_side
            and not f"/{name}".endswith(ends)
            and (kernel.block > 1 or not self.only_circulant)
        }

    def _changed(self, state, params, updates, gradient, mean_return, due):
        """Returns the next masks and state of the schedule, changed only where that is due."""
        sparsity, schedule = jnp.float32(0), state.schedule
        if self.rule.schedule is not None:
            sparsity, schedule = self.rule.schedule.advance(schedule, state.step, mean_return)
        blocks = {name: kernel.block for name, kernel in masking.kernels(params).items()}
        masks, treedef = jax.tree.flatten(state.masks)
        keys = jax.random.split(jax.random.fold_in(state.key, state.step), len(masks))
        new_params = masking.masked(optax.apply_updates(params, updates), state.masks)
        leaves = jax.tree.leaves(new_params), jax.tree.leaves(gradient)
        for i, (name, *given) in enumerate(zip(masking.by_name(params), *leaves, strict=True)):
            if masks[i].ndim:
                dead = jnp.maximum(1.0 - (1.0 - sparsity) * blocks[name], 0.0)
                kernel, slope = (masking.in_groups(x, masks[i]) for x in given)
                new = self.rule.update(keys[i], masks[i], kernel, slope, state.step, dead)
                chex.assert_equal_shape((new, masks[i]))
                masks[i] = new
        new = jax.tree.unflatten(treedef, masks), schedule
        return jax.tree.map(lambda new, old: jnp.where(due, new, old), new, (state.masks, state.schedule))

    def _forgotten(self, inner: ArrayTree, masks: ArrayTree, params: ArrayTree) -> ArrayTree:
        """Returns the wrapped optimiser's state, 0 for dead weights in what has the shape of a parameter."""
        return optax.tree_map_params(self.optimizer, _forgotten, inner, masks, params, is_leaf=_is_masked_node)


def _forgotten(x: Any, mask: Array, param: Array) -> Any:
    return x if _is_masked_node(x) or x.shape != param.shape else where(mask, x, jnp.zeros_like(x))


def _is_masked_node(x: Any) -> bool:
    """Returns whether this stands where `optax.masked` leaves a parameter out."""
    return isinstance(x, optax.MaskedNode)


def _begin(optimizer: optax.GradientTransformation, params: ArrayTree, key: Array) -> tuple[ArrayTree, ArrayTree]:
    """Returns the parameters and the optimiser's state of one network of `init_optimizers`."""
    state = optimizer.init(params) if jax.tree.leaves(params) else ()
    if not is_sparse(state):
        return params, state
    # Optax's `init` takes parameters only, but what contains a transformation passes further arguments to its `update`.
    _, drawn = optax.with_extra_args_support(optimizer).update(params, state, params, mask_key=key)
    is_ours = masking.is_sparse_state
    state = jax.tree.map(lambda new, old: new if is_ours(new) else old, drawn, state, is_leaf=is_ours)
    return pruned(params, state), state


@jax.custom_batching.custom_vmap
def _of_any(due: Array) -> Array:
    """Returns `due`; under `vmap`, whether any row is due, so that `lax.cond` on it stays a condition."""
    return due


@_of_any.def_vmap
def _(axis_size, in_batched, due):
    del axis_size
    return (_of_any(due.any(axis=0)) if in_batched[0] else due), False  # the outer of two `vmap`s comes here too
