"""Training with few weights: masks that any optimiser keeps."""

from volvox.sparsity.masks import Rule as Rule
from volvox.sparsity.masks import SparseState as SparseState
from volvox.sparsity.masks import is_sparse as is_sparse
from volvox.sparsity.masks import masks_of as masks_of
from volvox.sparsity.masks import pruned as pruned
from volvox.sparsity.masks import sparse as sparse
from volvox.sparsity.masks import table as table
from volvox.sparsity.rules import cubic as cubic
from volvox.sparsity.rules import dynamic as dynamic
from volvox.sparsity.rules import keep_n_of_m as keep_n_of_m
from volvox.sparsity.rules import magnitude as magnitude
