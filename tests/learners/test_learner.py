"""What all learners share: pools, progress, interrupts, the row of metrics; with a learner of a few lines."""

import dataclasses
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox.data import metrics
from volvox.envs import cartpole
from volvox.learners import A3C, PPO, PrimalDual, Progress, learn, learner
from volvox.networks import CategoricalMLP
from volvox.rollout.devices import Devices
from volvox.types import Interrupted, Policy


class Acting(NamedTuple):
    timesteps: jax.Array
    collectors: Any


class Learning(NamedTuple):
    total: jax.Array
    update: jax.Array
    metrics: dict


@dataclasses.dataclass(frozen=True)
class Counting:
    """Adds up what it observes; an update a beat."""

    updates: int = 40
    breaks_at: int = 10**9

    def bind(self, network, env):
        policy = Policy(lambda key: (), lambda b: (), lambda v, o, s: (o, s), lambda k, o: o, lambda o: o, {})
        return _Counting(self, env, policy)


@dataclasses.dataclass(frozen=True, eq=False)
class _Counting:
    settings: Counting
    env: Any
    policy: Policy
    beats_per_round: int = 1
    timed_rounds: int = 2
    unsaved: tuple[str, ...] = ()
    finish: None = None

    def act(self, acting, learning, key, g, timestep):
        live = (~timestep.first).sum(dtype=jnp.int32)
        collectors = (*acting.collectors[:g], timestep.observation[:, 0], *acting.collectors[g + 1 :])
        draw = jax.random.fold_in(key, acting.timesteps)
        return Acting(acting.timesteps + live, collectors), jax.random.randint(draw, timestep.first.shape, 0, 2)

    def work(self, acting, learning, key, g):
        seen = acting.collectors[g].mean()
        update = learning.update + (g == 0)
        broken = jnp.where(update >= self.settings.breaks_at, jnp.nan, 0.0)
        gathered = metrics.add(learning.metrics, metrics.means({"seen": seen}))
        return acting, Learning(learning.total + seen + broken, update + 0 * acting.timesteps, gathered)

    def init(self, key):
        zero = jnp.int32(0)
        return Acting(zero, ()), Learning(jnp.float32(0), zero, metrics.means({"seen": jnp.float32(0)}))

    def begin(self, acting, groups):
        return acting._replace(collectors=tuple(jnp.zeros(group.num_envs) for group in groups))

    def progress(self, start, acting, made):
        beats = made.timesteps // self.env.num_envs
        return Progress(made.updates, self.settings.updates, "updates", self.settings.updates - beats)

    def watched(self, learning):
        return {"total": learning.total}

    def row(self, acting, learning, timesteps):
        return {"episodes": 0}

    def candidates(self, learning):
        return (learning.total,)


@pytest.fixture
def env():
    return probes.corridor(length=10_000, num_envs=4, groups=2, max_episode_steps=20_000)


def test_a_metric_reaches_the_row_by_its_name(env):
    algorithm = learn(Counting(), None, env)
    state, row = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    seen = state.learning.metrics["seen"]
    assert row["seen"] == float(seen.total) / float(seen.num) > 0
    assert (row["update"], row["frames"]) == (int(state.learning.update), state.timesteps * env.spec.frame_skip)
    assert min(row[f"{name}_per_second"] for name in ("predictions", "updates", "frames")) > 0
    assert algorithm.config["settings"]["updates"] == 40
    assert algorithm.step_name == "iteration"


@pytest.mark.stopwatch
def test_the_second_iteration_has_a_stopwatch_and_metrics_are_of_one_iteration(env):
    algorithm = learn(Counting(), None, env)
    state, first = algorithm.step(algorithm.init(jax.random.key(0)))
    state, second = algorithm.step(state)
    state, third = algorithm.step(state)
    algorithm.close()
    assert ["share_learning" in row for row in (first, second, third)] == [False, True, False]
    # The first beat of pools begins episodes, and is no timestep.
    assert first["frames"] < second["frames"] < third["frames"] == state.timesteps
    assert float(state.learning.metrics["seen"].num) == 80


