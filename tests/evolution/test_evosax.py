"""The algorithms of evosax: as they are by themselves, and played."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from evosax import algorithms
from jax.flatten_util import ravel_pytree

import volvox as vx
from volvox import Validation, networks, population
from volvox.evolution import Evosax
from volvox.types import Evaluation

ENV = probes.target(size=2, num_envs=8, groups=2, max_episode_steps=3)
NET = networks.MLP(2, hidden=())
CODE = population.encoding(networks.genotype(NET, ENV.spec), population.Table(size=5_000))
DISTRIBUTIONS = ("CMA_ES", "SNES")
N = 8


def wrapped(name):
    params = {"std_init": 0.3} if name in DISTRIBUTIONS else {}
    return Evosax(getattr(algorithms, name), population_size=N, params=params)


def played(returns):
    returns = jnp.asarray(returns, jnp.float32)[:, None]
    valid = jnp.isfinite(returns)
    return Evaluation(returns, valid.astype(int), valid, jnp.zeros((*returns.shape, 0)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CMA_ES", "DifferentialEvolution"])
def test_an_algorithm_of_evosax_is_what_it_is_by_itself(name):
    """The same keys and returns, one of them missing: bit for bit the same members and states."""
    inner, key = wrapped(name), jax.random.key(0)
    theirs = getattr(algorithms, name)(population_size=N, solution=jax.tree.map(jnp.zeros_like, CODE.zeros()))
    params = theirs.default_params.replace(**inner.params)
    state = inner.init(key, CODE)
    if name in DISTRIBUTIONS:
        own = state[0]
    for number in range(3):
        key = jax.random.key(number)
        asked, state = inner.ask(key, state, CODE)
        returns = np.random.RandomState(number).randn(N)
        loss = np.where(np.arange(N) == 3, -returns[np.arange(N) != 3].min(), -returns)
        if number == 0 and name not in DISTRIBUTIONS:
            own = theirs.init(key, asked.bases, loss, params)
        else:
            members, own = theirs.ask(key, own, params)
            jax.tree.map(np.testing.assert_array_equal, asked.bases, members)
            own, _ = theirs.tell(key, members, jnp.asarray(loss, jnp.float32), own, params)
        returns[3] = np.nan
        state, metrics = inner.tell(key, state, asked, played(returns), CODE)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), state[0], own)
    assert ("noise_std" in metrics) is (name in DISTRIBUTIONS)
    np.testing.assert_array_equal([asked.scale, asked.seed], np.zeros((2, N)))


def test_the_mean_and_the_best_member_are_the_challengers():
    inner = wrapped("SNES")
    asked, state = inner.ask(jax.random.key(0), inner.init(jax.random.key(0), CODE), CODE)
    state, _ = inner.tell(jax.random.key(1), state, asked, played(np.roll(np.arange(N), 3)), CODE)
    candidates = inner.candidates(state, asked, played(np.roll(np.arange(N), 3)), CODE)
    vectors = population.to_vectors(candidates.bases)
    np.testing.assert_allclose(np.sort(vectors[0]), np.sort(state[0].mean), rtol=1e-6)  # of another order
    np.testing.assert_array_equal(vectors[1], population.to_vectors(asked.bases)[2])
    assert wrapped("PSO").candidates(state, asked, played(np.arange(N)), CODE) is None


@pytest.mark.slow
def test_a_run_with_an_optimizer_of_optax_is_resumed_with_the_same_bits():
    def make():
        strategy = Evosax(algorithms.SNES, population_size=N, settings={"optimizer": partial(optax.adam, 0.1)})
        return vx.evolve(strategy, NET, ENV, validation=Validation(num_validation_episodes=2))

    straight, resumed = make(), make()
    state, _ = straight.step(straight.init(1))
    (expected, row), (found, again) = straight.step(state), resumed.step(resumed.restore(straight.save(state)))
    jax.tree.map(np.testing.assert_array_equal, (found.strategy, found.bases), (expected.strategy, expected.bases))
    assert [row[n] for n in ("training_mean", "validation_mean")] == [
        again[n] for n in ("training_mean", "validation_mean")
    ]
    assert straight.genome is None


@pytest.mark.parametrize("name", ["DifferentialEvolution", "SimulatedAnnealing", "SNES"])
def test_forgotten_scores_leave_no_trace(name):
    """Scores of a longer cutoff are all lower, and the search goes on by them alone."""
    inner = wrapped(name)
    state = inner.init(jax.random.key(0), CODE)

    def told(state, number, returns):
        asked, state = inner.ask(jax.random.key(number), state, CODE)
        return asked.bases, inner.tell(jax.random.key(10 + number), state, asked, played(returns), CODE)[0]

    for number in range(2):
        _, state = told(state, number, np.roll(np.arange(N), number))
    population = getattr(state[0], "population_best", getattr(state[0], "population", None))
    asked, state = told(inner.forget_scores(state), 2, np.arange(N) - 100.0)
    assert state[0].best_fitness == 100 - (N - 1)
    if population is not None:  # the best that it had are played again, and nothing is lost
        flat = jax.vmap(lambda tree: ravel_pytree(tree)[0])(asked)
        np.testing.assert_array_equal(flat, population)
        np.testing.assert_allclose(state[0].fitness, 100.0 - np.arange(N))


def test_the_success_rule_forgets_the_generation_before():
    inner = wrapped("Rm_ES")
    first = inner.init(jax.random.key(0), CODE)
    asked, state = inner.ask(jax.random.key(1), first, CODE)
    state, _ = inner.tell(jax.random.key(2), state, asked, played(np.arange(N)), CODE)
    forgotten, _ = inner.forget_scores(state)
    np.testing.assert_array_equal(forgotten.fitness_elites_sorted, first[0].fitness_elites_sorted)


def test_bad_arguments_are_refused():
    with pytest.raises(TypeError, match="class of evosax"):
        Evosax(algorithms.SNES(8, jnp.zeros(3)), population_size=8)
    with pytest.raises(ValueError, match="low-rank"):
        vx.evolve(wrapped("CMA_ES"), NET, ENV, noise=population.LowRank())
