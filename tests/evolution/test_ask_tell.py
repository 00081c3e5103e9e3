"""Other people's strategies: as they are by themselves, trained, resumed and loaded."""

import dataclasses
import io
import re
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
from volvox import _resources, evolution, networks, population, testing
from volvox.types import Evaluation

ENV = probes.target(size=2, num_envs=8, groups=2, max_episode_steps=3)
NET = networks.MLP(2, hidden=())
CODE = population.encoding(networks.genotype(NET, ENV.spec), population.Table(size=5_000))
DISTRIBUTIONS = ("CMA_ES", "Sep_CMA_ES", "SNES")
N = 8


def wrapped(name, **options):
    params = {"std_init": 0.3} if name in DISTRIBUTIONS else {}
    return evolution.from_ask_tell(getattr(algorithms, name), population_size=N, params=params, **options)


def played(returns):
    returns = jnp.asarray(returns, jnp.float32)[:, None]
    valid = jnp.isfinite(returns)
    return Evaluation(returns, valid.astype(int), valid, jnp.zeros((*returns.shape, 0)))


@pytest.mark.slow_except("SNES")
@pytest.mark.parametrize("name", [*DISTRIBUTIONS, "DifferentialEvolution"])
def test_an_algorithm_of_evosax_is_what_it_is_by_itself(name):
    """The same keys and returns, one of them missing: bit for bit the same members and states."""
    inner, key = wrapped(name).inner, jax.random.key(0)
    theirs = getattr(algorithms, name)(population_size=N, solution=jax.tree.map(jnp.zeros_like, CODE.zeros()))
    params = theirs.default_params.replace(**inner.params)
    state = inner.init(key, CODE)
    first = inner.ask(key, state, CODE)[0].bases
    if name in DISTRIBUTIONS:
        own = theirs.init(key, inner.mean(state, CODE), params)
    for number in range(3):
        key = jax.random.key(number)
        asked, state = inner.ask(key, state, CODE)
        returns = np.random.RandomState(number).randn(N)
        loss = np.where(np.arange(N) == 3, -returns[np.arange(N) != 3].min(), -returns)
        if number == 0 and name not in DISTRIBUTIONS:
            jax.tree.map(np.testing.assert_array_equal, asked.bases, first)  # as the initialiser drew them
            own = theirs.init(key, first, loss, params)
        else:
            members, own = theirs.ask(key, own, params)
            jax.tree.map(np.testing.assert_array_equal, asked.bases, members)
            own, _ = theirs.tell(key, members, jnp.asarray(loss, jnp.float32), own, params)
        returns[3] = np.nan
        state, metrics = inner.tell(key, state, asked, played(returns), CODE)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), state.algorithm, own)
    assert ("noise_std" in metrics) is (name in DISTRIBUTIONS)
    np.testing.assert_array_equal([asked.scale, asked.seed], np.zeros((2, N)))


@pytest.mark.slow_except("SNES")
@pytest.mark.parametrize("name", [*DISTRIBUTIONS, "DifferentialEvolution"])
def test_the_suite_passes(name):
    testing.check_strategy(wrapped(name, num_validation_episodes=2), runs=False)  # which are below


@dataclasses.dataclass
class Climber:
    """A Python object: members around the best so far."""

    best: np.ndarray
    loss: float
    random: np.random.RandomState

    def ask(self):
        return self.best + 0.3 * self.random.randn(N, self.best.size)

    def tell(self, vectors, losses):
        assert vectors.shape == (N, self.best.size)
        if losses.min() < self.loss:
            self.best, self.loss = vectors[losses.argmin()].astype(np.float64), float(losses.min())


@vx.recorded
def climber(start, seed):
    return Climber(start, np.inf, np.random.RandomState(seed))


@vx.recorded
def save_climber(one):
    file = io.BytesIO()
    _, keys, position, *rest = one.random.get_state()
    np.savez(file, best=one.best, loss=one.loss, keys=keys, position=position, rest=rest)
    return file.getvalue()


@vx.recorded
def restore_climber(data):
    with np.load(io.BytesIO(data)) as saved:
        one = climber(saved["best"], 0)
        one.random.set_state(
            ("MT19937", saved["keys"], int(saved["position"]), int(saved["rest"][0]), saved["rest"][1])
        )
        one.loss = float(saved["loss"])
    return one


def hosted(make=climber, **options):
    return evolution.from_ask_tell(
        make, population_size=N, save=save_climber, restore=restore_climber, num_validation_episodes=2, **options
    )


def test_the_suite_passes_with_a_python_object():
    testing.check_strategy(hosted(), runs=False)


def optimized():
    settings = {"optimizer": partial(optax.adam, 0.1)}
    strategy = evolution.from_ask_tell(algorithms.SNES, population_size=N, settings=settings, num_validation_episodes=2)
    return vx.evolve(strategy, NET, ENV)


