"""Families of distributions over actions, against SciPy-free formulas and samples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.networks.distributions import Categorical, Gaussian, MultiCategorical

LOGITS = np.float32([[0.0, 1.0, -2.0], [3.0, 3.0, 3.0]])


def test_categorical_probabilities():
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    family = Categorical(3)
    action = jnp.array([2, 0])
    for epsilon in (0.0, 0.1):
        want = np.log(p + epsilon)
        np.testing.assert_allclose(family.log_prob(LOGITS, action, epsilon), want[[0, 1], [2, 0]], rtol=1e-5)
        np.testing.assert_allclose(family.entropy(LOGITS, epsilon), -(p * want).sum(-1), rtol=1e-5)


def test_log_epsilon_bounds_the_gradient():
    """Of an action all but impossible: without epsilon it is as steep as ever, with it, flat."""
    family = Categorical(2)
    log_prob = lambda x, epsilon: family.log_prob(jnp.array([x, 0.0]), jnp.int32(0), epsilon)  # noqa: E731
    steep, flat = (jax.jit(jax.grad(log_prob), static_argnums=1)(-30.0, epsilon) for epsilon in (0.0, 1e-6))
    assert steep == pytest.approx(1.0)
    assert abs(flat) < 1e-6


def test_gaussian_density():
    output = np.float32([[0.5, -1.0, 0.0, np.log(2.0)]])  # means 0.5, -1; deviations 1, 2
    action = np.float32([[1.5, 3.0]])
    family = Gaussian((2,))
    want = -0.5 * (1.0**2 + 2.0**2) - np.log(2.0) - np.log(2 * np.pi)
    np.testing.assert_allclose(family.log_prob(output, action, 0.0), [want], rtol=1e-5)
    np.testing.assert_allclose(family.entropy(output, 0.0), [np.log(2.0) + np.log(2 * np.pi * np.e)], rtol=1e-5)


FAMILIES = {"categorical": Categorical(3), "several": MultiCategorical((2, 3)), "gaussian": Gaussian((2, 2))}


def test_components_are_independent():
    output, action = np.float32([[0.3, -0.4, 0.0, 1.0, -2.0]]), jnp.array([[1, 2]])
    family, parts = MultiCategorical((2, 3)), ((Categorical(2), output[:, :2]), (Categorical(3), output[:, 2:]))

    @functools.partial(jax.jit, static_argnums=0)
    def both(epsilon):
        log_prob = sum(one.log_prob(part, action[:, i], epsilon) for i, (one, part) in enumerate(parts))
        entropy = sum(one.entropy(part, epsilon) for one, part in parts)
        return (family.log_prob(output, action, epsilon), family.entropy(output, epsilon)), (log_prob, entropy)

    for epsilon in (0.0, 0.1):
        np.testing.assert_allclose(*both(epsilon), rtol=1e-6)
    np.testing.assert_array_equal(family.mode(output), [[0, 1]])
    drawn = jax.jit(family.sample)(jax.random.key(0), np.zeros((6_000, 5), np.float32))
    counts = np.histogram2d(*np.asarray(drawn).T, bins=(2, 3))[0]
    np.testing.assert_allclose(counts, 1_000, atol=150)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_samples_have_the_stated_entropy(family):
    """The entropy is the mean of minus the log-probability of samples."""
    output = np.linspace(-1, 1, family.size, dtype=np.float32)
    many = np.broadcast_to(output, (20_000, family.size))
    drawn = jax.jit(lambda key: -family.log_prob(many, family.sample(key, many), 0.0))
    estimate = np.asarray(drawn(jax.random.key(0)))
    error = 5 * estimate.std() / np.sqrt(estimate.size)
    assert abs(estimate.mean() - float(jax.jit(family.entropy)(output))) < error


def test_the_mode_is_the_likeliest_action():
    np.testing.assert_array_equal(Categorical(3).mode(LOGITS), [1, 0])
    output = jnp.array([[0.5, -1.0, 0.3, 2.0, *[0.0] * 4]])
    np.testing.assert_array_equal(Gaussian((2, 2)).mode(output), np.float32([[[0.5, -1.0], [0.3, 2.0]]]))
    family, action = Gaussian((2, 2)), Gaussian((2, 2)).mode(output)
    assert family.log_prob(output, action) > family.log_prob(output, action + 0.1)


def test_choices_that_cannot_be_made_are_left_out():
    family, output, mask = Categorical(4), np.float32([1.0, -2.0, 0.5, 3.0]), np.array([True, True, False, True])

    @jax.jit
    def entropy(output):
        return family.entropy(jnp.where(mask, output, -jnp.inf))

    kept = np.exp(output[mask]) / np.exp(output[mask]).sum()
    np.testing.assert_allclose(entropy(output), -(kept * np.log(kept)).sum(), rtol=1e-6)
    gradient = jax.jit(jax.grad(entropy))(output)
    np.testing.assert_allclose(gradient[mask], jax.jit(jax.grad(Categorical(3).entropy))(output[mask]), rtol=1e-5)
    assert gradient[2] == 0
