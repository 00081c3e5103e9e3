"""Sparse training: masks that any optimiser keeps, for plain layers and for block-circulant layers.

`sparse` wraps an optimiser so that weights stay as sparse as a rule says:

    rule = vx.sparsity.Dynamic(sparsity=0.9)
    algorithm = vx.learn(vx.TD3(optimizer=vx.sparsity.sparse(optax.adam, rule), learning_rate=3e-4), networks, env)

`networks.Grouped` makes the large dense layers of a network block-circulant. Group-sparse training (`GroupSparse`)
combines both, under a sparsity that rises while returns hold up.
"""

from volvox.sparsity.masks import Kernel, SparseState, compression, is_sparse, masks_of, pruned, table
from volvox.sparsity.optimizers import GroupSparse, SparseOptimizer, clipped, init_optimizers, sparse
from volvox.sparsity.rules import Dynamic, KeepNOfM, Magnitude, Rule
from volvox.sparsity.schedules import Cubic, RewardAware, Schedule

__all__ = [
    "Cubic",
    "Dynamic",
    "GroupSparse",
    "KeepNOfM",
    "Kernel",
    "Magnitude",
    "RewardAware",
    "Rule",
    "Schedule",
    "SparseOptimizer",
    "SparseState",
    "clipped",
    "compression",
    "init_optimizers",
    "is_sparse",
    "masks_of",
    "pruned",
    "sparse",
    "table",
]
