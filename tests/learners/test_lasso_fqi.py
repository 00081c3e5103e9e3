"""Lasso fitted Q-iteration against scikit-learn's Lasso in a NumPy loop, and on models whose regret is known."""

import jax
import numpy as np
import pytest
from sklearn.linear_model import Lasso

from volvox.envs import linear_mdps
from volvox.envs.linear_mdps import costly_exploration, hidden_laboratory
from volvox.learners import LassoFQI, explore_then_commit
from volvox.learners.lasso_fqi import fitted_q_iteration


def test_the_weights_are_those_of_a_loop_over_steps():
    mdp = costly_exploration(dimension=40, sparsity=2, signal=0.25, horizon=3)
    episodes = linear_mdps.explore(mdp, jax.random.key(0), 90)
    settings = LassoFQI(exploration_episodes=90, penalty=0.2, tolerance=1e-7)
    weights = jax.jit(lambda episodes: fitted_q_iteration(settings, mdp, episodes))(episodes)

    values, penalty = np.zeros(2), 0.2 * np.sqrt(np.log(2 * 40) / 90)
    for h in (2, 1, 0):
        fold = slice(30 * h, 30 * (h + 1))
        features = np.asarray(episodes.feature[fold], float).reshape(90, 40)
        targets = (np.asarray(episodes.reward[fold]) + values[np.asarray(episodes.next_state[fold])]).reshape(90)
        solver = Lasso(alpha=penalty, fit_intercept=False, tol=1e-10, max_iter=100_000)
        w = solver.fit(features, targets).coef_
        np.testing.assert_allclose(weights[h], w, atol=2e-3)
        informative = w[2] + np.abs(w[3:]).sum()
        plain = np.sort(np.abs(w[3:]))[-2:].sum()
        values = np.clip([w[0] + x * w[1] + max(informative, plain) for x in (-1, 1)], 0, 3)


def found(mdp, num_episodes, seed=0, **settings):
    settings = LassoFQI(**settings)
    return jax.jit(lambda key: explore_then_commit(settings, mdp, key, num_episodes))(jax.random.key(seed))


def test_with_enough_exploration_the_policy_is_optimal():
    mdp = costly_exploration(dimension=600, sparsity=2, signal=0.25)
    result = found(mdp, 500, exploration_episodes=300)
    assert result.commitment_regret == pytest.approx(0, abs=1e-3)
    # An informative action, played 3 of 4 times, costs 1/2; exploring, x earns 1/4 a timestep rather than 1/2.
    assert result.exploration_regret == pytest.approx(300 * (3 * 3 / 8 + 2 / 4), rel=0.05)
    assert result.regret == result.exploration_regret + result.commitment_regret


def test_without_a_signal_that_is_found_the_loss_is_what_the_entries_are_worth():
    mdp = costly_exploration(dimension=600, sparsity=2, signal=0.01)
    result = found(mdp, 1_000, exploration_episodes=90, penalty=1.0)
    assert result.commitment_regret == pytest.approx((1_000 - 90) * 2 * (2 * 0.01) / 2, rel=1e-3)


def test_regret_is_linear_until_somebody_points_out_the_door():
    known, unknown = (hidden_laboratory(dimension=902, door=700, door_known=known) for known in (True, False))
    assert found(known, 600, exploration_episodes=60).commitment_regret == pytest.approx(0, abs=1e-3)
    assert found(unknown, 600, exploration_episodes=60).regret == pytest.approx(600 * 2, rel=0.02)


def test_exploration_is_rounded_up_to_whole_folds():
    mdp = costly_exploration(dimension=20, sparsity=1, signal=0.5, horizon=4)
    assert found(mdp, 12, exploration_episodes=9).commitment_regret == 0
    with pytest.raises(ValueError, match="num_episodes=11: exploration alone takes 12"):
        explore_then_commit(LassoFQI(exploration_episodes=9), mdp, jax.random.key(0), 11)


@pytest.mark.parametrize("settings", [{"exploration_episodes": 0}, {"penalty": 0.0}, {"tolerance": -1.0}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        LassoFQI(**{"exploration_episodes": 10} | settings)
