"""Evolution strategies against the formulas."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest

from volvox import evolution, networks, population, rollout
from volvox.types import Evaluation

ENV = probes.target(size=2, num_envs=8, groups=2, max_episode_steps=3)
NET = networks.genotype(networks.MLP(2, hidden=(3,)), ENV.spec)
CODE = population.encoding(NET, population.Table(size=5_000))
N = 10
KEY = jax.random.key(9)  # of tell, which has no use for it


def es(**changes):
    return evolution.ES(**{"population_size": N, "num_validation_episodes": 2, **changes})


def played(returns, episodes=1):
    returns = jnp.broadcast_to(jnp.asarray(returns, jnp.float32)[:, None], (len(returns), episodes))
    return Evaluation(returns, returns.astype(int), jnp.ones(returns.shape, bool), jnp.zeros((*returns.shape, 0)))


def flat(tree):
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0])


def noise(seed):
    return CODE.noise.sample(CODE.data, seed, CODE.like)


def current(state):
    return jax.tree.map(lambda x: x[0], state.bases)


def moved(strategy, state, returns, key=0):
    """One generation; (asked pairs, state, metrics)."""
    current_, pairs = strategy.phases[:2]
    asked, state = current_.ask(jax.random.key(key), state, CODE)
    state, _ = current_.tell(KEY, state, asked, played([1.0, 0.0], 2), CODE)
    asked, state = pairs.ask(jax.random.key(key), state, CODE)
    state, metrics = pairs.tell(KEY, state, asked, played(returns), CODE)
    return asked, state, metrics


def test_members_are_antithetic_pairs_around_the_current_parameters():
    strategy = es(noise_std=0.5)
    state = strategy.init(jax.random.key(0), CODE)
    asked, _ = strategy.phases[1].ask(jax.random.key(1), state, CODE)
    np.testing.assert_array_equal(asked.scale, np.tile([0.5, -0.5], N // 2).astype(np.float32))
    np.testing.assert_array_equal(asked.seed[::2], asked.seed[1::2])
    assert len(np.unique(asked.seed)) == N // 2
    assert not asked.initial.any()
    pair = [population.decode(CODE, asked.bases, population.Member(*(x[i] for x in asked[1:5]))) for i in (0, 1)]
    np.testing.assert_allclose(flat(pair[0]) + flat(pair[1]), 2 * flat(current(state)), atol=1e-6)


def test_the_update_is_the_papers():
    """Adam on L2 minus the sum of rank differences times noise, over the population; in NumPy from the formulas."""
    rate, l2, std = 0.03, 0.1, 0.2
    strategy = es(learning_rate=rate, l2_coefficient=l2, noise_std=std)
    state = strategy.init(jax.random.key(0), CODE)
    theta = flat(current(state)).astype(np.float64)
    first = second = np.zeros_like(theta)
    random = np.random.RandomState(0)
    for step in range(1, 4):
        returns = random.randn(N)
        asked, state, metrics = moved(strategy, state, returns, key=step)
        ranks = returns.argsort().argsort() / (N - 1) - 0.5
        ascent = sum((ranks[i] - ranks[i + 1]) * flat(noise(asked.seed[i])).astype(np.float64) for i in range(0, N, 2))
        ascent = ascent / N
        gradient = l2 * theta - ascent
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        theta = theta - rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        np.testing.assert_allclose(flat(current(state)), theta, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(metrics["gradient_norm"], np.linalg.norm(gradient), rtol=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_update_is_that_of_an_independent_library(optimizer):
    """The same noise and the same returns, some of them equal: evosax's Open_ES moves to the same parameters."""
    from evosax.algorithms import Open_ES

    std, rate, made = 0.2, 0.03, {"sgd": optax.sgd, "adam": optax.adam}[optimizer]
    strategy = es(noise_std=std, learning_rate=rate, l2_coefficient=0.0, optimizer=made)
    state = strategy.init(jax.random.key(0), CODE)
    # Its gradient is divided by the noise's standard deviation once more.
    scaled = optax.chain(optax.scale(std), made(rate))
    theirs = Open_ES(
        N,
        current(state),
        optimizer=scaled,
        std_schedule=optax.constant_schedule(std),
        metrics_fn=lambda *_: {},
    )
    their_state = theirs.init(jax.random.key(0), current(state), theirs.default_params)
    random = np.random.RandomState(1)
    for generation in range(3):
        before = current(state)
        returns = random.randint(0, 5, N).astype(np.float32)
        asked, state, _ = moved(strategy, state, returns, key=generation)
        signs = asked.scale / std
        members = jax.vmap(
            lambda seed, sign, before=before: jax.tree.map(lambda x, e: x + std * sign * e, before, noise(seed))
        )(asked.seed, signs)
        their_state, _ = theirs.tell(jax.random.key(0), members, -returns, their_state, theirs.default_params)
        np.testing.assert_allclose(flat(current(state)), flat(theirs.get_mean(their_state)), rtol=1e-4, atol=1e-5)


