"""Evolution strategies against the formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest

import volvox as vx
from volvox import networks, population, rollout
from volvox.population import decoding
from volvox.types import Evaluation

ENV = probes.target(size=2, num_envs=8, groups=2, max_episode_steps=3)
NET = networks.genotype(networks.MLP(2, hidden=(3,)), ENV.spec)
CODE = population.encoding(NET, population.Table(size=5_000))
SAMPLE = jax.jit(lambda code, seed: code.noise.sample(code.data, seed, code.like))
N = 10
KEY = jax.random.key(9)  # of tell, which has no use for it


def es(**changes):
    return vx.ES(**{"population_size": N, **changes})


def played(returns, episodes=1):
    returns = jnp.broadcast_to(jnp.asarray(returns, jnp.float32)[:, None], (len(returns), episodes))
    return Evaluation(returns, returns.astype(int), jnp.ones(returns.shape, bool), jnp.zeros((*returns.shape, 0)))


def flat(tree):
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0])


def noise(seed):
    return SAMPLE(CODE, seed)


def current(state):
    return jax.tree.map(lambda x: x[0], state.bases)


def moved(strategy, state, returns, key=0):
    """One generation; (asked pairs, state, metrics)."""
    asked, state = strategy.ask(jax.random.key(key), state, CODE)
    state, metrics = strategy.tell(KEY, state, asked, played(returns), CODE)
    return asked, state, metrics


def test_members_are_antithetic_pairs_around_the_current_parameters(compiled):
    strategy = compiled(es(noise_std=0.5))
    state = strategy.init(jax.random.key(0), CODE)
    asked, _ = strategy.ask(jax.random.key(1), state, CODE)
    np.testing.assert_array_equal(asked.scale, np.tile([0.5, -0.5], N // 2).astype(np.float32))
    np.testing.assert_array_equal(asked.seed[::2], asked.seed[1::2])
    assert len(np.unique(asked.seed)) == N // 2
    assert not asked.initial.any()
    pair = [jax.jit(decoding.decode)(CODE, asked.bases, decoding.Member(*(x[i] for x in asked[1:5]))) for i in (0, 1)]
    np.testing.assert_allclose(flat(pair[0]) + flat(pair[1]), 2 * flat(current(state)), atol=1e-6)


def test_the_update_is_the_papers(compiled):
    """Adam on L2 minus the sum of rank differences times noise, over the population; in NumPy from the formulas."""
    l2, schedules = 0.1, {"learning_rate": "linear:0.03,0.01,2", "noise_std": "exponential:0.4,0.1,2"}
    strategy = compiled(es(**schedules, l2_coefficient=l2))
    state = strategy.init(jax.random.key(0), CODE)
    theta = flat(current(state)).astype(np.float64)
    first = second = np.zeros_like(theta)
    random = np.random.RandomState(0)
    for step, (rate, std) in enumerate([(0.03, 0.4), (0.02, 0.2), (0.01, 0.1)], 1):
        returns = random.randn(N)
        asked, state, metrics = moved(strategy, state, returns, key=step)
        np.testing.assert_allclose(asked.scale[0], std, rtol=1e-6)
        ranks = returns.argsort().argsort() / (N - 1) - 0.5
        ascent = sum((ranks[i] - ranks[i + 1]) * flat(noise(asked.seed[i])).astype(np.float64) for i in range(0, N, 2))
        ascent = ascent / N
        gradient = l2 * theta - ascent
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        theta = theta - rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        np.testing.assert_allclose(flat(current(state)), theta, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(metrics["gradient_norm"], np.linalg.norm(gradient), rtol=1e-4)


def test_optimizers_are_told_the_mean_return(compiled):
    told = optax.GradientTransformationExtraArgs(
        lambda params: jnp.float32(0), lambda updates, state, params=None, *, mean_return, **_: (updates, mean_return)
    )
    strategy = compiled(es(optimizer=told, learning_rate=None))
    _, state, _ = moved(strategy, strategy.init(jax.random.key(0), CODE), np.arange(N, dtype=float))
    np.testing.assert_allclose(jax.tree.leaves(state.optimizer), (N - 1) / 2)


def generations(scripted, scores, behaviors=(), validation=None, **changes):
    """Plays generations with the given returns, of validation first; returns (states, rows, workers)."""
    workers = scripted(*scores, behaviors=behaviors)
    validation = vx.Validation(**{"num_validation_episodes": 2, **(validation or {})})
    network, noise = networks.MLP(2, hidden=(3,)), population.Table(size=5_000)
    algorithm = vx.evolve(es(**changes), network, ENV, noise=noise, validation=validation, workers=workers)
    return *workers.play(algorithm), workers


PAIRS = np.arange(N)


def test_the_best_is_kept_beside_the_current(scripted):
    # The current parameters, and the best beside them: it gives way in the second generation, and not in the others.
    validations = [(3.0, -np.inf), (2.0, 1.0), (4.0, 4.5), (1.0, 2.5)]
    states, rows, workers = generations(scripted, [given for v in validations for given in (v, PAIRS)])
    assert [row["elite_is_new"] for row in rows] == [True, True, False, False]
    scores = [[row[name] for name in ("validation_mean", "elite_score", "elite_episodes")] for row in rows]
    np.testing.assert_array_equal(scores, [[3, np.nan, 0], [2, np.nan, 0], [4.5, 4.5, 2], [2.5, 3.5, 4]])
    assert rows[-1]["elite_selecting_score"] == 2.0
    np.testing.assert_array_equal(workers.asked[0].episodes, [2, 0])
    for asked in workers.asked[2::2]:
        np.testing.assert_array_equal(asked.scale, 0)
        np.testing.assert_array_equal(asked.parent, [0, 1])
        np.testing.assert_array_equal(asked.episodes, [2, 2])
    # The elite is the parameters that the second generation validated, before it moved them.
    jax.tree.map(
        lambda elite, x: np.testing.assert_array_equal(elite[0], x[0]), states[-1].bases, states[1].strategy.bases
    )


def test_a_base_without_a_score_is_still_tested(scripted):
    """Vector 1 was updated; the others did not play, and the test is not of vector 0."""
    novelty = vx.Novelty(behavior=rollout.Last("elapsed_steps", 1), num_neighbors=2, archive_size=9)
    scores = [1.0, 3.0, 5.0, 0.0], [7.0], PAIRS, [np.nan, np.nan, np.nan, 4.0], [7.0], PAIRS
    behaviors = [0.0, 1.0, 5.0, 0.0], [0.0], PAIRS, [0.0] * 4, [0.0], PAIRS
    validation = {"num_validation_episodes": 1, "num_test_episodes": 1}
    with pytest.warns(UserWarning, match="ranked last"):
        states, rows, workers = generations(scripted, scores, behaviors, validation, num_bases=3, objective=novelty)
    assert rows[0]["validation_mean"] == 5.0
    assert workers.asked[1].parent[0] == 2
    assert workers.asked[4].parent[0] == states[1].strategy.updated != 0


def test_test_episodes_are_played_by_the_current_parameters(scripted):
    scores = [[3.0, 0.0], [7.0], PAIRS, [1.0, 2.0], [7.0], PAIRS]
    _, rows, workers = generations(scripted, scores, validation={"num_test_episodes": 4})
    assert workers.tested == [False, True, False] * 2
    for test in workers.asked[1::3]:
        np.testing.assert_array_equal(test.parent, [0])  # not the best so far, which is base 1
        np.testing.assert_array_equal(test.episodes, [4])
    assert rows[0]["test_score"] == 7.0


def test_weighted_noise_is_the_sum_written_out():
    seeds = jnp.array([5, 900, 31, 77, 5, 1_234, 8, 9, 10, 11, 12], jnp.int32)
    weights = jax.random.normal(jax.random.key(0), seeds.shape)
    expected = sum(float(w) * flat(noise(s)).astype(np.float64) for w, s in zip(weights, seeds, strict=True))
    got = jax.jit(population.weighted_noise)(CODE, seeds, weights)
    assert jax.tree.structure(got) == jax.tree.structure(CODE.like)
    np.testing.assert_allclose(flat(got), expected, rtol=1e-4, atol=1e-5)


SMALL_ARCHIVE = vx.Novelty(behavior=rollout.Last("elapsed_steps", 1), num_neighbors=1, archive_size=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"population_size": 7}, "population_size"),
        ({"num_bases": 2}, "num_bases"),
        ({"fitness_shaping": "centred_ranks"}, "fitness_shaping"),
        ({"num_bases": 3, "objective": SMALL_ARCHIVE}, "archive_size"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        es(**changes)
