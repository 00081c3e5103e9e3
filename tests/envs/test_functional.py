from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import envs


def keep(state, action, key):
    return state, state, state > 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"step": lambda state, action, key: (state[None], state, state > 0)}, AssertionError),
        ({"step": lambda state, action, key: (state.astype(int), state, state > 0)}, AssertionError),
        ({"step": lambda state, action, key: (state, state[None], state > 0)}, ValueError),
        ({"action_shape": (1,)}, ValueError),  # and num_actions
        ({"num_actions": None}, ValueError),
        ({"num_actions": None, "action_shape": (1,), "action_low": 1.0, "action_high": 1.0}, ValueError),
        ({"num_actions": None, "action_shape": (1,), "action_low": np.zeros(2)}, ValueError),
    ],
)
def test_functions_that_do_not_fit_are_refused(arguments, error):
    def make(**changes):
        given = {
            "reset": lambda key: jnp.float32(0),
            "step": keep,
            "observe": lambda state: state[None],
            "name": "mine",
            "num_envs": 2,
            "max_episode_steps": 3,
            "num_actions": 2,
        }
        return envs.from_functions(**given | changes)

    env = make()
    assert env.spec.observation_shape == (1,)
    assert env.config["type"] == "volvox.envs.from_functions"
    assert env.config["step"] is keep
    assert envs.from_functions(**{key: env.config[key] for key in env.config if key != "type"}).spec == env.spec
    with pytest.raises(error):
        make(**arguments)


class Walk(NamedTuple):
    key: jax.Array
    position: jax.Array
    left: jax.Array


@pytest.mark.parametrize("size", [1, 3, 8])
def test_resets_in_batches_are_the_same_resets(size, drive, actions_for, assert_equal):
    """Episodes of different lengths; the state holds a key, and the reset takes many steps."""

    def reset(key):
        total = jax.lax.fori_loop(0, 20, lambda i, x: x + jax.random.normal(jax.random.fold_in(key, i)), 0.0)
        return Walk(key, total, jax.random.randint(key, (), 1, 6))

    def step(state, action, key):
        moved = state.position + jax.random.normal(key)
        return Walk(key, moved, state.left - 1), moved, state.left <= 1

    def play(reset_batch):
        env = envs.from_functions(
            reset,
            step,
            lambda state: {"position": state.position},
            name="walk",
            num_envs=5,
            max_episode_steps=4,
            num_actions=2,
            reset_batch=reset_batch,
        )
        (group,) = env.make(0)
        return drive(group, actions_for(env, 20), restart_at=7)

    assert_equal(play(size), play(None))


def test_the_state_is_all_there_is(drive, actions_for, assert_equal):
    """A state that was kept plays on the same way, in another group of the same recipe too."""
    env = probes.countdown()
    (one,), (other,) = env.make(0), env.make(0)
    state = one.init()
    for action in actions_for(env, 7):
        state, _ = one.recv(state)
        state = one.send(state, action)
    assert_equal(jax.device_get(one.recv(state)[1]), jax.device_get(other.recv(state)[1]))


def test_bounds_are_of_each_component_and_reach_the_spec():
    env = envs.from_functions(
        lambda key: jnp.zeros(2),
        lambda state, action, key: (action, action.sum(), False),
        lambda state: state,
        name="pair",
        num_envs=2,
        max_episode_steps=3,
        action_shape=(2,),
        action_low=[-1, 0],
        action_high=3,
    )
    np.testing.assert_array_equal(env.spec.action_low, np.array([-1, 0], np.float32))
    np.testing.assert_array_equal(env.spec.action_high, np.array([3, 3], np.float32))
    assert env.spec.action_low.dtype == env.spec.action_high.dtype == np.float32
    # Bounds are what a policy should know; they are not enforced.
    (group,) = env.make(0)
    state, _ = group.recv(group.init())
    _, step = group.recv(group.send(state, np.full((2, 2), 9.0, np.float32)))
    np.testing.assert_array_equal(step.observation, np.full((2, 2), 9.0))


def test_another_group_seed_or_cutoff_compiles_nothing_twice():
    traced = []

    def step(state, action, key):
        traced.append(None)
        return state, state, False

    env = envs.from_functions(
        lambda key: jnp.float32(0),
        step,
        lambda state: state[None],
        name="x",
        num_envs=4,
        groups=2,
        max_episode_steps=3,
        num_actions=2,
    )
    before = len(traced)
    for seed in (0, 1):
        for group in env.make(seed, max_episode_steps=3 + seed, host=seed == 1):
            group.recv(group.send(group.recv(group.init())[0], np.zeros(2, np.int32)))
    assert len(traced) == before + 1
