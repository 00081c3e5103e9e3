"""Low-rank noise: decoding, updates and play against weights formed in NumPy."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

import volvox as vx
from volvox import _checks, networks, population
from volvox.population import decoding
from volvox.population.decoding import Member, mutation_noise
from volvox.rollout.behaviors import Nothing
from volvox.rollout.evaluator import PopulationEvaluator
from volvox.types import Population

SIZE = 5_000
HIDDEN = 5
ENV = probes.target(size=3, num_envs=8, groups=2, max_episode_steps=4)


class Network(nn.Module):
    """A convolution, two dense layers, and a matrix that no layer takes in factors."""

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], 3, 1, 1)
        x = nn.tanh(nn.Conv(4, (3, 1))(x)).reshape(x.shape[0], -1)
        x = nn.tanh(nn.LayerNorm()(nn.Dense(HIDDEN)(x)))
        return nn.Dense(3)(x @ self.param("matrix", nn.initializers.normal(0.5), (HIDDEN, HIDDEN)))


NET = networks.genotype(Network(), ENV.spec)


def encoded(rank):
    noise = population.LowRank(rank=rank, source=population.Table(size=SIZE), full=("matrix",))
    return population.encoding(NET, noise)


def numpy_noise(seed, rank):
    """The slice of the table, cut by hand: vectors and the raw matrix in full, kernels as a and b."""
    table = np.random.RandomState(123).randn(SIZE).astype(np.float32)
    place = seed

    def take(*shape):
        nonlocal place
        place += int(np.prod(shape))
        return table[place - int(np.prod(shape)) : place].reshape(shape)

    def kernel(*shape):
        a, b = take(int(np.prod(shape[:-1])), rank), take(shape[-1], rank) * np.float32(1 / np.sqrt(rank))
        total = np.zeros((len(a), len(b)), np.float32)
        for j in range(rank):
            total = total + a[:, j, None] * b[None, :, j]
        return total.reshape(shape)

    # A layer's own parameters lie before those under them: first the raw matrix, then bias, a, b of each layer.
    noise = {"matrix": take(HIDDEN, HIDDEN)}
    conv_bias = take(4)
    noise["Conv_0"] = {"bias": conv_bias, "kernel": kernel(3, 1, 1, 4)}
    for name, shape in (("Dense_0", (12, HIDDEN)), ("Dense_1", (HIDDEN, 3))):
        bias = take(shape[1])
        noise[name] = {"bias": bias, "kernel": kernel(*shape)}
    noise["LayerNorm_0"] = {"bias": take(HIDDEN), "scale": take(HIDDEN)}
    return noise


def random_bases(code, n=2):
    def leaf(like):
        return jnp.asarray(np.random.default_rng(like.size).standard_normal((n, *like.shape), np.float32))

    return jax.tree.map(leaf, code.like)


@pytest.mark.optimized
def test_decoding_equals_numpy_to_the_bit():
    """A base with folded factors is the same wherever it is computed; so is an individual rebuilt from its lineage."""
    rank, code = 3, encoded(3)
    bases = random_bases(code)
    member = Member(jnp.int32(1), jnp.int32(77), jnp.float32(0.3), jnp.bool_(False))
    expected = jax.tree.map(lambda base, noise: base[1] + np.float32(0.3) * noise, bases, numpy_noise(77, rank))
    jax.tree.map(np.testing.assert_array_equal, decoding.decode(code, bases, member), expected)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(decoding.decode)(code, bases, member), expected)

    first = population.rebuild(code, [9])
    dense = population.encoding(NET, population.Table(size=SIZE))
    jax.tree.map(np.testing.assert_array_equal, first, population.rebuild(dense, [9]))
    expected = jax.tree.map(lambda base, noise: base + np.float32(0.3) * noise, first, numpy_noise(77, rank))
    jax.tree.map(np.testing.assert_array_equal, population.rebuild(code, [9, [77, 0.3]]), expected)


def test_updates_are_sums_of_outer_products():
    code = encoded(2)
    seeds = np.arange(70) * 13  # more than are taken at once
    weights = np.random.default_rng(0).standard_normal(70).astype(np.float32)
    total = jax.jit(population.weighted_noise)(code, jnp.asarray(seeds, jnp.int32), weights)
    parts = [jax.tree.map(lambda x, w=w: w * x, numpy_noise(seed, 2)) for seed, w in zip(seeds, weights, strict=True)]
    expected = jax.tree.map(lambda *leaves: np.sum(leaves, axis=0, dtype=np.float64), *parts)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), total, expected)


def members_of(code, n, scale):
    return Population(
        bases=random_bases(code),
        parent=jnp.arange(n, dtype=jnp.int32) % 2,
        seed=jnp.arange(n, dtype=jnp.int32) * 31,
        scale=jnp.full(n, scale),
        initial=jnp.zeros(n, bool),
        episodes=jnp.ones(n, jnp.int32),
        priority=jnp.zeros(n),
    )


@pytest.mark.parametrize(
    "host", [pytest.param(False, id="traced", marks=pytest.mark.slow), pytest.param(True, id="driven")]
)
def test_members_play_as_their_formed_weights_do(host):
    n, size = 20, ENV.num_envs // ENV.num_groups
    recipe = ENV._replace(make=lambda seed, **given: ENV.make(seed, **{**given, "host": host}))

    def play(noise, of):
        played = PopulationEvaluator(NET, noise, recipe, Nothing(), n)
        members = of(played.encoding)
        result, _ = played.evaluate(members, 1, max_episode_steps=4, seed=3, pool_seed=0)
        shapes = {leaf.shape for leaf in jax.tree.leaves(played._slots)}
        played.close()
        return result, members, shapes

    table = population.Table(size=SIZE)
    low_rank = population.LowRank(rank=2, source=table, full=("matrix",))
    result, members, held = play(low_rank, lambda code: members_of(code, n, 0.5))
    formed = decoding.decode_many(encoded(2), members.bases, Member(*members[1:5]))
    expected, _, free = play(table, lambda code: population.explicit(formed))
    np.testing.assert_allclose(result.returns, expected.returns, rtol=1e-4, atol=1e-4)
    assert len(np.unique(result.returns)) == n  # they differ, or nothing was shown
    # A slot holds factors and vectors, and no kernel.
    assert (size, 12, HIDDEN) in free - held
    assert (size, 12, 2) in held


def test_slots_of_first_ancestors_must_fit_into_memory(monkeypatch):
    """They hold whole kernels for a generation, 4 MB each here, where those of low rank hold factors."""
    monkeypatch.setattr(_checks, "_free_memory", lambda: 10**9)
    env = probes.target(size=2, num_envs=500, groups=1)
    make = partial(vx.evolve, network=networks.MLP(2, (1_000, 1_000)), env=env, noise=population.LowRank(rank=1))
    make(vx.ES(population_size=8))  # which has none
    with pytest.raises(ValueError, match="500 slots"):
        make(vx.GA(population_size=8, num_parents=2))


@pytest.mark.slow
def test_statistics_of_a_reference_batch_are_the_members_own():
    spec = ENV.spec._replace(
        observation_shape=(84, 84, 4), observation_dtype=np.uint8, num_actions=3, action_shape=None
    )
    batch = np.random.default_rng(0).integers(0, 256, (4, 84, 84, 4), np.uint8)
    net = networks.genotype(networks.VirtualBatchNormNet(3), spec, reference=batch)
    code = population.encoding(net, population.LowRank(source=population.Table(size=2_000_000)))
    bases = jax.tree.map(
        lambda x: 0.05 * np.random.default_rng(1).standard_normal((2, *x.shape), np.float32), code.like
    )
    member = Member(jnp.int32(1), jnp.int32(5), jnp.float32(0.1), jnp.bool_(False))

    @jax.jit
    def outputs(params):
        return net.policy.apply(net.prepare(params), batch[:2], ())[0]

    expected = outputs(decoding.decode(code, bases, member))
    np.testing.assert_allclose(outputs(decoding.member_params(code, bases, member)), expected, rtol=1e-3, atol=1e-3)


def test_the_last_seed_reads_no_number_twice():
    """Factors of high rank have more numbers than the network has parameters; the table must have room for them."""
    net = networks.genotype(networks.MLP(3, hidden=(3,)), ENV.spec)
    code = population.encoding(net, population.LowRank(rank=3, source=population.Table(size=2_000)))
    assert code.num_drawn > code.num_parameters
    last = code.draw_seeds(jax.random.key(0), (10_000,)).max()
    assert last == 2_000 - code.num_drawn
    drawn = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(mutation_noise(code, last))])
    assert len(np.unique(drawn)) == len(drawn) == code.num_drawn


def test_parameters_that_prepare_changes_cannot_be_factored():
    doubled = lambda params: jax.tree.map(lambda x: 2 * x, params)  # noqa: E731
    plain = networks.genotype(networks.MLP(3, hidden=(3,)), ENV.spec).policy
    net = networks.genotype_from_functions(
        plain.init, lambda params, seen: plain.apply(params, seen, ())[0], ENV.spec, prepare=doubled
    )
    with pytest.raises(ValueError, match=r"no layer takes parameter Dense_0/kernel"):
        population.encoding(net, population.LowRank())


def test_layers_in_lifted_modules_are_no_factors():
    """`nn.vmap` gives a layer a part of its kernel; `LowRank` refuses such a kernel, or leaves it whole if asked to."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, use_bias=False)(x)

    class Lifted(nn.Module):
        @nn.compact
        def __call__(self, x):
            many = nn.vmap(Block, variable_axes={"params": 0}, split_rngs={"params": True}, axis_size=3, in_axes=None)
            return many()(x).sum(0)

    net = networks.genotype(Lifted(), ENV.spec)
    name = "VmapBlock_0/Dense_0/kernel"
    with pytest.raises(ValueError, match=rf"no layer takes parameter {name} \[3, 3, 3\] in factors"):
        decoding.outline(net, population.LowRank())
    assert decoding.outline(net, population.LowRank(full=(name,))).factored == (False,)
    assert population.LowRank(full=name) == population.LowRank(full=(name,))
    with pytest.raises(ValueError, match="no parameter 'kernal'"):
        decoding.outline(net, population.LowRank(full=(name, "kernal")))
