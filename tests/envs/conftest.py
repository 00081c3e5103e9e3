import jax
import numpy as np
import pytest


def actions_for(env, steps, seed=0):
    """Recorded actions `[steps, B, ...]` for one group of all of `env`'s environments."""
    rng = np.random.default_rng(seed)
    spec = env.spec
    if spec.num_actions is not None:
        return rng.integers(0, spec.num_actions, (steps, env.num_envs)).astype(np.int32)
    shape = (steps, env.num_envs, *spec.action_shape)
    return rng.uniform(spec.action_low, spec.action_high, shape).astype(np.float32)


def drive(group, actions, *, restart_at=None):
    """Plays recorded actions from Python; returns TimeSteps with leaves `[T, B, ...]`, numpy.

    After the beat `restart_at` everything is restarted, which shows as one more TimeStep.
    """
    recv, send = (jax.jit(group.recv), jax.jit(group.send)) if group.traceable else (group.recv, group.send)
    state, seen = group.init(), []
    for beat, action in enumerate(actions):
        state, step = recv(state)
        seen.append(jax.device_get(step))
        if beat == restart_at:
            state = group.restart(state)
            state, step = recv(state)
            seen.append(jax.device_get(step))
        state = send(state, action)
    state, step = recv(state)
    seen.append(jax.device_get(step))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *seen)


def assert_equal(one, other):
    """Bit-equal, dtypes included."""

    def check(x, y):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)

    jax.tree.map(check, one, other)


@pytest.fixture(name="drive", scope="session")
def _drive():
    return drive


@pytest.fixture(name="actions_for", scope="session")
def _actions_for():
    return actions_for


@pytest.fixture(name="assert_equal", scope="session")
def _assert_equal():
    return assert_equal