def test_a_base_without_a_score_is_still_the_challenger():
    """Base 1 was updated; the others did not play, and base 0 is not what a test is of."""
    strategy = es(num_bases=3, objective=evolution.Novelty(behavior=rollout.Last("position", 1)))
    state = strategy.init(jax.random.key(0), CODE)._replace(updated=jnp.int32(1))
    for generation, scores, challenger in ((0, [1.0, 3.0, 5.0, 0.0], 2), (1, [0.0, np.nan, 0.0, 4.0], 1)):
        state = state._replace(generation=jnp.int32(generation))
        asked, _ = strategy.phases[0].ask(jax.random.key(1), state, CODE)
        evaluation = played(scores, 2)
        evaluation = evaluation._replace(valid=jnp.arange(2) < asked.episodes[:, None], behaviors=jnp.zeros((4, 2, 1)))
        after, _ = strategy.phases[0].tell(KEY, state, asked, evaluation, CODE)
        assert after.challenger == challenger


def test_the_best_is_kept_behind_the_current():
    strategy = es()
    state = strategy.init(jax.random.key(0), CODE)
    validation, pairs = strategy.phases[:2]
    kept, scores = [], []
    # The current parameters, and the best beside them: it gives way in the second generation, and not in the others.
    for number, returns in enumerate([(3.0, -np.inf), (2.0, 1.0), (4.0, 4.5), (1.0, 2.5)]):
        asked, state = validation.ask(jax.random.key(1), state, CODE)
        np.testing.assert_array_equal(asked.scale, 0)
        np.testing.assert_array_equal(asked.parent, [0, 1])
        np.testing.assert_array_equal(asked.episodes, [2, 2 if number else 0])
        before = current(state)
        state, metrics = validation.tell(KEY, state, asked, played(returns, 2), CODE)
        kept.append((before, bool(metrics["elite_is_new"])))
        scores.append([metrics[name] for name in ("validation_mean", "elite_score", "elite_episodes")])
        asked, state = pairs.ask(jax.random.key(2), state, CODE)
        state, _ = pairs.tell(KEY, state, asked, played(np.arange(N)), CODE)
    assert [new for _, new in kept] == [True, True, False, False]
    assert state.score.selecting == 2.0
    np.testing.assert_array_equal(scores, [[3, np.nan, 0], [2, np.nan, 0], [4.5, 4.5, 2], [2.5, 3.5, 4]])
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda x: x[strategy.elite], state.bases), kept[1][0])
    # Where the cutoff has grown, what the best scored before counts for nothing.
    asked, state = validation.ask(jax.random.key(1), strategy.forget_scores(state), CODE)
    _, metrics = validation.tell(KEY, state, asked, played((0.25, 0.5), 2), CODE)
    np.testing.assert_array_equal([metrics[name] for name in ("elite_score", "elite_episodes")], [0.5, 2])