@pytest.mark.stopwatch
def test_an_older_state_begins_new_pools(env):
    algorithm = learn(Counting(), None, env)
    phases = []
    watch = lambda progress: bool(phases.append(progress["phase"]))  # noqa: E731
    old = algorithm.init(jax.random.key(0))
    new, _ = algorithm.step(old, monitor=watch)
    assert phases[0] == "compiling"
    again, _ = algorithm.step(old, monitor=watch)
    assert phases.count("compiling") == 2
    jax.tree.map(np.testing.assert_array_equal, new.learning, again.learning)
    algorithm.step(again, monitor=watch)
    assert phases.count("compiling") == 3  # of the stopwatch
    algorithm.close()


def test_rates_leave_compiling_out_where_a_run_goes_on(env, monkeypatch):
    """The first chunk of new pools takes 1 000 seconds here, and each of the others one."""
    first, second = (learn(Counting(updates=400), None, env, chunk_seconds=1e-6) for _ in range(2))
    state, _ = first.step(first.init(jax.random.key(0)))
    first.close()
    assert state.place.iterations == 1
    loop, clock = second.step.__self__.loop, [0.0]
    run = loop.run

    def slow(*args, **options):
        for number, chunk in enumerate(run(*args, **options)):
            clock[0] += 1 if number else 1_000
            yield chunk

    monkeypatch.setattr(loop, "run", slow)
    monkeypatch.setattr(learner, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    _, row = second.step(state)
    second.close()
    assert 1 < row["frames_per_second"] < row["frames"] - state.timesteps


def test_one_device_that_is_named_is_the_device_there_is_anyway(env):
    settings = PrimalDual(timesteps_per_iteration=8)
    algorithm = learn(settings, CategoricalMLP(2, (4,)), env, devices=jax.devices())
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    assert state.place.iterations == 1  # so that it goes on with the same bits


def test_a_learner_of_one_device_is_told_to_start_one_process(env, monkeypatch):
    """As in several processes, which learn on all their devices unless they are given others."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("devices",))
    monkeypatch.setattr(learner, "devices_of", lambda given: Devices(mesh))
    with pytest.raises(ValueError, match="PrimalDual learns on one device: start one process, or take A3C"):
        learn(PrimalDual(), CategoricalMLP(2, (4,)), env)


def test_progress_counts_up_and_an_interrupt_leaves_the_state(env):
    algorithm = learn(Counting(updates=400), None, env, chunk_seconds=1e-6)
    seen = []

    def monitor(progress):
        seen.append(progress)
        return progress.get("done", 0) >= 20

    state = algorithm.init(jax.random.key(0))
    with pytest.raises(Interrupted, match="of 400 updates were made and are dropped"):
        algorithm.step(state, monitor=monitor)
    done = [progress["done"] for progress in seen[1:]]
    assert done == sorted(done)
    assert {progress["total"] for progress in seen[1:]} == {400}
    assert seen[-1]["stepped"] > 0
    assert seen[-1]["frames_per_second"] > 0
    new, _ = algorithm.step(state)
    algorithm.close()
    assert int(new.learning.update) >= 400


def test_an_interrupt_before_the_loop_is_compiled(env):
    algorithm = learn(Counting(), None, env)
    with pytest.raises(Interrupted, match="before the loop was compiled"):
        algorithm.step(algorithm.init(jax.random.key(0)), monitor=lambda progress: True)


def test_numbers_that_are_not_finite_are_named(env):
    algorithm = learn(Counting(breaks_at=20), None, env)
    with pytest.raises(FloatingPointError, match=r"by update \d+: total; nothing of this iteration is kept"):
        algorithm.step(algorithm.init(jax.random.key(0)))


@pytest.mark.parametrize(
    "settings",
    [A3C(), PPO(segment_length=8), PrimalDual(timesteps_per_iteration=50)],
    ids=lambda settings: type(settings).__name__,
)
def test_learners_run_where_numbers_have_64_bits(settings):
    with jax.enable_x64(True):
        algorithm = learn(settings, CategoricalMLP(2, hidden=(8,)), cartpole(num_envs=4))
        _, row = algorithm.step(algorithm.init(0))
        algorithm.close()
    assert row["episodes"] > 0


def test_a_chunk_without_length_is_refused(env):
    with pytest.raises(ValueError, match="chunk_seconds=0"):
        learn(Counting(), None, env, chunk_seconds=0.0)


def test_settings_that_are_no_frozen_dataclass_are_refused():
    class Plain:
        def bind(self, network, env):
            raise AssertionError("it is not asked")

    with pytest.raises(TypeError, match="Plain is no frozen dataclass"):
        learn(Plain(), None, probes.countdown(low=2, high=5, num_envs=2))
