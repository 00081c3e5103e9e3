"""The whole learner on environments with known answers, its schedule, and its refusals."""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from volvox.actor_critic import a3c, ga3c, modern

import volvox as vx
from volvox.envs import probe
from volvox.envs.functional import from_functions
from volvox.networks import ActorCritic, GaussianMLP, RecurrentActorCritic
from volvox.networks.actor_critic import actor_critic

FAST = {
    "segment_length": 5,
    "learning_rate": 1e-2,
    "optimizer": "adam",
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


def learned(env, module=None, updates=600, seed=0, **options):
    """Parameters after training, the network as functions, and the last metrics."""
    module = module or net()
    algorithm = a3c(module, env, **FAST | {"updates_per_step": updates} | options)
    state, metrics = algorithm.step(algorithm.init(jax.random.key(seed)))
    algorithm.close()
    size = 2 * env.spec.action_shape[0] if env.spec.num_actions is None else env.spec.num_actions
    return state.learner.params, actor_critic(module, env.spec, output_size=size), metrics


def value(params, functions, *observations):
    return functions.apply(params, jnp.float32(observations)[:, None], ())[1]


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    ("make", "observations", "values"),
    [
        (probe.constant, [0.0], [1.0]),
        (probe.observed_reward, [-1.0, 1.0], [-1.0, 1.0]),
        (probe.delayed_reward, [0.0, 1.0], [0.9, 1.0]),
    ],
    ids=["constant", "observed", "delayed"],
)
def test_values_are_known(make, observations, values, lag):
    """Terminal rewards count, and nothing behind a termination does."""
    env = make(num_envs=8, groups=2)
    params, functions, metrics = learned(env, lag=lag, anneal_frames=600 * 40, entropy_coefficient=0.0)
    np.testing.assert_allclose(value(params, functions, *observations), values, atol=1e-2)
    assert metrics["lag_max"] == lag


def endless(max_episode_steps):
    """One observation, reward 1 at every step, no end but the time limit."""
    return from_functions(
        lambda key: jnp.float32(0),
        lambda state, action, key: (state, 1.0, False),
        lambda state: state[None],
        name="endless",
        num_envs=8,
        groups=2,
        num_actions=2,
        max_episode_steps=max_episode_steps,
    )


@pytest.mark.parametrize("vtrace", [False, True])
def test_a_time_limit_bootstraps(vtrace):
    """1 / (1 - 0.9) wherever the limit is; taken for a termination, the value would lie below 5."""
    params, functions, _ = learned(endless(5), updates=1_500, vtrace=vtrace, anneal_frames=1_500 * 40)
    np.testing.assert_allclose(value(params, functions, 0.0), [10.0], rtol=1e-2)


def test_dummy_steps_are_not_learned_from():
    """Of one-step episodes every other step is a reset."""
    env = probe.constant(num_envs=8, groups=2)
    _, _, metrics = learned(env, updates=100)
    algorithm = a3c(net(), env, **FAST, updates_per_step=100)
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    transitions = 100 * env.num_envs * 5
    assert state.learner.sums.transitions == pytest.approx(transitions / 2, rel=0.01)
    # One round more is played than learned, and its first steps are resets.
    assert metrics["frames"] == pytest.approx(transitions / 2, rel=0.03)
    assert metrics["training_mean"] == 1.0


def test_ga3c_has_the_published_constants():
    """As in the paper and its code: clipped rewards, unclipped gradients, sums, TensorFlow's RMSProp."""
    preset = ga3c()
    published = {"segment_length": 5, "discount": 0.99, "learning_rate": 3e-4, "entropy_coefficient": 0.01}
    published |= {"log_epsilon": 1e-6, "reward_bound": 1.0, "loss_reduction": "sum", "max_gradient_norm": None}
    assert {name: preset[name] for name in published} == published
    assert preset["optimizer"] == "rmsprop"
    assert preset["optimizer_options"] == {"decay": 0.99, "eps": 0.1, "initial_scale": 1.0}
    # Half the squared error, once.
    assert preset["value_coefficient"] == 1.0
    settings = {name: parameter.default for name, parameter in inspect.signature(a3c).parameters.items()} | preset
    # n-step returns of uncorrected, once-delayed segments, one round an update.
    assert (settings["trace_decay"], settings["vtrace"]) == (1.0, False)
    assert (settings["lag"], settings["rounds_per_update"]) == (1, 1)


