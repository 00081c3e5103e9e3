import jax
import numpy as np
import pytest


def actions_for(env, num_timesteps, num_envs=None, seed=0):
    """Random actions `[T, B, ...]` of one group; without a bound, within 1 of the other one, or of 0."""
    rng, spec = np.random.default_rng(seed), env.spec
    shape = (num_timesteps, num_envs or env.num_envs, *(spec.action_shape or ()))
    if not spec.continuous:
        return rng.integers(0, spec.num_choices or spec.num_actions, shape).astype(np.int32)
    low = np.where(np.isfinite(spec.action_low), spec.action_low, np.nan_to_num(spec.action_high, posinf=0.0) - 1)
    high = np.where(np.isfinite(spec.action_high), spec.action_high, np.nan_to_num(spec.action_low, neginf=0.0) + 1)
    return rng.uniform(low, high, shape).astype(np.float32)


def drive(group, actions, *, restart_at=None, state=None):
    """Plays actions `[T, B, ...]` from Python; returns time steps `[T + 1, B, ...]`, one more with a restart."""
    recv, send = (jax.jit(group.recv), jax.jit(group.send)) if group.traceable else (group.recv, group.send)
    state, played = group.init() if state is None else state, []
    for beat, action in enumerate(actions):
        state, step = recv(state)
        played.append(jax.device_get(step))
        if beat == restart_at:
            state, step = recv(group.restart(state))
            played.append(jax.device_get(step))
        state = send(state, action)
    played.append(jax.device_get(recv(state)[1]))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *played)


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
