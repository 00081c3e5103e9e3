"""A3C: its loss against the formula in NumPy, its schedule, environments with known answers, and its refusals."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from flax import linen as nn

from volvox import checkpoint
from volvox.data import metrics, segments
from volvox.data.segments import Segment
from volvox.envs.functional import from_functions
from volvox.learners import A3C, learn
from volvox.learners.a3c import Learning
from volvox.learners.collecting import Acting, Collector
from volvox.networks import ActorCritic, GaussianMLP, RecurrentActorCritic
from volvox.rollout import play
from volvox.rollout.pipeline import LoopState, Stages, driven
from volvox.training import train
from volvox.types import Interrupted, TimeStep

FAST = {
    "segment_length": 5,
    "learning_rate": 1e-2,
    "optimizer": optax.adam,
    "discount": 0.9,
    "max_gradient_norm": 1.0,
    "vtrace": False,
}


class Torso(nn.Module):
    width: int = 32

    @nn.compact
    def __call__(self, x):
        return nn.tanh(nn.Dense(self.width)(x))


def net(num_outputs=2):
    return ActorCritic(num_outputs, Torso())


def learner(module, env, **options):
    """The algorithm, with settings that learn fast."""
    host, chunk_seconds = options.pop("host", False), options.pop("chunk_seconds", 1.0)
    return learn(A3C(**FAST | options), module, env, host=host, chunk_seconds=chunk_seconds)


def learned(env, module=None, updates=600, seed=0, **options):
    """Parameters after training, the network as functions, and the last metrics."""
    module = module or net()
    algorithm = learner(module, env, **{"updates_per_iteration": updates} | options)
    state, metrics = algorithm.step(algorithm.init(jax.random.key(seed)))
    algorithm.close()
    return state.learning.params, A3C(**FAST | options).bind(module, env).network, metrics


def value(params, functions, *observations):
    return functions.apply(params, jnp.float32(observations)[:, None], ())[1]


@pytest.mark.slow_except("observed-1")
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    ("make", "observations", "values"),
    [
        (probes.constant, [0.0], [1.0]),
        (probes.observed_reward, [-1.0, 1.0], [-1.0, 1.0]),
        (probes.delayed_reward, [0.0, 1.0], [0.9, 1.0]),
    ],
    ids=["constant", "observed", "delayed"],
)
def test_values_are_known(make, observations, values, lag):
    """Terminal rewards count, and nothing behind a termination does."""
    env = make(num_envs=8, groups=2)
    params, functions, metrics = learned(env, lag=lag, anneal_frames=600 * 40, entropy_coefficient=0.0)
    np.testing.assert_allclose(value(params, functions, *observations), values, atol=1e-2)
    assert metrics["lag_max"] == lag
    assert metrics["learning_rate"] == 0.0


@pytest.mark.slow_except("True")
@pytest.mark.parametrize("vtrace", [False, True])
def test_a_time_limit_bootstraps(vtrace, endless):
    """1 / (1 - 0.9) wherever the limit is; taken for a termination, the value would lie below 5."""
    params, functions, _ = learned(endless, updates=1_500, vtrace=vtrace, anneal_frames=1_500 * 40)
    np.testing.assert_allclose(value(params, functions, 0.0), [10.0], rtol=1e-2)


def test_dummy_steps_are_not_learned_from():
    """Of one-step episodes every other step is a reset."""
    env = probes.constant(num_envs=8, groups=2)
    _, _, metrics = learned(env, updates=100)
    algorithm = learner(net(), env, updates_per_iteration=100)
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    transitions = 100 * env.num_envs * 5
    assert state.learning.metrics["entropy"].num == pytest.approx(transitions / 2, rel=0.01)
    # One round more is played than learned, and its first steps are resets.
    assert metrics["frames"] == pytest.approx(transitions / 2, rel=0.03)
    assert metrics["training_mean"] == 1.0


def test_ga3c_has_the_published_constants():
    """As in the paper and its code: clipped rewards, unclipped gradients, sums, TensorFlow's RMSProp."""
    preset = A3C.ga3c()
    published = {"segment_length": 5, "discount": 0.99, "learning_rate": 3e-4, "entropy_coefficient": 0.01}
    published |= {"log_epsilon": 1e-6, "reward_bound": 1.0, "loss_reduction": "sum", "max_gradient_norm": None}
    assert {name: getattr(preset, name) for name in published} == published
    assert isinstance(preset.optimizer, functools.partial)
    assert preset.optimizer.func is optax.rmsprop
    assert preset.optimizer.keywords == {"decay": 0.99, "eps": 0.1, "initial_scale": 1.0}
    # Half the squared error, once.
    assert preset.value_coefficient == 1.0
    # n-step returns of uncorrected, once-delayed segments, one round an update.
    assert (preset.trace_decay, preset.vtrace) == (1.0, False)
    assert (preset.lag, preset.rounds_per_update) == (1, 1)