def test_the_defaults_are_modern():
    defaults = {name: parameter.default for name, parameter in inspect.signature(a3c).parameters.items()}
    given = {name: value for name, value in modern().items() if name != "optimizer_options"}
    assert {name: defaults[name] for name in given} == given


@pytest.mark.parametrize(
    "options", [ga3c() | {"learning_rate": 3e-3}, modern() | {"learning_rate": 6e-3}], ids=["ga3c", "modern"]
)
def test_presets_learn_what_to_do(options):
    """At ten times their rate, as this is no game."""
    algorithm = a3c(net(), probe.matched_reward(num_envs=16, groups=2), **options, updates_per_step=600)
    _, metrics = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    assert metrics["training_mean"] > 0.9


def test_a_gaussian_policy_learns_to_answer():
    """Any constant action earns -1/3 a step or less, -2.7 an episode."""
    env = probe.target(size=2, num_envs=16, groups=2)
    annealed = {"anneal_frames": 800 * 16 * 5, "entropy_coefficient": 0.0}
    *_, metrics = learned(env, GaussianMLP(2, (32,)), 800, reward_bound=None, **annealed)
    assert metrics["training_mean"] > -0.5


def recall():
    """Shows -1 or 1, then 0; then the action is rewarded if it names what was shown."""
    sign = lambda key: jnp.where(jax.random.bernoulli(key), 1.0, -1.0)  # noqa: E731

    def step(state, action, key):
        shown, t = state
        right = (action == 1) == (shown > 0)
        return (shown, t + 1), jnp.where(t == 1, jnp.where(right, 1.0, -1.0), 0.0), t == 1

    return from_functions(
        lambda key: (sign(key), jnp.int32(0)),
        step,
        lambda state: jnp.where(state[1] == 0, state[0], 0.0)[None],
        name="recall",
        num_envs=16,
        groups=2,
        num_actions=2,
        max_episode_steps=10,
    )


def test_only_a_recurrent_policy_recalls():
    *_, remembers = learned(recall(), RecurrentActorCritic(2, Torso(), width=8), segment_length=7)
    *_, forgets = learned(recall(), segment_length=7)
    assert remembers["training_mean"] > 0.8
    assert abs(forgets["training_mean"]) < 0.5


@pytest.mark.parametrize(("lag", "rounds_per_update"), [(0, 1), (0, 2), (1, 1), (1, 3), (2, 1), (2, 2), (4, 3)])
def test_the_lag_is_what_was_asked_for(lag, rounds_per_update):
    """In rounds; those that share an update share its version."""
    algorithm = a3c(
        net(),
        probe.corridor(num_envs=8, groups=2),
        **FAST,
        lag=lag,
        rounds_per_update=rounds_per_update,
        updates_per_step=150,
    )
    _, metrics = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    assert metrics["lag_max"] == math.ceil(lag / rounds_per_update)
    assert metrics["lag_mean"] == pytest.approx(lag / rounds_per_update, rel=0.05)
    assert metrics["update"] == 150


@pytest.mark.parametrize("options", [{}, {"lag": 0}, {"lag": 2, "rounds_per_update": 2}, {"micro_batch": 1}], ids=str)
def test_traced_and_driven_agree(options):
    """Bit for bit, on environments that repeat."""
    runs = []
    for host in (False, True):
        env = probe.corridor(length=4, num_envs=8, groups=2)
        algorithm = a3c(net(), env, **FAST, **options, updates_per_step=16, host=host)
        state, metrics = algorithm.step(algorithm.init(jax.random.key(3)))
        algorithm.close()
        measured = ("per_second", "share", "speed")
        runs.append((state, {name: x for name, x in metrics.items() if not any(word in name for word in measured)}))
    (traced, traced_metrics), (driven, driven_metrics) = runs
    jax.tree.map(np.testing.assert_array_equal, traced.learner.params, driven.learner.params)
    assert traced_metrics == driven_metrics


