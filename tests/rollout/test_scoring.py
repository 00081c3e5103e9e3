"""Scores: every episode is played to its end, once; greedy takes the likeliest action, sampled draws; protocols."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import play, play_randomly
from volvox.envs import atari, envpool, from_functions
from volvox.networks import genotype_from_functions
from volvox.rollout import scoring
from volvox.types import TimeStep


def always(env, logits):
    """A network that gives the same logits everywhere."""
    return genotype_from_functions(
        lambda key: {"kernel": jnp.asarray([logits])},
        lambda params, observation: jnp.broadcast_to(params["kernel"][0], (observation.shape[0], len(logits))),
        env.spec,
    )


def scores(env, logits, **options):
    policy = always(env, logits).policy
    return play(env, policy, policy.init(jax.random.key(0)), **options)


def test_greedy_takes_the_likeliest_action():
    env = probes.corridor(length=5)
    best = scores(env, [0.0, 0.1], num_episodes=7)
    np.testing.assert_array_equal(best.returns, np.ones(7))
    np.testing.assert_array_equal(best.lengths, np.full(7, 5))
    worst = scores(env, [0.1, 0.0], num_episodes=3, max_episode_steps=6)
    np.testing.assert_array_equal(worst.returns, np.zeros(3))
    np.testing.assert_array_equal(worst.lengths, np.full(3, 6))


def test_an_episode_is_scored_once_while_longer_ones_go_on():
    """An episode's only reward, at its end, is its length; environments play on until the longest has ended."""

    def step(state, action, key):
        ends = state[1] <= 1
        return state.at[1].add(-1), jnp.where(ends, 1.0 * state[0], 0.0), ends

    env = from_functions(
        lambda key: jnp.tile(jax.random.randint(key, (), 1, 20), 2),  # length, and timesteps left
        step,
        lambda state: jnp.float32(state[1:]),
        name="once",
        num_envs=8,
        max_episode_steps=99,
        num_actions=2,
    )
    score = scores(env, [0.0, 1.0], num_episodes=20)
    assert len(set(score.lengths.tolist())) > 3
    np.testing.assert_array_equal(score.returns, score.lengths)


def test_waves_of_an_evaluation_play_different_episodes():
    score = scores(probes.countdown(low=1, high=60), [0.0, 1.0], num_episodes=12, num_envs=3)
    assert len({tuple(wave) for wave in score.lengths.reshape(4, 3)}) == 4


def test_sampled_actions_follow_the_distribution():
    """One step an episode, reward 1 for action 1 and -1 for action 0: the mean is the difference of probabilities."""
    env = probes.chosen_reward()
    assert scores(env, [0.0, 0.5], num_episodes=8).mean == 1
    drawn = scores(env, [0.0, 0.5], num_episodes=2_000, sampled=True)
    assert drawn.mean == pytest.approx(np.tanh(0.25), abs=0.065)


