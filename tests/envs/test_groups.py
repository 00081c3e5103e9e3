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


def test_a_time_step_of_other_shapes_is_refused():
    ends = jnp.zeros(3, bool)
    with pytest.raises(AssertionError, match="shapes"):
        groups.consistent(TimeStep(jnp.zeros((3, 1)), jnp.zeros((3, 1)), ends, ends, ends, {}))


def test_actions_are_checked_and_clipped_to_the_bounds_of_each_component():
    assert groups.checked_action(PAIR, 3, np.zeros((3, 2))).shape == (3, 2)
    with pytest.raises(ValueError, match=r"actions of pair must have shape \(3, 2\), got \(2, 3\)"):
        groups.checked_action(PAIR, 3, np.zeros((2, 3)))
    clipped = jax.jit(lambda action: groups.bounded_action(PAIR, action))(jnp.array([[-2.0, -2.0], [5.0, 5.0]]))
    np.testing.assert_array_equal(clipped, [[-1, 0], [1, 3]])
    within = np.array([[-1.0, 0.0], [1.0, 3.0 + 1e-6]], np.float32)
    np.testing.assert_array_equal(groups.bounded_action(PAIR, within), [[-1, 0], [1, 3]])
    with pytest.raises(ValueError, match=r"an action of -0\.5 is outside of pair's bounds, 0 to 3 for component"):
        groups.bounded_action(PAIR, np.array([[0.0, 1.0], [0.0, -0.5]]))
    with pytest.raises(FloatingPointError, match="an action for pair is NaN: the parameters of the policy"):
        groups.bounded_action(PAIR, np.array([[0.0, 1.0], [0.0, np.nan]]))


def test_a_bound_beside_an_infinite_one_holds():
    spec = PAIR._replace(action_low=np.array([0.0, -np.inf], np.float32), action_high=np.full(2, np.inf, np.float32))
    groups.bounded_action(spec, np.array([[1e30, -1e30]]))
    with pytest.raises(ValueError, match=r"an action of -0.5 .*, 0 to inf for component \[0\]"):
        groups.bounded_action(spec, np.array([[-0.5, 0.0]]))


@pytest.mark.parametrize("xp", [np, jnp])
def test_discrete_actions_are_clipped(xp):
    spec = probes.constant().spec
    np.testing.assert_array_equal(groups.bounded_action(spec, xp.array([-3, 0, 1, 9])), [0, 0, 1, 1])


def test_bounds_are_numbers_or_arrays():
    low, high = groups.action_bounds(-2, [0.5, 1.5], (2,))
    assert low.dtype == high.dtype == np.float32
    np.testing.assert_array_equal(low, [-2, -2])
    np.testing.assert_array_equal(high, [0.5, 1.5])
    assert groups.action_bounds(-1.0, np.inf, ())[1] == np.inf
    for wrong in ((0.0, [1.0, 0.0]), ([0.0] * 3, 1.0), (np.nan, 1.0)):
        with pytest.raises(ValueError, match=r"action_low must be below action_high, .* of shape \(2,\)"):
            groups.action_bounds(*wrong, (2,))


@pytest.mark.parametrize("host", [False, True])
def test_a_wrapper_sees_and_changes_everything_and_starts_anew_at_a_restart(host):
    class Late:
        """Shows the number of timesteps since it was started, and plays the opposite action."""

        def init(self, num_envs):
            return np.zeros(num_envs, np.int32)

        def observe(self, count, timestep):
            assert groups.array_module(count) is groups.array_module(timestep.first)
            return count + 1, timestep._replace(extras={**timestep.extras, "count": count})

        def act(self, count, action):
            return 1 - action

    corridor = probes.corridor(length=4, num_envs=2)
    env = groups.wrapped(corridor, Late(), spec=corridor.spec._replace(name="late"), hidden_steps=2, late=np.int32(3))
    inner = {name: value for name, value in corridor.config.items() if name != "made_by"}  # which makes it unwrapped
    assert env.config == {**inner, "late": 3}
    (group,) = env.make(0, max_episode_steps=3, host=host)
    assert (group.spec.name, group.spec.max_episode_steps) == ("late", 3)
    state, counts, ends = group.init(), [], []
    for beat in range(8):
        state, timestep = group.recv(state)
        counts.append(int(timestep.extras["count"][0]))
        ends.append(bool(timestep.truncated[0] | timestep.terminated[0]))
        if beat == 1:
            state, timestep = group.recv(group.restart(state))
            assert timestep.first.all()
            assert (timestep.extras["count"] == 0).all()
        state = group.send(state, np.ones(2, np.int32))
    # It walks left all the time, and is truncated two timesteps after the cutoff that is shown.
    assert counts == [0, 1, 1, 2, 3, 4, 5, 6]
    assert ends == [False] * 6 + [True, False]
    with pytest.raises(ValueError, match="max_episode_steps must be an integer of at least 1, got 0"):
        env.make(0, max_episode_steps=0)


def test_recipes_say_what_they_are():
    made = []

    def make_group(spec, num_envs, *, index, seed, host):
        made.append((spec.max_episode_steps, num_envs, index, seed, host))
        return EnvGroup(spec, num_envs, not host, lambda: index, *[lambda *_: None] * 4)

    env = groups.recipe(
        PAIR, make_group, num_envs=np.int64(6), groups=2, environment="pair", settings={"a": np.ones(2)}
    )
    assert env.config == {"environment": "pair", "settings": {"a": [1.0, 1.0]}, "num_envs": 6, "groups": 2}
    assert [group.init() for group in env.make(3)] == [0, 1]
    assert len(env.make(3, max_episode_steps=9, num_envs=3, num_groups=1, host=True)) == 1
    assert made == [(8, 3, 0, 3, False), (8, 3, 1, 3, False), (9, 3, 0, 3, True)]
    with pytest.raises(ValueError, match="multiple of groups"):
        groups.recipe(PAIR, make_group, num_envs=6, groups=4)


@pytest.mark.parametrize("host", [False, True])
def test_wrong_recipes_are_told(host):
    env = probes.target(num_envs=3)
    with pytest.raises(ValueError, match="multiple of groups"):
        env.make(0, num_groups=4, host=host)
    with pytest.raises(ValueError, match="max_episode_steps must be an integer of at least 1, got 0"):
        env.make(0, max_episode_steps=0, host=host)
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got -1"):
        env.make(-1, host=host)
