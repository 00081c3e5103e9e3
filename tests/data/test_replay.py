"""Replay against a list of everything that happened."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.data.replay import append, empty, num_starts, sample
from volvox.envs import probe
from volvox.types import TimeStep

B, DISCOUNT = 3, 0.9
SPEC = probe.target(size=1).spec


def history(length, seed=0):
    """Episodes of random lengths that end either way: fields `[length, B]`, numpy."""
    random = np.random.default_rng(seed)
    ended = random.uniform(size=(length, B)) < 0.3
    first = np.zeros((length, B), bool)
    first[0] = True
    for t in range(1, length):
        ended[t] &= ~first[t]
        first[t] = ended[t - 1]
        ended[t] &= ~first[t]
    by_rules = random.uniform(size=(length, B)) < 0.5
    return {
        "observation": np.arange(length * B, dtype=np.float32).reshape(length, B, 1),
        "action": random.normal(size=(length, B, 1)).astype(np.float32),
        "reward": np.where(first, 0, random.normal(size=(length, B))).astype(np.float32),
        "first": first,
        "terminated": ended & by_rules,
        "truncated": ended & ~by_rules,
    }


def filled(seen, capacity):
    replay = empty(capacity, B, SPEC)
    add = jax.jit(append)
    for t in range(len(seen["reward"])):
        fields = {name: jnp.asarray(seen[name][t]) for name in seen if name != "action"}
        replay = add(replay, TimeStep(**fields, extras={}), jnp.asarray(seen["action"][t]))
    return replay


def expected(seen, t, env, num_steps):
    """One transition by the definition."""
    reward, weight = 0.0, 1.0
    for step in range(1, num_steps + 1):
        reward += weight * seen["reward"][t + step, env]
        weight *= DISCOUNT
        if seen["terminated"][t + step, env]:
            return reward, 0.0, seen["observation"][t + step, env]
        if seen["truncated"][t + step, env]:
            return reward, weight, seen["observation"][t + step, env]
    return reward, weight, seen["observation"][t + num_steps, env]


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize(("length", "capacity"), [(9, 20), (20, 20), (47, 20)])
def test_transitions_are_what_happened(length, capacity, num_steps):
    seen = history(length)
    replay = filled(seen, capacity)
    batch = sample(jax.random.key(1), replay, 2_000, discount=DISCOUNT, num_steps=num_steps)
    batch = jax.device_get(batch)
    oldest = max(length - capacity, 0)
    places = set()
    for i in range(2_000):
        t, env = divmod(int(batch.observation[i, 0]), B)
        places.add((t, env))
        assert batch.valid[i] == (not seen["first"][t + 1, env])
        if not batch.valid[i]:
            continue
        reward, discount, following = expected(seen, t, env, num_steps)
        np.testing.assert_array_equal(batch.action[i], seen["action"][t, env])
        np.testing.assert_allclose(batch.reward[i], reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.discount[i], discount, rtol=1e-6)
        np.testing.assert_array_equal(batch.following[i], following)
    assert places == {(t, env) for t in range(oldest, length - num_steps) for env in range(B)}
    assert num_starts(replay, num_steps) == length - num_steps - oldest


def test_some_environments_alone():
    replay = filled(history(9), 20)
    batch = sample(jax.random.key(0), replay, 500, discount=DISCOUNT, envs=(1, 2))
    assert set((np.asarray(batch.observation[:, 0]).astype(int) % B).tolist()) == {1}


def test_steps_end_where_environments_were_started_anew():
    seen = history(12)
    for name in ("first", "terminated", "truncated"):
        seen[name][1:] = False
    seen["first"][6] = True
    batch = sample(jax.random.key(0), filled(seen, 20), 500, discount=DISCOUNT, num_steps=3)
    batch = jax.device_get(batch)
    for i in range(500):
        t, env = divmod(int(batch.observation[i, 0]), B)
        if t in (4, 5):
            assert batch.valid[i] == (t == 4)
        if t == 4:
            assert batch.discount[i] == np.float32(DISCOUNT)
            assert batch.reward[i] == seen["reward"][5, env]
            np.testing.assert_array_equal(batch.following[i], seen["observation"][5, env])


def test_nothing_may_begin_in_an_empty_ring():
    assert num_starts(empty(5, B, SPEC), 1) == 0
