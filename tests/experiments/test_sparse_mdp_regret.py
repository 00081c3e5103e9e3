"""Regret in sparse linear MDPs: the Lasso against scikit-learn's, exact values of the models, and slopes."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

RESULTS = Path(__file__).parents[2] / "experiments" / "results" / "sparse_mdp"


def lasso(penalty):
    """scikit-learn's Lasso; imported here because that takes as long as JAX."""
    from sklearn.linear_model import Lasso

    return Lasso(alpha=penalty, fit_intercept=False, tol=1e-10, max_iter=100_000)


@pytest.mark.parametrize(("n", "d", "penalty"), [(200, 20, 0.01), (40, 300, 0.1)])
def test_lasso_finds_scikit_learns_weights(module, n, d, penalty):
    random = np.random.default_rng(0)
    features = random.normal(size=(n, d)).astype(np.float32)
    features[:, 1] += features[:, 0]
    features[:, 3] = 0
    targets = (features[:, :4].sum(axis=1) + 0.3 * random.normal(size=n)).astype(np.float32)
    oracle = lasso(penalty).fit(features.astype(float), targets)
    weights, gap, passes = jax.jit(module.lasso)(features, targets, penalty, tolerance=1e-6)
    np.testing.assert_allclose(weights, oracle.coef_, atol=2e-3)
    assert weights[3] == 0
    assert 0 <= gap <= 1e-6 * (targets**2).sum() / (2 * n) + 1e-6
    assert 0 < passes < 1_000
    assert module.lasso(features, targets, penalty, tolerance=1e-12, max_passes=2)[2] == 2


def models(module):
    return {
        "costly": module.costly_exploration(dimension=9, sparsity=2, signal=0.2),
        "hidden": module.hidden_laboratory(dimension=7, door=3),
    }


@pytest.mark.parametrize(("name", "best"), [("costly", 0.5 * (0.5 + 0.9 + 0.9) + 1.5), ("hidden", 2.0)])
def test_models_are_linear_with_known_values(module, name, best):
    mdp = models(module)[name]
    assert module.expected_return(mdp, lambda h, state: mdp.optimal(state)) == pytest.approx(best)
    episodes = jax.jit(lambda key: module.explore(mdp, key, 4_000))(jax.random.key(1))
    features = np.concatenate(np.asarray(episodes.feature))
    assert np.linalg.eigvalsh(features.T @ features / len(features)).min() > 0.02
    # Rewards are linear in the features of all visited states and actions.
    rewards = np.concatenate(np.asarray(episodes.reward))
    weights, *_ = np.linalg.lstsq(features, rewards, rcond=None)
    np.testing.assert_allclose(features @ weights, rewards, atol=1e-5)
    # The greedy action has at least the value of every action that was explored in the same state.
    weights = jnp.asarray(np.random.default_rng(0).normal(size=features.shape[1]), jnp.float32)

    @jax.jit
    def greedy_and_explored(state):
        drawn = jax.vmap(lambda key: mdp.explore(key, state))(jax.random.split(jax.random.key(2), 50))
        values = jax.vmap(lambda action: mdp.feature(state, action) @ weights)(drawn)
        return mdp.feature(state, mdp.greedy(weights, state)) @ weights, values.max()

    for greedy, explored in map(greedy_and_explored, range(mdp.initial.size)):
        assert greedy >= explored - 1e-5


