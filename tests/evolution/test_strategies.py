"""What every strategy promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox import evolution, networks, population
from volvox import loop as rollout
from volvox.envs import probe
from volvox.types import Evaluation

ENV = probe.target(size=2, num_envs=8, groups=2, max_episode_steps=3)
NET = networks.policy(networks.MLP(2, hidden=()), ENV.spec)
CODES = {
    "free": population.encoding(NET, population.table(size=5_000)),
    "low_rank": population.encoding(NET, population.low_rank(noise=population.table(size=5_000))),
}
CODE = CODES["free"]
BEHAVIOR = rollout.last("elapsed_steps", 1)
N = 12
COMMON = {"population_size": N, "num_validation_episodes": 3, "num_test_episodes": 2}
GA = {"num_parents": 3, "mutation_std": 0.1, "num_elite_candidates": 2}
NOVELTY = {"behavior": BEHAVIOR, "num_neighbors": 2, "archive_size": 20}
STRATEGIES = {
    "ga": lambda: evolution.ga(**COMMON, **GA),
    "novelty_ga": lambda: evolution.novelty_ga(**COMMON, **GA, **NOVELTY, num_archived=2),
    "random_search": lambda: evolution.random_search(**COMMON, num_elite_candidates=2),
    "es": lambda: evolution.es(**COMMON),
    "es-scheduled": lambda: evolution.es(
        **COMMON, noise_std="exponential:0.1,0.01,4", learning_rate="linear:0.1,0.01,4", optimizer="sgd"
    ),
    "ns_es": lambda: evolution.novelty_es(kind="ns_es", **COMMON, **NOVELTY, num_bases=3),
    "nsr_es": lambda: evolution.novelty_es(kind="nsr_es", **COMMON, **NOVELTY, num_bases=3),
    "nsra_es": lambda: evolution.novelty_es(kind="nsra_es", **COMMON, **NOVELTY, num_bases=3, patience=1),
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
    """With its functions compiled, as `evolve` uses them."""
    made = STRATEGIES[case[0]]()
    return made._replace(rounds=evolution.compiled_rounds(made), init=jax.jit(made.init))


_decode = jax.jit(population.decode_many)


def play(round_, asked, returns=None, code=CODE):
    """An evaluation of what was asked: returns as given, or those of the members' first parameter; behaviours alike."""
    params = _decode(code, asked.bases, population.Member(*asked[1:5]))
    first = params["Dense_0"]["bias"][:, 0] if returns is None else jnp.asarray(returns, jnp.float32)
    shape = (round_.num_members, round_.num_episodes)
    valid = jnp.arange(round_.num_episodes) < asked.episodes[:, None]
    spread = jnp.broadcast_to(first[:, None], shape) + 0.01 * jnp.arange(shape[1])
    values = jnp.where(valid, spread, 0.0)
    return Evaluation(values, jnp.where(valid, 3, 0), valid, values[:, :, None])


def generation(strategy, key, state, returns=None, code=CODE):
    metrics = {}
    for i, round_ in enumerate(strategy.rounds):
        asked = round_.ask(jax.random.fold_in(key, i), state, code)
        result = play(round_, asked, returns if round_.role == "training" else None, code)
        state, told = round_.tell(state, asked, result, code)
        metrics |= told
    return state, metrics


def described(tree):
    return jax.tree.map(lambda x: (jnp.shape(x), jnp.asarray(x).dtype), tree)


def test_state_keeps_its_structure_shapes_and_dtypes(strategy, code):
    state = strategy.init(jax.random.key(0), code)
    for number in range(2):
        new, metrics = generation(strategy, jax.random.key(number), state, code=code)
        assert jax.tree.structure(described(new)) == jax.tree.structure(described(state))
        assert described(new) == described(state)
        assert all(jnp.shape(value) == () for value in metrics.values())
        state = new
    assert np.isfinite(strategy.score(state))
    bases, rest = strategy.split(state)
    assert jax.tree.leaves(bases)[0].shape[0] == strategy.num_bases
    jax.tree.map(np.testing.assert_array_equal, strategy.join(bases, rest), state)


def test_asked_populations_fit_the_round(strategy, code):
    state = strategy.init(jax.random.key(0), code)
    for number in range(2):
        for round_ in strategy.rounds:
            asked = round_.ask(jax.random.key(number), state, code)
            assert all(x.shape == (round_.num_members,) for x in asked[1:])
            assert asked.episodes.max() <= round_.num_episodes
            assert asked.episodes.sum() > 0
            assert (asked.parent >= 0).all()
            assert (asked.parent < strategy.num_bases).all()
            assert (asked.seed >= 0).all()
            # A weak type here and a strong one there would compile the loop twice.
            assert not any(jnp.asarray(x).weak_type for x in asked[1:])
            state, _ = round_.tell(state, asked, play(round_, asked, code=code), code)