def test_the_test_phase_plays_what_was_validated():
    strategy = es(num_test_episodes=4)
    validation, test, training = strategy.phases
    assert [phase.role for phase in strategy.phases] == ["validation", "test", "training"]
    state = strategy.init(jax.random.key(0), CODE)
    for score in (3.0, 1.0):
        asked, state = validation.ask(jax.random.key(1), state, CODE)
        state, _ = validation.tell(KEY, state, asked, played([score, 2.0], 2), CODE)
        asked, state = test.ask(jax.random.key(2), state, CODE)
        np.testing.assert_array_equal(asked.parent, [0])  # not the best so far, which is base 1
        np.testing.assert_array_equal(asked.episodes, [4])
        state, metrics = test.tell(KEY, state, asked, played([7.0], 4), CODE)
        assert metrics["test_score"] == 7.0
        asked, state = training.ask(jax.random.key(3), state, CODE)
        state, _ = training.tell(KEY, state, asked, played(np.arange(N)), CODE)


def test_weighted_noise_is_the_sum_written_out():
    seeds = jnp.array([5, 900, 31, 77, 5, 1_234, 8, 9, 10, 11, 12], jnp.int32)
    weights = jax.random.normal(jax.random.key(0), seeds.shape)
    expected = sum(float(w) * flat(noise(s)).astype(np.float64) for w, s in zip(weights, seeds, strict=True))
    got = population.weighted_noise(CODE, seeds, weights)
    assert jax.tree.structure(got) == jax.tree.structure(CODE.like)
    np.testing.assert_allclose(flat(got), expected, rtol=1e-4, atol=1e-5)


def test_quadratic_in_ten_dimensions():
    """Returns are minus the squared distance to a point; the point must be found."""
    net = networks.genotype_from_functions(
        lambda key: {"x": jnp.zeros(10)},
        lambda params, seen: jnp.broadcast_to(params["x"][:2], (seen.shape[0], 2)),
        ENV.spec,
        name="point",
    )
    code = population.encoding(net, population.Table(size=100_000))
    goal = jnp.linspace(-1.0, 1.0, 10)
    strategy = evolution.ES(
        population_size=40, noise_std=0.1, learning_rate=0.05, l2_coefficient=0.0, num_validation_episodes=1
    )

    @jax.jit
    def generation(state, key):
        for phase in strategy.phases:
            asked, state = phase.ask(key, state, code)
            points = population.decode_many(code, asked.bases, population.Member(*asked[1:5]))
            returns = -((points["x"] - goal) ** 2).sum(1)[:, None]
            valid = asked.episodes[:, None] > 0
            result = Evaluation(returns, valid.astype(int), valid, jnp.zeros((*returns.shape, 0)))
            state, _ = phase.tell(key, state, asked, result, code)
        return state

    state = strategy.init(jax.random.key(0), code)
    for number in range(150):
        state = generation(state, jax.random.key(number))
    assert -((state.bases["x"][-1] - goal) ** 2).sum() > -1e-2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"population_size": 7}, "population_size=7 is odd"),
        ({"population_size": 0}, "population_size"),
        ({"noise_std": 0.0}, "noise_std=0.0"),
        ({"noise_std": "linear:1,2"}, "noise_std='linear:1,2'"),
        ({"learning_rate": "often:1,2,3"}, "learning_rate='often:1,2,3'"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
        ({"learning_rate": None}, "is a function of the learning rate; give one"),
        ({"optimizer": optax.sgd(0.1)}, "learning_rate=0.01: a ready-made optimizer brings its own"),
        ({"optimizer": lambda rate: rate}, "give an optax.GradientTransformation, or a function"),
        ({"num_bases": 2}, "num_bases=2: returns move one parameter vector only"),
        ({"l2_coefficient": -0.1}, "l2_coefficient=-0.1"),
        ({"fitness_shaping": "centred_ranks"}, "'centered_ranks'"),
        ({"num_episodes": 0}, "num_episodes"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        es(**changes)
