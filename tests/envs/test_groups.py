import doctest

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox.envs import groups
from volvox.types import EnvGroup, TimeStep

PAIR = probes.target(num_envs=3).spec._replace(
    name="pair",
    action_low=np.array([-1.0, 0.0], np.float32),
    action_high=np.array([1.0, 3.0], np.float32),
)


def test_the_example_in_the_docstring_runs():
    tried = doctest.testmod(groups)
    assert tried.attempted > 5
    assert tried.failed == 0


@pytest.mark.parametrize("xp", [np, jnp])
def test_a_time_step_keeps_its_promises(xp):
    first, terminated, truncated = (xp.asarray(column) for column in np.indices((2, 2, 2)).reshape(3, 8) == 1)
    step = groups.consistent(
        TimeStep(xp.zeros((8, 1)), xp.arange(1, 9), first, terminated, truncated, {"lives": xp.ones(8)})
    )
    np.testing.assert_array_equal(step.reward, [1, 2, 3, 4, 0, 0, 0, 0])
    np.testing.assert_array_equal(step.terminated, [False, False, True, True] + 4 * [False])
    np.testing.assert_array_equal(step.truncated, [False, True] + 6 * [False])
    assert step.reward.dtype == np.float32
    assert step.terminated.dtype == step.truncated.dtype == np.bool_
    assert all(isinstance(leaf, np.ndarray if xp is np else jax.Array) for leaf in jax.tree.leaves(step))
    assert set(step.extras) == {"lives"}


def test_actions_are_checked_and_clipped_to_the_bounds_of_each_component():
    assert groups.checked_action(PAIR, 3, np.zeros((3, 2))).shape == (3, 2)
    with pytest.raises(ValueError, match="shape"):
        groups.checked_action(PAIR, 3, np.zeros((2, 3)))
    clipped = jax.jit(lambda action: groups.bounded_action(PAIR, action))(jnp.array([[-2.0, -2.0], [5.0, 5.0]]))
    np.testing.assert_array_equal(clipped, [[-1, 0], [1, 3]])
    within = np.array([[-1.0, 0.0], [1.0, 3.0 + 1e-6]], np.float32)
    np.testing.assert_array_equal(groups.bounded_action(PAIR, within), [[-1, 0], [1, 3]])
    with pytest.raises(ValueError, match="out of bounds"):
        groups.bounded_action(PAIR, np.array([[0.0, 1.0], [0.0, -0.5]]))
    with pytest.raises(groups.ActionIsNaN, match="NaN") as caught:
        groups.bounded_action(PAIR, np.array([[0.0, 1.0], [0.0, np.nan]]))
    assert caught.value.rows == [1]
    half = PAIR._replace(action_low=np.array([0.0, -np.inf], np.float32), action_high=np.full(2, np.inf, np.float32))
    groups.bounded_action(half, np.array([[1e30, -1e30]]))
    with pytest.raises(ValueError, match="out of bounds"):
        groups.bounded_action(half, np.array([[-0.5, 0.0]]))


@pytest.mark.parametrize("xp", [np, jnp])
def test_discrete_actions_are_clipped(xp):
    spec = probes.constant().spec
    np.testing.assert_array_equal(groups.bounded_action(spec, xp.array([-3, 0, 1, 9])), [0, 0, 1, 1])


def test_recipes_say_what_they_are():
    made = []

    def make_group(spec, num_envs, *, index, seed, host):
        made.append((spec.max_episode_steps, num_envs, index, seed, host))
        return EnvGroup(spec, num_envs, not host, lambda: index, *[lambda *_: None] * 4)

    env = groups.recipe(PAIR, make_group, num_envs=np.int64(6), groups=2, config={"type": "mine.pair"})
    assert env.config == {"type": "mine.pair"}
    assert [group.init() for group in env.make(3)] == [0, 1]
    assert len(env.make(3, max_episode_steps=9, num_envs=3, num_groups=1, host=True)) == 1
    assert made == [(8, 3, 0, 3, False), (8, 3, 1, 3, False), (9, 3, 0, 3, True)]
    with pytest.raises(ValueError, match="multiple of groups"):
        groups.recipe(PAIR, make_group, num_envs=6, groups=4)
    for wrong in ({"num_groups": 4}, {"max_episode_steps": 0}):
        with pytest.raises(ValueError, match=r"groups|max_episode_steps"):
            env.make(0, **wrong)
    with pytest.raises(ValueError, match="seed"):
        env.make(-1)


IMAGE = np.arange(2 * 5 * 6).reshape(2, 5, 6)  # two channels first


@pytest.mark.parametrize(
    ("given", "dtype", "wanted"),
    [
        (np.array([1.5, -2.0]), np.float32, np.float32([1.5, -2.0])),  # float64
        (np.array([0, 2**31 - 1]), np.int32, np.int32([0, 2**31 - 1])),  # int64
        (np.array([0, 2**31], np.uint64), np.uint32, np.uint32([0, 2**31])),
        (np.array([True, False]), np.int8, np.int8([1, 0])),
        (np.array([3, 4]), np.float32, np.float32([3, 4])),
        (IMAGE.astype(np.uint8), np.uint8, IMAGE.astype(np.uint8).transpose(1, 2, 0)),
        (np.stack([IMAGE, IMAGE]), np.int32, np.stack([IMAGE, IMAGE]).transpose(0, 2, 3, 1).astype(np.int32)),
        (np.array([np.inf, np.nan]), np.float32, np.float32([np.inf, np.nan])),
        # An integer that wraps, a float that overflows, a fraction, and another shape.
        (np.array([0, 2**40 + 7]), np.int32, None),
        (np.array([-1, 0]), np.uint8, None),
        (np.array([0.0, 1e300]), np.float32, None),
        (np.array([0.0, 0.5]), np.uint8, None),
        (np.zeros(3), np.float32, None),
    ],
)
def test_observations_keep_their_values_or_are_refused(given, dtype, wanted):
    like = jax.ShapeDtypeStruct((5, 6, 2) if given.ndim > 2 else (2,), dtype)
    if wanted is None:
        with pytest.raises(ValueError, match=r"\['b'\]\[0\] of maze"):
            groups.convert_observation({"a": np.zeros(1), "b": (given,)}, {"a": np.zeros(1), "b": (like,)}, "maze")
        return
    converted = groups.convert_observation(given, like, "maze")
    assert converted.dtype == dtype
    np.testing.assert_array_equal(converted, wanted)
    traced = jax.jit(lambda x: groups.convert_observation(x, like, "maze"))(given)
    np.testing.assert_array_equal(traced, wanted)
