"""The scale of images."""

import jax
import jax.numpy as jnp

Array = jax.Array


def scaled(images: Array) -> Array:
    """Returns integers 0..255 as float32 in [0, 1]; floating-point images are taken as scaled already."""
    if jnp.issubdtype(images.dtype, jnp.integer):
        return images.astype(jnp.float32) * jnp.float32(1 / 255)
    return images