def test_mujoco_has_unclipped_rewards_and_no_bonus():
    changed = {"trace_decay": 0.95, "learning_rate": 3e-4, "entropy_coefficient": 0.0, "reward_bound": None}
    assert dataclasses.replace(A3C(), **changed) == A3C.mujoco()


@pytest.mark.slow_except("modern")
@pytest.mark.parametrize(("settings", "rate"), [(A3C.ga3c(), 3e-3), (A3C(), 6e-3)], ids=["ga3c", "modern"])
def test_presets_learn_what_to_do(settings, rate):
    """At ten times their rate, as this is no game."""
    settings = dataclasses.replace(settings, learning_rate=rate, updates_per_iteration=600)
    algorithm = learn(settings, net(), probes.matched_reward(num_envs=16, groups=2))
    _, metrics = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    assert metrics["training_mean"] > 0.9


def test_a_gaussian_policy_learns_to_answer():
    """Any constant action earns -1/3 a step or less, -2.7 an episode."""
    env = probes.target(size=2, num_envs=16, groups=2)
    annealed = {"anneal_frames": 800 * 16 * 5, "entropy_coefficient": 0.0}
    *_, metrics = learned(env, GaussianMLP(2, (32,)), 800, reward_bound=None, **annealed)
    assert metrics["training_mean"] > -0.5


@pytest.mark.slow
def test_only_a_recurrent_policy_recalls(recall):
    *_, remembers = learned(recall, RecurrentActorCritic(2, Torso(), width=8), segment_length=7)
    *_, forgets = learned(recall, segment_length=7)
    assert remembers["training_mean"] > 0.8
    assert abs(forgets["training_mean"]) < 0.5


@pytest.mark.slow_except("0-1", "2-2")
@pytest.mark.parametrize(("lag", "rounds_per_update"), [(0, 1), (0, 2), (1, 1), (1, 3), (2, 1), (2, 2), (4, 3)])
def test_the_lag_is_what_was_asked_for(lag, rounds_per_update):
    """In rounds; those that share an update share its version."""
    env, lags = probes.corridor(num_envs=8, groups=2), {"lag": lag, "rounds_per_update": rounds_per_update}
    algorithm = learner(net(), env, **lags, updates_per_iteration=150)
    _, metrics = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    assert metrics["lag_max"] == math.ceil(lag / rounds_per_update)
    assert metrics["lag_mean"] == pytest.approx(lag / rounds_per_update, rel=0.05)
    assert metrics["update"] == 150


@pytest.mark.slow_except("{'micro_batch': 1}")
@pytest.mark.parametrize("options", [{}, {"lag": 0}, {"lag": 2, "rounds_per_update": 2}, {"micro_batch": 1}], ids=str)
def test_traced_and_driven_agree(options):
    """Bit for bit, on environments that repeat."""
    runs = []
    for host in (False, True):
        env = probes.corridor(length=4, num_envs=8, groups=2)
        algorithm = learner(net(), env, **options, updates_per_iteration=16, host=host)
        state, metrics = algorithm.step(algorithm.init(jax.random.key(3)))
        algorithm.close()
        measured = ("per_second", "share", "speed")
        runs.append((state, {name: x for name, x in metrics.items() if not any(word in name for word in measured)}))
    (traced, traced_metrics), (from_python, driven_metrics) = runs
    jax.tree.map(np.testing.assert_array_equal, traced.learning.params, from_python.learning.params)
    assert traced_metrics == driven_metrics


@pytest.mark.stopwatch
def test_the_stopwatch_changes_nothing():
    """The second step goes through a few rounds with it, the first one does not."""

    def after(steps, updates):
        algorithm = learner(net(), probes.corridor(length=4, num_envs=8, groups=2), updates_per_iteration=updates)
        state, metrics = algorithm.init(jax.random.key(3)), {}
        for _ in range(steps):
            state, metrics = algorithm.step(state)
        algorithm.close()
        return state, metrics

    (timed, metrics), (plain, _) = after(2, 8), after(1, 16)
    jax.tree.map(np.testing.assert_array_equal, timed.learning.params, plain.learning.params)
    assert timed.timesteps == plain.timesteps
    shares = [metrics[f"share_{part}"] for part in ("emulators", "inference", "learning")]
    assert sum(shares) == pytest.approx(1)
    assert min(shares) > 0
    assert metrics["speed_over_turns"] > 0


