"""Budgets end iterations of learners, in frames, timesteps and seconds; generations are whole."""

import types

import jax
import numpy as np
import probes
import pytest

import volvox as vx
from volvox.runs import checkpoint

from .conftest import assert_equal_trees, train, without_times

CARTPOLE = vx.envs.cartpole(num_envs=4, groups=2)
TARGET = probes.target(num_envs=4, groups=2)
TD3 = {"batch_size": 8, "random_timesteps": 40, "replay_size": 400}
NETWORKS = vx.networks.ActorAndCritic(vx.networks.MLP(2, (4,)), vx.networks.QNetwork((4,)))
LONG = {
    "a3c": (vx.A3C(segment_length=3, updates_per_iteration=10_000), vx.networks.CategoricalMLP(2, (4,)), CARTPOLE),
    "ppo": (
        vx.PPO(segment_length=8, num_minibatches=4, rounds_per_iteration=10_000),
        vx.networks.CategoricalMLP(2, (4,)),
        CARTPOLE,
    ),
    "td3": (vx.TD3(**TD3, timesteps_per_iteration=100_000), NETWORKS, TARGET),
}
"""Learners with iterations that are far longer than the budgets."""


def learn(name, env=None, **options):
    settings, network, default_env = LONG[name]
    return vx.learn(settings, network, env or default_env, **options)


def test_an_iteration_ends_in_the_round_that_uses_up_the_frames():
    settings, _, env = LONG["a3c"]
    env = env._replace(spec=env.spec._replace(frame_skip=4))
    run = train(learn("a3c", env), max_frames=1_000)
    round_ = settings.schedule(env).beats_per_round * env.num_envs * 4
    assert len(run.metrics) == 1
    assert 1_000 <= run.metrics[-1]["frames"] < 1_000 + round_


def test_evaluations_are_made_when_due_and_timesteps_end_in_the_round_that_uses_them_up():
    settings, _, env = LONG["td3"]
    run = train(learn("td3", evaluate_every=200, num_evaluation_episodes=2), max_timesteps=700)
    round_ = settings.schedule(env).beats_per_round * env.num_envs
    evaluated = [row["evaluation_timesteps"] for row in run.metrics if "evaluation_mean" in row]
    assert len(run.metrics) == 4
    assert 700 <= run.metrics[-1]["timesteps"] < 700 + round_
    assert all(due <= at < due + round_ for due, at in zip((200, 400, 600), evaluated, strict=True))


@pytest.mark.parametrize("name", ["td3", pytest.param("ppo", marks=pytest.mark.slow)])
def test_a_resumed_run_has_the_rows_of_a_straight_run(name, tmp_path):
    budgets = {"max_timesteps": 700, "seed": 3}
    straight, begun, resumed = (learn(name, evaluate_every=200, num_evaluation_episodes=2) for _ in range(3))
    straight = train(straight, **budgets)
    train(begun, tmp_path, **budgets, on_step=lambda run: len(run.metrics) == 2)
    resumed = train(resumed, tmp_path, **budgets, resume=True)
    assert without_times(resumed.metrics) == without_times(straight.metrics)
    assert_equal_trees(resumed.variables("last"), straight.variables("last"))


class Clock:
    """A clock that environments advance."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        fake = types.SimpleNamespace(monotonic=lambda: self.now, perf_counter=lambda: self.now)
        for module in ("rollout.loop", "learners.evaluation", "learners.training", "runs.train"):
            monkeypatch.setattr(f"volvox.{module}.time", fake)

    def slow(self, env, seconds):
        """Returns the same environments, which need so many seconds for a timestep of a group."""

        def make(seed, **options):
            return tuple(slow(group) for group in env.make(seed, **options))

        def slow(group):
            recv = jax.jit(group.recv)

            def wait(state):
                self.now += seconds
                return recv(state)

            return group._replace(traceable=False, recv=wait, send=jax.jit(group.send))

        return env._replace(make=make)


@pytest.mark.slow
def test_time_is_kept_and_a_run_is_saved_about_every_minute(monkeypatch, tmp_path):
    """Iterations would take hours, and rounds take about 6 seconds."""
    clock = Clock(monkeypatch)
    run = train(
        learn("a3c", clock.slow(CARTPOLE, 1.0)),
        tmp_path,
        stop_after=200,
        checkpoint_every=100,
        keep_checkpoints=100,
    )
    assert 200 <= run.metrics[-1]["seconds"] <= 220
    saved = [run.metrics[step - 1]["seconds"] if step else 0.0 for step in checkpoint.steps(tmp_path / "checkpoints")]
    assert max(np.diff(saved)) <= 120


@pytest.mark.slow
def test_results_do_not_depend_on_the_clock(monkeypatch):
    """Rows of a slow run, and of a run without evaluations, are cut elsewhere."""
    clock, runs = Clock(monkeypatch), []
    for seconds, evaluate_every in ((0.01, 150), (2.0, 150), (0.01, None)):
        env = clock.slow(CARTPOLE, seconds)
        algorithm = learn("a3c", env, evaluate_every=evaluate_every, num_evaluation_episodes=2)
        runs.append(train(algorithm, max_timesteps=500))
    fast, slow, unevaluated = runs
    assert len(slow.metrics) > len(fast.metrics) > len(unevaluated.metrics)
    for run in (slow, unevaluated):
        assert_equal_trees(run.variables("last"), fast.variables("last"))
    evaluated = [[x for x in without_times(run.metrics) if "evaluation_mean" in x] for run in (slow, fast)]
    for ours, theirs in zip(*evaluated, strict=True):
        same = ("timesteps", "episodes", "training_mean", "evaluation_mean", "evaluation_timesteps")
        assert {name: ours.get(name) for name in same} == {name: theirs.get(name) for name in same}


def test_with_steps_iterations_are_whole(monkeypatch):
    clock, settings = Clock(monkeypatch), vx.A3C(segment_length=3, updates_per_iteration=20)
    algorithm = vx.learn(settings, LONG["a3c"][1], clock.slow(CARTPOLE, 2.0))
    assert [row["update"] for row in train(algorithm, steps=2).metrics] == [20, 40]