def test_the_stopwatch_changes_nothing():
    """The second step goes through a few rounds with it, the first one does not."""

    def after(steps, updates):
        algorithm = a3c(net(), probe.corridor(length=4, num_envs=8, groups=2), **FAST, updates_per_step=updates)
        state, metrics = algorithm.init(jax.random.key(3)), {}
        for _ in range(steps):
            state, metrics = algorithm.step(state)
        algorithm.close()
        return state, metrics

    (timed, metrics), (plain, _) = after(2, 8), after(1, 16)
    jax.tree.map(np.testing.assert_array_equal, timed.learner.params, plain.learner.params)
    assert timed.frames == plain.frames
    shares = [metrics[f"share_{part}"] for part in ("emulators", "inference", "learning")]
    assert sum(shares) == pytest.approx(1)
    assert min(shares) > 0
    assert metrics["speed_over_turns"] > 0


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_micro_batches_only_split_the_work(micro_batch):
    """The gradient is a sum; how it is cut into pieces matters to rounding alone."""

    def params(micro_batch):
        env = probe.corridor(length=4, num_envs=8, groups=2)
        algorithm = a3c(net(), env, **FAST, micro_batch=micro_batch, updates_per_step=3)
        state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
        algorithm.close()
        return state.learner.params

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), params(micro_batch), params(4))


def test_a_saved_state_goes_on():
    algorithm = a3c(net(), probe.corridor(num_envs=8, groups=2), **FAST, updates_per_step=20)
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    again = algorithm.restore(algorithm.save(state))
    jax.tree.map(np.testing.assert_array_equal, algorithm.save(again), algorithm.save(state))
    new, metrics = algorithm.step(again)
    algorithm.close()
    assert metrics["update"] == 40
    assert metrics["frames"] > state.frames
    assert metrics["episodes"] > int(state.episodes.total)
    # The state stepped from is as it was.
    assert int(state.learner.update) == 20
    assert int(new.learner.update) == 40


def test_an_interrupted_step_leaves_its_state():
    algorithm = a3c(net(), probe.corridor(num_envs=8, groups=2), **FAST, updates_per_step=10_000, chunk_seconds=0.01)
    state = algorithm.init(jax.random.key(0))
    with pytest.raises(vx.types.Interrupted, match="updates"):
        algorithm.step(state, monitor=lambda progress: progress.get("done", 0) > 10)
    assert algorithm.save(state)["progress"][0] == 0
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
    algorithm = a3c(net(), env, **FAST, updates_per_step=4, reward_bound=None)
    with pytest.raises(FloatingPointError, match="no longer finite") as caught:
        vx.train(algorithm, jax.random.key(0), steps=100, run_dir=tmp_path / "run", progress=False)
    algorithm.close()
    directory = tmp_path / "run" / "checkpoints"
    newest = vx.checkpoint.steps(directory)[-1]
    assert newest > 0
    assert str(vx.checkpoint.folder_of(directory, newest)) in caught.value.__notes__[-1]
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == newest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"segment_length": 17}, "longer than an episode.*16 steps"),
        ({"segment_length": 0}, "segment_length"),
        ({"micro_batch": 3}, r"micro_batch=3 does not divide.*\[1, 2, 4\]"),
        ({"lag": -1}, "lag"),
        ({"lag": 0, "vtrace": True}, "lag=0"),
        ({"vtrace": True, "c_clip": 2.0}, "rho_clip >= c_clip"),
        ({"c_clip": 0.5}, "c_clip=0.5: these are V-trace's"),
        ({"chunk_seconds": float("nan")}, "chunk_seconds=nan"),
        ({"vtrace": True, "rho_clip": -1.0}, "rho_clip >= c_clip"),
        ({"loss_reduction": "max"}, "'sum' or 'mean'"),
        ({"vtrace": True, "log_epsilon": 1e-6}, "take one of them"),
        ({"episodic_life": True}, "lives"),
        ({"learning_rate": 0.0}, "learning_rate=0"),
        ({"discount": 1.5}, "discount=1.5"),
        ({"entropy_coefficient": -0.1}, "entropy_coefficient=-0.1"),
        ({"reward_bound": 0.0}, "reward_bound=0"),
        ({"optimizer": "adamant"}, "adamant"),
        ({"optimizer": "adam", "optimizer_options": {"momentous": 1}}, "optax.adam.*momentous"),
        ({"optimizer": "constant_schedule"}, "makes no optax.GradientTransformation"),
        ({"optimizer": optax.adam}, "makes no optax.GradientTransformation"),
        ({"optimizer": "noisy_sgd", "optimizer_options": {"key": 0}}, "random numbers"),
        ({"optimizer": optax.sgd(0.1), "optimizer_options": {"eps": 1}}, "by name"),
        ({"max_gradient_norm": 0.0}, "max_gradient_norm=0"),
        ({"anneal_frames": 0}, "anneal_frames"),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        a3c(net(), probe.corridor(length=8, num_envs=8, groups=2), **{"vtrace": False, "segment_length": 5} | options)


