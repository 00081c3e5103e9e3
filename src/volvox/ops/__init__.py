"""Array kernels, with their rules for `vmap` and gradients. Nothing here is about learning.

- `matmul`, `conv`, `low_rank`: products of rows with one kernel or many.
- `batching`: `vmap` rules that keep such a product one call.
- `flat`: parameters as one vector.
- `order`: order and rounding that a compiler does not undo.

Import functions from the modules, because some modules are named as their function:
`from volvox.ops.matmul import matmul`.
"""
