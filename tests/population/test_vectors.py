"""Populations of explicit parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import networks, population
from volvox.rollout import Nothing, PopulationEvaluator

ENV = probes.target(size=2, num_envs=4, groups=2, max_episode_steps=5)
NET = networks.genotype(networks.MLP(2, hidden=(3,)), ENV.spec)
CODE = population.encoding(NET, population.Table(size=5_000))


def test_vectors_there_and_back():
    vectors = jax.random.normal(jax.random.key(0), (5, CODE.num_parameters))
    params = population.from_vectors(CODE, vectors)
    assert jax.tree.map(lambda x: x.shape[1:], params) == jax.tree.map(lambda x: x.shape, CODE.like)
    np.testing.assert_array_equal(population.to_vectors(params), vectors)
    # Kernels before biases, in the order of the layers.
    np.testing.assert_array_equal(params["Dense_0"]["kernel"][2].ravel(), vectors[2, :6])
    with pytest.raises(AssertionError):
        population.from_vectors(CODE, vectors[:, 1:])


def test_a_slot_takes_its_members_row():
    params = population.from_vectors(CODE, jax.random.normal(jax.random.key(0), (7, CODE.num_parameters)))
    for parent in (None, jnp.array([6, 0, 0], jnp.int32)):
        asked = population.explicit(params, parent=parent, episodes=2)
        rows = jnp.arange(7) if parent is None else parent
        got = population.decode_many(CODE, asked.bases, population.Member(*asked[1:5]))
        wanted = population.to_vectors(params)[rows]
        np.testing.assert_array_equal(population.to_vectors(got), wanted)
        np.testing.assert_array_equal(asked.episodes, np.full(rows.size, 2))


def test_explicit_members_play_as_they_are():
    """The probe's best network among others: return 0, where the others have less."""
    net = networks.genotype(networks.MLP(2, hidden=()), ENV.spec)
    played = PopulationEvaluator(net, population.Table(size=5_000), ENV, Nothing(), 6)
    code = played.encoding
    params = population.from_vectors(code, jax.random.normal(jax.random.key(0), (6, code.num_parameters)))
    best = jax.tree.map(lambda x: jnp.eye(2) if x.ndim == 2 else jnp.zeros_like(x), code.zeros())
    params = jax.tree.map(lambda x, y: x.at[4].set(y), params, best)
    result, _ = played.evaluate(population.explicit(params), 1, max_episode_steps=5, seed=0, pool_seed=0)
    np.testing.assert_allclose(result.returns[4, 0], 0.0, atol=1e-5)
    assert (np.delete(np.asarray(result.returns)[:, 0], 4) < -0.01).all()
    played.close()