@pytest.mark.slow_except("2")
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_micro_batches_only_split_the_work(micro_batch):
    """The gradient is a sum; how it is cut into pieces matters to rounding alone."""

    def params(micro_batch):
        env = probes.corridor(length=4, num_envs=8, groups=2)
        algorithm = learner(net(), env, micro_batch=micro_batch, updates_per_iteration=3)
        state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
        algorithm.close()
        return state.learning.params

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), params(micro_batch), params(4))


def numbers(tree):
    """With the data of keys in their place."""
    is_key = lambda x: hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)


def test_a_saved_state_goes_on(tmp_path):
    algorithm = learner(net(), probes.corridor(num_envs=8, groups=2), updates_per_iteration=20)
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    directory = tmp_path / "checkpoints"
    checkpoint.save(directory, 1, algorithm.save(state))
    again = algorithm.restore(checkpoint.restore(directory, 1))
    jax.tree.map(np.testing.assert_array_equal, *map(numbers, (again, state)))
    new, metrics = algorithm.step(again)
    algorithm.close()
    assert metrics["update"] == 40
    assert metrics["frames"] > state.timesteps
    assert metrics["episodes"] > int(state.acting.episodes.total)
    # The state stepped from is as it was.
    assert int(state.learning.update) == 20
    assert int(new.learning.update) == 40


def test_an_interrupted_step_leaves_its_state():
    algorithm = learner(net(), probes.corridor(num_envs=8, groups=2), updates_per_iteration=10_000, chunk_seconds=0.01)
    state = algorithm.init(jax.random.key(0))
    with pytest.raises(Interrupted, match="updates"):
        algorithm.step(state, monitor=lambda progress: progress.get("done", 0) > 10)
    assert int(state.learning.update) == state.timesteps == 0
    assert int(jax.tree.map(jnp.copy, state).learning.update) == 0  # nothing of it was donated
    algorithm.close()


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    env = from_functions(
        lambda key: jnp.int32(0),
        lambda t, action, key: (t + 1, jnp.where(t > 60, jnp.nan, 1.0), False),
        lambda t: jnp.float32(t)[None] / 1000,
        name="breaks",
        num_envs=4,
        groups=2,
        num_actions=2,
        max_episode_steps=100_000,
    )
    algorithm = learner(net(), env, updates_per_iteration=4, reward_bound=None)
    with pytest.raises(FloatingPointError, match="no longer finite") as caught:
        train(algorithm, seed=0, steps=100, run_dir=tmp_path / "run", progress=False)
    algorithm.close()
    directory = tmp_path / "run" / "checkpoints"
    newest = checkpoint.steps(directory)[-1]
    assert newest > 0
    assert f"iteration {newest}; its checkpoint is in {directory.parent}" in caught.value.__notes__[-1]
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == newest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"segment_length": 17}, "give at most 16, the longest episode"),
        ({"segment_length": 0}, "segment_length must be an integer of at least 1, got 0"),
        ({"micro_batch": 3}, r"micro_batch=3 does not divide.*\[1, 2, 4\]"),
        ({"micro_batch": 0}, "micro_batch must be an integer of at least 1, got 0"),
        ({"lag": -1}, "lag must be an integer of at least 0, got -1"),
        ({"lag": 0, "vtrace": True}, "lag=0"),
        ({"vtrace": True, "c_clip": 2.0}, "rho_clip >= c_clip"),
        ({"c_clip": 0.5}, "c_clip=0.5: these are V-trace's"),
        ({"chunk_seconds": float("nan")}, "chunk_seconds=nan"),
        ({"vtrace": True, "rho_clip": -1.0}, "rho_clip >= c_clip"),
        ({"loss_reduction": "max"}, "'sum' or 'mean'"),
        ({"vtrace": True, "log_epsilon": 1e-6}, "take one of them"),
        ({"episodic_life": True}, "lives"),
        ({"learning_rate": 0.0}, "learning_rate=0"),
        ({"discount": 1.5}, "discount=1.5: give a number from 0 to 1"),
        ({"trace_decay": -0.5}, "trace_decay=-0.5"),
        ({"entropy_coefficient": -0.1}, "entropy_coefficient=-0.1"),
        ({"value_coefficient": float("inf")}, "value_coefficient=inf: give a finite number of at least 0"),
        ({"reward_bound": 0.0}, "reward_bound=0.0: give a finite number above 0"),
        ({"optimizer": "adam"}, "optimizer='adam': give an optax.GradientTransformation"),
        ({"optimizer": optax.constant_schedule}, "give an optax.GradientTransformation, or a function"),
        ({"optimizer": optax.sgd(0.1)}, "learning_rate=0.01: a ready-made optimizer brings its own"),
        ({"learning_rate": None}, "learning_rate=None: .*adam.* is a function of the learning rate"),
        (
            {"learning_rate": optax.constant_schedule(0.1), "anneal_frames": 10},
            "anneal_frames=10 needs a learning_rate",
        ),
        ({"optimizer": optax.sgd(0.1), "learning_rate": None, "anneal_frames": 10}, "anneal_frames=10 needs"),
        ({"max_gradient_norm": 0.0}, "max_gradient_norm=0"),
        ({"anneal_frames": 0}, "anneal_frames"),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        learner(net(), probes.corridor(length=8, num_envs=8, groups=2), **options)


