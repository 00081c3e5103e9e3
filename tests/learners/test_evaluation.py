"""Evaluation while learners learn: its numbers, the best policy, and that training does not notice it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from flax import linen as nn

from volvox import A3C, TD3, learn, play
from volvox.envs import atari
from volvox.learners.evaluation import Evaluated, PolicyEvaluator, add_evaluation
from volvox.networks import MLP, ActorAndCritic, ActorCritic, QNetwork
from volvox.types import Interrupted

ENV = probes.corridor(length=4, num_envs=8, groups=2)
NETWORK = ActorCritic(2, MLP(8, hidden=()))
SETTINGS = A3C(segment_length=5, optimizer=optax.adam, learning_rate=1e-2, updates_per_iteration=20)


def make(**options):
    return learn(SETTINGS, NETWORK, ENV, **options)


def unknown(*candidates):
    return Evaluated(candidates[0], jnp.float32(-jnp.inf), 0, 0, jnp.full(len(candidates), -jnp.inf), 0)


NOT_PLAYED = np.zeros(0, np.float32)


def best_of(row):
    """The mean of the best policy, the episodes in it, and the timesteps at which it was chosen."""
    return tuple(row[f"evaluation_best{name}"] for name in ("", "_episodes", "_timesteps"))


def test_the_numbers_of_an_evaluation():
    returns = np.float32([[1, 2, 3], [4, 6, 11]])
    known = unknown({"w": 0.0}, {"w": 1.0})
    policies = [{"w": 10.0}, {"w": 20.0}]
    known, row = add_evaluation(known, policies.__getitem__, returns, NOT_PLAYED, timesteps=100, frames=50)
    assert row["evaluation_mean"] == 4.5
    assert best_of(row) == (7.0, 3, 100)
    assert row["evaluation_mean_each"] == [2.0, 7.0]
    # Variances 1 and 13 of episodes, of which three make a mean; then the mean of two of these.
    assert row["evaluation_standard_error"] == pytest.approx(np.sqrt(1 / 3 + 13 / 3) / 2)
    assert (row["evaluation_timesteps"], row["evaluation_frames"]) == (100, 50)
    again, policy_of = np.float32([[6, 5, 4]]), [{"w": 30.0}, {"w": 40.0}].__getitem__
    worse, row = add_evaluation(known, policy_of, returns[::-1] - 3, again, timesteps=200, frames=7)
    assert worse.variables == {"w": 20.0}
    assert (row["evaluation_mean"], row["evaluation_frames"]) == (1.5, 57)
    assert best_of(row) == (6.0, 6, 100)
    np.testing.assert_array_equal(worse.latest, [4.0, -1.0])
    lucky, now = np.float32([[6.5], [0]]), np.float32([[7]])
    _, row = add_evaluation(worse, policy_of, lucky, now, timesteps=300, frames=7)
    assert best_of(row) == (pytest.approx(43 / 7), 7, 100)  # 6.5 is larger than this, but not than 7
    _, row = add_evaluation(worse, policy_of, returns - 3, again - 8, timesteps=300, frames=7)
    assert best_of(row) == (4.0, 3, 300)  # larger than 3, the mean over nine episodes
    _, row = add_evaluation(unknown(()), lambda i: (), np.float32([[3]]), NOT_PLAYED, timesteps=1, frames=1)
    best = {"evaluation_best", "evaluation_best_episodes", "evaluation_best_timesteps"}
    assert set(row) == {"evaluation_mean", *best, "evaluation_timesteps", "evaluation_frames"}


def test_returns_without_a_rank_choose_no_policy(monkeypatch):
    """Among several policies NaN would be the largest to argmax."""
    algorithm = make(evaluate_every=600, num_evaluation_episodes=2)
    monkeypatch.setattr(PolicyEvaluator, "play", lambda *given, **more: (np.full((1, 2), np.nan, np.float32), 4))
    with pytest.raises(FloatingPointError, match="evaluation"):
        algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()


def test_each_evaluation_has_episodes_of_its_own(monkeypatch):
    """The best policy is played again in the episodes of the latest."""
    seeds = []

    def play(self, variables, n, *, seed, monitor):
        seeds.append(seed)
        return np.zeros((n, 2), np.float32), 4

    monkeypatch.setattr(PolicyEvaluator, "play", play)
    algorithm = make(evaluate_every=600, num_evaluation_episodes=2)
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.step(state)
    algorithm.close()
    first, second, again = seeds
    assert first != second == again


def test_episodes_depend_on_the_seed_alone():
    """They do not depend on earlier evaluations, so a resumed run has the results of an uninterrupted run."""
    env, policy = probes.countdown(low=1, high=9, num_envs=2), make().policy
    variables = policy.init(jax.random.key(0))
    used, new = (PolicyEvaluator(policy, env, 2, 1, 6, num_envs=4) for _ in range(2))
    both = jax.tree.map(lambda x: jnp.stack([x, x]), variables)
    first, timesteps = used.play(both, 2, seed=3, monitor=lambda progress: False)
    second, _ = used.play(both, 2, seed=4, monitor=lambda progress: False)
    again, _ = new.play(both, 2, seed=4, monitor=lambda progress: False)
    used.close()
    new.close()
    np.testing.assert_array_equal(second, again)
    assert (first != second).any()
    assert first.shape == (2, 6)
    assert (first[:, :2] != first[:, 2:4]).any()  # three waves of two episodes
    assert timesteps > 12


@pytest.fixture(scope="module")
def steps():
    """(state, row) of four iterations, evaluated in every second."""
    algorithm = make(evaluate_every=1_200, num_evaluation_episodes=4)
    state, found = algorithm.init(jax.random.key(0)), []
    for _ in range(4):
        state, row = algorithm.step(state)
        found.append((state, row))
    algorithm.close()
    return found


def test_an_evaluation_plays_the_greedy_policy(steps):
    evaluated = [(state, row) for state, row in steps if "evaluation_mean" in row]
    assert 2 <= len(evaluated) < 4
    for state, row in evaluated:
        # Greedy play in a corridor is always the same.
        score = play(ENV, make().policy, state.learning.params, num_episodes=4)
        assert row["evaluation_mean"] == pytest.approx(score.mean)
        assert row["evaluation_standard_error"] == pytest.approx(0.0, abs=1e-6)
        assert row["evaluation_timesteps"] == state.timesteps
        assert row["evaluation_seconds"] > 0
    assert evaluated[0][1]["evaluation_frames"] < evaluated[-1][1]["evaluation_frames"]


def test_the_best_policy_is_kept_beside_the_last(steps):
    algorithm = make(evaluate_every=1_200, num_evaluation_episodes=4)
    fresh = algorithm.init(jax.random.key(0))
    assert algorithm.variables(fresh) is fresh.learning.params
    state = steps[-1][0]
    # The other action of the two. So many episodes that those of the next evaluation change little.
    best = jax.tree.map(lambda x: x[..., ::-1] if x.shape[-1] == 2 else x, state.learning.params)
    known = state.evaluated._replace(variables=best, best=jnp.float32(100), episodes=1_000, timesteps=7)
    rows, new = [], state._replace(evaluated=known)
    for _ in range(2):  # in one of them an evaluation is due
        new, row = algorithm.step(new)
        rows.append(row)
    algorithm.close()
    (row,) = [row for row in rows if "evaluation_mean" in row]
    jax.tree.map(np.testing.assert_array_equal, algorithm.variables(new), best)
    assert algorithm.last_variables(new) is new.learning.params
    returns = play(ENV, algorithm.policy, best, num_episodes=4)
    assert best_of(row) == (pytest.approx((100 * 1_000 + 4 * returns.mean) / 1_004), 1_004, 7)


def test_an_interrupt_within_an_evaluation_leaves_the_state(monkeypatch):
    algorithm, interrupt = make(evaluate_every=600), lambda progress: progress["phase"] == "evaluation"
    state = algorithm.init(0)
    with pytest.raises(Interrupted, match="evaluation"):
        algorithm.step(state, monitor=interrupt)
    assert float(state.evaluated.best) == -np.inf
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    _, row = algorithm.step(state, monitor=interrupt)  # several processes stop together, after it
    algorithm.close()
    assert row["evaluation_mean"] > 0


@pytest.mark.slow
def test_each_of_several_learners_is_evaluated_and_the_best_is_chosen(trained):
    """The second hardly learns, and its training scores, which have less noise, would be the better ones at first."""
    env = probes.target(size=1, num_envs=4)
    network = ActorAndCritic(MLP(1, hidden=(16,), activation=nn.relu), QNetwork(hidden=(16,)))
    small = {"batch_size": 32, "random_timesteps": 64, "replay_size": 2_000, "timesteps_per_iteration": 600}
    rates = [{"learning_rate": rate, "exploration_noise": noise} for rate, noise in ((3e-3, 2.0), (1e-9, 0.0))]
    settings = [TD3(**small, **rate, discount=0.5) for rate in rates]
    algorithm, state, row = trained(settings, network, env, 1, evaluate_every=600, num_evaluation_episodes=8)
    learning, constant = row["evaluation_mean_each"]
    assert learning > constant
    assert row["training_mean_each"][0] < row["training_mean_each"][1]
    assert row["evaluation_best"] == learning
    assert row["evaluation_mean"] == pytest.approx((learning + constant) / 2)
    first = jax.tree.map(lambda x: x[0], state.learning.params.actor)
    for variables in (algorithm.variables(state), algorithm.last_variables(state)):
        jax.tree.map(np.testing.assert_array_equal, variables.actor, first)


def test_few_environments_play_in_waves_and_all_are_closed_on_failure(trained):
    made, closed = [], []

    def make_groups(seed, **options):
        if options.get("num_envs") == 3:
            raise MemoryError
        made.append(options.get("num_envs"))
        return tuple(group._replace(close=lambda: closed.append(1)) for group in ENV.make(seed, **options))

    env, few = ENV._replace(make=make_groups), {"evaluate_every": 600, "num_evaluation_episodes": 10}
    *_, row = trained(SETTINGS, NETWORK, env, **few, num_evaluation_envs=4)
    assert made == [None, 4]
    assert row["evaluation_mean"] > 0
    closed.clear()
    with pytest.raises(MemoryError):
        trained(SETTINGS, NETWORK, env, **few, num_evaluation_envs=3)
    assert len(closed) == 2


def test_whole_games_are_played_where_a_life_ends_an_episode_of_training():
    env, calls = atari("Assault", episodic_life=True, noop_max=3, max_episode_steps=250), []
    policy = learn(A3C(), ActorCritic(7, MLP(8, hidden=())), env).policy
    recipe = env._replace(make=lambda *args, **options: calls.append(options) or env.make(*args, **options))
    evaluator = PolicyEvaluator(policy, recipe, 1, 1, 2, num_envs=None)
    variables = policy.init(jax.random.key(0))
    _, timesteps = evaluator.play(variables, 1, seed=0, monitor=lambda progress: False)
    evaluator.close()
    assert calls[0]["episodic_life"] is False
    assert timesteps == play(env, policy, variables, protocol="exact").lengths.max() * 2 == 500
