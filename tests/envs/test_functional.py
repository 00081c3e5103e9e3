import os
import pty
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import envs


class Pair(NamedTuple):
    x: jax.Array
    y: jax.Array


def test_the_hash_of_what_is_computed_is_the_same_in_a_terminal():
    """Where JAX prints in colours."""
    program = "import sys; import probes; sys.stderr.write(probes.corridor(num_envs=2).config{})"
    program = program.format("['settings']['code']")
    ours, theirs = pty.openpty()
    with os.fdopen(ours), os.fdopen(theirs) as terminal:
        done = subprocess.run([sys.executable, "-c", program], stdout=terminal, stderr=subprocess.PIPE, text=True)
    assert done.stderr.endswith(probes.corridor(num_envs=2).config["settings"]["code"])


def test_functions_that_do_not_fit_are_told():
    def make(step, **arguments):
        return envs.from_functions(
            step=step,
            **{
                "reset": lambda key: jnp.float32(0),
                "observe": lambda state: state[None],
                "name": "mine",
                "num_envs": 2,
                "max_episode_steps": 3,
                "num_actions": 2,
                **arguments,
            },
        )

    def keep(state, action, key):
        return state, state, state > 0

    assert make(keep).spec.observation_shape == (1,)
    with pytest.raises(ValueError, match="keep the structure, shapes and dtypes of the state"):
        make(lambda state, action, key: (state[None], state, state > 0))
    named = {"reset": lambda key: Pair(jnp.zeros(()), jnp.zeros(())), "observe": lambda state: state.x[None]}
    with pytest.raises(ValueError, match=r"keep the structure, .* of the state: got \(\(\(\), .* from Pair\(x="):
        make(lambda state, action, key: ((state.x, state.y), 0.0, False), **named)
    with pytest.raises(ValueError, match="scalar reward"):
        make(lambda state, action, key: (state, state[None], state > 0))
    with pytest.raises(ValueError, match="exactly one of num_actions, num_choices and action_shape"):
        make(keep, action_shape=(1,))
    with pytest.raises(ValueError, match="exactly one of num_actions, num_choices and action_shape"):
        make(keep, num_actions=None)
    with pytest.raises(ValueError, match="action_low must be below action_high"):
        make(keep, num_actions=None, action_shape=(1,), action_low=1.0, action_high=1.0)
    with pytest.raises(ValueError, match=r"action_low must be below action_high, .* of shape \(1,\)"):
        make(keep, num_actions=None, action_shape=(1,), action_low=np.zeros(2))
    with pytest.raises(ValueError, match="extras must give a dict without 'elapsed_steps'"):
        make(keep, extras=lambda state: {"elapsed_steps": state})
    with pytest.raises(ValueError, match="high must be an integer of at least 4, got 3"):
        probes.countdown(low=4, high=3)


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