@pytest.mark.parametrize(
    ("module", "env"),
    [
        (net(3), probes.corridor()),
        (net(2), probes.target(size=2)),
        (Torso(), probes.corridor()),
        (GaussianMLP(2), probes.corridor()),
        (GaussianMLP(1), probes.corridor()),  # a mean and a deviation would pass as two logits
    ],
    ids=["width", "categorical, continuous actions", "one output", "gaussian, discrete actions", "of equal width"],
)
def test_networks_that_do_not_fit_are_refused(module, env):
    with pytest.raises(ValueError, match=env.spec.name):
        learn(A3C(), module, env)


@pytest.mark.parametrize(
    ("options", "width", "message"),
    [
        ({}, 8, r"Dense_0.*\(4, 2\) float32, and this one \(8, 2\) float32"),
        ({"optimizer": optax.sgd}, 4, "nothing"),
        ({"optimizer": optax.sgd(1e-3, momentum=0.9), "learning_rate": None}, 4, "nothing"),
    ],
    ids=["width", "function", "ready-made"],
)
def test_a_checkpoint_of_another_network_or_optimiser_is_refused(tmp_path, options, width, message):
    env = probes.corridor()
    saved = learner(ActorCritic(2, Torso(4)), env)
    checkpoint.save(tmp_path, 1, saved.save(saved.init(jax.random.key(0))))
    other = learner(ActorCritic(2, Torso(width)), env, **options)
    with pytest.raises(ValueError, match=message):
        other.restore(checkpoint.restore(tmp_path, 1))


@pytest.mark.parametrize(
    ("env", "module"),
    [
        (probes.corridor(num_envs=4), net()),
        (probes.target(size=2, num_envs=4), GaussianMLP(2, (8,))),
        (probes.corridor(num_envs=4), RecurrentActorCritic(2, Torso(), width=4)),
    ],
    ids=["categorical", "gaussian", "recurrent"],
)
def test_what_was_learned_plays_fresh_episodes(env, module):
    algorithm = learner(module, env)
    params = algorithm.variables(algorithm.init(jax.random.key(0)))
    score = play(env, algorithm.policy, params, num_episodes=6)
    assert score.returns.shape == (6,)
    assert score.lengths.min() >= 1


def test_an_update_that_spoils_the_parameters_is_not_kept():
    """A rate so large that finite gradients end in infinite parameters, in the step's last update."""
    spoiling = {"optimizer": optax.scale(float("inf")), "learning_rate": None}
    algorithm = learner(net(), probes.corridor(), **spoiling, updates_per_iteration=1)
    with pytest.raises(FloatingPointError, match="parameters"):
        algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()


# --- The loss, by its formula ---------------------------------------------------------------------------------------

T, B, A, K = 5, 3, 4, 2


class Linear(nn.Module):
    """Logits and values that are linear in the observation."""

    @nn.compact
    def __call__(self, x):
        policy = self.param("policy", nn.initializers.normal(1.0), (K, A))
        return x @ policy, x @ self.param("value", nn.initializers.ones, (K,))


def linear(**options):
    """The learner of one linear layer, whose gradients can be written down."""
    spec = probes.corridor().spec._replace(observation_shape=(K,), num_actions=A)
    env = probes.corridor(num_envs=B, groups=1)._replace(spec=spec)
    settings = {"segment_length": T, "discount": 0.9, "vtrace": False, "entropy_coefficient": 0.3, "micro_batch": 1}
    return A3C(**settings | options).bind(Linear(), env)


