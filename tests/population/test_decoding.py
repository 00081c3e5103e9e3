"""Members decoded from bases and seeds."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import networks, population
from volvox.population import Genome, Member

pytestmark = pytest.mark.optimized

NET = networks.genotype(networks.MLP(2, hidden=(5,)), probes.constant().spec)
CODE = population.encoding(NET, population.Table(size=5_000))


def test_decoding_is_the_same_wherever_it_runs():
    bases = jax.vmap(NET.policy.init)(jax.random.split(jax.random.key(0), 3))
    members = Member(jnp.array([2, 0, 1]), jnp.array([5, 6, 7]), jnp.array([0.1, -0.1, 0.0]), jnp.array([False] * 3))
    many = jax.jit(population.decode_many)(CODE, bases, members)
    for i in range(3):
        one = population.decode(CODE, bases, jax.tree.map(lambda x, i=i: x[i], members))
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b), many, one)
    # scale 0 is the base itself
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[2], b[1]), many, bases)


def test_initial_members_ignore_their_base():
    bases = jax.tree.map(lambda x: jnp.full((1, *x.shape), jnp.nan), CODE.like)
    member = Member(jnp.int32(0), jnp.int32(3), jnp.float32(0.5), jnp.bool_(True))
    params = population.decode(CODE, bases, member)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    jax.tree.map(np.testing.assert_array_equal, params, population.rebuild(CODE, Genome(3, ())))


def test_zeros_have_the_shapes_of_parameters():
    zeros = CODE.zeros(3, 2)
    shapes = jax.tree.map(lambda x: ((3, 2, *x.shape), x.dtype), jax.eval_shape(NET.policy.init, jax.random.key(0)))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), zeros) == shapes
    assert not any(leaf.any() for leaf in jax.tree.leaves(zeros))


def test_a_sum_of_no_noise_is_zero():
    total = population.weighted_noise(CODE, jnp.zeros(0, jnp.int32), jnp.zeros(0))
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(total))