def test_weights_are_those_of_a_loop_over_timesteps(module):
    mdp = module.costly_exploration(dimension=40, sparsity=2, signal=0.25, horizon=3)
    episodes = jax.jit(lambda key: module.explore(mdp, key, 90))(jax.random.key(0))
    weights = jax.jit(lambda x: module.fitted_q_iteration(mdp, x, penalty=0.2, tolerance=1e-7))(episodes)
    values, penalty = np.zeros(2), 0.2 * np.sqrt(np.log(2 * 40) / 90)
    for h in (2, 1, 0):
        fold = slice(30 * h, 30 * (h + 1))
        features = np.asarray(episodes.feature[fold], float).reshape(90, 40)
        targets = (np.asarray(episodes.reward[fold]) + values[np.asarray(episodes.next_state[fold])]).reshape(90)
        w = lasso(penalty).fit(features, targets).coef_
        np.testing.assert_allclose(weights[h], w, atol=2e-3)
        informative, plain = w[2] + np.abs(w[3:]).sum(), np.sort(np.abs(w[3:]))[-2:].sum()
        values = np.clip([w[0] + x * w[1] + max(informative, plain) for x in (-1, 1)], 0, 3)


@pytest.mark.slow
def test_regret_of_known_cases(module):
    def regret(mdp, *args, **options):
        return jax.jit(lambda key: module.explore_then_commit(mdp, key, *args, **options))(jax.random.key(0))

    explored, committed = regret(module.costly_exploration(dimension=600, sparsity=2, signal=0.25), 500, 300)
    assert committed == pytest.approx(0, abs=1e-3)
    # An informative action, played 3 of 4 times, costs 1/2; exploring, x earns 1/4 a timestep rather than 1/2.
    assert explored == pytest.approx(300 * (3 * 3 / 8 + 2 / 4), rel=0.05)
    # Without a signal that can be found, each episode loses the worth of the entries.
    _, lost = regret(module.costly_exploration(dimension=600, sparsity=2, signal=0.01), 1_000, 90, penalty=1.0)
    assert lost == pytest.approx((1_000 - 90) * 2 * (2 * 0.01) / 2, rel=1e-3)
    # Regret is linear unless the policy knows the door.
    known, unknown = (module.hidden_laboratory(dimension=902, door=700, door_known=x) for x in (True, False))
    assert regret(known, 600, 60)[1] == pytest.approx(0, abs=1e-3)
    assert sum(regret(unknown, 600, 60)) == pytest.approx(600 * 2, rel=0.02)


def test_slopes_are_of_the_worst_case(module):
    """The worst case grows as N^(2/3); the other is lower and grows faster. Seeds differ by factors that cancel."""
    factors = np.array([0.5, 1.0, 1.5])
    points = [
        {"N": n, "s": 2, "regrets": {"a": (n ** (2 / 3) * factors).tolist(), "b": [0.01 * n, 0.02 * n, 0.03 * n]}}
        for n in (1_000, 2_000, 4_000)
    ]
    found = module.slopes(points)["N"]
    assert found["slope"] == pytest.approx(2 / 3, abs=1e-3)
    assert found["interval_95"] == [found["slope"]] * 2
    negative = [{"N": n, "s": 2, "regrets": {"a": [0.0, -1.0, 0.5]}} for n in (1_000, 2_000)]
    assert module.slope(negative, "N") == {"slope": None, "interval_95": None}


@pytest.mark.parametrize("name", ["costly", "costly_s", "hidden"])
def test_committed_slopes_are_those_of_the_committed_regrets(module, name):
    committed = json.loads((RESULTS / f"{name}.json").read_text())
    assert module.slopes(committed["points"]) == committed["slopes"]


@pytest.mark.parametrize("settings", [{"model": "hidden", "sparsities": (1, 2)}, {"episodes": (20_000,)}])
def test_bad_settings_are_refused(module, settings):
    with pytest.raises(ValueError, match=r"sparsities|episodes"):
        module.Settings(**settings)


def test_the_script_writes_regrets(module, tmp_path, monkeypatch):
    small = ("--episodes", "60", "--dimension", "130", "--signals", "1", "--seeds", "2")
    monkeypatch.setattr("sys.argv", ["sparse_mdp_regret.py", *small, "--run-dir", str(tmp_path)])
    assert module.main() == 0
    (point,) = json.loads((tmp_path / "regret.json").read_text())["points"]
    assert (point["N"], len(point["regrets"]["0.2500"])) == (60, 2)