@pytest.mark.parametrize(
    ("module", "env"),
    [
        (net(3), probe.corridor()),
        (net(2), probe.target(size=2)),
        (Torso(), probe.corridor()),
        (GaussianMLP(2), probe.corridor()),
        (GaussianMLP(1), probe.corridor()),  # a mean and a deviation would pass as two logits
    ],
    ids=["width", "categorical, continuous actions", "one output", "gaussian, discrete actions", "of equal width"],
)
def test_networks_that_do_not_fit_are_refused(module, env):
    with pytest.raises(ValueError, match=env.spec.name):
        a3c(module, env)


@pytest.mark.parametrize(
    ("options", "width", "message"),
    [
        ({}, 8, r"Dense_0.*\(4, 2\) float32, and this one \(8, 2\) float32"),
        ({"optimizer": "sgd"}, 4, "nothing"),
        ({"optimizer": optax.sgd(1e-3, momentum=0.9)}, 4, "nothing"),
    ],
    ids=["width", "optimiser by name", "optimiser given"],
)
def test_a_checkpoint_of_another_network_or_optimiser_is_refused(options, width, message):
    env = probe.corridor()
    saved = a3c(ActorCritic(2, Torso(4)), env, segment_length=5)
    other = a3c(ActorCritic(2, Torso(width)), env, segment_length=5, **options)
    with pytest.raises(ValueError, match=message):
        other.restore(saved.save(saved.init(jax.random.key(0))))


@pytest.mark.parametrize(
    ("env", "module"),
    [
        (probe.corridor(num_envs=4), net()),
        (probe.target(size=2, num_envs=4), GaussianMLP(2, (8,))),
        (probe.corridor(num_envs=4), RecurrentActorCritic(2, Torso(), width=4)),
    ],
    ids=["categorical", "gaussian", "recurrent"],
)
def test_what_was_learned_plays_fresh_episodes(env, module):
    algorithm = a3c(module, env, segment_length=5)
    params = algorithm.policy(algorithm.init(jax.random.key(0)))
    score = vx.loop.play(env, algorithm.network, params, num_episodes=6)
    assert score.returns.shape == (6,)
    assert score.lengths.min() >= 1


def test_an_update_that_spoils_the_parameters_is_not_kept():
    """A rate so large that finite gradients end in infinite parameters, in the step's last update."""
    algorithm = a3c(net(), probe.corridor(), segment_length=5, optimizer=optax.scale(float("inf")), updates_per_step=1)
    with pytest.raises(FloatingPointError, match="parameters"):
        algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
