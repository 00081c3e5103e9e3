"""Environments with known answers that the tests of several learners use."""

import jax
import jax.numpy as jnp
import pytest

from volvox import learn
from volvox.envs.functional import from_functions
from volvox.learners.training import Training
from volvox.rollout.devices import SINGLE_DEVICE
from volvox.rollout.loop import LoopState


@pytest.fixture
def recall():
    """Shows -1 or 1, then 0; then the action is rewarded if it names the number that was shown."""

    def step(state, action, key):
        shown, t = state
        right = (action == 1) == (shown > 0)
        return (shown, t + 1), jnp.where(t == 1, jnp.where(right, 1.0, -1.0), 0.0), t == 1

    return from_functions(
        lambda key: (jnp.where(jax.random.bernoulli(key), 1.0, -1.0), jnp.int32(0)),
        step,
        lambda state: jnp.where(state[1] == 0, state[0], 0.0)[None],
        name="recall",
        max_episode_steps=10,
        num_envs=16,
        num_actions=2,
    )


@pytest.fixture
def begun():
    """A function that returns (stages of the loop, its state at the beginning, constants, groups) of a learner."""

    def make(settings, network, env):
        several = settings if isinstance(settings, list) else [settings]
        run = Training(several, network, env, False, SINGLE_DEVICE)
        groups = run.loop.make_groups(0)
        initial, envs = run.init(jax.random.key(0)), tuple(group.init() for group in groups)
        state = jax.tree.map(jnp.copy, LoopState(envs, run.begin(initial.acting), initial.learning))
        return run.loop.stages, state, run.constants(initial._replace(key=run.keys(jax.random.key(1))[1])), groups

    return make


@pytest.fixture
def trained():
    """A function that returns (algorithm, state, row) after one iteration."""

    def make(settings, network, env, seed=0, **options):
        algorithm = learn(settings, network, env, **options)
        state, row = algorithm.step(algorithm.init(seed))
        algorithm.close()
        return algorithm, state, row

    return make
