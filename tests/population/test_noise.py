"""Noise against NumPy's generator, and as normal numbers named by seeds."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import networks, population
from volvox.ops import flat

NET = networks.genotype(networks.MLP(2, hidden=(5,)), probes.constant().spec)
NUM_PARAMETERS = flat.num_parameters(NET.policy.init(jax.random.key(0)))


def make(noise):
    return population.encoding(NET, noise)


CODE = make(population.Table(size=5_000))


def test_table_made_in_chunks_is_the_same_table():
    size = 2**22 + 7  # more than one chunk
    table = np.asarray(population.Table(size=size).make_data(10))
    expected = np.random.RandomState(123).randn(size).astype(np.float32)
    np.testing.assert_array_equal(table, expected)


def test_default_table_fits_the_network():
    assert population.Table().make_data(300_000).shape == (8 * 300_000,)
    assert population.Table().make_data(10).shape == (2**20,)
    assert population.Table.published() == population.Table(size=250_000_000)


def test_generated_noise_is_standard_normal_and_named_by_its_seed():
    code = make(population.Generator())
    seeds = code.draw_seeds(jax.random.key(1), (200,))
    assert seeds.dtype == jnp.int32
    assert len(np.unique(seeds)) > 150
    sample = jax.vmap(lambda seed: flat.flatten(code.noise.sample(code.data, seed, code.like)))(seeds)
    assert abs(float(sample.mean())) < 0.1
    assert abs(float(sample.std()) - 1) < 0.1
    assert abs(float((sample**4).mean()) - 3) < 0.6
    again = flat.flatten(code.noise.sample(code.data, seeds[3], code.like))
    np.testing.assert_array_equal(again, sample[3])


def test_seeds_reach_both_ends_of_the_table():
    code = make(population.Table(size=NUM_PARAMETERS + 1_000))
    seeds = code.draw_seeds(jax.random.key(1), (10_000,))
    assert (seeds.min(), seeds.max()) == (0, 1_000)


def test_small_tables_are_refused():
    with pytest.raises(ValueError, match="1 000 numbers"):  # few members would differ
        make(population.Table(size=NUM_PARAMETERS + 999))
