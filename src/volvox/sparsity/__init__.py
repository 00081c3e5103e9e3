"""Training with few weights: masks that any optimiser keeps, and layers that store few."""

from volvox.sparsity.compression import compression as compression
from volvox.sparsity.compression import table as table
from volvox.sparsity.group_sparse import group_sparse as group_sparse
from volvox.sparsity.masks import Kernel as Kernel
from volvox.sparsity.masks import Rule as Rule
from volvox.sparsity.masks import SparseState as SparseState
from volvox.sparsity.masks import is_sparse as is_sparse
from volvox.sparsity.masks import kernels as kernels
from volvox.sparsity.masks import masks_of as masks_of
from volvox.sparsity.masks import pruned as pruned
from volvox.sparsity.masks import sparse as sparse
from volvox.sparsity.rules import dynamic as dynamic
from volvox.sparsity.rules import keep_n_of_m as keep_n_of_m
from volvox.sparsity.rules import magnitude as magnitude
from volvox.sparsity.schedules import Schedule as Schedule
from volvox.sparsity.schedules import cubic as cubic
from volvox.sparsity.schedules import reward_aware as reward_aware
