"""Metrics by name: whatever a loss gives, gathered on the device between two looks of the host.

gathered = metrics.add(gathered, metrics.means({"entropy": entropy.sum()}, count=entropy.size))  # in every update
row = metrics.compute(gathered)  # {"entropy": 0.69}, on the host
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox.types import Array


class Mean(NamedTuple):
    """A mean that is not divided yet.

    Attributes:
      total: float32 `[...]`: sum of the values.
      num: float32: number of values in the sum.
    """

    total: Array
    num: Array


class Maximum(NamedTuple):
    """A largest value.

    Attributes:
      value: `[...]`: the largest so far; none is negative.
    """

    value: Array


Metrics = dict[str, Mean | Maximum]


def means(totals: dict[str, Array], count: Array | float = 1.0) -> Metrics:
    """Metrics whose sums over `count` values are given."""
    return {name: Mean(total, jnp.float32(count)) for name, total in totals.items()}


def zeros(like: Metrics) -> Metrics:
    """Metrics of no values, with the names and shapes of others (`jax.eval_shape` is enough of those)."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)


def add(old: Metrics, new: Metrics) -> Metrics:
    """Adds further values to the metrics of the same names; metrics of other names stay, or begin, as they are."""
    return old | {name: _add(old[name], x) if name in old else x for name, x in new.items()}


def compute(gathered: Metrics) -> dict[str, float]:
    """The metrics as numbers, on the host; of several learners they are averaged. Means of no values are left out."""
    gathered = jax.device_get(gathered)
    row = {}
    for name, x in gathered.items():
        if isinstance(x, Maximum):
            row[name] = np.max(x.value).item()
        elif x.num:
            row[name] = float(np.mean(x.total)) / float(x.num)
    return row


def _add(old: Mean | Maximum, new: Mean | Maximum) -> Mean | Maximum:
    if isinstance(old, Maximum) or isinstance(new, Maximum):
        return Maximum(jnp.maximum(old[0], new[0]))
    return Mean(old.total + new.total, old.num + new.num)