@pytest.mark.parametrize("name", ["novelty_ga", "es", "nsra_es"])
def test_jitted_is_eager_and_compiles_once(name):
    strategy, traces = STRATEGIES[name](), []

    def counted(f):
        def traced(*args):
            traces.append(f)
            return f(*args)

        return jax.jit(traced)

    rounds = tuple(r._replace(ask=counted(r.ask), tell=counted(r.tell)) for r in strategy.rounds)
    jitted = eager = strategy.init(jax.random.key(0), CODE)
    for number in range(2):
        eager, _ = generation(strategy, jax.random.key(number), eager)
        jitted, _ = generation(strategy._replace(rounds=rounds), jax.random.key(number), jitted)
    assert len(traces) == 2 * len(strategy.rounds)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), eager, jitted)


def test_same_key_same_result(strategy, code):
    def run(seed):
        state = strategy.init(jax.random.key(seed), code)
        for number in range(2):
            state, _ = generation(strategy, jax.random.key(seed + number), state, code=code)
        return state

    jax.tree.map(np.testing.assert_array_equal, run(3), run(3))
    bases = [jax.tree.leaves(strategy.split(run(seed))[0])[1] for seed in (3, 4)]
    assert not np.array_equal(*bases)


def test_nan_is_harmless_and_counted(strategy, code):
    state = strategy.init(jax.random.key(0), code)
    returns = np.arange(N, dtype=float)
    for broken in ([2, 7], range(N)):  # some, and all
        returns[list(broken)] = np.nan
        state, metrics = generation(strategy, jax.random.key(1), state, returns=returns, code=code)
        assert metrics["num_nan"] == len(list(broken))
        for leaf in jax.tree.leaves(strategy.split(state)[0]):
            assert np.isfinite(leaf).all()
    state, _ = generation(strategy, jax.random.key(2), state, code=code)
    assert np.isfinite(strategy.score(state))


@pytest.mark.parametrize("noise", CODES)
@pytest.mark.parametrize("name", ["ga", "es", "es-scheduled", "nsra_es"])
def test_what_scores_better_is_approached(name, noise):
    """Returns are the first bias: it must grow. (Novelty alone promises no such thing.)"""
    strategy = STRATEGIES[name]()
    strategy = strategy._replace(rounds=evolution.compiled_rounds(strategy))
    state = strategy.init(jax.random.key(0), CODES[noise])
    scores = []
    for number in range(8):
        state, _ = generation(strategy, jax.random.key(number), state, code=CODES[noise])
        scores.append(float(strategy.score(state)))
    assert scores[-1] > scores[0] + 0.02


def test_random_search_has_no_use_for_low_rank_noise():
    with pytest.raises(ValueError, match="random_search knows first ancestors only"):
        STRATEGIES["random_search"]().init(jax.random.key(0), CODES["low_rank"])


@pytest.mark.parametrize("noise", [population.table(size=20_000), population.low_rank()], ids=["free", "low_rank"])
def test_strategies_solve_the_probe(noise):
    """The best return of the probe is 0, of the network that answers with its observation."""
    env = probe.target(size=2, num_envs=16, groups=2, max_episode_steps=6)
    strategy = evolution.es(
        population_size=48, noise_std=0.1, learning_rate=0.1, l2_coefficient=0.0, num_validation_episodes=6
    )
    algorithm = evolution.evolve(strategy, networks.MLP(2, hidden=()), env, noise=noise)
    state = algorithm.init(jax.random.key(0))
    for _ in range(25):
        state, metrics = algorithm.step(state)
    assert metrics["best_score"] > -0.05
    assert algorithm.genome is None
    params = algorithm.policy(state)["Dense_0"]["kernel"]
    assert abs(np.asarray(params) - np.eye(2)).max() < 0.3

    # Resumed from what is saved, the next generation is the same to the bit.
    restored = algorithm.restore(algorithm.save(state))
    jax.tree.map(np.testing.assert_array_equal, restored.strategy, state.strategy)
    _, expected = algorithm.step(state)
    _, again = algorithm.step(restored)
    for name in ("training_mean", "elite_score", "gradient_norm"):
        assert expected[name] == again[name]
