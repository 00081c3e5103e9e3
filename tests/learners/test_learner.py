"""Common parts of all learners: environments, progress, interrupts, rows, restored states."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from flax import linen as nn

from volvox import A3C, PPO, TD3, learn
from volvox.data import metrics
from volvox.envs import cartpole
from volvox.learners import Learner, Schedule, Turn
from volvox.networks import MLP, ActorAndCritic, CategoricalMLP, GaussianMLP, QNetwork
from volvox.types import Interrupted, Policy, TimeStep


class Collected(NamedTuple):
    collectors: Any


class Learning(NamedTuple):
    total: jax.Array
    update: jax.Array
    metrics: dict


@dataclasses.dataclass(frozen=True)
class Counting:
    """Adds up its observations, with an update in each beat."""

    updates: int = 40
    breaks_at: int = 10**9

    def bind(self, network, env):
        return CountingLearner(self, env)

    def schedule(self, env):
        return Schedule(rounds_per_iteration=self.updates)


class CountingLearner(Learner):
    def __init__(self, settings, env):
        self.settings, self.env = settings, env
        self.policy = Policy(lambda key: (), lambda b: (), lambda v, o, s: (o, s), lambda k, o: o, lambda o: o, {})

    def init(self, key):
        empty = tuple(jnp.zeros(self.env.num_envs // self.env.num_groups) for _ in range(self.env.num_groups))
        zero = metrics.means({"seen": jnp.float32(0)}, count=0)
        return Collected(empty), Learning(jnp.float32(0), jnp.int32(0), zero)

    def act(self, collected, learning, keys, turn, timestep):
        seen = list(collected.collectors)
        seen[turn.group] = timestep.observation[:, 0]
        return Collected(tuple(seen)), jax.vmap(lambda key: jax.random.randint(key, (), 0, 2))(keys)

    def work(self, collected, learning, key, turn):
        seen = collected.collectors[turn.group].mean()
        update = learning.update + (turn.group == 0) + 0 * turn.beat
        broken = jnp.where(update >= self.settings.breaks_at, jnp.nan, 0.0)
        gathered = metrics.add(learning.metrics, metrics.means({"seen": seen}))
        return collected, Learning(learning.total + seen + broken, update, gathered)

    def variables(self, learning):
        return [learning.total]


@pytest.fixture
def env():
    return probes.corridor(length=10_000, num_envs=4, groups=2, max_episode_steps=20_000)


def test_a_metric_reaches_the_row_by_its_name(env):
    algorithm = learn(Counting(), None, env)
    state, row = algorithm.step(algorithm.init(jax.random.key(0)))
    assert float(state.learning.metrics["seen"].num) == 80
    seen = state.learning.metrics["seen"]
    assert row["seen"] == float(seen.total) / float(seen.num) > 0
    assert (row["update"], row["frames"]) == (40, state.timesteps * env.spec.frame_skip)
    assert row["timesteps"] == state.timesteps == 39 * 4  # the first beat begins episodes
    assert min(row[f"{name}_per_second"] for name in ("predictions", "updates", "frames")) > 0
    state, row = algorithm.step(state)
    algorithm.close()
    assert float(state.learning.metrics["seen"].num) == 80  # metrics are of one iteration
    assert row["timesteps"] == 79 * 4


def test_an_older_state_begins_new_episodes(env):
    algorithm, phases = learn(Counting(), None, env), []
    watch = lambda figures: bool(phases.append(figures["phase"]))  # noqa: E731
    old = algorithm.init(jax.random.key(0))
    new, _ = algorithm.step(old, monitor=watch)
    assert phases[0] == "compiling"
    again, _ = algorithm.step(old, monitor=watch)
    assert phases.count("compiling") == 2
    jax.tree.map(np.testing.assert_array_equal, new.learning, again.learning)
    algorithm.step(again, monitor=watch)
    assert phases.count("compiling") == 2
    algorithm.close()


def test_progress_counts_up_and_an_interrupt_leaves_the_state(env):
    algorithm, seen = learn(Counting(updates=400), None, env, chunk_seconds=1e-6), []

    def monitor(figures):
        seen.append(figures)
        return figures.get("done", 0) >= 20

    state = algorithm.init(jax.random.key(0))
    with pytest.raises(Interrupted):
        algorithm.step(state, monitor=lambda figures: True)  # before anything is compiled
    with pytest.raises(Interrupted, match="of 400"):
        algorithm.step(state, monitor=monitor)
    done = [figures["done"] for figures in seen[1:]]
    assert done == sorted(done)
    assert {figures["total"] for figures in seen[1:]} == {400}
    assert seen[-1]["stepped"] > 0
    assert seen[-1]["frames_per_second"] > 0
    new, _ = algorithm.step(state)
    algorithm.close()
    assert int(new.learning.update) == 400


def test_numbers_that_are_not_finite_are_named(env):
    algorithm = learn(Counting(breaks_at=20), None, env)
    with pytest.raises(FloatingPointError, match="policy"):
        algorithm.step(algorithm.init(jax.random.key(0)))


CORRIDOR, TARGET = probes.corridor(length=4, num_envs=8, groups=2), probes.target(num_envs=8, groups=2)
NORMALIZED = {"normalize_observations": True, "normalize_rewards": True}
TD3_SETTINGS = {"batch_size": 16, "random_timesteps": 32, "replay_size": 256, "timesteps_per_iteration": 64}
ACTOR_CRITIC = ActorAndCritic(MLP(2, (8,), activation=nn.relu), QNetwork((8,)))
LEARNERS = {
    "a3c": (A3C(segment_length=5, updates_per_iteration=3), CategoricalMLP(2, (8,)), CORRIDOR),
    "ppo": (
        PPO(segment_length=8, num_minibatches=2, rounds_per_iteration=3, **NORMALIZED),
        GaussianMLP(2, (8,)),
        TARGET,
    ),
    "td3": (TD3(**TD3_SETTINGS, **NORMALIZED, num_learners=2), ACTOR_CRITIC, TARGET),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_a_restored_state_goes_on_bit_by_bit(name, nested):
    """Between two rounds, with segments or a replay that are not learned from yet."""
    first, second = (learn(*LEARNERS[name]) for _ in range(2))
    state, _ = first.step(first.init(0))
    saved = nested(first.save(state))
    straight, row = first.step(state)
    first.close()
    resumed, same_row = second.step(second.restore(saved))
    second.close()
    jax.tree.map(np.testing.assert_array_equal, resumed.learning, straight.learning)
    assert resumed.timesteps == straight.timesteps
    assert same_row["episodes"] == row["episodes"]
    assert int(straight.learning.update) > int(state.learning.update)  # the state that was saved is as it was


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize("name", LEARNERS)
def test_the_compiled_loop_is_the_loop_in_python(name):
    """Bit for bit, on environments that repeat."""
    states, rows = [], []
    for host in (False, True):
        algorithm = learn(*LEARNERS[name], host=host)
        state, row = algorithm.step(algorithm.init(3))
        algorithm.close()
        states.append(state)
        rows.append({key: value for key, value in row.items() if "per_second" not in key})
    traced, driven = (jax.tree.leaves(state.learning.params) for state in states)
    jax.tree.map(np.testing.assert_array_equal, traced, driven)
    assert rows[0] == pytest.approx(rows[1])


@pytest.mark.parametrize(
    "settings",
    [
        A3C(segment_length=8, micro_batch=1),
        A3C(segment_length=8, lag=0, vtrace=False),
        PPO(segment_length=8, num_epochs=2, num_minibatches=2),
        PPO(segment_length=8, num_epochs=2, num_minibatches=2, lag=0),
    ],
    ids=["a3c", "a3c without lag", "ppo", "ppo without lag"],
)
def test_work_changes_nothing_in_turns_that_are_not_due(settings):
    _, network, env = LEARNERS["a3c"]
    learner, schedule, key = settings.bind(network, env), settings.schedule(env), jax.random.key(0)
    collected, learning = learner.init(key)
    full = [data._replace(ring=data.ring._replace(valid=~data.ring.valid)) for data in collected.collectors]
    state = collected._replace(collectors=tuple(full)), learning
    changed = np.zeros((schedule.beats_per_round, env.num_groups), bool)
    for g in range(env.num_groups):
        work = jax.jit(lambda beat, g=g: learner.work(*state, key, Turn(g, jnp.int32(1), beat, jnp.float32(0))))
        for beat in range(schedule.beats_per_round):
            same = jax.tree.map(np.array_equal, work(jnp.int32(beat)), state)
            changed[beat, g] = not all(jax.tree.leaves(same))
    np.testing.assert_array_equal(changed, schedule.due)
    assert changed.any() == (settings.lag > 0)
    assert not changed.all()


@pytest.mark.parametrize("name", ["a3c", "ppo"])
def test_several_learners_are_one_vmap(name):
    """Rounds and beats are the same for all learners, so that loops over updates keep one trip count."""
    settings, network, env = LEARNERS[name]
    settings = dataclasses.replace(settings, segment_length=3)
    learner, schedule, b = settings.bind(network, env), settings.schedule(env), env.num_envs // env.num_groups

    def round_(state, key, number):
        collected, learning = state
        for beat in range(schedule.beats_per_round):
            for g in range(env.num_groups):
                turn = Turn(g, number, jnp.int32(beat), jnp.float32(0))
                drawn = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, number), 10 * beat + g), b)
                seen = jax.vmap(lambda key: jax.random.normal(key, env.spec.observation_shape))(drawn)
                reward, no = seen.sum(axis=-1), jnp.zeros(b, bool)
                timestep = TimeStep(seen, reward, reward > 1, no, no, {})
                collected, _ = learner.act(collected, learning, drawn, turn, timestep)
                collected, learning = learner.work(collected, learning, key, turn)
        return learner.finish(collected, learning, key, turn)

    keys = jax.random.split(jax.random.key(0), 2)
    together, alone = jax.jit(jax.vmap(round_, in_axes=(0, 0, None))), jax.jit(round_)
    states, each = jax.vmap(learner.init)(keys), [learner.init(key) for key in keys]
    for number in map(jnp.int32, range(schedule.delay + 2)):
        states = together(states, keys, number)
        each = [alone(state, key, number) for state, key in zip(each, keys, strict=True)]
    for s, (_, learning) in enumerate(each):
        assert int(learning.update) > 0
        close = lambda x, y, s=s: np.testing.assert_allclose(x[s], y, rtol=1e-4, atol=1e-5)  # noqa: E731
        jax.tree.map(close, states[1].params, learning.params)


@pytest.mark.parametrize("name", ["a3c", "ppo"])
def test_learners_run_where_numbers_have_64_bits(name):
    settings, _, _ = LEARNERS[name]
    with jax.enable_x64(True):
        algorithm = learn(settings, CategoricalMLP(2, hidden=(8,)), cartpole(num_envs=4))
        _, row = algorithm.step(algorithm.init(0))
        algorithm.close()
    assert row["frames"] > 0


@pytest.mark.parametrize(("settings", "env"), [(A3C, CORRIDOR), (Counting(), "CartPole")], ids=["class", "env"])
def test_arguments_of_another_type_are_refused(settings, env):
    with pytest.raises(TypeError):
        learn(settings, None, env)
