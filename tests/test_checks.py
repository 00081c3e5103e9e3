"""Checks of settings: what is allowed, and what the message says."""

import math

import numpy as np
import optax
import pytest

from volvox import _checks


@pytest.mark.parametrize(
    ("value", "limits", "wanted"),
    [
        (-1, {"low": 0}, "give a finite number of at least 0"),
        (math.inf, {"low": 0}, "give a finite number of at least 0"),
        (0, {"above": 0}, "give a finite number above 0"),
        (1.5, {"low": 0, "high": 1}, "give a number from 0 to 1"),
        (0, {"above": 0, "high": 1}, "give a number above 0, up to 1"),
        (True, {}, "give a finite number"),
        ("1", {}, "give a finite number"),
        (math.nan, {}, "give a finite number"),
    ],
)
def test_numbers_out_of_their_range(value, limits, wanted):
    with pytest.raises(ValueError, match=f"rate={value!r}: {wanted}"):
        _checks.number("rate", value, **limits)


def test_numbers_in_their_range():
    assert _checks.number("rate", 0, low=0) == 0
    assert _checks.number("rate", np.float32(1), above=0, high=1) == 1
    assert _checks.integer("size", np.int64(3), low=3) == 3


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 0])
def test_what_is_no_integer_of_the_range(value):
    with pytest.raises(ValueError, match=f"size must be an integer of at least 1, got {value!r}"):
        _checks.integer("size", value, low=1)


@pytest.mark.parametrize(
    ("optimizer", "learning_rate", "message"),
    [
        (optax.adam, None, "learning_rate=None: .* is a function of the learning rate; give one"),
        (optax.adam(0.1), 0.1, "learning_rate=0.1: a ready-made optimizer brings its own"),
        ("adam", 0.1, "optimizer='adam': give an optax.GradientTransformation"),
        ("adam", None, "optimizer='adam': give an optax.GradientTransformation"),
        (lambda rate: rate, 0.1, "optimizer=.*: give an optax.GradientTransformation"),
    ],
)
def test_optimizers_that_do_not_fit(optimizer, learning_rate, message):
    with pytest.raises(ValueError, match=message):
        _checks.gradient_transformation(optimizer, learning_rate)


def test_gradients_are_clipped_before_the_optimizer():
    plain, clipped = (_checks.gradient_transformation(optax.sgd, 1.0, norm) for norm in (None, 1.0))
    gradient = np.array([3.0, 4.0], np.float32)
    for optimizer, expected in ((plain, [-3.0, -4.0]), (clipped, [-0.6, -0.8])):
        updates, _ = optimizer.update(gradient, optimizer.init(gradient))
        np.testing.assert_allclose(updates, expected, rtol=1e-6)