def test_the_seed_fixes_the_draws():
    env = probes.corridor()
    first, same, other = (
        scores(env, [0.0, 0.3], num_episodes=20, sampled=True, seed=seed).returns for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


def test_random_play_is_between_best_and_worst():
    random = play_randomly(probes.corridor(), num_episodes=50)
    assert 0 < random.low < random.mean < random.high < 1


def test_the_interval_is_that_of_the_mean():
    """95% of a normal mean's distribution lies within 1.96 standard errors."""
    returns = np.random.default_rng(1).normal(3, 2, 400).astype(np.float32)
    low, high = scoring._interval(returns)
    error = float(returns.std()) / 20
    assert low == pytest.approx(returns.mean() - 1.96 * error, abs=0.1 * error)
    assert high == pytest.approx(returns.mean() + 1.96 * error, abs=0.1 * error)
    one = scores(probes.corridor(length=5), [0.0, 0.1], num_episodes=1)
    assert one.low == one.mean == one.high == 1


def test_recurrent_state_is_carried():
    """A policy that counts its timesteps goes right, then left for ever: the return of a walk of that shape."""

    def apply(variables, observation, state):
        del variables, observation
        right = (state < 3).astype(jnp.float32)
        return jnp.stack([1 - right, right], axis=-1), state + 1

    env = probes.corridor(length=8, max_episode_steps=4)
    policy = always(env, [0.0, 0.0]).policy._replace(initial_state=jnp.zeros, apply=apply)
    np.testing.assert_array_equal(play(env, policy, (), num_episodes=2).returns, [2 / 8, 2 / 8])


@pytest.mark.slow
def test_atari_is_scored_with_sticky_actions_unless_asked_otherwise():
    """One action throughout: a lost life ends no episode."""
    game, calls = atari("Assault", episodic_life=True, noop_max=3, max_episode_steps=250), []
    env = game._replace(make=lambda seed, **options: calls.append(options) or game.make(seed, **options))
    idle = [1.0] + [0.0] * 6
    sticky = scores(env, idle, num_episodes=6)
    exact = scores(env, idle, protocol="exact")
    assert [call["repeat_action_probability"] for call in calls] == [0.25, 0.0]
    assert [call["episodic_life"] for call in calls] == [False, False]
    assert sticky.protocol == "sticky"
    assert exact.low is exact.high is None
    assert exact.human_normalized == pytest.approx((exact.mean - 222.4) / (742.0 - 222.4))
    assert exact.returns.size == 3
    np.testing.assert_array_equal(exact.returns, scores(env, idle, protocol="exact", seed=5).returns)
    with_life = scores(env, idle, protocol="fresh", num_episodes=2)
    assert with_life.lengths.max() < exact.lengths.min()


def test_random_actions_are_uniform_between_their_bounds():
    low, high = np.float32([-3.0, 1.0]), np.float32([1.0, 2.0])
    spec = probes.target(size=2).spec._replace(action_low=low, action_high=high)
    timestep = TimeStep(np.zeros((10_000, 2)), *[np.zeros(10_000)] * 4, {})
    drawn = scoring._random_actions(spec, timestep, np.random.default_rng(0))
    assert (drawn.shape, drawn.dtype) == ((10_000, 2), np.float32)
    np.testing.assert_allclose(drawn.min(0), low, atol=0.01)
    np.testing.assert_allclose(drawn.max(0), high, atol=0.01)
    np.testing.assert_allclose(drawn.mean(0), (low + high) / 2, atol=0.05)


def test_only_whole_games_of_atari_are_human_normalised():
    """A user's own environment may be called Pong, and in `fresh` episodes of single lives each life is one."""
    named = probes.corridor(num_envs=2)
    named = named._replace(spec=named.spec._replace(name="Pong"))
    assert scores(named, [0.0, 1.0], num_episodes=2).human_normalized is None
    plain = envpool("Breakout-v5", num_envs=2, max_episode_steps=20)
    assert scores(plain, [1.0, 0, 0, 0], num_episodes=2).human_normalized == pytest.approx((0.0 - 1.7) / (30.5 - 1.7))
    lives = atari("Breakout", episodic_life=True, num_envs=2, max_episode_steps=20)
    kinds = {"fresh": None, "sticky": pytest.approx((0.0 - 1.7) / (30.5 - 1.7))}
    found = {protocol: scores(lives, [1.0, 0, 0, 0], protocol=protocol, num_episodes=2) for protocol in kinds}
    assert {protocol: score.human_normalized for protocol, score in found.items()} == kinds


def test_episodes_that_never_end_are_cut(monkeypatch):
    """In CliffWalking a policy that walks into the wall stays there, and envpool takes no limit."""
    monkeypatch.setattr(scoring, "_LONGEST", 50)
    cliff = envpool("CliffWalking-v1", num_envs=2)
    score = scores(cliff, [0.0, 0.0, 0.0, 1.0], num_episodes=2)
    assert score.lengths.tolist() == [50, 50]


def test_returns_of_many_small_rewards_are_exact():
    score = scores(probes.endless(0.1, num_envs=2, max_episode_steps=499), [0.0, 1.0], num_episodes=2)
    np.testing.assert_allclose([score.mean, *score.returns], 49.9, rtol=1e-7)


def test_no_more_environments_exist_than_allowed_and_all_are_closed():
    env, open_now, most = probes.countdown(low=2, high=5), [0], [0]

    def make(seed, **options):
        (group,) = env.make(seed, **options)
        open_now[0] += group.num_envs
        most[0] = max(most[0], open_now[0])

        def close():
            open_now[0] -= group.num_envs
            group.close()

        return (group._replace(close=close),)

    counted = env._replace(make=make)
    few = scores(counted, [0.0, 1.0], num_episodes=7, num_envs=3)
    assert (most, open_now, few.returns.size) == ([3], [0], 7)
    policy = always(env, [0.0, 1.0]).policy._replace(mode=lambda output: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        play(counted, policy, policy.init(jax.random.key(0)), num_episodes=2)
    assert open_now == [0]


@pytest.mark.slow
def test_each_start_is_played_once_with_few_environments():
    env = atari("Assault", noop_max=3, max_episode_steps=100)
    whole = scores(env, [1.0] + [0.0] * 6, protocol="exact")
    few = scores(env, [1.0] + [0.0] * 6, protocol="exact", num_envs=2)
    np.testing.assert_array_equal(few.returns, whole.returns)


def test_bad_requests_raise():
    env, game = probes.corridor(), atari("Pong")
    with pytest.raises(ValueError, match="sticky"):
        scores(env, [0.0, 1.0], protocol="sticky")
    for options in ({"num_episodes": 30}, {"sampled": True}):
        with pytest.raises(ValueError, match="exact"):
            scores(game, [0.0] * 6, protocol="exact", **options)
    with pytest.raises(ValueError, match="exact"):
        play_randomly(game, protocol="exact")
    target = probes.target(size=2)
    low = np.float32([-1.0, -np.inf])
    unbounded = target._replace(spec=target.spec._replace(action_low=low))
    with pytest.raises(ValueError, match="bounds"):
        play_randomly(unbounded)
    with pytest.raises(ValueError, match="no distribution"):
        scores(target, [0.0, 1.0], sampled=True)
