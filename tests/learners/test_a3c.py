"""A3C: its loss against the formula in NumPy, its schedule, environments with known answers, and its refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from flax import linen as nn

from volvox import A3C
from volvox.data import segments
from volvox.data.segments import Segment
from volvox.learners.a3c import A3CLearning
from volvox.learners.learner import Turn
from volvox.networks import MLP, CategoricalMLP, RecurrentActorCritic
from volvox.rollout.loop import driven
from volvox.types import Axis, TimeStep

FAST = {
    "segment_length": 5,
    "learning_rate": 1e-2,
    "optimizer": optax.adam,
    "discount": 0.9,
    "max_gradient_norm": 1.0,
    "vtrace": False,
}


@pytest.fixture
def learned(trained):
    """A function that trains; it returns the values of observations by the network, and the metrics."""

    def make(env, updates, *observations, **options):
        settings, module = A3C(**FAST | {"updates_per_iteration": updates} | options), CategoricalMLP(2, (32,))
        _, state, metrics = trained(settings, module, env)
        functions = settings.bind(module, env).network
        return functions.apply(state.learning.params, jnp.float32(observations)[:, None], ())[1], metrics

    return make


def test_values_are_known(learned):
    """Terminal rewards count, and nothing behind a termination does; data are four rounds old, 4/3 updates."""
    env, options = probes.delayed_reward(num_envs=8, groups=2), {"lag": 4, "rounds_per_update": 3}
    values, metrics = learned(env, 300, 0.0, 1.0, **options, anneal_timesteps=300 * 3 * 40, entropy_coefficient=0.0)
    np.testing.assert_allclose(values, [0.9, 1.0], atol=1e-2)
    assert metrics["lag_max"] == 2
    assert metrics["lag_mean"] == pytest.approx(4 / 3, rel=0.05)
    assert metrics["update"] == 300
    left = 1 - np.arange(300) / 300  # in each update
    assert metrics["learning_rate"] == pytest.approx(FAST["learning_rate"] * left.mean(), rel=1e-4)


def test_a_time_limit_bootstraps(learned):
    """1 / (1 - 0.9) wherever the limit is; taken for a termination, the value would lie below 5."""
    values, _ = learned(probes.endless(max_episode_steps=5), 1_500, 0.0, vtrace=True, anneal_timesteps=1_500 * 40)
    np.testing.assert_allclose(values, [10.0], rtol=1e-2)


def test_the_ga3c_preset_learns_what_to_do(trained):
    """At ten times its rate, as this is no game."""
    settings = dataclasses.replace(A3C.ga3c(), learning_rate=3e-3, updates_per_iteration=400)
    *_, metrics = trained(settings, CategoricalMLP(2, (32,)), probes.matched_reward(num_envs=16))
    assert metrics["training_mean"] > 0.9


# --- The loss, by its formula ---------------------------------------------------------------------------------------

T, B, A, K = 5, 3, 4, 2


def linear(**options):
    """The learner of one linear layer, whose gradients can be written down."""
    spec = probes.corridor().spec._replace(observation_shape=(K,), num_actions=A)
    env = probes.corridor(num_envs=B, groups=1)._replace(spec=spec)
    settings = {"segment_length": T, "discount": 0.9, "vtrace": False, "entropy_coefficient": 0.3, "micro_batch": 1}
    return A3C(**settings | options).bind(probes.Linear(A), env)


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
        version=np.full((T, B), 3, np.int32),
        bootstrap=rng.standard_normal(B).astype(np.float32),
        recurrent=(),
        value=np.zeros((T, B), np.float32),
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


@pytest.mark.parametrize(("log_epsilon", "vtrace"), [(0.0, False), (1e-2, False), (0.0, True)])
def test_the_loss_is_its_formula(log_epsilon, vtrace):
    """With V-trace, too, where the actor thought as the learner does."""
    learner, s = linear(log_epsilon=log_epsilon, vtrace=vtrace), segment()
    params = jax.jit(learner.policy.init)(jax.random.key(0))
    if vtrace:
        p, _ = forward(params, s)
        s = s._replace(log_prob=np.log(np.take_along_axis(p, s.action[..., None], -1)[..., 0]).astype(np.float32))
    total, means = jax.jit(learner.loss)(params, s, jnp.int32(5))
    sums = [means[name].total for name in ("policy_loss", "entropy", "value_loss")]
    np.testing.assert_allclose([total, *sums], expected(params, s, 0.3, log_epsilon), rtol=1e-4)
    assert {float(means[name].num) for name in ("policy_loss", "entropy", "value_loss", "lag_mean")} == {T * B - 2}
    assert means["lag_mean"].total == 2 * (T * B - 2)
    assert means["lag_max"].value == 2


def gradient_of(learner, params, s, update=5):
    return jax.jit(jax.grad(lambda p: learner.loss(p, s, jnp.int32(update))[0]))(params)


def test_the_gradient_takes_returns_and_advantages_as_constants():
    learner, s = linear(entropy_coefficient=0.0), segment()
    params = jax.jit(learner.policy.init)(jax.random.key(0))
    got = gradient_of(learner, params, s)
    p, v = forward(params, s)
    advantage = np.where(s.valid, targets(s, v) - v, 0.0)
    to_logits = -advantage[..., None] * (np.eye(A)[s.action] - p)
    np.testing.assert_allclose(got["policy"], np.einsum("tbk,tba->ka", s.observation, to_logits), rtol=1e-4)
    np.testing.assert_allclose(got["value"], np.einsum("tbk,tb->k", s.observation, -0.5 * advantage), rtol=1e-4)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_an_update_is_by_the_sum_or_the_mean_of_micro_batches(reduction):
    ready_made = {"optimizer": optax.sgd(0.1), "learning_rate": None, "max_gradient_norm": None}
    learner, s = linear(**ready_made, loss_reduction=reduction), segment()
    _, before = jax.jit(learner.init)(jax.random.key(0))
    accumulate = jax.jit(learner.accumulate)
    learning = before
    for part in (slice(0, 1), slice(1, 3)):
        piece = jax.tree.map(lambda x, part=part: x[:, part], s._replace(bootstrap=()))
        learning = accumulate(learning, piece._replace(bootstrap=s.bootstrap[part]))
    after = jax.jit(learner.update)(learning, jnp.float32(0))
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
    timesteps = 10 * B * T  # ten updates
    learner = linear(anneal_timesteps=timesteps, optimizer=optax.sgd, learning_rate=1.0, max_gradient_norm=None)
    gradient = {"w": jnp.ones(1)}
    state = learner.optimizer.init(gradient)
    for i in range(12):
        changes, state = learner.optimizer.update(gradient, state, gradient)
        np.testing.assert_allclose(changes["w"], -max(1 - i / 10, 0.0), atol=1e-6)


def test_the_entropy_coefficient_may_be_a_schedule():
    scheduled, s = linear(entropy_coefficient=optax.linear_schedule(0.3, 0.0, 10)), segment()
    params = scheduled.policy.init(jax.random.key(0))
    for update, coefficient in ((0, 0.3), (5, 0.15), (12, 0.0)):
        loss, _ = scheduled.loss(params, s, jnp.int32(update))
        np.testing.assert_allclose(loss, expected(params, s, coefficient)[0], rtol=1e-4)


def test_vtrace_bootstraps_by_the_parameters_that_learn():
    """With the next observation in the segment, the value predicted while acting is not used."""
    made, s = linear(vtrace=True, lag=2), segment()
    params = made.policy.init(jax.random.key(0))
    following = np.random.default_rng(1).standard_normal((1, B, K)).astype(np.float32)
    first = np.concatenate([s.first, np.zeros((1, B), bool)])
    longer = s._replace(observation=np.concatenate([s.observation, following]), first=first)
    known = s._replace(bootstrap=following[0] @ np.asarray(params["value"]))
    found, wanted, stale = (made.loss(params, x, jnp.int32(5))[0] for x in (longer, known, s))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert abs(float(stale - wanted)) > 1e-2


# --- Acting by itself -----------------------------------------------------------------------------------------------


class Constant(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.zeros((x.shape[0], 2)), jnp.zeros(x.shape[0])


def test_annealing_counts_timesteps_of_all_devices():
    env = probes.corridor(num_envs=8, groups=1)
    env = env._replace(spec=env.spec._replace(frame_skip=4))
    for devices in (1, 2):
        settings = A3C(segment_length=5, learning_rate=1.0, anneal_timesteps=devices * 10 * 8 * 5)
        rate = settings.bind(CategoricalMLP(2, (4,)), env._replace(axis=Axis("devices", devices))).rate
        assert [float(rate(i)) for i in (0, 5, 10)] == pytest.approx([1, 0.5, 0])


def test_a_lost_life_is_an_end_to_the_learner_alone():
    """Lives lost; game over; time limit; time limit as a life is lost; a bonus life; a new game with fewer lives."""
    before = np.array([3, 1, 3, 3, 3, 5])
    now = np.array([2, 0, 3, 2, 4, 3])
    terminated = np.array([0, 1, 0, 0, 0, 0], bool)
    truncated = np.array([0, 0, 1, 1, 0, 0], bool)
    first = np.array([0, 0, 0, 0, 0, 1], bool)
    b = len(now)
    env = probes.constant(num_envs=b, groups=1)
    env = env._replace(spec=env.spec._replace(extras=("lives",), max_episode_steps=100))
    learner = A3C(segment_length=4, reward_bound=1.0, episodic_life=True).bind(Constant(), env)
    collected = learner.init_collected()
    data = collected.collectors[0]._replace(lives=jnp.asarray(before, jnp.int32))
    collected, turn = collected._replace(collectors=(data,)), Turn(0, jnp.int32(2), jnp.int32(3), jnp.float32(0))
    timestep = TimeStep(
        observation=jnp.zeros((b, 1)),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated),
        first=jnp.asarray(first),
        reward=jnp.full(b, 7.0),
        extras={"lives": jnp.asarray(now)},
    )
    learning = A3CLearning({}, (), (), jnp.float32(0), jnp.int32(0), {})
    collected, _ = learner.act(collected, learning, jax.random.split(jax.random.key(0), b), turn, timestep)
    got = collected.collectors[0].ring
    lost = np.array([1, 1, 0, 1, 0, 0], bool)
    np.testing.assert_array_equal(got.terminated[0, 2], terminated | lost)
    np.testing.assert_array_equal(got.truncated[0, 2], truncated & ~lost)
    np.testing.assert_array_equal(got.reward[0, 2], np.ones(b))  # clipped
    np.testing.assert_array_equal(got.valid[0, 2], ~first)
    np.testing.assert_array_equal(collected.collectors[0].lives, now)


def test_a_recurrent_policy_is_unrolled_as_it_acted(begun):
    """Across ends of episodes and of segments, whose stored state is not zero."""
    env = probes.countdown(low=1, high=6, num_envs=4, groups=1)
    settings = A3C(segment_length=5, micro_batch=4)
    module = RecurrentActorCritic(2, MLP(8, ()), width=3)
    stages, state, constants, groups = begun(settings, module, env)
    learner = settings.bind(module, env)
    # Larger than at first, so that probabilities differ from timestep to timestep.
    params = jax.tree.map(lambda x: 3 * x, state.memory.params)
    params["Dense_0"]["kernel"] *= 100
    state = state._replace(memory=state.memory._replace(params=jax.tree.map(jnp.copy, params)))

    def finish(acting, learning, constants):
        return acting._replace(round=acting.round + 1, beat=jnp.int32(0)), learning

    stages = stages._replace(due=np.zeros((5, 1), bool), finish=finish)  # nothing is learned
    state, _ = driven(stages, groups, beats_per_round=5)(state, constants, 4)
    ring = state.carry.collected.collectors[0].ring
    boundaries = 0
    for slot in range(2):
        part = segments.take(ring, jnp.int32(slot), jnp.int32(0), 4)
        output, _ = learner.network.unroll(params, part.observation, part.first, part.recurrent)
        again = learner.network.distribution.log_prob(output, part.action)
        np.testing.assert_allclose(again, part.log_prob, atol=1e-5)
        assert float(jnp.std(part.log_prob)) > 1e-3
        assert part.first.any()
        boundaries += int((~part.first[0] & (jnp.abs(part.recurrent[0]).max(-1) > 0)).sum())
    assert boundaries > 0