RUNS = {
    "cma_es": lambda: vx.evolve(wrapped("CMA_ES", num_validation_episodes=2), NET, ENV),
    "differential_evolution": lambda: vx.evolve(wrapped("DifferentialEvolution", num_validation_episodes=2), NET, ENV),
    "optimizer": optimized,
    "python_object": lambda: vx.evolve(hosted(), NET, ENV),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_resumed_with_the_same_bits_and_loaded(name, tmp_path):
    options = {"seed": 1, "progress": False, "loggers": ()}
    straight = vx.train(RUNS[name](), steps=3, **options)
    vx.train(RUNS[name](), steps=2, run_dir=tmp_path / "run", **options)
    loaded = vx.load(tmp_path / "run")
    assert loaded.algorithm.config == RUNS[name]().config
    resumed = loaded.resume(steps=3, progress=False, loggers=())
    jax.tree.map(np.testing.assert_array_equal, resumed.state.strategy, straight.state.strategy)
    jax.tree.map(np.testing.assert_array_equal, resumed.variables(), straight.variables())
    assert not (tmp_path / "run" / "elite.json").exists()
    assert resumed.algorithm.genome is None


@pytest.mark.parametrize("name", ["DifferentialEvolution", "PSO", "HillClimbing", "SimulatedAnnealing", "SNES"])
def test_forgotten_scores_leave_no_trace(name):
    """Scores of a longer cutoff are all lower, and the search goes on by them alone."""
    inner = wrapped(name).inner
    state = inner.init(jax.random.key(0), CODE)

    def told(state, number, returns):
        asked, state = inner.ask(jax.random.key(number), state, CODE)
        return asked.bases, inner.tell(jax.random.key(10 + number), state, asked, played(returns), CODE)[0]

    for number in range(2):
        _, state = told(state, number, np.roll(np.arange(N), number))
    population = getattr(state.algorithm, "population_best", getattr(state.algorithm, "population", None))
    asked, state = told(inner.forget_scores(state), 2, np.arange(N) - 100.0)
    assert state.algorithm.best_fitness == 100 - (N - 1)
    if population is not None:  # the best that it had are played again, and nothing is lost
        flat = jax.vmap(lambda tree: ravel_pytree(tree)[0])(asked)
        np.testing.assert_array_equal(flat, population)
        np.testing.assert_allclose(state.algorithm.fitness, 100.0 - np.arange(N))
    if name in ("HillClimbing", "SimulatedAnnealing"):
        mean = inner.mean(state, CODE)
        jax.tree.map(lambda x, rows: np.testing.assert_allclose(x, rows[N - 1], rtol=1e-6), mean, asked)


def test_populations_that_do_not_fit_into_memory_are_refused(monkeypatch):
    monkeypatch.setattr(_resources, "available_memory", lambda: 10**9)
    wide = partial(evolution.evolve, network=networks.MLP(2, hidden=(20_000,)), env=ENV)  # 100 002 parameters
    with pytest.raises(ValueError, match=r"parents or bases 80 GB, members 3.2 MB.* and 1 GB are free"):
        wide(wrapped("CMA_ES"))
    with pytest.raises(ValueError, match=r"members 3.2 GB"):
        wide(evolution.from_ask_tell(algorithms.SNES, population_size=8_000))
    by_python = evolution.from_ask_tell(climber, population_size=8_000, save=save_climber, restore=restore_climber)
    with pytest.raises(ValueError, match=r"members 3.2 GB"):
        wide(by_python)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: evolution.from_ask_tell(7), "takes a class of evosax, an object with init, ask and tell"),
        (lambda: evolution.from_ask_tell(algorithms.SNES(8, jnp.zeros(3))), "give its class, from_ask_tell(SNES"),
        (lambda: evolution.from_ask_tell(algorithms.SNES), "population_size"),
        (lambda: evolution.from_ask_tell(climber, population_size=8), "needs restore, save"),
        (lambda: evolution.from_ask_tell(algorithms.SNES, population_size=8, save=len), "save cannot be given with"),
        (lambda: evolution.from_ask_tell(hosted().inner, population_size=8), "population_size cannot be given with"),
        (lambda: evolution.Evosax(algorithm=len, population_size=8), "give a class with ask, tell and init"),
    ],
)
def test_what_does_not_ask_and_tell_is_refused(make, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: evolution.from_ask_tell(algorithms.CMA_ES, population_size=8, params={"std_int": 1.0}),
            "params: CMA_ES has no 'std_int'",
        ),
        (
            lambda: evolution.from_ask_tell(algorithms.CMA_ES, population_size=8, settings={"sigma": 1.0}),
            "CMA_ES does not take population_size=8, {'sigma': 1.0}",
        ),
        (
            lambda: evolution.from_ask_tell(algorithms.DifferentialEvolution, population_size=3),
            "DifferentialEvolution does not take population_size=3",
        ),
    ],
)
def test_what_an_algorithm_does_not_take_is_refused_by_evolve(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        evolution.evolve(make(), NET, ENV)


@pytest.mark.parametrize("make", [partial(wrapped, "CMA_ES"), hosted])
def test_low_rank_noise_is_refused(make):
    with pytest.raises(ValueError, match="rank=1: members with explicit parameters"):
        evolution.evolve(make(), NET, ENV, noise=population.LowRank())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda start, seed: climber(start[:2], seed), "gave shape (8, 2); (8, 6) is wanted"),
        (lambda start, seed: climber(np.zeros(7), seed), "gave shape (8, 7); (8, 6) is wanted"),
    ],
)
def test_a_python_object_of_another_shape_is_refused(make, message):
    inner = hosted(make).inner
    with pytest.raises(ValueError, match=re.escape(message)):
        inner.ask(jax.random.key(0), inner.init(jax.random.key(0), CODE), CODE)


def test_a_python_object_of_too_many_bytes_is_refused():
    inner = hosted(state_bytes=100).inner
    with pytest.raises(ValueError, match=r"Climber saved \d+ bytes, and state_bytes=100 are kept"):
        inner.ask(jax.random.key(0), inner.init(jax.random.key(0), CODE), CODE)


@pytest.mark.slow
@pytest.mark.optimized
def test_cma_es_balances_the_pole():
    env = vx.envs.cartpole(num_envs=32, groups=2)
    strategy = evolution.from_ask_tell(algorithms.CMA_ES, population_size=32, params={"std_init": 0.5})
    run = vx.train(vx.evolve(strategy, networks.MLP(2, hidden=(8,)), env), seed=0, steps=20, progress=False)
    assert run.metrics[-1]["elite_score"] == 500
    assert run.evaluate(30).mean == 500
