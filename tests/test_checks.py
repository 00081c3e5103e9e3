"""Checks of arguments: the values that pass, and the error of those that do not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from volvox import _checks


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.25), 0])
def test_numbers_in_the_range_pass(value):
    assert _checks.number("x", value, low=0, high=1) == value


@pytest.mark.parametrize(
    ("value", "limits"),
    [
        *((1.5, {"low": 0, "high": 1}), (0.0, {"above": 0}), (-1, {"low": 0}), (0, {"above": 0, "high": 1})),
        *((float("nan"), {"low": 0}), (float("inf"), {"above": 0}), (True, {"low": 0}), ("1", {"low": 0})),
    ],
)
def test_other_numbers_are_refused(value, limits):
    with pytest.raises(ValueError, match="x="):
        _checks.number("x", value, **limits)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 0, 5])
def test_integers_are_of_a_range(value):
    assert _checks.integer("size", np.int64(3), low=1, high=4) == 3
    with pytest.raises(ValueError, match="size"):
        _checks.integer("size", value, low=1, high=4)


def test_counts_may_be_none_or_whole_floats():
    assert (_checks.count("steps", None), _checks.count("steps", 1e6)) == (None, 1_000_000)
    for value in (0, 1.5, "3"):
        with pytest.raises(ValueError, match="steps"):
            _checks.count("steps", value)


def test_fields_of_settings():
    made = dataclasses.make_dataclass("Settings", [("a", int | None), ("b", int), ("rate", float | optax.Schedule)])
    settings = made(None, 2, optax.constant_schedule(-1.0))
    _checks.integers(settings, "a", "b", low=1)
    _checks.numbers(settings, "a", "b", "rate", low=1)
    for wrong in (made(None, None, 2.0), made(None, optax.constant_schedule(3.0), 2.0)):
        for check in (_checks.integers, _checks.numbers):
            with pytest.raises(ValueError, match="b"):
                check(wrong, "b", low=1)
    for check in (_checks.integers, _checks.numbers):
        with pytest.raises(ValueError, match="b"):
            check(settings, "b", low=3)


def test_keys_are_made_of_seeds_and_keys():
    expected = jax.random.key_data(jax.random.key(3))
    for value in (3, np.int32(3), jax.random.key(3), jnp.asarray(expected)):
        np.testing.assert_array_equal(jax.random.key_data(_checks.typed_key(value)), expected)
    with pytest.raises(ValueError, match="seed"):
        _checks.typed_key(2**31)
    with pytest.raises(TypeError):
        _checks.typed_key("3")


def test_types_and_attributes():
    _checks.check_type("x", 3, int, "3")
    _checks.check_has("x", {}, ("keys", "items"), "a dict")
    for check, value, wanted in (
        (_checks.check_type, "3", int),
        (_checks.check_type, int, int),
        (_checks.check_has, [], ("keys",)),
        (_checks.check_has, dict, ("keys",)),
    ):
        with pytest.raises(TypeError, match="x"):
            check("x", value, wanted, "an example")


def test_memory():
    tree = {"a": jnp.zeros((2, 3)), "b": jax.ShapeDtypeStruct((5,), jnp.int8), "c": 3}
    assert _checks.size_of(tree) == 29
    _checks.check_memory({"a": 100}, "take less")
    with pytest.raises(ValueError, match="replay 1e"):
        _checks.check_memory({"replay": 10**18}, "take less")


def test_the_number_of_slots_that_fit_is_said(monkeypatch):
    monkeypatch.setattr(_checks, "_free_memory", lambda: 1_000)
    _checks.check_memory({"4 slots": 800, "table": 200}, "take less", each=("slots", 4, 200))
    with pytest.raises(ValueError, match="enough for 4 slots"):
        _checks.check_memory({"5 slots": 1_000, "table": 200}, "take less", each=("slots", 5, 200))
    with pytest.raises(ValueError, match="enough for 0 slots"):
        _checks.check_memory({"5 slots": 1_000, "table": 2_000}, "take less", each=("slots", 5, 200))