def segment(seed=0):
    """Environment 0 terminates at timestep 1 and shows its dummy at 2; environment 1 is cut there; 2 goes on."""
    rng = np.random.default_rng(seed)
    flags = np.zeros((3, T, B), bool)
    terminated, truncated, dummy = flags
    terminated[1, 0] = truncated[1, 1] = True
    dummy[2, :2] = True
    return Segment(
        observation=rng.standard_normal((T, B, K)).astype(np.float32),
        first=np.roll(dummy, 1, axis=0),
        action=rng.integers(0, A, (T, B)).astype(np.int32),
        log_prob=np.log(rng.uniform(0.1, 0.9, (T, B))).astype(np.float32),
        reward=rng.standard_normal((T, B)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=~dummy,
        version=np.full(T, 3, np.int32),
        bootstrap=rng.standard_normal(B).astype(np.float32),
        recurrent=(),
    )


def forward(params, s):
    policy, value = (np.asarray(params[name], np.float64) for name in ("policy", "value"))
    logits, v = s.observation @ policy, s.observation @ value
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return p, v


def targets(s, v, discount=0.9):
    """n-step returns, written out timestep by timestep."""
    g = np.zeros((T, B))
    for b in range(B):
        following = float(s.bootstrap[b])
        for t in reversed(range(T)):
            after = v[t + 1, b] if t + 1 < T else float(s.bootstrap[b])
            if s.terminated[t, b]:
                following = 0.0
            elif s.truncated[t, b]:
                following = after
            g[t, b] = following = s.reward[t, b] + discount * following
    return g


def expected(params, s, entropy_coefficient, log_epsilon=0.0, value_coefficient=0.5):
    p, v = forward(params, s)
    g = targets(s, v)
    chosen = np.take_along_axis(p, s.action[..., None], -1)[..., 0]
    policy = -(np.log(chosen + log_epsilon) * (g - v))[s.valid].sum()
    entropy = -(p * np.log(p + log_epsilon)).sum(-1)[s.valid].sum()
    value = 0.5 * ((g - v) ** 2)[s.valid].sum()
    return policy - entropy_coefficient * entropy + value_coefficient * value, policy, entropy, value


@pytest.mark.parametrize("log_epsilon", [0.0, 1e-2])
def test_the_loss_is_its_formula(log_epsilon):
    learner, s = linear(log_epsilon=log_epsilon), segment()
    params = learner.policy.init(jax.random.key(0))
    total, means = learner.loss(params, s, jnp.int32(5))
    sums = [means[name].total for name in ("policy_loss", "entropy", "value_loss")]
    np.testing.assert_allclose([total, *sums], expected(params, s, 0.3, log_epsilon), rtol=1e-4)
    assert {float(means[name].num) for name in ("policy_loss", "entropy", "value_loss", "lag_mean")} == {T * B - 2}
    assert means["lag_mean"].total == 2 * (T * B - 2)
    assert means["lag_max"].value == 2


def gradient_of(learner, params, s, update=5):
    return jax.grad(lambda p: learner.loss(p, s, jnp.int32(update))[0])(params)


def test_the_gradient_takes_returns_and_advantages_as_constants():
    learner, s = linear(entropy_coefficient=0.0), segment()
    params = learner.policy.init(jax.random.key(0))
    got = gradient_of(learner, params, s)
    p, v = forward(params, s)
    advantage = np.where(s.valid, targets(s, v) - v, 0.0)
    to_logits = -advantage[..., None] * (np.eye(A)[s.action] - p)
    np.testing.assert_allclose(got["policy"], np.einsum("tbk,tba->ka", s.observation, to_logits), rtol=1e-4)
    np.testing.assert_allclose(got["value"], np.einsum("tbk,tb->k", s.observation, -0.5 * advantage), rtol=1e-4)


def test_what_a_dummy_timestep_holds_changes_nothing():
    learner, s = linear(), segment()
    params, dummy = learner.policy.init(jax.random.key(0)), ~s.valid
    other = s._replace(
        reward=np.where(dummy, 1e3, s.reward), action=np.where(dummy, 0, s.action), log_prob=np.where(dummy, -9, 0)
    )
    both = (gradient_of(learner, params, x) for x in (s, other))
    jax.tree.map(np.testing.assert_array_equal, *both)


def test_vtrace_weighs_by_what_the_actor_thought():
    """With the learner's own probabilities it is the plain loss; with others it is not."""
    plain, corrected, s = linear(), linear(vtrace=True), segment()
    params = plain.policy.init(jax.random.key(0))
    p, _ = forward(params, s)
    own = np.log(np.take_along_axis(p, s.action[..., None], -1)[..., 0]).astype(np.float32)
    loss, _ = plain.loss(params, s, jnp.int32(5))
    same, _ = corrected.loss(params, s._replace(log_prob=own), jnp.int32(5))
    other, _ = corrected.loss(params, s._replace(log_prob=own + 1), jnp.int32(5))
    np.testing.assert_allclose(loss, same, rtol=1e-4)
    assert abs(float(other - loss)) > 1e-2


@pytest.mark.slow_except("sum")
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_an_update_is_by_the_sum_or_the_mean_of_micro_batches(reduction):
    ready_made = {"optimizer": optax.sgd(0.1), "learning_rate": None, "max_gradient_norm": None}
    learner, s = linear(**ready_made, loss_reduction=reduction), segment()
    _, before = learner.init(jax.random.key(0))
    learning = before
    for part in (slice(0, 1), slice(1, 3)):
        piece = jax.tree.map(lambda x, part=part: x[:, part], s._replace(version=(), bootstrap=()))
        learning = learner.accumulate(learning, piece._replace(version=s.version, bootstrap=s.bootstrap[part]))
    after = learner.update(learning, jnp.float32(0))
    gradient = gradient_of(learner, before.params, s, update=0)
    scale = 0.1 / (T * B - 2) if reduction == "mean" else 0.1
    jax.tree.map(
        lambda new, old, g: np.testing.assert_allclose(new, old - scale * g, rtol=1e-4, atol=1e-6),
        after.params,
        before.params,
        gradient,
    )
    assert after.update == 1
    assert after.transitions == 0
    assert not any(leaf.any() for leaf in jax.tree.leaves(after.gradient))
    assert after.metrics["entropy"].num == T * B - 2
    norm = optax.tree.norm(gradient) / (T * B - 2 if reduction == "mean" else 1)
    np.testing.assert_allclose(after.metrics["gradient_norm"], (norm, 1), rtol=1e-4)


def test_the_learning_rate_is_annealed_to_0():
    """Over so many frames."""
    frames = 10 * B * T  # ten updates
    learner = linear(anneal_frames=frames, optimizer=optax.sgd, learning_rate=1.0, max_gradient_norm=None)
    gradient = {"w": jnp.ones(1)}
    state = learner.optimizer.init(gradient)
    for i in range(12):
        changes, state = learner.optimizer.update(gradient, state, gradient)
        np.testing.assert_allclose(changes["w"], -max(1 - i / 10, 0.0), atol=1e-6)
    ready_made = linear(optimizer=optax.sgd(1.0), learning_rate=None, max_gradient_norm=None)
    changes, _ = ready_made.optimizer.update(gradient, ready_made.optimizer.init(gradient), gradient)
    np.testing.assert_array_equal(changes["w"], [-1.0])


@pytest.mark.parametrize(("lag", "frames"), [(0, 2 * 6 * 8), (1, 2 * 5 * 8)])
def test_frames_of_an_update(lag, frames):
    """Of two rounds of five timesteps of eight environments; without lag, rounds have one more."""
    settings = A3C(segment_length=5, rounds_per_update=2, lag=lag, vtrace=False)
    env = probes.corridor(num_envs=8, groups=2)
    assert settings.frames_per_update(env) == frames
    skipping = env._replace(spec=env.spec._replace(frame_skip=4))
    assert settings.frames_per_update(skipping) == 4 * frames


def test_the_entropy_coefficient_is_constant_or_a_schedule():
    """It does not follow the learning rate."""
    s, weight = segment(), optax.linear_schedule(0.3, 0.0, 10)
    annealed, scheduled = linear(anneal_frames=10 * B * T), linear(entropy_coefficient=weight)
    params = annealed.policy.init(jax.random.key(0))
    for update, coefficient in ((0, 0.3), (5, 0.15), (12, 0.0)):
        loss, _ = scheduled.loss(params, s, jnp.int32(update))
        np.testing.assert_allclose(loss, expected(params, s, coefficient)[0], rtol=1e-4)
        loss, _ = annealed.loss(params, s, jnp.int32(update))
        np.testing.assert_allclose(loss, expected(params, s, 0.3)[0], rtol=1e-4)


class OfPosition(nn.Module):
    """Logits and values that are linear in a position and a constant."""

    @nn.compact
    def __call__(self, x):
        x = jnp.concatenate([x, jnp.ones_like(x)], axis=1)
        value = self.param("value", nn.initializers.ones, (2,))
        return x @ self.param("policy", nn.initializers.normal(1.0), (2, 2)), x @ value


def vtrace_gradient(params, part, bootstrap_observation, discount=0.9, value_coefficient=0.5):
    """Mean gradient of a segment of V-trace without entropy, equation (1) of the paper written out as sums."""
    policy, weights = (np.asarray(params[name], np.float64) for name in ("policy", "value"))
    x = np.concatenate([part.observation, bootstrap_observation[None]])
    x = np.concatenate([x, np.ones_like(x)], axis=-1)
    v, logits = x @ weights, x[:-1] @ policy
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = np.take_along_axis(p, part.action[..., None], -1)[..., 0]
    rho = np.minimum(1.0, chosen / np.exp(part.log_prob))
    gamma, trace = discount * (1.0 - part.terminated), rho * (1.0 - part.truncated)
    delta = rho * (part.reward + gamma * v[1:] - v[:-1])
    length, num_envs = part.reward.shape
    target, advantage = np.zeros((length, num_envs)), np.zeros((length, num_envs))
    for b in range(num_envs):
        for s in range(length):
            weight = [np.prod(gamma[s:t, b] * trace[s:t, b]) for t in range(s, length)]
            target[s, b] = v[s, b] + np.dot(weight, delta[s:, b])
        following = np.append(target[1:, b], v[length, b])
        following = np.where(part.truncated[:, b], v[1:, b], following)
        advantage[:, b] = rho[:, b] * (part.reward[:, b] + gamma[:, b] * following - v[:-1, b])
    advantage, error = (np.where(part.valid, e, 0.0) for e in (advantage, target - v[:-1]))
    to_logits = -advantage[..., None] * (np.eye(2)[part.action] - p)
    of_policy = np.einsum("tbk,tba->ka", x[:-1], to_logits)
    return {"policy": of_policy, "value": np.einsum("tbk,tb->k", x[:-1], -value_coefficient * error)}, part.valid.sum()


@pytest.mark.parametrize("lag", [2, 3])
def test_vtrace_takes_all_values_from_the_parameters_that_learn(lag):
    """Each update in NumPy: the value that bootstraps a segment is of the same parameters as all others."""
    env, rate, length = probes.corridor(length=3, max_episode_steps=4, num_envs=6, groups=1), 0.5, 3
    options = {"optimizer": optax.sgd, "learning_rate": rate, "max_gradient_norm": None, "entropy_coefficient": 0.0}
    learner = A3C(lag=lag, segment_length=length, micro_batch=2, discount=0.9, **options).bind(OfPosition(), env)
    groups = env.make(0)
    acting, learning = learner.init(jax.random.key(0))
    state = LoopState(tuple(group.init() for group in groups), learner.begin(acting, groups), learning)
    state = jax.tree.map(jnp.copy, state)
    stages = Stages(learner.act, learner.work, None, None, learner.finish)
    play_round, stale = driven(stages, groups, beats_per_round=length), 0.0
    for number in range(12):
        before = jax.device_get(state.memory.params)
        state, _ = play_round(state, jax.random.key(1), 1)
        after = jax.device_get(state.memory.params)
        if number < lag:
            jax.tree.map(np.testing.assert_array_equal, before, after)
            continue
        ring, slot = jax.device_get(state.carry.collectors[0].ring), (number - lag) % (lag + 1)
        part = jax.tree.map(lambda x, slot=slot: x[slot], ring)
        gradient, count = vtrace_gradient(before, part, ring.observation[(slot + 1) % (lag + 1), 0])
        expected = jax.tree.map(lambda p, g, count=count: p - rate * g / count, before, gradient)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), after, expected)
        bootstrap = ring.observation[(slot + 1) % (lag + 1), 0, :, 0] * before["value"][0] + before["value"][1]
        stale = max(stale, np.abs(bootstrap - part.bootstrap).max())
    assert stale > 1e-2  # the value predicted while acting would not do


