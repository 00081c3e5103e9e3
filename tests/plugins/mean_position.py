"""A behaviour: where a robot was on average, for a search for novelty."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Sum(NamedTuple):
    total: jax.Array
    timesteps: jax.Array


@dataclasses.dataclass(frozen=True)
class MeanPosition:
    size: int = 2
    extras: tuple[str, ...] = ("position",)

    def init(self):
        return Sum(jnp.zeros(self.size), jnp.int32(0))

    def update(self, record, timestep):
        return Sum(record.total + timestep.extras["position"], record.timesteps + 1)

    def final(self, record):
        return record.total / record.timesteps
