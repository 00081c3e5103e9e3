"""Sparse training as a wrapper of any optax optimiser: masked weights are exactly 0, and so is what it keeps of them."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import chex
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from volvox._checks import integer
from volvox.networks.circulant import Grouped
from volvox.sparsity.masks import (
    Kernel,
    SparseState,
    by_name,
    check_masks,
    in_groups,
    is_sparse,
    kernels,
    masked,
    pruned,
    sparse_states,
    where,
)
from volvox.sparsity.rules import Magnitude, Rule
from volvox.sparsity.schedules import Cubic, RewardAware, check_sparsity
from volvox.types import Array, ArrayTree

Optimizer = TypeVar(
    "Optimizer",
    optax.GradientTransformationExtraArgs,
    optax.GradientTransformation,
    Callable[..., optax.GradientTransformation],
)
"""An optimiser as a learner's settings hold it: a transformation, or a function of the learning rate."""


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
      optimizer: any `optax.GradientTransformation`, or a function that makes one for a learning rate, such as
        `optax.adam`. Clip gradients inside of it: clipped before, gradients of dead weights would count. Accumulate them
        outside of the whole, or inside: `optax.MultiSteps` around it would hide it from `init_optimizers`.
      rule: which weights live; `Magnitude`, `KeepNOfM`, `Dynamic`, or one of your own (see `Rule`).
      dense: names of kernels that stay whole, or what the names of several end with, e.g. `"Dense_2/kernel"`.
      min_side: kernels with fewer inputs or outputs stay whole.
      only_circulant: all kernels stay whole except block-circulant ones.
      seed: a number from which the rule draws.

    Returns:
      An `optax.GradientTransformationExtraArgs`, or, if `optimizer` is a function of the learning rate, such a function,
      which `config.json` then describes in full. The state is a `SparseState`. The transformation's `update` takes
      `step` (the number of this update, from 1; default: its own count), by which rules and schedules go, and
      `mean_return`, which some schedules need. Both and all others are passed on to `optimizer`. What `optimizer` keeps
      of a kernel in another shape, such as factored moments, is left as it is.

    Raises:
      ValueError: no optimiser, no rule, or a setting out of its range; from `init`, a name in `dense` that is no
        kernel's, a kernel that does not fit the rule, an optimiser that is sparse already, or one that does not tell
        what it keeps of which parameter (`optax.sm3`); from `update`, other parameters.
    """
    if isinstance(dense, str):
        raise ValueError(f"dense={dense!r}: give names in a tuple or a list, ({dense!r},).")
    settings = _Sparse(
        optimizer=optimizer,
        rule=rule,
        dense=tuple(dense),
        min_side=min_side,
        only_circulant=only_circulant,
        seed=seed,
    )
    made: Any = settings if callable(optimizer) else settings.transformation()
    return made


def init_optimizers(
    optimizer: optax.GradientTransformation, networks: Sequence[ArrayTree], key: Array
) -> tuple[tuple[ArrayTree, ...], tuple[ArrayTree, ...]]:
    """Begins to train networks with one optimiser, whether it is sparse or not.

        (actor, critics), states = init_optimizers(optimizer, (actor, critics), key)
        (actor, critics), states = jax.vmap(functools.partial(init_optimizers, optimizer))((actor, critics), keys)

    Args:
      optimizer: any; where `sparse` stands in it, masks are drawn from `key`, others for each network. Under `vmap` over
        keys each learner has its own.
      networks: parameters of each network that is updated by itself; one without parameters, e.g. (), has the state ().
      key: from which rules draw, together with the `seed` of `sparse`.

    Returns:
      (parameters of each network, 0 where masked; state of the optimiser for each).

    Raises:
      ValueError: the optimiser is sparse, but no kernel of any network is; see also `sparse`.
    """
    optimizer = optax.with_extra_args_support(optimizer)
    states = tuple(optimizer.init(params) if jax.tree.leaves(params) else () for params in networks)
    if not is_sparse(states):
        return tuple(networks), states
    keys = jax.random.split(key, len(states))
    states = tuple(_redrawn(optimizer, *given) for given in zip(states, networks, keys, strict=True))
    if all(mask.ndim == 0 for state in sparse_states(states) for mask in jax.tree.leaves(state.masks)):
        raise ValueError(
            "the optimiser is sparse, but nothing would be: each kernel of these networks has fewer than min_side "
            "inputs or outputs, is named in dense, or is not block-circulant; lower min_side, or name fewer in dense."
        )
    params = tuple(pruned(p, state) if is_sparse(state) else p for p, state in zip(networks, states, strict=True))
    return params, states


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupSparse:
    """Settings of group-sparse training: few weights from the first update on, and fewer while returns hold up.

        gst = vx.sparsity.GroupSparse(block=4, final_sparsity=0.9)
        networks = vx.networks.ActorAndCritic(gst.network(actor), gst.network(critic))
        algorithm = vx.learn(vx.TD3(optimizer=gst.optimizer(optax.adam)), networks, env)
        algorithm = vx.learn(vx.A3C(optimizer=gst.optimizer(optax.adam)), gst.network(actor_critic), env)

    Lee et al. (2021, arXiv 2101.09650) publish the idea and not the rule; this one is ours. Large dense layers are
    block-circulant from the first update on (`networks.Grouped`), which leaves `1 / block` of their weights. In addition
    the smallest blocks are pruned, as many as a sparsity says that rises while the recent mean return holds up and falls
    when it drops (`RewardAware`). Small layers, among them outputs, stay dense, and so does all that is no dense layer.
    With `block=1` there are no groups, and all kernels that are large enough are pruned, those of convolutions and LSTMs
    as well.

    Attributes:
      block: b, side of the circulant blocks; 1 groups nothing, so that single weights are pruned.
      final_sparsity: Share of a large layer's weights that need not be stored, by grouping and pruning together.
      increment: Change of that share at once, in (0, 1].
      tolerance: Share of the range of returns by which they may be below their best; see `RewardAware`.
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
        integer("block", self.block, low=1)
        integer("min_side", self.min_side, low=1)
        check_sparsity("final_sparsity", self.final_sparsity)
        if not self.pruning and self.block == 1:
            raise ValueError("block=1 and pruning=False leave nothing to do; take either back.")
        if self.pruning and self.final_sparsity < self._grouped_sparsity:
            raise ValueError(
                f"final_sparsity={self.final_sparsity} is below {self._grouped_sparsity:g}, which block={self.block} "
                "alone reaches; raise it, or take pruning=False."
            )
        if self.pruning:
            _ = self.rule  # which checks the rest

    @property
    def rule(self) -> Magnitude:
        """The rule by which blocks are pruned."""
        if self.end is not None:
            schedule = Cubic(final_sparsity=self.final_sparsity, begin=self.begin, end=self.end)
        else:
            schedule = RewardAware(
                final_sparsity=self.final_sparsity,
                initial_sparsity=self._grouped_sparsity,
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

    @property
    def _grouped_sparsity(self) -> float:
        return 1.0 - 1.0 / self.block


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)  # hashable, whatever a user's rule is
class _Sparse:
    """Settings of `sparse`, and its transformation as methods; as a function of the learning rate it makes that."""

    optimizer: Any
    rule: Rule
    dense: tuple[str, ...]
    min_side: int
    only_circulant: bool
    seed: int

    def __post_init__(self):
        integer("min_side", self.min_side, low=1)
        integer("seed", self.seed, low=0)
        if not isinstance(self.optimizer, optax.GradientTransformation) and not callable(self.optimizer):
            raise ValueError(
                "sparse needs an optax.GradientTransformation, or a function of the learning rate that makes one, such "
                f"as optax.adam; got {self.optimizer!r}."
            )
        if not isinstance(self.rule, Rule):
            raise ValueError(f"sparse needs a rule, such as Magnitude(...) or Dynamic(...); got {self.rule!r}.")

    def __call__(self, learning_rate: Any) -> optax.GradientTransformationExtraArgs:
        made = self.optimizer(learning_rate)
        if not isinstance(made, optax.GradientTransformation):
            raise ValueError(f"{self.optimizer!r} made no optax.GradientTransformation of a learning rate: {made!r}.")
        return dataclasses.replace(self, optimizer=made).transformation()

    def transformation(self) -> optax.GradientTransformationExtraArgs:
        return optax.GradientTransformationExtraArgs(self.init, self.update)

    def init(self, params: ArrayTree) -> SparseState:
        return self._begin(params, jax.random.key_data(jax.random.key(self.seed, impl="threefry2x32")))

    def update(
        self,
        updates: ArrayTree,
        state: Any,
        params: ArrayTree | None = None,
        *,
        step: Array | None = None,
        mean_return: Array | None = None,
        mask_key: Array | None = None,
        **others: Any,
    ) -> tuple[ArrayTree, SparseState]:
        if params is None:
            raise ValueError("a sparse optimiser needs the parameters: update(gradient, state, params).")
        if mask_key is not None:  # see `_redrawn`
            key = jax.random.fold_in(mask_key, self.seed)
            return updates, self._begin(params, jax.random.bits(key, (2,), jnp.uint32))
        check_masks(params, state.masks)
        gradient = updates
        chex.assert_trees_all_equal_shapes(gradient, params)
        now = state.step + 1 if step is None else jnp.asarray(step, jnp.int32)
        inner_update = optax.with_extra_args_support(self.optimizer).update
        others |= {"step": now, "mean_return": mean_return}
        updates, inner = inner_update(masked(gradient, state.masks), state.inner, params, **others)
        due = now // self.rule.every > state.step // self.rule.every
        outer = state._replace(inner=())  # which may be updated in place
        masks, schedule = jax.lax.cond(
            _of_any(due), self._changed, _unchanged, outer, params, updates, gradient, now, mean_return, due
        )
        # What has just begun to live, and what has died, is 0 next.
        alive = jax.tree.map(jnp.logical_and, masks, state.masks)
        updates = jax.tree.map(lambda u, p, mask: where(mask, u, -p), updates, params, alive)
        return updates, SparseState(self._forgotten(inner, masks, params), masks, schedule, now, state.key)

    def _begin(self, params: ArrayTree, key: Array) -> SparseState:
        """The first state; `key` is threefry key data."""
        chosen = self._chosen(kernels(params))
        densities = self.rule.densities(chosen)
        numbers = {name: i for i, name in enumerate(chosen)}
        masks = []
        for name, leaf in by_name(params).items():
            mask = jnp.ones((), bool)
            if name in chosen:
                kernel = chosen[name]
                mask_key = jax.random.fold_in(_key(key), numbers[name])
                density = min(densities[name] * kernel.block, 1.0)
                mask = self.rule.init(mask_key, leaf.reshape(kernel[:3]), density)
                chex.assert_shape(mask, (kernel.rows, 1, kernel.columns))
            masks.append(mask)
        masks = jax.tree.unflatten(jax.tree.structure(params), masks)
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
        """The kernels to which the rule applies, cut into its groups."""
        whole = {name: [end for end in self.dense if f"/{name}".endswith(f"/{end}")] for name in found}
        if unknown := sorted(set(self.dense).difference(*whole.values())):
            raise ValueError(
                f"dense names no kernel of these parameters: {', '.join(unknown)}; they have "
                f"{', '.join(sorted(found))}."
            )
        return {
            name: kernel if kernel.block > 1 or kernel.group > 1 else self._cut(name, kernel)
            for name, kernel in found.items()
            if not whole[name] and min(kernel.sides) >= self.min_side and (kernel.block > 1 or not self.only_circulant)
        }

    def _cut(self, name: str, kernel: Kernel) -> Kernel:
        group = self.rule.group
        if kernel.rows % group:
            raise ValueError(
                f"group={group} does not divide the input axis of {name}, {kernel.rows} long; take another group, or "
                f"leave it whole: sparse(..., dense=({name!r},))."
            )
        return kernel._replace(rows=kernel.rows // group, group=group)

    def _changed(
        self,
        state: SparseState,
        params: ArrayTree,
        updates: ArrayTree,
        gradient: ArrayTree,
        step: Array,
        mean_return: Array | None,
        due: Array,
    ) -> tuple[ArrayTree, ArrayTree]:
        """The next masks and state of the schedule, where a change is due."""
        sparsity, schedule = jnp.float32(0), state.schedule
        if self.rule.schedule is not None:
            sparsity, schedule = self.rule.schedule.advance(schedule, step, mean_return)
        new_params = masked(optax.apply_updates(params, updates), state.masks)
        found = kernels(params)
        leaves = zip(
            by_name(new_params).items(), jax.tree.leaves(gradient), jax.tree.leaves(state.masks), strict=True
        )
        keys = jax.random.split(jax.random.fold_in(_key(state.key), step), len(jax.tree.leaves(params)))
        masks = []
        for i, ((name, leaf), slope, mask) in enumerate(leaves):
            if mask.ndim:
                dead = jnp.maximum(1.0 - (1.0 - sparsity) * found[name].block, 0.0)
                kernel, slope = in_groups(leaf, mask), in_groups(slope, mask)
                new_mask = self.rule.update(keys[i], mask, kernel, slope, step, dead)
                chex.assert_equal_shape((new_mask, mask))
                mask = new_mask
            masks.append(mask)
        new = jax.tree.unflatten(jax.tree.structure(state.masks), masks), schedule
        return jax.tree.map(lambda new, old: jnp.where(due, new, old), new, (state.masks, state.schedule))

    def _forgotten(self, inner: ArrayTree, masks: ArrayTree, params: ArrayTree) -> ArrayTree:
        """The wrapped optimiser's state with 0 for dead weights."""
        return optax.tree_map_params(self.optimizer, _forgotten, inner, masks, params, is_leaf=_is_masked_node)


def _redrawn(
    optimizer: optax.GradientTransformationExtraArgs, state: ArrayTree, params: ArrayTree, key: Array
) -> ArrayTree:
    """A first state with masks drawn from another key, wherever `sparse` stands in the optimiser.

    Optax's `init` takes parameters only, but whatever contains a transformation passes its `update` further arguments.
    """
    if not is_sparse(state):
        return state
    _, drawn = optimizer.update(params, state, params, mask_key=key)
    return jax.tree.map(
        lambda new, old: new if isinstance(new, SparseState) else old,
        drawn,
        state,
        is_leaf=lambda x: isinstance(x, SparseState),
    )


def _unchanged(state: SparseState, *others: Any) -> tuple[ArrayTree, ArrayTree]:
    del others
    return state.masks, state.schedule


def _forgotten(x: Any, mask: Array, param: Array) -> Any:
    """What an optimiser keeps of a parameter, with 0 for dead weights where it is of the parameter's shape."""
    if _is_masked_node(x) or jnp.shape(x) != param.shape:
        return x
    return where(mask, x, jnp.zeros_like(x))


def _is_masked_node(x: Any) -> bool:
    """Whether this is what `optax.masked` has in the place of parameters that are not its own."""
    return isinstance(x, optax.MaskedNode)


def _key(data: Array) -> Array:
    return jax.random.wrap_key_data(data, impl="threefry2x32")


@jax.custom_batching.custom_vmap
def _of_any(due: Array) -> Array:
    """Itself; under `vmap` whether it holds in any row, so that a condition on it stays one and is no selection."""
    return due


@_of_any.def_vmap
def _(axis_size, in_batched, due):
    del axis_size
    return (due.any(axis=0) if in_batched[0] else due), False