def test_gradients_are_clipped_before_the_optimizer():
    learner = linear(optimizer=optax.sgd, learning_rate=1.0, max_gradient_norm=0.5)
    gradient = {"w": jnp.array([3.0, 4.0])}
    changes, _ = learner.optimizer.update(gradient, learner.optimizer.init(gradient), gradient)
    np.testing.assert_allclose(changes["w"], [-0.3, -0.4], rtol=1e-6)


# --- Acting by itself -----------------------------------------------------------------------------------------------


class Constant(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.zeros((x.shape[0], 2)), jnp.zeros(x.shape[0])


@pytest.mark.parametrize("episodic_life", [False, True])
def test_a_lost_life_is_an_end_to_the_learner_alone(episodic_life):
    """Lives lost; game over; time limit; time limit as a life is lost; a bonus life; a new game with fewer lives."""
    before = np.array([3, 1, 3, 3, 3, 5])
    now = np.array([2, 0, 3, 2, 4, 3])
    terminated = np.array([0, 1, 0, 0, 0, 0], bool)
    truncated = np.array([0, 0, 1, 1, 0, 0], bool)
    first = np.array([0, 0, 0, 0, 0, 1], bool)
    b = len(now)
    env = probes.constant(num_envs=b, groups=1)
    env = env._replace(spec=env.spec._replace(extras=("lives",), max_episode_steps=100))
    learner = A3C(segment_length=4, reward_bound=1.0, episodic_life=episodic_life).bind(Constant(), env)
    ring = segments.init(2, 4, b, env.spec, ())
    me = Collector(ring, (), metrics.init_running(b), jnp.asarray(before, jnp.int32))
    zero = jnp.int32(0)
    acting = Acting(jnp.int32(2), jnp.int32(3), zero, zero, metrics.init_episodes(), (me,))
    timestep = TimeStep(
        observation=jnp.zeros((b, 1)),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated),
        first=jnp.asarray(first),
        reward=jnp.full(b, 7.0),
        extras={"lives": jnp.asarray(now)},
    )
    learning = Learning({}, (), (), jnp.float32(0), zero, {})
    acting, _ = learner.act(acting, learning, jax.random.key(0), 0, timestep)
    got = acting.collectors[0].ring
    lost = np.array([1, 1, 0, 1, 0, 0], bool) if episodic_life else np.zeros(b, bool)
    np.testing.assert_array_equal(got.terminated[0, 2], terminated | lost)
    np.testing.assert_array_equal(got.truncated[0, 2], truncated & ~lost)
    np.testing.assert_array_equal(got.reward[0, 2], np.ones(b))  # clipped
    np.testing.assert_array_equal(got.valid[0, 2], ~first)
    # Games end by their own rules, and score unclipped.
    assert acting.episodes.total == 3
    np.testing.assert_array_equal(acting.episodes.returns[:3], [7.0, 7.0, 7.0])
    assert acting.timesteps == b - 1


