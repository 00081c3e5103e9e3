"""Array kernels, and the rules by which `vmap` and gradients pass through them. Nothing here is about learning.

- `matmul`, `conv`, `circulant`, `low_rank`: products of rows with one kernel or many.
- `batching`: rules that keep such a product one call under `vmap`.
- `flat`: parameters as one vector.
- `order`: order and rounding that a compiler does not undo.

Names are imported from these modules, as several modules are named after their function.
"""
