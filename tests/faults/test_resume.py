"""A resumed run is the run: bit by bit, on pure-JAX environments, wherever it was cut."""

import jax
import numpy as np
import probes
import pytest

import volvox as vx
from volvox.types import Interrupted


def lasting(rows):
    """Rows without rates and times, which no two runs share."""
    timed = ("second", "share_", "speed_over_turns")
    return [{name: row[name] for name in row if not any(word in name for word in timed)} for row in rows]


def assert_same(one, other):
    assert lasting(one.metrics) == lasting(other.metrics)
    assert jax.tree.structure(one.state) == jax.tree.structure(other.state)
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True):
        if hasattr(a, "dtype") and jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = map(jax.random.key_data, (a, b))
        np.testing.assert_array_equal(a, b)


def memory():
    return vx.networks.RecurrentActorCritic(2, vx.networks.MLP(4, (4,)), width=3)


CASES = {
    "a3c": ("a3c", {}),
    "a3c, no lag": ("a3c", {"lag": 0, "vtrace": False}),
    "a3c, normalised": ("a3c", {"normalize_observations": True, "normalize_rewards": True}),
    "ppo": ("ppo", {}),
    "ppo, no lag": ("ppo", {"lag": 0, "kl_stop": 1e-6, "normalize_rewards": True}),
    "td3, normalised": ("td3", {"normalize_observations": True, "normalize_rewards": True}),
    "td3, two learners": ("td3", {"num_learners": 2, "normalize_observations": True}),
    "primal-dual": ("primal-dual", {}),
    "es": ("es", {}),
}


@pytest.mark.stopwatch
@pytest.mark.slow_except("a3c")
@pytest.mark.parametrize("case", CASES)
def test_resumed_equals_straight_bit_by_bit(tmp_path, make, quietly, case):
    name, options = CASES[case]
    straight = quietly(make(name, **options), steps=3)
    for steps in (1, 3):
        run = quietly(make(name, **options), steps=steps, run_dir=tmp_path / "a", resume=True)
    assert_same(straight, run)


@pytest.mark.slow
def test_a_recurrent_learner_goes_on_in_the_middle_of_an_episode(tmp_path, make, quietly):
    env = probes.corridor(length=30, num_envs=4, groups=2, max_episode_steps=100)
    make_one = lambda: make("a3c", env=env, network=memory(), lag=2, rounds_per_update=2)  # noqa: E731
    straight = quietly(make_one(), steps=2)
    for steps in (1, 2):
        run = quietly(make_one(), steps=steps, run_dir=tmp_path / "a", resume=True)
    assert_same(straight, run)


@pytest.mark.slow
def test_a_learner_interrupted_between_two_checkpoints_loses_only_its_step(tmp_path, make, quietly):
    """The state that is saved when a signal comes is not the one that a checkpoint was just made of."""
    straight, algorithm, steps = quietly(make("a3c"), steps=4), make("a3c"), []

    def step(state, *, monitor=None):
        steps.append(1)
        if len(steps) == 3:
            algorithm.close()  # as a step that is interrupted does
            raise Interrupted("step 3")
        return algorithm.step(state, monitor=monitor)

    how = {"run_dir": tmp_path / "a", "checkpoint_every": 100}
    run = quietly(algorithm._replace(step=step), steps=4, **how)
    assert (run.interrupted, len(run.metrics)) == (True, 2)
    assert_same(straight, quietly(make("a3c"), steps=4, resume=True, **how))


@pytest.mark.slow
def test_an_evaluated_learner_resumes_bit_by_bit(tmp_path, quietly):
    def make():
        env = probes.corridor(length=4, num_envs=4, groups=2)
        settings = vx.A3C(segment_length=3, updates_per_iteration=3)
        network = vx.networks.CategoricalMLP(2, (4,))
        return vx.learn(settings, network, env, evaluate_every=30, num_evaluation_episodes=2)

    straight = quietly(make(), steps=3)
    for steps in (2, 3):
        run = quietly(make(), steps=steps, run_dir=tmp_path / "a", resume=True)
    assert_same(straight, run)


def test_an_older_state_goes_on_from_where_it_was(make):
    algorithm = make("a3c")
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    one, _ = algorithm.step(state)
    two, _ = algorithm.step(one)
    again, _ = algorithm.step(state)
    algorithm.close()
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), one.learning.params, again.learning.params))
    assert int(two.learning.update) > int(again.learning.update)


def test_what_cannot_be_saved_is_not(make):
    """A replay that is left out leaves the environments out, too, and so do environments driven from Python."""
    algorithm = make("td3", save_replay=False)
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    saved = algorithm.save(state)
    assert saved.place == saved.acting.collectors == saved.acting.replays == ()
    host = vx.learn(
        vx.A3C(segment_length=3, updates_per_iteration=3),
        vx.networks.CategoricalMLP(2, (4,)),
        probes.corridor(length=4, num_envs=4, groups=2),
        host=True,
    )
    state, _ = host.step(host.init(jax.random.key(0)))
    host.close()
    assert state.place == state.acting.collectors == ()
