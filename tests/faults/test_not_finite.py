"""Rewards and observations that are not finite are said, with the environment's name, in the first generation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest

import volvox as vx
from volvox.envs import from_functions
from volvox.types import Evaluation


def broken(reward=1.0, observation=1.0, *, discrete, position: float | None = None):
    """Ten timesteps, with a reward and an observation of this value from the third on."""
    later = lambda t, value: jnp.where(t > 2, jnp.float32(value), 1.0)  # noqa: E731
    return from_functions(
        lambda key: jnp.int32(0),
        lambda t, action, key: (t + 1, later(t, reward), False),
        lambda t: later(t, observation)[None],
        name="broken",
        num_envs=4,
        groups=2,
        max_episode_steps=10,
        extras=None if position is None else lambda t: {"position": later(t, position)[None].repeat(2)},
        **({"num_actions": 2} if discrete else {"action_shape": (1,)}),
    )


CAUSES = {
    "reward": float("nan"),
    "infinite reward": float("inf"),
    "negative": float("-inf"),
    "observation": float("nan"),
}


@pytest.mark.slow_except("ga-reward", "es-observation")
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("name", ["ga", "es"])
def test_a_population_is_stopped_in_its_first_generation(make, quietly, name, cause):
    field = "observation" if cause == "observation" else "reward"
    env = broken(**{field: CAUSES[cause]}, discrete=True)
    algorithm = make(name, env=env)
    with pytest.raises(FloatingPointError, match=r"broken, (training|validation) in generation 1: of \d+ returns"):
        quietly(algorithm, steps=2)
    algorithm.close()


NOVEL = vx.Novelty(behavior=vx.rollout.Last("position", 2), num_neighbors=3)
STRATEGIES = {
    "ga": lambda: vx.GA(
        population_size=8, num_parents=2, num_elite_candidates=2, num_validation_episodes=1, objective=NOVEL
    ),
    "es": lambda: vx.ES(population_size=8, num_bases=2, num_validation_episodes=1, objective=NOVEL),
}


@pytest.mark.slow_except("ga-behavior", "es-behavior", "ga-reward")
@pytest.mark.parametrize(
    ("cause", "message"),
    [
        ({"reward": float("inf")}, r"0 are NaN and [28] infinite"),
        ({"position": float("nan")}, r"([28]) behaviours \1 are not finite"),
        ({"observation": float("nan")}, r"([28]) returns \1 are NaN"),
    ],
    ids=["reward", "behavior", "observation"],
)
@pytest.mark.parametrize("name", STRATEGIES)
def test_novelty_search_is_stopped_too(quietly, name, cause, message):
    env = broken(discrete=True, **{"position": 0.0, **cause})
    algorithm = vx.evolve(
        STRATEGIES[name](), vx.networks.MLP(2, hidden=()), env, noise=vx.population.Table(size=20_000)
    )
    with pytest.raises(FloatingPointError, match=rf"broken, .* in generation 1: of .*{message}"):
        quietly(algorithm, steps=2)
    algorithm.close()


@pytest.mark.slow_except("a3c-observation")
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("name", ["a3c", "ppo", "primal-dual", "td3"])
def test_a_learner_names_rewards_and_observations_before_the_learning_rate(make, quietly, name, cause):
    field = "observation" if cause == "observation" else "reward"
    algorithm = make(name, env=broken(**{field: CAUSES[cause]}, discrete=name != "td3"))
    with pytest.raises(FloatingPointError, match=r"all rewards and observations of broken are finite.*learning rate"):
        quietly(algorithm, steps=3)
    algorithm.close()


def test_clipped_infinite_rewards_are_no_empty_returns(make, quietly):
    """What is learned from is finite there."""
    algorithm = make("a3c", env=broken(reward=float("inf"), discrete=True), reward_bound=1.0, updates_per_iteration=8)
    with pytest.raises(FloatingPointError, match="the returns of episodes"):
        quietly(algorithm, steps=1)
    algorithm.close()


def evaluation(returns):
    returns = jnp.array(returns, jnp.float32)[:, None]
    return Evaluation(returns, jnp.ones(returns.shape, jnp.int32), jnp.ones(returns.shape, bool), returns)


def test_single_members_without_a_return_are_said_and_ranked_last():
    check = functools.partial(vx.evolution.strategy.check_returns, where="game, training in generation 3")
    with pytest.warns(UserWarning, match="game, training in generation 3: of 3 returns 1 are NaN and 0 infinite"):
        check(evaluation([1.0, np.nan, 2.0]))
    check(evaluation([1.0, 2.0]))
    for returns in ([np.nan, np.nan], [1.0, np.inf], [-np.inf, 1.0]):
        with pytest.raises(FloatingPointError, match="Rewards must be finite"):
            check(evaluation(returns))


def test_es_whose_parameters_become_infinite_stops_and_keeps_the_generation_before(tmp_path, make, quietly):
    strategy = vx.ES(population_size=4, num_validation_episodes=1, optimizer=optax.scale(jnp.inf), learning_rate=None)
    env = probes.target(size=1, num_envs=4, groups=2)
    algorithm = vx.evolve(strategy, vx.networks.MLP(1, hidden=()), env, noise=vx.population.Table(size=20_000))
    with pytest.raises(FloatingPointError, match="parameters are no longer finite after generation 1 of ES") as error:
        quietly(algorithm, steps=2, run_dir=tmp_path / "a")
    assert "last good state is that of generation 0" in error.value.__notes__[0]
    state = algorithm.restore(vx.checkpoint.restore(tmp_path / "a" / "checkpoints", 0))
    assert jax.tree.all(jax.tree.map(lambda x: bool(jnp.isfinite(x).all()), state.strategy.bases))
    algorithm.close()