def test_a_recurrent_policy_is_unrolled_as_it_acted():
    """Across ends of episodes and of segments, whose stored state is not zero."""
    env = probes.countdown(low=1, high=6, num_envs=4, groups=1)
    settings = A3C(segment_length=5, micro_batch=4)
    learner = settings.bind(RecurrentActorCritic(2, Torso(8), width=3), env)
    acting, learning = learner.init(jax.random.key(0))
    # Larger than at first, so that probabilities differ from timestep to timestep.
    params = jax.tree.map(lambda x: 3 * x, learning.params)
    params["Dense_0"]["kernel"] *= 100
    learning = learning._replace(params=params)

    def learn_nothing(acting, learning, key, g):
        return acting._replace(beat=acting.beat + 1), learning

    def finish(acting, learning, key):
        return acting._replace(round=acting.round + 1, beat=jnp.int32(0)), learning

    groups = env.make(0)
    state = LoopState(tuple(group.init() for group in groups), learner.begin(acting, groups), learning)
    state = jax.tree.map(jnp.copy, state)
    stages = Stages(learner.act, learn_nothing, None, None, finish)
    state, _ = driven(stages, groups, beats_per_round=5)(state, jax.random.key(1), 4)
    ring = state.carry.collectors[0].ring
    boundaries = 0
    for slot in range(2):
        part = segments.take(ring, jnp.int32(slot), jnp.int32(0), 4, 5)
        output, _ = learner.network.unroll(params, part.observation, part.first, part.recurrent)
        again = learner.network.distribution.log_prob(output, part.action)
        np.testing.assert_allclose(again, part.log_prob, atol=1e-5)
        assert float(jnp.std(part.log_prob)) > 1e-3
        assert part.first.any()
        boundaries += int((~part.first[0] & (jnp.abs(part.recurrent[0]).max(-1) > 0)).sum())
    assert boundaries > 0
