"""Group-sparse training: few weights from the first step on, and fewer while the returns hold up."""

from collections.abc import Callable, Mapping
from typing import Any

import optax
from flax import linen as nn

from volvox.networks.circulant import Grouped
from volvox.optimizers import gradient_transformation
from volvox.sparsity.masks import sparse
from volvox.sparsity.rules import magnitude
from volvox.sparsity.schedules import Schedule, check_sparsity, cubic, reward_aware
from volvox.types import Algorithm
from volvox.validation import integer


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
    return holds up and falls when it drops (`reward_aware`). Small layers, outputs among them, stay dense.

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
      (make, *modules and others, **options) -> `make(...)` with every flax module among the arguments grouped and the
      optimiser sparse. `optimizer`, `learning_rate` and `optimizer_options` are those of `make`; with `pruning` a
      learning rate is a number or a schedule of optax's.

    Raises:
      ValueError: a number out of its range, or nothing to do; from the call, a block that does not divide a layer.
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

    def wrap(
        make: Callable[..., Algorithm],
        *args: Any,
        optimizer: str | optax.GradientTransformation = "adam",
        learning_rate: Any = 3e-4,
        optimizer_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Algorithm:
        if block > 1:
            args = tuple(Grouped(x, block, min_side) if isinstance(x, nn.Module) else x for x in args)
        if pruning:
            made = gradient_transformation(optimizer, learning_rate, optimizer_options or {})
            how = {"optimizer": sparse(made, rule, min_side=min_side)}
        else:
            how = {"optimizer": optimizer, "learning_rate": learning_rate, "optimizer_options": optimizer_options}
        algorithm = make(*args, **how, **options)
        about = {"block": block, "min_side": min_side, **(dict(rule.config) if pruning else {})}
        if pruning:
            about["optimizer"] = optimizer if isinstance(optimizer, str) else "given"
            about["optimizer_options"] = dict(optimizer_options or {})
            about["learning_rate"] = learning_rate if isinstance(learning_rate, int | float) else "given"
        return algorithm._replace(config={**algorithm.config, "group_sparse": about})

    return wrap
