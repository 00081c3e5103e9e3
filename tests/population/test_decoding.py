"""Members decoded from bases and seeds, and populations of explicit parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import networks, population
from volvox.population import decoding
from volvox.population.decoding import Member

NET = networks.genotype(networks.MLP(2, hidden=(5,)), probes.constant().spec)
CODE = population.encoding(NET, population.Table(size=5_000))


@pytest.mark.optimized
def test_decoding_is_the_same_wherever_it_runs():
    bases = jax.vmap(NET.policy.init)(jax.random.split(jax.random.key(0), 3))
    members = Member(jnp.array([2, 0, 1]), jnp.array([5, 6, 7]), jnp.array([0.1, -0.1, 0.0]), jnp.array([False] * 3))
    many = decoding.decode_many(CODE, bases, members)
    for i in range(3):
        one = decoding.decode(CODE, bases, jax.tree.map(lambda x, i=i: x[i], members))
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b), many, one)
    # scale 0 is the base itself
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[2], b[1]), many, bases)


@pytest.mark.optimized
def test_initial_members_ignore_their_base():
    bases = jax.tree.map(lambda x: jnp.full((1, *x.shape), jnp.nan), CODE.like)
    member = Member(jnp.int32(0), jnp.int32(3), jnp.float32(0.5), jnp.bool_(True))
    params = decoding.decode(CODE, bases, member)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    jax.tree.map(np.testing.assert_array_equal, params, population.rebuild(CODE, [3]))


def test_vectors_there_and_back():
    vectors = jax.random.normal(jax.random.key(0), (5, CODE.num_parameters))
    params = population.from_vectors(CODE, vectors)
    assert jax.tree.map(lambda x: x.shape[1:], params) == jax.tree.map(lambda x: x.shape, CODE.like)
    np.testing.assert_array_equal(population.to_vectors(params), vectors)
    # Kernels before biases, in the order of the layers.
    first = params["Dense_0"]["kernel"][2].ravel()
    np.testing.assert_array_equal(first, vectors[2, : first.size])
