"""Group-sparse training: few weights from the first step on, and fewer while the returns hold up."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from flax import linen as nn

from volvox._checks import integer
from volvox.networks.circulant import Grouped
from volvox.ops.flat import leaf_path
from volvox.optimizers import described, gradient_transformation
from volvox.sparsity.masks import sparse, sparse_states
from volvox.sparsity.rules import magnitude
from volvox.sparsity.schedules import Schedule, check_sparsity, cubic, reward_aware
from volvox.types import Algorithm


def group_sparse(
    *,
    block: int = 4,
    final_sparsity: float = 0.9,
    increment: float = 0.01,
    tolerance: float = 0.1,
    begin: int = 0,
    every: int = 5_000,
    min_side: int = 32,
    pruning: bool = True,
    end: int | None = None,
) -> Callable[..., Algorithm]:
    """Makes group-sparse training of any algorithm that takes flax modules and an optimiser.

        gst = vx.sparsity.group_sparse(block=4)
        algorithm = gst(vx.off_policy.td3, actor, critic, env, learning_rate=3e-4)
        algorithm = gst(vx.actor_critic.a3c, network, env, **vx.actor_critic.mujoco())

    After Lee et al. (2021, arXiv 2101.09650), who publish the idea and not the rule; this one is ours. Large dense
    layers are block-circulant from the first step (`networks.Grouped`), which leaves `1 / block` of their weights. On
    top of that whole blocks, the smallest, are pruned, as many as a sparsity says that rises while the recent mean
    return holds up and falls when it drops (`reward_aware`). Small layers, outputs among them, stay dense,
    and so does what is no dense layer. With `block=1` there are no groups, and all kernels that are large enough are
    pruned, those of convolutions, LSTMs and a `representation` as well.

    Args:
      block: b; 1 groups nothing, so that single weights are pruned.
      final_sparsity: share of a large layer's weights that need not be stored, grouping and pruning together.
      increment: of that share, at each change.
      tolerance: see `reward_aware`.
      begin: step (update) before which nothing is pruned.
      every: steps (updates) between changes.
      min_side: layers with fewer inputs or outputs stay dense.
      pruning: prune at all.
      end: rise by a cubic up to this step, whatever the returns (`cubic`), in place of the reward-aware rule.

    Returns:
      (make, *args, **options) -> `make(*args, **options)` with every flax module among its arguments grouped, but for
      a `representation`, and a sparse optimiser. With `pruning`, `make` takes `optimizer`, `learning_rate` and
      `optimizer_options`, and the rate is a number or a schedule of optax's.

    Raises:
      ValueError: a number out of its range, or nothing to do; from the call, layers that are all too small, a block
        that does not divide one, a `make` that takes no optimiser, or a learning rate that is none of the above.
    """
    integer("block", block, low=1)
    integer("every", every, low=1)
    check_sparsity("final_sparsity", final_sparsity)
    grouped_already = 1.0 - 1.0 / block
    if not pruning and block == 1:
        raise ValueError("block=1 and pruning=False leave nothing to do; take either back.")
    if pruning and final_sparsity < grouped_already:
        raise ValueError(
            f"final_sparsity={final_sparsity} is below {grouped_already:g}, which block={block} alone reaches; raise "
            "it, or take pruning=False."
        )
    schedule: Schedule = (
        reward_aware(
            final_sparsity=final_sparsity,
            initial_sparsity=grouped_already,
            increment=increment,
            tolerance=tolerance,
            begin=begin,
        )
        if end is None
        else cubic(final_sparsity=final_sparsity, begin=begin, end=end)
    )
    rule = magnitude(schedule, every=every)

    def wrap(make: Callable[..., Algorithm], *args: Any, **options: Any) -> Algorithm:
        def grouped(x: Any) -> Any:
            return Grouped(x, block, min_side) if block > 1 and isinstance(x, nn.Module) else x

        # A representation has methods of its own, and few weights.
        options = {name: x if name == "representation" else grouped(x) for name, x in options.items()}
        about: dict[str, Any] = {"block": block, "min_side": min_side}
        if pruning:
            options, made = _made(make, options)
            options["optimizer"] = sparse(made.optimizer, rule, min_side=min_side, only_circulant=block > 1)
            about |= made.config
        algorithm = make(*map(grouped, args), **options)
        if not _found(jax.eval_shape(algorithm.init, jax.random.key(0)), masked=block == 1):
            raise ValueError(
                f"min_side={min_side}: no layer has as many inputs and outputs, and nothing would be sparse; lower it."
            )
        return algorithm._replace(config={**algorithm.config, "group_sparse": about})

    return wrap


def _found(state: Any, *, masked: bool) -> bool:
    """Whether a state holds block-circulant parameters, or masks of more than whole leaves."""
    if masked:
        return any(leaf.ndim >= 3 for one in sparse_states(state) for leaf in jax.tree.leaves(one.masks))
    return any(leaf_path(path)[-1:] == ("circulant",) for path, _ in jax.tree_util.tree_flatten_with_path(state)[0])


class _Made(NamedTuple):
    optimizer: optax.GradientTransformation
    config: dict[str, Any]


def _made(make: Callable[..., Algorithm], options: dict[str, Any]) -> tuple[dict[str, Any], _Made]:
    """The optimiser that `make` would make, and the options without what it is made of."""
    if options.get("anneal_frames") is not None:
        raise ValueError(
            f"anneal_frames={options['anneal_frames']}: with pruning the optimiser is made before; give a schedule of "
            "optax's as the learning_rate."
        )
    defaults = inspect.signature(make).parameters
    names = ("optimizer", "learning_rate", "optimizer_options", "max_gradient_norm")
    if missing := [name for name in names[:3] if name not in defaults]:
        raise ValueError(
            f"{getattr(make, '__name__', make)} takes no {', '.join(missing)}: give a factory of algorithms that do, "
            "such as off_policy.td3."
        )
    given = {name: options.get(name, defaults[name].default) for name in names if name in defaults}
    rate, optimizer = given["learning_rate"], given["optimizer"]
    if not (isinstance(rate, int | float) or callable(rate)):
        raise ValueError(f"learning_rate={rate}: with pruning give one number, or a schedule of optax's.")
    made = gradient_transformation(optimizer, rate, given["optimizer_options"] or {}, given.get("max_gradient_norm"))
    config = {
        "optimizer": described(optimizer),
        # A made optimiser has brought its own.
        "learning_rate": (rate if isinstance(rate, int | float) else "given") if isinstance(optimizer, str) else None,
        "optimizer_options": dict(given["optimizer_options"] or {}),
        "max_gradient_norm": given.get("max_gradient_norm"),
    }
    left = {name: value for name, value in options.items() if name not in names}
    # Clipped inside, where gradients of dead weights are 0.
    return left | ({"max_gradient_norm": None} if "max_gradient_norm" in defaults else {}), _Made(made, config)
