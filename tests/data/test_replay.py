"""Replay against a list of everything that happened."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox.data.replay import add, filled, init, num_rows, num_starts, sample, sample_batches
from volvox.types import TimeStep

B, DISCOUNT = 3, 0.9
SPEC = probes.target(size=1).spec
ADD = jax.jit(add)


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


def filled_replay(seen, capacity):
    replay = init(capacity, B, SPEC)
    for t in range(len(seen["reward"])):
        fields = {name: jnp.asarray(seen[name][t]) for name in seen if name != "action"}
        replay = ADD(replay, TimeStep(**fields, extras={}), jnp.asarray(seen["action"][t]))
    return replay


@functools.partial(jax.jit, static_argnums=(2, 3))
def drawn(key, replay, batch_size, n_step):
    return sample(key, replay, batch_size, discount=DISCOUNT, n_step=n_step)


def expected(seen, t, env, n_step):
    """One transition by the definition."""
    reward, weight = 0.0, 1.0
    for step in range(1, n_step + 1):
        reward += weight * seen["reward"][t + step, env]
        weight *= DISCOUNT
        if seen["terminated"][t + step, env]:
            return reward, 0.0, seen["observation"][t + step, env]
        if seen["truncated"][t + step, env]:
            return reward, weight, seen["observation"][t + step, env]
    return reward, weight, seen["observation"][t + n_step, env]


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize(("length", "capacity"), [(9, 20), (20, 20), (47, 20)])
def test_transitions_are_what_happened(length, capacity, n_step):
    seen = history(length)
    replay = filled_replay(seen, capacity)
    batch = drawn(jax.random.key(1), replay, 2_000, n_step)
    batch = jax.device_get(batch)
    oldest = max(length - capacity, 0)
    places = set()
    for i in range(2_000):
        t, env = divmod(int(batch.observation[i, 0]), B)
        places.add((t, env))
        assert batch.valid[i] == (not seen["first"][t + 1, env])
        if not batch.valid[i]:
            continue
        reward, discount, following = expected(seen, t, env, n_step)
        np.testing.assert_array_equal(batch.action[i], seen["action"][t, env])
        np.testing.assert_allclose(batch.reward[i], reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.discount[i], discount, rtol=1e-6)
        np.testing.assert_array_equal(batch.next_observation[i], following)
    assert places == {(t, env) for t in range(oldest, length - n_step) for env in range(B)}
    assert num_starts(replay, n_step) == length - n_step - oldest


def test_steps_end_where_environments_were_started_anew():
    seen = history(12)
    for name in ("first", "terminated", "truncated"):
        seen[name][1:] = False
    seen["first"][6] = True
    batch = drawn(jax.random.key(0), filled_replay(seen, 20), 500, 3)
    batch = jax.device_get(batch)
    for i in range(500):
        t, env = divmod(int(batch.observation[i, 0]), B)
        if t in (4, 5):
            assert batch.valid[i] == (t == 4)
        if t == 4:
            assert batch.discount[i] == np.float32(DISCOUNT)
            assert batch.reward[i] == seen["reward"][5, env]
            np.testing.assert_array_equal(batch.next_observation[i], seen["observation"][5, env])


def test_the_count_of_rows_stays_small():
    """It would overflow otherwise; places go on as they were."""
    rows, no = init(3, 1, SPEC), jnp.zeros(1, bool)
    for i in range(14):
        rows = ADD(rows, TimeStep(jnp.full((1, 1), float(i)), jnp.zeros(1), no, no, no, {}), jnp.zeros((1, 1)))
        assert int(rows.num_added) == (i + 1 if i < 3 else 3 + (i + 1) % 3)
        assert float(rows.timestep.observation[i % 3, 0, 0]) == i
        assert int(num_starts(rows, 1)) == min(i, 2)


def test_batches_are_drawn_from_all_groups_alike():
    """Of two groups of four environments, each of which observes its own number."""
    replays, no = [], jnp.zeros(4, bool)
    for g in range(2):
        seen = TimeStep(4.0 * g + jnp.arange(4.0)[:, None], jnp.zeros(4), no, no, no, {})
        rows = init(5, 4, SPEC)
        for _ in range(5):
            rows = ADD(rows, seen, jnp.zeros((4, 1)))
        replays.append(rows)
    draw = jax.jit(lambda key, replays: sample_batches(key, replays, 64, 3, discount=DISCOUNT))
    batch = draw(jax.random.key(0), replays)
    assert batch.observation.shape == (3, 64, 1)
    for drawn in np.asarray(batch.observation)[..., 0]:
        assert set(drawn.tolist()) == set(range(8))
        assert (drawn < 4).sum() == 32


def test_under_vmap_rows_are_added_in_place():
    """The count is the same for all learners, so that adding is one update slice and no scatter."""
    rows, no = init(5, 4, SPEC), jnp.zeros(4, bool)
    seen = TimeStep(jnp.zeros((4, 1)), jnp.zeros(4), no, no, no, {})
    several = jax.tree.map(lambda x: jnp.stack([x, x]), (rows, seen, jnp.zeros((4, 1))))
    text = jax.jit(jax.vmap(add)).lower(*several).compile().as_text()
    assert " dynamic-update-slice(" in text
    assert not re.search(r" (scatter|while)\(", text)


def test_a_replay_is_filled_by_timesteps_or_to_its_end():
    replay = filled_replay(history(9), 20)
    assert filled([replay], 9 * B, 1)
    assert not filled([replay], 9 * B + 1, 1)
    assert not filled([replay], 1, 9)  # no transition of nine timesteps
    assert filled([filled_replay(history(20), 20)], 1_000, 1)
    assert not filled([replay, init(20, B, SPEC)], 1, 1)


def test_whole_rows_of_a_replay():
    assert num_rows(39, 8, 32, 3) == 4
    with pytest.raises(ValueError, match="40"):
        num_rows(39, 8, 32, 4)
