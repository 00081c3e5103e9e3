"""The noisy cross-entropy method (Szita & Lőrincz 2006): the next members are drawn around the best of these."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

import volvox as vx


class CrossEntropyState(NamedTuple):
    mean: jax.Array
    std: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    population_size: int = 32
    num_best: int = 8
    initial_std: float = 1.0
    added_std: float = 0.1

    def init(self, key, encoding):
        shape = encoding.num_parameters
        return CrossEntropyState(jnp.zeros(shape), jnp.full(shape, self.initial_std))

    def ask(self, key, state, encoding):
        noise = jax.random.normal(key, (self.population_size, state.mean.size))
        params = vx.population.from_vectors(encoding, state.mean + state.std * noise)
        return vx.population.explicit(params), state

    def tell(self, key, state, population, evaluation, encoding):
        order = jnp.argsort(-vx.evolution.fitness(evaluation))
        best = vx.population.to_vectors(population.bases)[order[: self.num_best]]
        return CrossEntropyState(best.mean(0), best.std(0) + self.added_std), {"spread": state.std.mean()}
