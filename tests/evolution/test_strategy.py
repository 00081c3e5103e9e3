"""What every strategy promises."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from volvox import checkpoint, evolution, networks, population
from volvox import loop as rollout
from volvox.envs import probe
from volvox.types import Evaluation

ENV = probe.target(size=2, num_envs=8, groups=2, max_episode_steps=3)
NET = networks.genotype(networks.MLP(2, hidden=()), ENV.spec)
CODES = {
    "free": population.encoding(NET, population.Table(size=5_000)),
    "low_rank": population.encoding(NET, population.LowRank(source=population.Table(size=5_000))),
}
CODE = CODES["free"]
BEHAVIOR = rollout.Last("elapsed_steps", 1)
N = 12
COMMON = {"population_size": N, "num_validation_episodes": 3, "num_test_episodes": 2}
GA = {"num_parents": 3, "mutation_std": 0.1, "num_elite_candidates": 2}
NOVELTY = {"behavior": BEHAVIOR, "num_neighbors": 2, "archive_size": 20}
Novelty = evolution.Novelty
STRATEGIES = {
    "ga": lambda: evolution.GA(**COMMON, **GA),
    "novelty_ga": lambda: evolution.GA(**COMMON, **GA, objective=Novelty(**NOVELTY, num_archived=2)),
    "random_search": lambda: evolution.GA.random_search(**COMMON, num_elite_candidates=2),
    "es": lambda: evolution.ES(**COMMON),
    "es-scheduled": lambda: evolution.ES(
        **COMMON, noise_std="exponential:0.1,0.01,4", learning_rate="linear:0.1,0.01,4", optimizer=optax.sgd
    ),
    "ns_es": lambda: evolution.ES(**COMMON, objective=Novelty.ns_es(**NOVELTY), num_bases=3),
    "nsr_es": lambda: evolution.ES(**COMMON, objective=Novelty.nsr_es(**NOVELTY), num_bases=3),
    "nsra_es": lambda: evolution.ES(**COMMON, objective=Novelty.nsra_es(**NOVELTY, patience=1), num_bases=3),
}


CASES = [(name, "free") for name in STRATEGIES]
CASES += [(name, "low_rank") for name in STRATEGIES if name != "random_search"]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def code(case):
    return CODES[case[1]]


@pytest.fixture(scope="module")
def strategy(case):
    return STRATEGIES[case[0]]()


@pytest.fixture(scope="module")
def phases(strategy):
    """With their functions compiled, as `evolve` uses them."""
    return evolution.compiled_phases(strategy)


_inits = {}


def begin(strategy, key, code):
    """The first state, by an `init` that is compiled once."""
    if id(strategy) not in _inits:
        _inits[id(strategy)] = strategy, jax.jit(strategy.init)
    return _inits[id(strategy)][1](key, code)


_decode = jax.jit(population.decode_many)


def play(phase, asked, returns=None, code=CODE):
    """An evaluation of what was asked: returns as given, or those of the members' first parameter; behaviours alike."""
    params = _decode(code, asked.bases, population.Member(*asked[1:5]))
    first = params["Dense_0"]["bias"][:, 0] if returns is None else jnp.asarray(returns, jnp.float32)
    shape = (phase.num_members, phase.num_episodes)
    valid = jnp.arange(phase.num_episodes) < asked.episodes[:, None]
    spread = jnp.broadcast_to(first[:, None], shape) + 0.01 * jnp.arange(shape[1])
    values = jnp.where(valid, spread, 0.0)
    return Evaluation(values, jnp.where(valid, 3, 0), valid, values[:, :, None])


def generation(phases, key, state, returns=None, code=CODE):
    metrics = {}
    for i, phase in enumerate(phases):
        asked = phase.ask(jax.random.fold_in(key, i), state, code)
        result = play(phase, asked, returns if phase.role == "training" else None, code)
        state, told = phase.tell(state, asked, result, code)
        metrics |= told
    return state, metrics


def test_state_keeps_its_structure_shapes_and_dtypes(strategy, phases, code):
    state = begin(strategy, jax.random.key(0), code)
    for number in range(2):
        new, metrics = generation(phases, jax.random.key(number), state, code=code)
        chex.assert_trees_all_equal_shapes_and_dtypes(new, state)
        assert all(jnp.shape(value) == () for value in metrics.values())
        state = new
    assert np.isfinite(state.score.selecting)
    assert jax.tree.leaves(state.bases)[0].shape[0] == strategy.elite + 1
    if state.survivors is not None:
        chex.assert_shape(list(state.survivors), (strategy.elite + 1,))


