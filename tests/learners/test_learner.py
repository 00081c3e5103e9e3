"""Common parts of all learners: environments, progress, interrupts, rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from flax import linen as nn
from gymnasium.wrappers.utils import RunningMeanStd

from volvox import A3C, PPO, PQN, SAC, TD3, _checks, learn
from volvox.envs import cartpole
from volvox.learners import Turn
from volvox.learners.learner import apply_gradient
from volvox.learners.training import LearnerStages, compressions_of
from volvox.networks import MLP, ActorAndCritic, CategoricalMLP, GaussianMLP, NextObservationNetwork, QNetwork
from volvox.rollout import loop as rollout_loop
from volvox.sparsity.optimizers import make_optimizer
from volvox.types import Interrupted, TimeStep

NETWORK, CONSTANT = CategoricalMLP(2, (8,)), probes.constant(num_envs=4, groups=2)


@pytest.fixture
def algorithm():
    """A3C in episodes of one timestep; every other timestep begins one."""
    algorithm = learn(A3C(segment_length=5, lag=0, updates_per_iteration=8), NETWORK, CONSTANT)
    yield algorithm
    algorithm.close()


def test_a_metric_reaches_the_row_by_its_name(algorithm):
    state, row = algorithm.step(algorithm.init(0))
    entropy = state.learning.metrics["entropy"]
    assert row["entropy"] == float(entropy.total) / float(entropy.num) > 0
    assert float(entropy.num) == 8 * 5 / 2 * 4
    assert (row["update"], row["frames"], row["training_mean"]) == (8, state.timesteps, 1.0)
    assert row["timesteps"] == state.timesteps == 8 * 5 / 2 * 4  # all are learned from
    assert min(row[f"{name}_per_second"] for name in ("predictions", "updates", "frames")) > 0
    state, row = algorithm.step(state)
    assert float(state.learning.metrics["entropy"].num) == 8 * 5 / 2 * 4  # metrics are of one iteration
    assert row["timesteps"] == 16 * 5 / 2 * 4


def test_an_older_state_begins_new_episodes(algorithm):
    phases = []
    watch = lambda figures: bool(phases.append(figures["phase"]))  # noqa: E731
    old = algorithm.init(0)
    new, _ = algorithm.step(old, monitor=watch)
    assert phases[0] == "compiling"
    again, _ = algorithm.step(old, monitor=watch)
    assert phases.count("compiling") == 2
    jax.tree.map(np.testing.assert_array_equal, new.learning, again.learning)
    algorithm.step(again, monitor=watch)
    assert phases.count("compiling") == 2


def test_a_resumed_run_makes_environments_with_another_seed():
    """So that emulators do not repeat the starts of their episodes."""
    seeds = []
    make = lambda seed, **options: seeds.append(seed) or CONSTANT.make(seed, **options)  # noqa: E731
    algorithm = learn(A3C(segment_length=5, lag=0), NETWORK, CONSTANT._replace(make=make))
    state, _ = algorithm.step(algorithm.init(0))
    for _ in range(2):
        algorithm.close()
        algorithm.step(state._replace(envs=()))
    assert len(seeds) == 3
    assert seeds[0] != seeds[1] == seeds[2]


def test_a_run_with_another_kind_of_key_is_restored(algorithm):
    state = algorithm.init(jax.random.key(0, impl="rbg"))
    assert jax.random.key_impl(algorithm.restore(algorithm.save(state)).key) == "rbg"


def test_progress_counts_up_and_an_interrupt_leaves_the_state(algorithm, monkeypatch):
    monkeypatch.setattr(rollout_loop, "CHUNK_SECONDS", 1e-6)
    seen = []

    def monitor(figures):
        seen.append(figures)
        return figures.get("done", 0) >= 2

    state = algorithm.init(0)
    with pytest.raises(Interrupted):
        algorithm.step(state, monitor=lambda figures: True)  # before anything is compiled
    with pytest.raises(Interrupted, match="of 8"):
        algorithm.step(state, monitor=monitor)
    done = [figures["done"] for figures in seen[1:]]
    assert done == sorted(done)
    assert {figures["total"] for figures in seen[1:]} == {8}
    assert seen[-1]["stepped"] > 0
    assert seen[-1]["frames_per_second"] > 0
    new, _ = algorithm.step(state)
    assert int(new.learning.update) == 8


def test_a_state_of_learning_without_parameters_has_no_compression():
    assert compressions_of((), num_learners=2) == [{}, {}]


@pytest.mark.parametrize(
    "settings",
    [A3C(segment_length=5, updates_per_iteration=8), PPO(segment_length=5, num_minibatches=2, rounds_per_iteration=4)],
    ids=["a3c", "ppo"],
)
def test_optimizers_are_told_the_mean_return(settings, trained):
    told = optax.GradientTransformationExtraArgs(
        lambda params: jnp.float32(0), lambda updates, state, params=None, *, mean_return, **_: (updates, mean_return)
    )
    settings = dataclasses.replace(settings, optimizer=told, learning_rate=None)
    _, state, _ = trained(settings, NETWORK, CONSTANT)
    assert jax.tree.leaves(state.learning.optimizer) == [1.0]


CORRIDOR, TARGET = probes.corridor(length=4, num_envs=8, groups=2), probes.target(num_envs=8, groups=2)
NORMALIZED = {"normalize_observations": True, "normalize_rewards": True}
TD3_SETTINGS = {"batch_size": 16, "random_timesteps": 32, "replay_size": 256, "timesteps_per_iteration": 64}
ACTOR_CRITIC = ActorAndCritic(MLP(2, (8,), activation=nn.relu), QNetwork((8,)))
LEARNERS = {
    "a3c": (A3C(segment_length=5, updates_per_iteration=3), NETWORK, CORRIDOR),
    "ppo": (
        PPO(segment_length=8, num_epochs=4, num_minibatches=2, lag=1, rounds_per_iteration=3, **NORMALIZED),
        GaussianMLP(2, (8,)),
        TARGET,
    ),
    "td3": (TD3(**TD3_SETTINGS, **NORMALIZED), ACTOR_CRITIC, TARGET),
    "pqn": (
        PQN(segment_length=8, epsilon=0.5, num_epochs=2, num_minibatches=2, rounds_per_iteration=3),
        MLP(2, (8,)),
        CORRIDOR,
    ),
    "sac": (SAC(**TD3_SETTINGS), ActorAndCritic.mlp(2, (8,), gaussian=True), TARGET),
}


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize("name", LEARNERS)
def test_the_compiled_loop_is_the_loop_in_python(name, trained):
    """Bit for bit, on environments that repeat."""
    (_, traced, row), (_, driven, other) = (trained(*LEARNERS[name], 3, host=host) for host in (False, True))
    jax.tree.map(np.testing.assert_array_equal, traced.learning.params, driven.learning.params)
    names = [name for name in row if "per_second" not in name]
    assert [row[name] for name in names] == pytest.approx([other[name] for name in names])


@pytest.mark.parametrize(
    "settings",
    [
        A3C(segment_length=8, micro_batch=1),
        A3C(segment_length=8, lag=0, vtrace=False),
        pytest.param(PPO(segment_length=8, num_epochs=2, num_minibatches=2, lag=1), marks=pytest.mark.slow),
    ],
    ids=["a3c", "a3c without lag", "ppo"],
)
def test_work_changes_nothing_in_turns_that_are_not_due(settings):
    _, network, env = LEARNERS["a3c"]
    learner, schedule, key = settings.bind(network, env), settings.schedule(env), jax.random.key(0)
    collected, learning = jax.jit(learner.init)(key)
    full = [data._replace(ring=data.ring._replace(valid=~data.ring.valid)) for data in collected.collectors]
    state = collected._replace(collectors=tuple(full)), learning
    changed = np.zeros((schedule.beats_per_round, env.num_groups), bool)
    for g in range(env.num_groups):
        work = jax.jit(lambda beat, g=g: learner.work(*state, key, Turn(g, jnp.int32(1), beat, jnp.float32(0))))
        for beat in range(schedule.beats_per_round):
            same = jax.tree.map(np.array_equal, work(jnp.int32(beat)), state)
            changed[beat, g] = not all(jax.tree.leaves(same))
    np.testing.assert_array_equal(changed, learner.due)
    assert changed.any()
    assert not changed.all()


GIVEN = {  # where the default is None
    "ppo": {"value_clip": 0.2, "kl_stop": 0.03, "reward_bound": 1.0},
    "pqn": {"reward_bound": 1.0},
    "sac": {"target_entropy": -2.0},
}


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_each_transition_is_learned_from_once(lag):
    """Segments follow each other without a gap, in order of rounds, and know which parameters chose the actions."""
    env, rounds, t, b = probes.corridor(num_envs=8, groups=2), 3 + lag, 4, 4
    settings = A3C(segment_length=t, lag=lag, micro_batch=2, reward_bound=None, vtrace=False)
    learner, learned, rng = settings.bind(CategoricalMLP(2, (4,)), env), [], np.random.default_rng(0)
    collected, learning = jax.jit(learner.init)(jax.random.key(0))

    def accumulate(learning, segment):
        names = ("observation", "action", "version", "reward", "terminated", "truncated", "valid")
        learned.append(np.stack([np.ravel(getattr(segment, name)) for name in names], axis=1))
        return learning

    learner.accumulate = accumulate
    learner.update = lambda learning, mean_return: learning._replace(update=learning.update + 1)
    chosen, followed = ({g: [] for g in range(2)} for _ in range(2))
    with jax.disable_jit():
        for number in range(rounds * t):
            for g in range(2):
                seen = np.float32(1_000 * (number + 1) + 10 * g + np.arange(b))[:, None]
                flags = [jnp.asarray(rng.random(b) < 0.2) for _ in range(3)]
                timestep = TimeStep(jnp.asarray(seen), jnp.float32(rng.normal(size=b)), *flags, {})
                timestep = timestep._replace(first=timestep.first | (number == 0))
                turn = Turn(g, jnp.int32(number // t), jnp.int32(number % t), jnp.float32(0))
                version, keys = int(learning.update), jax.random.split(jax.random.key(number), b)
                collected, action = learner.act(collected, learning, keys, turn, timestep)
                collected, learning = learner.work(collected, learning, keys[0], turn)
                chosen[g].append((seen[:, 0], action, np.full(b, version)))
                followed[g].append((timestep.reward, timestep.terminated, timestep.truncated, ~timestep.first))
                assert version == max(number // t - lag, 0)
            if number % t == t - 1:
                collected, learning = learner.finish(collected, learning, keys[0], turn)
    pairs = [np.stack([*x, *y], 1) for g in range(2) for x, y in zip(chosen[g], followed[g][1:], strict=False)]
    expected, found = np.concatenate(pairs), np.concatenate(learned)
    expected = expected[expected[:, 0] < 1_000 * (3 * t + (lag > 0))]  # later segments are not learned from yet
    missing = found[:, 0] == 0  # without lag, the first timestep of the first segments
    assert missing.sum() == (0 if lag else 8)
    assert not found[missing, -1].any()  # valid
    found = found[~missing]
    np.testing.assert_array_equal(found[np.argsort(found[:, 0])], expected[np.argsort(expected[:, 0])])


@pytest.mark.parametrize("name", ["a3c", "ppo", "td3"])
def test_observations_are_normalised_as_by_gymnasium(name):
    """From the first one on, by the moments of all observations up to it, with which a saved policy acts as well."""
    settings, network, env = LEARNERS[name]
    dtype = np.uint8 if name == "a3c" else np.float32
    env = env._replace(spec=env.spec._replace(observation_dtype=np.dtype(dtype)))
    alone = {"random_timesteps": 0, "exploration_noise": 0.0} if name == "td3" else {}
    learner = dataclasses.replace(settings, normalize_observations=True, **alone).bind(network, env)
    collected, learning = jax.jit(learner.init)(jax.random.key(0))
    expected, b, rng = RunningMeanStd(shape=env.spec.observation_shape), 4, np.random.default_rng(0)
    no, keys = jnp.zeros(b, bool), jax.random.split(jax.random.key(0), b)

    def act(collected, seen, beat, g):
        timestep = TimeStep(seen, jnp.zeros(b), no, no, no, {})
        return learner.act(collected, learning, keys, Turn(g, jnp.int32(0), beat, jnp.float32(0)), timestep)

    act, apply = jax.jit(act, static_argnums=3), jax.jit(learner.policy.apply)
    for beat in range(3):
        for g in range(2):
            seen = rng.uniform(0, 237, (b, *env.spec.observation_shape)).astype(dtype)
            collected, action = act(collected, seen, jnp.int32(beat), g)
            expected.update(seen)
            wanted = (seen - expected.mean) / np.sqrt(expected.var + 1e-8)
            variables = learner.variables(collected, learning)
            output, _ = apply(variables, seen, ())
            if name == "td3":
                plain = variables._replace(moments=jax.tree.map(jnp.zeros_like, variables.moments))
                again, _ = apply(plain, jnp.float32(wanted), ())
                np.testing.assert_allclose(action, learner.policy.mode(output), atol=1e-5)
            else:
                np.testing.assert_allclose(collected.collectors[g].ring.observation[0, beat], wanted, atol=1e-3)
                again, _ = learner.network.policy.apply(learning.params, jnp.float32(wanted), ())
            np.testing.assert_allclose(output, again, atol=2e-3)


@pytest.mark.parametrize("name", ["td3", "sac"])
def test_integers_reach_the_networks_of_a_replay_as_they_are(name):
    """A torso knows images by their integers."""
    settings, network, env = LEARNERS[name]
    env, seen = env._replace(spec=env.spec._replace(observation_dtype=np.dtype(np.uint8))), []

    class Seeing(nn.Module):
        module: nn.Module

        def __call__(self, x, *action):
            seen.append(x.dtype)
            return self.module(x, *action)

    networks = ActorAndCritic(Seeing(network.actor), Seeing(network.critic))
    learner = dataclasses.replace(settings, normalize_observations=False).bind(networks, env)
    collected, learning = jax.eval_shape(learner.init, jax.random.key(0))
    no, keys, turn = (
        jnp.zeros(4, bool),
        jax.random.split(jax.random.key(0), 4),
        Turn(0, jnp.int32(0), jnp.int32(0), 0.0),
    )
    timestep = TimeStep(jnp.zeros((4, 2), jnp.uint8), jnp.zeros(4), no, no, no, {})
    jax.eval_shape(lambda *state: learner.act(*state, keys, turn, timestep), collected, learning)
    assert len(seen) > 3
    assert set(seen) == {np.dtype(np.uint8)}


def played(name, **changes):
    """Yields the learner, its data and (group, beat, observation, reward, deviation of the discounted returns)."""
    settings, network, env = LEARNERS[name]
    learner, b, rng = dataclasses.replace(settings, **changes).bind(network, env), 4, np.random.default_rng(0)
    collected, learning = jax.jit(learner.init)(jax.random.key(0))
    no, keys, returns, every = jnp.zeros(b, bool), jax.random.split(jax.random.key(0), b), np.zeros((2, b)), []
    for beat in range(6):
        for g in range(2):
            observation, reward = (rng.normal(3, 4, shape).astype(np.float32) for shape in ((b, 2), b))
            timestep = TimeStep(jnp.asarray(observation), jnp.asarray(reward), no, no, no, {})
            turn = Turn(g, jnp.int32(0), jnp.int32(beat), jnp.float32(0))
            collected, _ = learner.act(collected, learning, keys, turn, timestep)
            returns[g] = returns[g] * settings.discount + reward
            every.extend(returns[g])
            yield learner, collected, (g, beat, observation, reward, np.std(every))


def test_rewards_of_segments_are_scaled_and_then_clipped():
    clipped = []
    for _, collected, (g, beat, _, reward, deviation) in played("ppo", reward_bound=1.0):
        if beat > 0:
            found, scaled = collected.collectors[g].ring.reward[0, beat - 1], reward / deviation
            np.testing.assert_allclose(found, scaled.clip(-1, 1), rtol=1e-3)
            clipped.extend(abs(scaled) > 1)
    assert 0 < np.mean(clipped) < 1


def test_batches_of_a_replay_are_normalised():
    *_, (learner, collected, _) = timesteps = list(played("td3"))
    seen, deviation = np.concatenate([given[2] for *_, given in timesteps]), timesteps[-1][2][-1]
    plain = collected._replace(moments=jax.tree.map(jnp.zeros_like, collected.moments), rewards=())
    found, raw = (learner.sample(jax.random.key(1), data) for data in (collected, plain))
    np.testing.assert_allclose(found.reward, raw.reward / deviation, rtol=1e-3)
    for name in ("observation", "next_observation"):
        wanted = (getattr(raw, name) - seen.mean(0)) / seen.std(0)
        np.testing.assert_allclose(getattr(found, name), wanted, rtol=1e-3, atol=1e-4)


@pytest.fixture
def compiled():
    """A list of the seconds of each compilation, of a program or from the cache on the disk."""
    seconds = []

    def listen(event, duration_secs, **kwargs):
        if event.endswith("backend_compile_duration"):
            seconds.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seconds
    jax.monitoring.unregister_event_duration_listener(listen)


SLOW_BUT_A3C = ["a3c", *(pytest.param(name, marks=pytest.mark.slow) for name in LEARNERS if name != "a3c")]


@pytest.mark.parametrize("name", SLOW_BUT_A3C)
def test_other_numbers_reach_a_program_that_is_compiled_already(name, compiled, trained):
    settings, network, env = LEARNERS[name]
    settings = dataclasses.replace(settings, **GIVEN.get(name, {}))
    numbers = {name: x for name in settings.traced if (x := getattr(settings, name)) is not None}
    other = dataclasses.replace(settings, **{name: x / 2 for name, x in numbers.items()})
    for_itself = env._replace(make=lambda *args, **options: env.make(*args, **options))  # equal to no other

    def params(settings, env):
        compiled.clear()
        _, state, _ = trained(settings, network, env)
        return state.learning.params

    first, shared = params(settings, env), params(other, env)
    assert not compiled
    expected = params(other, for_itself)
    assert compiled
    jax.tree.map(np.testing.assert_array_equal, shared, expected)
    assert not all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(shared)))


@pytest.mark.parametrize(
    ("changes", "is_shared"),
    [
        ({}, True),
        ({"clip": 1}, True),
        ({"kl_stop": 0.1}, False),
        ({"learning_rate": optax.constant_schedule(1e-3)}, False),
        ({"num_epochs": 2}, False),
        ({"hidden": 16}, False),
        ({"num_envs": 8}, False),
    ],
)
def test_configurations_share_programs_if_they_differ_in_numbers_alone(changes, is_shared):
    def value(hidden=8, num_envs=4, **settings):
        return LearnerStages(PPO(**settings), CategoricalMLP(2, (hidden,)), cartpole(num_envs=num_envs)).cache_key

    assert (value(**changes) == value()) is is_shared


@pytest.mark.parametrize(
    "name", ["a3c", "sac", *(pytest.param(x, marks=pytest.mark.slow) for x in ("ppo", "td3", "pqn"))]
)
def test_learners_run_where_numbers_have_64_bits(name, trained):
    with jax.enable_x64(True):
        settings, network, env = LEARNERS[name]
        *_, row = trained(dataclasses.replace(settings, **NORMALIZED), network, env)
    assert row["frames"] > 0


REPRESENTED = ActorAndCritic(ACTOR_CRITIC.actor, ACTOR_CRITIC.critic, NextObservationNetwork((6, 6), (5,)))
RATE = optax.constant_schedule(1e-3)


ATARI = {"learning_rate": 2.5e-4, "discount": 0.99, "reward_bound": 1.0, "episodic_life": True}
PPO_ATARI = {**ATARI, "clip": 0.1, "trace_decay": 0.95, "entropy_coefficient": 0.01, "value_coefficient": 0.5}
PPO_MUJOCO = {"learning_rate": 3e-4, "clip": 0.2, "entropy_coefficient": 0.0, "trace_decay": 0.95, "reward_bound": 10.0}
PQN_ATARI = {**ATARI, "trace_decay": 0.65, "max_gradient_norm": 10.0, "lag": 0}
GA3C = {"learning_rate": 3e-4, "discount": 0.99, "entropy_coefficient": 0.01, "reward_bound": 1.0, "segment_length": 5}


@pytest.mark.parametrize(
    ("preset", "constants"),
    [
        (PPO.atari(), {**PPO_ATARI, "segment_length": 128, "num_epochs": 4, "num_minibatches": 4}),
        (PPO.mujoco(), {**PPO_MUJOCO, "segment_length": 2_048, "num_epochs": 10, "num_minibatches": 32}),
        (PQN.cleanrl(), {**PQN_ATARI, "segment_length": 128, "num_epochs": 4, "num_minibatches": 4}),
        (PQN.atari(), {**PQN_ATARI, "segment_length": 32, "num_epochs": 2, "num_minibatches": 32}),
        (A3C.ga3c(), GA3C),
    ],
    ids=["ppo, atari", "ppo, mujoco", "pqn, cleanrl", "pqn, atari", "ga3c"],
)
def test_presets_have_the_published_constants(preset, constants):
    assert {name: getattr(preset, name) for name in constants} == constants


@pytest.mark.parametrize(
    ("make", "options", "network", "env"),
    [
        (A3C, {"loss_reduction": "max"}, NETWORK, CORRIDOR),
        (A3C, {"c_clip": 2.0}, NETWORK, CORRIDOR),
        (A3C, {"anneal_timesteps": 10, "learning_rate": RATE}, NETWORK, CORRIDOR),
        (A3C, {"learning_rate": None}, NETWORK, CORRIDOR),
        (A3C, {"episodic_life": True}, NETWORK, CORRIDOR),
        (A3C, {"micro_batch": 3}, NETWORK, CORRIDOR),
        (PPO, {"anneal_timesteps": 9, "learning_rate": RATE}, NETWORK, CORRIDOR),
        (PPO, {"num_minibatches": 5}, NETWORK, CORRIDOR),
        (PQN, {"epsilon": 1.5}, NETWORK, CORRIDOR),
        (PQN, {"epsilon": optax.linear_schedule(1.0, -0.1, 9)}, MLP(2, (8,)), CORRIDOR),
        (TD3, {"batch_size": 33}, ACTOR_CRITIC, TARGET),
        (TD3, {"replay_size": 31}, ACTOR_CRITIC, TARGET),
        (TD3, {"updates_per_timestep": 0.3}, ACTOR_CRITIC, TARGET),
        (TD3, {"n_step": 2}, REPRESENTED, TARGET),
        (TD3, {"exploration_noise": RATE}, ACTOR_CRITIC, TARGET),
        (SAC, {"target_entropy": -1.0, "temperature": 0.1}, ACTOR_CRITIC, TARGET),
    ],
)
def test_settings_that_do_not_fit_are_refused(make, options, network, env):
    with pytest.raises(ValueError, match=next(iter(options))):
        learn(make(**options), network, env)


def test_segments_must_fit_into_memory(monkeypatch):
    monkeypatch.setattr(_checks, "_free_memory", lambda: 10**8)
    learn(A3C(), NETWORK, CORRIDOR)
    with pytest.raises(ValueError, match="replay and segments"):
        learn(A3C(segment_length=10**6, learning_rate=1e-4), NETWORK, CORRIDOR)
    monkeypatch.setattr(_checks, "_free_memory", lambda: 10**6)
    with pytest.raises(ValueError, match=r"enough for [1-9]\d? learners"):
        learn(A3C(), NETWORK, CORRIDOR, num_learners=100)


@pytest.mark.parametrize(
    ("settings", "network", "env", "words"),
    [
        (PQN(), ACTOR_CRITIC.actor, TARGET, "continuous actions"),
        (PQN(), NETWORK, CORRIDOR, "values of all actions"),
        (TD3(), ACTOR_CRITIC, CORRIDOR, "continuous"),
        (SAC(), ACTOR_CRITIC, CORRIDOR, "continuous"),
        (SAC(), ACTOR_CRITIC, TARGET, "gaussian=True"),
    ],
)
def test_networks_and_environments_that_do_not_fit_are_refused(settings, network, env, words):
    with pytest.raises(ValueError, match=words):
        learn(settings, network, env)


@pytest.mark.parametrize(("settings", "env"), [(A3C, CORRIDOR), (A3C(), "CartPole")], ids=["class", "env"])
def test_arguments_of_another_type_are_refused(settings, env):
    with pytest.raises(TypeError):
        learn(settings, NETWORK, env)


def test_a_schedule_in_the_state_of_an_optimiser_keeps_its_rates():
    optimizer = make_optimizer(lambda rate: optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(rate, 0, 2)), 1.0)
    params, zero = jnp.float32(0), jnp.float32(0)
    state = optimizer.init(params)
    for expected in (-1.0, -1.5):
        params, state = apply_gradient(optimizer, jnp.float32(1), state, params, jnp.int32(1), zero, 1.0)
        assert params == expected
