"""Kernels, masks on parameters, and what must be stored."""

import jax.numpy as jnp
import optax

from volvox.sparsity.masks import is_sparse, kernels, table


def test_kernels_are_cut_into_weights_or_blocks():
    of_b = {"circulant": jnp.ones((16, 4, 8)), "bias": jnp.ones((2, 3)), "scale": jnp.ones((2, 3))}
    found = kernels({"a": jnp.ones((3, 1, 8, 4)), "b": of_b})
    assert {name: (kernel.weights.shape, kernel.block) for name, kernel in found.items()} == {
        "a": ((24, 1, 4), 1),
        "b/circulant": ((16, 4, 8), 4),
    }
    assert [kernel.sides for kernel in found.values()] == [(24, 4), (64, 32)]
    assert [kernel.mask_shape for kernel in found.values()] == [(24, 1, 4), (16, 1, 8)]


def test_storage_counts_numbers_and_index_bits():
    """A kernel with pruned groups needs one bit for each group."""
    params = {"a": {"kernel": jnp.ones((8, 4))}, "b": {"circulant": jnp.ones((4, 4, 2))}, "bias": jnp.ones(5)}
    masks = {
        "a": {"kernel": jnp.arange(32).reshape(8, 1, 4) < 8},
        "b": {"circulant": jnp.arange(8).reshape(4, 1, 2) < 6},
        "bias": jnp.ones((), bool),
    }
    rows = {row["name"]: row for row in table(params, masks)}
    assert rows["a/kernel"] == {
        **{"name": "a/kernel", "shape": [8, 4], "weights": 32, "stored": 8, "index_bits": 32},
        **{"density": 0.25, "compression": 1 - 9 / 32},
    }
    circulant = rows["b/circulant"]
    assert (circulant["weights"], circulant["stored"], circulant["index_bits"]) == (128, 24, 8)
    assert circulant["compression"] == 1 - 24.25 / 128
    assert (rows["all"]["weights"], rows["all"]["stored"], rows["all"]["index_bits"]) == (165, 37, 40)
    assert rows["all"]["compression"] == 1 - 38.25 / 165
    assert not is_sparse(optax.adam(1.0).init(params))
    assert table(jnp.zeros((4, 4)))[-1]["weights"] == 16  # parameters may be one array
