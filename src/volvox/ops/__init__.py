"""Array kernels, and the rules by which `vmap` and gradients pass through them. Nothing here is about learning.

- `matmul`, `conv`, `circulant`, `low_rank`: products of rows with one kernel or many.
- `batching`: rules that keep such a product one call under `vmap`.
- `flat`: parameters as one vector.
- `order`: order and rounding that a compiler does not undo.

The modules are the interface, as two of them are named after their function: `from volvox.ops.matmul import matmul`.
"""

from volvox.ops import batching, circulant, conv, flat, low_rank, matmul, order

__all__ = ["batching", "circulant", "conv", "flat", "low_rank", "matmul", "order"]
