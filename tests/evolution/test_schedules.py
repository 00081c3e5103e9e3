"""Schedules from text against their formulas."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from volvox.evolution import schedule


def test_forms():
    linear = schedule("x", "linear:1,3,4")
    np.testing.assert_allclose([linear(g) for g in range(6)], [1, 1.5, 2, 2.5, 3, 3])
    for start, end in ((1, 16), (16, 1)):
        exponential = schedule("x", f"exponential:{start},{end},4")
        expected = [start * (end / start) ** (min(g, 4) / 4) for g in range(6)]
        np.testing.assert_allclose([exponential(g) for g in range(6)], expected, rtol=1e-6)
    for constant in (0.5, "0.5", np.float32(0.5)):
        assert [float(schedule("x", constant)(g)) for g in (0, 9)] == [0.5, 0.5]


def test_optax_schedules_are_taken_as_they_are():
    warm_up = optax.linear_schedule(0.0, 1.0, 10)
    assert schedule("x", warm_up) is warm_up


@pytest.mark.parametrize("text", ["linear:1,3,4", "exponential:1,16,4", "2"])
def test_counts_may_be_traced(text):
    value = jax.jit(schedule("x", text))(jnp.int32(2))
    np.testing.assert_allclose(value, schedule("x", text)(2), rtol=1e-6)


@pytest.mark.parametrize(
    "bad",
    [0.0, -1.0, float("nan"), float("inf"), "much", "linear:1,2", "often:1,2,3", "linear:1,0,3", "linear:1,2,0",
     "exponential:a,b,c", "constant:", None, "linear:1,69404493,1"],
)  # fmt: skip
def test_bad_forms_name_the_value(bad):
    with pytest.raises(ValueError, match=re.escape(f"mutation_std={bad!r}")) as error:
        schedule("mutation_std", bad)
    assert "linear:start,end,generations" in str(error.value)
