"""The Lasso against scikit-learn's, and against its optimality conditions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Lasso

from volvox.ops.coordinate_descent import lasso


def problem(n, d, seed=0, active=4):
    random = np.random.default_rng(seed)
    features = random.normal(size=(n, d)).astype(np.float32)
    features[:, 1] += features[:, 0]  # two features that are alike
    weights = np.zeros(d)
    weights[random.choice(d, active, replace=False)] = random.normal(size=active)
    targets = features @ weights + 0.3 * random.normal(size=n)
    return features, targets.astype(np.float32)


@pytest.mark.parametrize("penalty", [0.01, 0.1, 0.5])
@pytest.mark.parametrize(("n", "d"), [(200, 20), (40, 300)])
def test_the_weights_are_scikit_learns(n, d, penalty):
    features, targets = problem(n, d)
    oracle = Lasso(alpha=penalty, fit_intercept=False, tol=1e-10, max_iter=100_000).fit(features.astype(float), targets)
    found = jax.jit(lasso)(features, targets, penalty, tolerance=1e-6)
    np.testing.assert_allclose(found.weights, oracle.coef_, atol=2e-3)
    assert found.passes < 1_000
    large = np.abs(oracle.coef_) > 1e-2
    assert large.any()
    assert (np.asarray(found.weights)[large] != 0).all()


def objective(weights, features, targets, penalty):
    error = targets - features @ weights
    return (error**2).sum() / (2 * len(targets)) + penalty * np.abs(weights).sum()


@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-4])
def test_the_gap_bounds_the_distance_to_the_minimum(tolerance):
    features, targets = problem(50, 200, seed=1)
    oracle = Lasso(alpha=0.05, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(features.astype(float), targets)
    found = jax.jit(lasso)(features, targets, 0.05, tolerance=tolerance)
    least = objective(oracle.coef_, features, targets, 0.05)
    above = objective(np.asarray(found.weights, float), features, targets, 0.05) - least
    assert -1e-6 <= above <= found.gap + 1e-6
    assert found.gap <= tolerance * (targets**2).sum() / 100
    assert found.passes < 1_000


def test_the_optimality_conditions_hold():
    # x_jᵀ r / n is the penalty times the sign of each weight that is not 0, and no larger than the penalty elsewhere.
    features, targets = problem(60, 400, seed=2)
    found = jax.jit(lasso)(features, targets, 0.1, tolerance=1e-7)
    weights = np.asarray(found.weights, float)
    slope = features.T @ (targets - features @ weights) / 60
    np.testing.assert_allclose(slope[weights != 0], 0.1 * np.sign(weights[weights != 0]), atol=1e-3)
    assert np.abs(slope).max() <= 0.1 + 1e-3


def test_a_large_penalty_leaves_nothing_and_takes_no_pass():
    features, targets = problem(30, 50)
    most = np.abs(features.T @ targets / 30).max()
    found = lasso(features, targets, 1.001 * most)
    assert not found.weights.any()
    assert found.passes == 0
    assert lasso(features, targets, 0.9 * most).weights.any()


def test_a_column_of_zeros_keeps_the_weight_0():
    features, targets = problem(30, 10)
    features[:, 3] = 0
    found = lasso(features, targets, 0.01)
    assert found.weights[3] == 0
    assert jnp.isfinite(found.weights).all()


def test_passes_are_limited():
    features, targets = problem(40, 300)
    assert lasso(features, targets, 0.001, tolerance=1e-12, max_passes=3).passes == 3


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float16])
def test_features_of_other_dtypes(dtype):
    random = np.random.default_rng(0)
    features = random.integers(0, 2, (50, 4)).astype(dtype)
    targets = (0.5 * features[:, 0] + 0.3 * features[:, 2] + 0.1 * random.normal(size=50)).astype(np.float32)
    wanted, found = (lasso(x, targets, 0.01) for x in (features.astype(np.float32), features))
    assert found.weights.dtype == np.float32
    np.testing.assert_array_equal(found.weights, wanted.weights)
    assert (np.asarray(found.weights) != 0).any()