def test_asked_populations_fit_the_phase(strategy, phases, code):
    state = begin(strategy, jax.random.key(0), code)
    for number in range(2):
        for phase in phases:
            asked = phase.ask(jax.random.key(number), state, code)
            assert all(x.shape == (phase.num_members,) for x in asked[1:])
            assert asked.episodes.max() <= phase.num_episodes
            assert asked.episodes.sum() > 0
            assert (asked.parent >= 0).all()
            assert (asked.parent <= strategy.elite).all()
            assert (asked.seed >= 0).all()
            # A weak type here and a strong one there would compile the loop twice.
            assert not any(jnp.asarray(x).weak_type for x in asked[1:])
            state, _ = phase.tell(state, asked, play(phase, asked, code=code), code)


@pytest.mark.parametrize("name", ["novelty_ga", "es", "nsra_es"])
def test_jitted_is_eager_and_compiles_once(name):
    strategy, traces = STRATEGIES[name](), []

    def counted(f):  # chex.assert_max_traces takes no partials
        def traced(*args):
            traces.append(f)
            return f(*args)

        return jax.jit(traced)

    phases = tuple(p._replace(ask=counted(p.ask), tell=counted(p.tell)) for p in strategy.phases)
    jitted = eager = strategy.init(jax.random.key(0), CODE)
    for number in range(2):
        eager, _ = generation(strategy.phases, jax.random.key(number), eager)
        jitted, _ = generation(phases, jax.random.key(number), jitted)
    assert len(traces) == 2 * len(phases)
    chex.assert_trees_all_close(eager, jitted, rtol=1e-4, atol=1e-6)


def test_same_key_same_result(strategy, phases, code):
    def run(seed):
        state = begin(strategy, jax.random.key(seed), code)
        for number in range(2):
            state, _ = generation(phases, jax.random.key(seed + number), state, code=code)
        return state

    chex.assert_trees_all_equal(run(3), run(3))
    bases = [jax.tree.leaves(run(seed).bases)[1] for seed in (3, 4)]
    assert not np.array_equal(*bases)


def test_nan_is_harmless_and_counted(strategy, phases, code):
    state = begin(strategy, jax.random.key(0), code)
    returns = np.arange(N, dtype=float)
    for broken in ([2, 7], range(N)):  # some, and all
        returns[list(broken)] = np.nan
        state, metrics = generation(phases, jax.random.key(1), state, returns=returns, code=code)
        assert metrics["num_nan"] == len(list(broken))
        chex.assert_tree_all_finite(state.bases)
    state, _ = generation(phases, jax.random.key(2), state, code=code)
    assert np.isfinite(state.score.selecting)


@pytest.mark.parametrize("noise", CODES)
@pytest.mark.parametrize("name", ["ga", "es", "es-scheduled", "nsra_es"])
def test_what_scores_better_is_approached(name, noise):
    """Returns are the first bias: it must grow. (Novelty alone promises no such thing.)"""
    strategy = STRATEGIES[name]()
    phases = evolution.compiled_phases(strategy)
    state = strategy.init(jax.random.key(0), CODES[noise])
    scores = []
    for number in range(8):
        state, metrics = generation(phases, jax.random.key(number), state, code=CODES[noise])
        scores.append(float(metrics["validation_mean"]))
    assert scores[-1] > scores[0] + 0.02


def test_random_search_has_no_use_for_low_rank_noise():
    with pytest.raises(ValueError, match="random search knows first ancestors only"):
        STRATEGIES["random_search"]().init(jax.random.key(0), CODES["low_rank"])


@pytest.mark.parametrize("noise", [population.Table(size=20_000), population.LowRank()], ids=["free", "low_rank"])
def test_strategies_solve_the_probe(noise, tmp_path):
    """The best return of the probe is 0, of the network that answers with its observation."""
    env = probe.target(size=2, num_envs=16, groups=2, max_episode_steps=6)
    strategy = evolution.ES(
        population_size=48, noise_std=0.1, learning_rate=0.1, l2_coefficient=0.0, num_validation_episodes=6
    )
    algorithm = evolution.evolve(strategy, networks.MLP(2, hidden=()), env, noise=noise)
    state = algorithm.init(jax.random.key(0))
    for _ in range(40):
        state, metrics = algorithm.step(state)
    assert metrics["validation_mean"] > -0.05
    assert algorithm.genome is None
    params = algorithm.variables(state)["Dense_0"]["kernel"]
    assert abs(np.asarray(params) - np.eye(2)).max() < 0.3

    # Resumed from what is saved, the next generation is the same to the bit.
    checkpoint.save(tmp_path, 40, algorithm.save(state))
    restored = algorithm.restore(checkpoint.restore(tmp_path, 40))
    chex.assert_trees_all_equal(restored.strategy, state.strategy)
    _, expected = algorithm.step(state)
    _, again = algorithm.step(restored)
    for name in ("training_mean", "validation_mean", "gradient_norm"):
        assert expected[name] == again[name]
