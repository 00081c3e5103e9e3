"""Sparse training: masks that any optimiser keeps, for plain layers and for block-circulant layers.

`sparse` wraps an optimiser so that weights stay as sparse as a rule says:

    rule = vx.sparsity.Dynamic(sparsity=0.9)
    algorithm = vx.learn(vx.TD3(optimizer=vx.sparsity.sparse(optax.adam, rule), learning_rate=3e-4), networks, env)

`networks.Grouped` makes the large dense layers of a network block-circulant. Group-sparse training (`GroupSparse`)
combines both, under a sparsity that rises while returns stay near their best.
"""

from volvox.sparsity.masks import masks_of, pruned, table
from volvox.sparsity.optimizers import GroupSparse, sparse
from volvox.sparsity.rules import Cubic, Dynamic, KeepNOfM, Magnitude, RewardAware, Rule

__all__ = [
    "Cubic",
    "Dynamic",
    "GroupSparse",
    "KeepNOfM",
    "Magnitude",
    "RewardAware",
    "Rule",
    "masks_of",
    "pruned",
    "sparse",
    "table",
]
