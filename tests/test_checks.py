"""Checks of settings: what passes, and what the messages say."""

import functools
import types

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from volvox._checks import gradient_transformation, integer, integers, number, numbers


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.25), 0])
def test_numbers_pass(value):
    assert number("x", value, low=0, high=1) == value


@pytest.mark.parametrize(
    ("value", "limits", "message"),
    [
        (1.5, {"low": 0, "high": 1}, "x=1.5: give a number from 0 to 1"),
        (0.0, {"above": 0}, "x=0.0: give a finite number above 0"),
        (-1, {"low": 0}, "x=-1: give a finite number of at least 0"),
        (float("nan"), {"low": 0}, "x=nan"),
        (float("inf"), {"above": 0}, "x=inf"),
        (0, {"above": 0, "high": 1}, "x=0: give a number above 0, up to 1"),
        (True, {"low": 0}, "x=True"),
        ("1", {"low": 0}, "x='1'"),
    ],
)
def test_other_values_are_refused(value, limits, message):
    with pytest.raises(ValueError, match=message):
        number("x", value, **limits)


def test_integers_pass():
    assert integer("size", np.int64(3), low=3) == 3


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 0])
def test_what_is_no_integer_of_the_range(value):
    with pytest.raises(ValueError, match=f"size must be an integer of at least 1, got {value!r}"):
        integer("size", value, low=1)


def test_fields_that_are_none_are_not_looked_at():
    settings = types.SimpleNamespace(a=None, b=2, rate=optax.constant_schedule(-1.0))
    integers(settings, "a", "b", low=1)
    numbers(settings, "a", "b", "rate", low=1)
    with pytest.raises(ValueError, match="b must be an integer of at least 3"):
        integers(settings, "a", "b", low=3)
    with pytest.raises(ValueError, match="b=2: give a finite number of at least 3"):
        numbers(settings, "b", low=3)


def test_an_optimiser_takes_the_learning_rate_or_brings_its_own():
    gradient = {"w": jnp.array([3.0, 4.0])}
    for optimizer, rate in ((optax.sgd, 0.1), (functools.partial(optax.sgd), 0.1), (optax.sgd(0.1), None)):
        made = gradient_transformation(optimizer, rate)
        changes, _ = made.update(gradient, made.init(gradient), gradient, mean_return=jnp.float32(0))
        np.testing.assert_allclose(changes["w"], [-0.3, -0.4], rtol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "rate", "message"),
    [
        (optax.sgd(0.1), 0.1, "learning_rate=0.1: a ready-made optimizer brings its own"),
        (optax.sgd, None, "learning_rate=None: .* is a function of the learning rate"),
        ("sgd", 0.1, "optimizer='sgd': give an optax.GradientTransformation"),
        (optax.constant_schedule, 0.1, "give an optax.GradientTransformation, or a function"),
    ],
)
def test_no_optimiser_is_refused(optimizer, rate, message):
    with pytest.raises(ValueError, match=message):
        gradient_transformation(optimizer, rate)
