import jax
import numpy as np
import probes
import pytest


def play(env, choose, steps, seed=0):
    """TimeSteps `[T, B]` under `choose(observation, rng) -> action`, and the actions that led to each, `[T, B]`."""
    (group,) = env.make(seed, num_groups=1, host=True)
    rng, state = np.random.default_rng(seed), group.init()
    seen, actions = [], []
    for _ in range(steps):
        state, step = group.recv(state)
        seen.append(step)
        actions.append(choose(step.observation, rng))
        state = group.send(state, actions[-1])
    return jax.tree.map(lambda *leaves: np.stack(leaves), *seen), np.stack([actions[0], *actions[:-1]])


def returns_of(step):
    """Undiscounted returns of all finished episodes."""
    finished = []
    for column in range(step.reward.shape[1]):
        total = 0.0
        for beat in range(step.reward.shape[0]):
            total = 0.0 if step.first[beat, column] else total + float(step.reward[beat, column])
            if step.terminated[beat, column] or step.truncated[beat, column]:
                finished.append(total)
    return np.array(finished)


def coin(observation, rng):
    return rng.integers(0, 2, observation.shape[0])


def always(action):
    return lambda observation, rng: np.full(observation.shape[0], action)


def test_rewards_of_single_timesteps():
    assert (returns_of(play(probes.constant(), coin, 20)[0]) == 1).all()
    step, _ = play(probes.observed_reward(num_envs=16), coin, 40)
    begins, ends = step.first[:-1], step.terminated[1:]
    np.testing.assert_array_equal(step.observation[:-1, :, 0][begins], step.reward[1:][ends])
    step, _ = play(probes.delayed_reward(), coin, 30)
    np.testing.assert_array_equal(step.reward[:9, 0], [0, 0, 1] * 3)
    step, actions = play(probes.chosen_reward(), coin, 40)
    np.testing.assert_array_equal(step.reward[step.terminated], 2.0 * actions[step.terminated] - 1.0)


def test_matched_reward():
    env = probes.matched_reward(num_envs=32)
    best, _ = play(env, lambda observation, rng: (observation[:, 0] > 0).astype(int), 40)
    assert (returns_of(best) == 1).all()
    for blind in (always(0), coin):
        assert abs(returns_of(play(env, blind, 60)[0]).mean()) < 0.15


def test_countdown():
    step, _ = play(probes.countdown(low=2, high=5, num_envs=32), coin, 100)
    assert set(step.observation[step.first][:, 0]) == {2.0, 3.0, 4.0, 5.0}
    going_on = ~step.first[1:]
    np.testing.assert_array_equal(step.observation[1:, :, 0][going_on], step.observation[:-1, :, 0][going_on] - 1)
    np.testing.assert_array_equal(step.terminated, (step.observation[..., 0] == 0))
    assert set(returns_of(step)) == {2.0, 3.0, 4.0, 5.0}
    np.testing.assert_array_equal(step.reward, ~step.first)
    cut, _ = play(probes.countdown(low=2, high=5, num_envs=32, max_episode_steps=3), coin, 100)
    assert set(returns_of(cut)) == {2.0, 3.0}
    np.testing.assert_array_equal(cut.truncated, (cut.extras["elapsed_steps"] == 3) & (cut.observation[..., 0] > 0))


def test_corridor():
    env = probes.corridor(length=4)
    best, _ = play(env, always(1), 25)
    np.testing.assert_allclose(returns_of(best), 1.0)
    assert best.extras["elapsed_steps"].max() == 4
    assert not best.truncated.any()
    worst, _ = play(env, always(0), 25)
    assert (returns_of(worst) == 0).all()
    assert worst.truncated.any()
    between = returns_of(play(env, coin, 200)[0]).mean()
    assert 0.1 < between < 0.9


def test_target():
    env = probes.target(size=3, max_episode_steps=5, num_envs=32)
    best, _ = play(env, lambda observation, rng: observation, 30)
    assert (returns_of(best) == 0).all()
    nothing, _ = play(env, lambda observation, rng: np.zeros_like(observation), 120)
    assert returns_of(nothing).mean() == pytest.approx(-5 / 3, rel=0.05)
    constant, _ = play(env, lambda observation, rng: np.full_like(observation, 0.5), 120)
    assert returns_of(constant).mean() == pytest.approx(-5 * (1 / 3 + 0.25), rel=0.05)
