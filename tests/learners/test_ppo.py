"""PPO: its loss and a whole update against the formulas in NumPy, environments with known answers, its schedule."""

import functools
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest

from volvox import PPO
from volvox.data import metrics
from volvox.data.segments import Segment
from volvox.learners import Turn
from volvox.learners.ppo import current_rate, permutation
from volvox.networks import MLP, CategoricalMLP, GaussianMLP, RecurrentActorCritic
from volvox.types import Axis

FAST = {"segment_length": 8, "learning_rate": 1e-2, "discount": 0.9, "num_minibatches": 2, "max_gradient_norm": 1.0}
FAST |= {"num_epochs": 4, "lag": 1}


@pytest.fixture
def learned(trained):
    """A function that returns the state of learning after training, the network as functions, and the metrics."""

    def make(env, module=None, rounds=150, **options):
        settings, module = PPO(**FAST | {"rounds_per_iteration": rounds} | options), module or CategoricalMLP(2, (16,))
        _, state, metrics = trained(settings, module, env)
        return state.learning, settings.bind(module, env).network, metrics

    return make


DELAYED = probes.delayed_reward(num_envs=8, groups=2)
ANNEALED = {
    "optimizer": optax.inject_hyperparams(optax.adam),
    "entropy_coefficient": 0.0,
    "anneal_timesteps": 150 * 8 * 9,
}


def test_values_are_known(learned):
    """Terminal rewards count, and nothing behind a termination does; a third of all timesteps are resets."""
    learning, functions, metrics = learned(DELAYED, **ANNEALED, kl_stop=1e9)
    rate = optax.tree.get(learning.optimizer, "learning_rate")  # it follows the rate of the settings
    left = 1 - np.arange(150) * 8 / (150 * 9)  # in each round
    assert float(rate) == pytest.approx(FAST["learning_rate"] * left[-1], rel=1e-4)
    assert metrics["learning_rate"] == pytest.approx(FAST["learning_rate"] * left.mean(), rel=1e-4)
    _, values, _ = functions.apply(learning.params, jnp.float32([[0.0], [1.0]]), ())
    np.testing.assert_allclose(values, [0.9, 1.0], atol=3e-2)
    # In updates, of which a round has 8; it is 3.5 in the textbook.
    assert metrics["update"] == 150 * 8
    assert metrics["lag_max"] == 15
    assert metrics["lag_mean"] == pytest.approx(7.5, rel=0.05)


def test_kl_stop_ends_the_epochs_of_a_round(learned):
    """One epoch a round is made in any case."""
    _, _, metrics = learned(DELAYED, **ANNEALED, kl_stop=1e-9)
    assert metrics["update"] == 150 * 2


@pytest.mark.slow
def test_a_gaussian_policy_learns_to_answer_with_everything_normalised(learned):
    """Any constant action earns -1/3 a step or less, -2.7 an episode."""
    env = probes.target(size=2, num_envs=16)
    scaled = {"normalize_observations": True, "normalize_rewards": True, "entropy_coefficient": 0.0}
    *_, metrics = learned(env, GaussianMLP(2, (32,)), value_clip=0.2, reward_bound=10.0, **scaled)
    assert metrics["training_mean"] > -0.8


@pytest.mark.slow
def test_a_recurrent_policy_recalls(recall, learned):
    *_, metrics = learned(recall, RecurrentActorCritic(2, MLP(16, ()), width=8), lag=1, segment_length=7)
    assert metrics["training_mean"] > 0.8


# --- The loss, by its formula -----------------------------------------------------------------------------------------

N, A, K = 7, 4, 2
TURN = Turn(0, jnp.int32(2), jnp.int32(0), jnp.float32(0))


class Given(NamedTuple):
    """Arguments of the loss besides the parameters."""

    segment: Segment
    advantage: np.ndarray
    target: np.ndarray
    num_valid: np.ndarray


def linear(num_envs=2, groups=1, **options):
    """The learner of one linear layer, whose gradients can be written down."""
    spec = probes.corridor().spec._replace(observation_shape=(K,), num_actions=A)
    env = probes.corridor(num_envs=num_envs, groups=groups)._replace(spec=spec)
    settings = {"segment_length": 5, "num_minibatches": 1, "num_epochs": 1, "entropy_coefficient": 0.3}
    return PPO(**settings | options).bind(probes.Linear(A), env)


def part(seed=0):
    """A minibatch of 7 timesteps, of which 5 are valid; ratios and values on both sides of their clips."""
    rng = np.random.default_rng(seed)
    valid = np.array([[1, 1, 0, 1, 1, 0, 1]], bool)
    numbers = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    segment = Segment(
        observation=numbers(1, N, K),
        first=np.zeros((1, N), bool),
        action=rng.integers(0, A, (1, N)).astype(np.int32),
        log_prob=np.log(rng.uniform(0.1, 0.9, (1, N))).astype(np.float32),
        reward=numbers(1, N),
        terminated=np.zeros((1, N), bool),
        truncated=np.zeros((1, N), bool),
        valid=valid,
        version=np.full((1, N), 3, np.int32),
        bootstrap=numbers(N),
        recurrent=(),
        value=numbers(1, N),
    )
    return Given(segment, numbers(1, N), numbers(1, N), np.float32(valid.sum()))


def expected(params, given, clip, value_clip):
    """(loss, metrics) of a minibatch, timestep by timestep; equations (7) and (9) of the paper."""
    policy, weights = (np.asarray(params[name], np.float64) for name in ("policy", "value"))
    s, found = given.segment, []
    for i in np.flatnonzero(s.valid[0]):
        x = s.observation[0, i]
        p = np.exp(x @ policy) / np.exp(x @ policy).sum()
        ratio, advantage = p[s.action[0, i]] / np.exp(s.log_prob[0, i]), given.advantage[0, i]
        gain = min(ratio * advantage, min(max(ratio, 1 - clip), 1 + clip) * advantage)
        errors = [(x @ weights - given.target[0, i]) ** 2]
        if value_clip is not None:
            old = s.value[0, i]
            errors.append((old + np.clip(x @ weights - old, -value_clip, value_clip) - given.target[0, i]) ** 2)
        found.append(
            (-gain, 0.5 * max(errors), -(p * np.log(p)).sum(), ratio - 1 - np.log(ratio), abs(ratio - 1) > clip)
        )
    means = np.mean(found, axis=0)
    return means[0] + 0.5 * means[1] - 0.3 * means[2], means


@pytest.mark.parametrize("value_clip", [None, 0.2])
def test_the_loss_is_its_formula(value_clip):
    made, given = linear(clip=0.3, value_clip=value_clip), part()
    params = jax.jit(made.network.policy.init)(jax.random.key(0))
    loss, means = jax.jit(made.loss)(params, *given, jnp.int32(5))
    total, wanted = expected(params, given, 0.3, value_clip)
    np.testing.assert_allclose(loss, total, rtol=1e-4)
    names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
    np.testing.assert_allclose([means[name].total / means[name].num for name in names], wanted, rtol=1e-4)
    assert 0 < wanted[-1] < 1
    assert means["lag_mean"].total == 2 * 5
    assert means["lag_max"].value == 2


def test_what_a_dummy_timestep_holds_changes_nothing():
    made, given = linear(value_clip=0.2), part()
    params, dummy = jax.jit(made.network.policy.init)(jax.random.key(0)), ~given.segment.valid
    other = given._replace(
        segment=given.segment._replace(log_prob=np.where(dummy, -99, given.segment.log_prob).astype(np.float32)),
        advantage=np.where(dummy, 1e3, given.advantage),
        target=np.where(dummy, 1e3, given.target),
    )
    gradient = jax.jit(jax.grad(lambda params, given: made.loss(params, *given, jnp.int32(5))[0]))
    jax.tree.map(np.testing.assert_array_equal, gradient(params, given), gradient(params, other))


@pytest.mark.parametrize("micro_batch", [None, 5])
def test_a_whole_round_is_its_formulas(micro_batch):
    """Returns, advantages, their normalisation and one step of plain gradient descent, from a ring, in NumPy.

    The gradient is a sum, so that micro-batches do not change the step.
    """
    t, b, gamma, trace, rate = 5, 3, 0.9, 0.8, 0.1
    plain = {"optimizer": optax.sgd, "learning_rate": rate, "max_gradient_norm": None, "micro_batch": micro_batch}
    made = linear(b, segment_length=t, discount=gamma, trace_decay=trace, value_clip=0.2, lag=1, **plain)
    collected, learning = jax.jit(made.init)(jax.random.key(0))
    rng, (me,) = np.random.default_rng(1), collected.collectors
    fields = {name: rng.standard_normal((2, t, b)).astype(np.float32) for name in ("reward", "value")}
    terminated, truncated, valid = (np.zeros((2, t, b), bool) for _ in range(3))
    terminated[1, 1, 0] = truncated[1, 1, 1] = True
    valid[:], valid[1, 2, :2] = True, False  # the action after an end is discarded
    ring = me.ring._replace(
        observation=rng.standard_normal((2, t, b, K)).astype(np.float32),
        action=rng.integers(0, A, (2, t, b)).astype(np.int32),
        log_prob=np.log(rng.uniform(0.2, 0.6, (2, t, b))).astype(np.float32),
        bootstrap=rng.standard_normal((2, b)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        **fields,
    )
    collected = collected._replace(collectors=(me._replace(ring=jax.tree.map(jnp.asarray, ring)),))
    learn_once = jax.jit(lambda *state: made.learn(*state, jax.random.key(9), TURN, jnp.int32(0), jnp.int32(1)))
    done = learn_once(collected, learning)

    v, v_next = ring.value[1], np.concatenate([ring.value[1, 1:], ring.bootstrap[1][None]])
    advantage = np.zeros((t, b))
    for e in range(b):
        following = 0.0
        for i in reversed(range(t)):
            going_on = 0.0 if terminated[1, i, e] else gamma
            delta = ring.reward[1, i, e] + going_on * v_next[i, e] - v[i, e]
            following = delta + (0.0 if truncated[1, i, e] else going_on * trace * following)
            advantage[i, e] = following
    held = valid[1]
    target = advantage + v
    explained = 1 - advantage[held].var() / target[held].var()
    normal = (advantage - advantage[held].mean()) / advantage[held].std(ddof=1)
    flat = jax.tree.map(lambda x: x[1].reshape(1, -1, *x.shape[3:]), ring._replace(bootstrap=(), recurrent=()))
    normal, target = (x.reshape(1, -1).astype(np.float32) for x in (normal, target))
    loss = lambda params: made.loss(params, flat, normal, target, held.sum(), jnp.int32(0))[0]  # noqa: E731
    wanted = jax.tree.map(lambda p, g: p - rate * g, learning.params, jax.jit(jax.grad(loss))(learning.params))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), done.params, wanted)
    assert done.update == done.round == 1
    np.testing.assert_allclose(done.metrics["explained_variance"].total, explained, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "counter", "first"),
    [
        ({"learning_rate": 1.0, "anneal_timesteps": 4 * 2 * 5}, "round", 1),  # which is learned from, of four
        ({"learning_rate": optax.linear_schedule(1.0, 0.0, 4)}, "update", 0),
    ],
)
def test_the_learning_rate_falls_to_0_by_rounds_or_by_a_schedule_of_updates(options, counter, first):
    made = linear(optimizer=optax.sgd, max_gradient_norm=None, **options)
    steps = steps_of(made, [{counter: jnp.int32(first + i)} for i in range(6)])
    np.testing.assert_allclose(np.array(steps) / steps[0], [1, 0.75, 0.5, 0.25, 0, 0], atol=1e-6)


def test_annealing_counts_timesteps_of_all_devices():
    env = probes.corridor(num_envs=8)._replace(axis=Axis("devices", 2))
    settings = PPO(segment_length=5, learning_rate=1.0, anneal_timesteps=4 * 16 * 5)
    assert float(current_rate(settings, env, SimpleNamespace(round=3))) == 0.5


def test_gradients_are_clipped_to_the_setting():
    one, two = (steps_of(linear(optimizer=optax.sgd, learning_rate=1.0, max_gradient_norm=x), [{}])[0] for x in (1, 2))
    assert two == pytest.approx(2 * one, rel=1e-3)


@pytest.mark.parametrize(("kl", "stops"), [(0.02, False), (0.04, True)])
def test_epochs_stop_by_the_mean_of_the_divergence(kl, stops):
    new = {"approx_kl": metrics.Mean(jnp.float32(64 * kl), jnp.float32(64))}
    assert bool(linear(kl_stop=0.03).stops(new)) is stops


def steps_of(made, changes):
    """Sizes of the update by the same gradient, after each of the changes of the state of learning."""
    collected, learning = jax.jit(made.init)(jax.random.key(0))
    ring = collected.collectors[0].ring
    ring = ring._replace(valid=ring.valid | True, observation=ring.observation + 1)
    full, steps = collected._replace(collectors=(collected.collectors[0]._replace(ring=ring),)), []
    update = jax.jit(lambda full, learning: made.update(full, learning, TURN, jnp.int32(0), jnp.int32(0)))
    for change in changes:
        before = learning._replace(params=jax.tree.map(jnp.ones_like, learning.params), **change)
        valid = before.batch._replace(num_valid=jnp.ones(1), target=jnp.ones_like(before.batch.target))
        after = update(full, before._replace(batch=valid))
        steps.append(float(jnp.abs(after.params["value"] - before.params["value"]).max()))
    return steps


# --- Minibatches ------------------------------------------------------------------------------------------------------

T, B, G = 6, 4, 2


def cut(*, recurrent=False, micro_batch=None, normalize=False, **changes):
    """A learner of six timesteps of two groups of four environments, in three epochs."""
    sizes = {"num_epochs": 3, "num_minibatches": 4, "segment_length": T} | changes
    module = RecurrentActorCritic(2, MLP(4, ()), width=1) if recurrent else CategoricalMLP(2, (4,))
    settings = PPO(**sizes, micro_batch=micro_batch, normalize_advantages=normalize)
    return settings.bind(module, probes.constant(num_envs=G * B, groups=G))


def collected_by(made):
    """Two groups, whose rewards say (group, timestep, environment) in the segment at 1, and nothing at 0."""

    def filled(g, data):
        place = 100.0 * g + 10 * jnp.arange(T)[:, None] + jnp.arange(B)
        recurrent = jax.tree.map(lambda x: x.at[1].set(place[0, :, None]), data.ring.recurrent)
        return data._replace(ring=data.ring._replace(reward=data.ring.reward.at[1].set(place), recurrent=recurrent))

    collected = made.init_collected()
    return collected._replace(collectors=tuple(filled(g, data) for g, data in enumerate(collected.collectors)))


def batch_of(made, valid=None):
    """A batch whose targets are the rewards of `collected_by`, and whose advantages are the same plus 1 000."""
    target = jnp.stack([data.ring.reward[1] for data in collected_by(made).collectors])
    valid = jnp.ones((G, T, B), bool) if valid is None else jnp.asarray(valid)
    return jax.jit(made.shuffle)(jax.random.key(0), target, target + 1_000, valid)


@pytest.mark.parametrize(("recurrent", "micro_batch"), [(False, None), (False, 2), (True, None), (True, 1)])
def test_each_epoch_has_every_row_once_and_no_two_are_alike(recurrent, micro_batch):
    made = cut(recurrent=recurrent, micro_batch=micro_batch, num_minibatches=2 if recurrent else 4)
    batch, held = batch_of(made), collected_by(made)
    take = jax.jit(lambda j, k: made.take(held, jnp.int32(1), batch, j, k))
    parts = [[take(j, k) for k in range(made.num_micro_batches)] for j in range(made.num_updates)]
    epochs = np.split(np.array([[segment.reward for segment, *_ in minibatch] for minibatch in parts]), 3)
    everything = np.sort(np.concatenate([data.ring.reward[1].ravel() for data in held.collectors]))
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch.ravel()), everything)
    assert not np.array_equal(epochs[0], epochs[1])
    np.testing.assert_array_equal(batch.num_valid, T * B * G / made.settings.num_minibatches)
    for segment, advantage, target in (part for minibatch in parts for part in minibatch):
        np.testing.assert_array_equal(target, segment.reward)
        np.testing.assert_array_equal(advantage, target + 1_000)
        assert (segment.reward < 100).mean() == 0.5  # as many of each group
        assert segment.reward.shape[0] == (T if recurrent else 1)
        for state in segment.recurrent:
            np.testing.assert_array_equal(state[:, 0], segment.reward[0])


def test_advantages_are_normalised_over_the_valid_ones_of_a_minibatch():
    valid = np.random.default_rng(0).random((G, T, B)) < 0.7
    made = cut()
    plain, batch = batch_of(made, valid), batch_of(cut(normalize=True), valid)
    np.testing.assert_array_equal(plain.rows, batch.rows)
    for j in range(made.num_updates):
        held = np.concatenate([valid[g].ravel()[batch.rows[j, g]] for g in range(G)])
        before, after = (np.asarray(x.advantage[j, :, 0]).ravel()[held] for x in (plain, batch))
        np.testing.assert_allclose(after, (before - before.mean()) / before.std(ddof=1), rtol=1e-4, atol=1e-5)
        assert batch.num_valid[j] == held.sum()
    nothing = batch_of(cut(normalize=True), np.zeros((G, T, B), bool))
    assert np.isfinite(nothing.advantage).all()
    assert not nothing.num_valid.any()


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("updates", [1, 7, 40])
def test_updates_are_spread_evenly_after_the_last_group_has_begun(groups, updates):
    settings = PPO(segment_length=T, num_epochs=updates, num_minibatches=1, lag=1)
    made = settings.bind(CategoricalMLP(2, (4,)), probes.constant(num_envs=groups, groups=groups))
    made.learn = lambda collected, learning, key, turn, low, high: (int(low), int(high))
    turns = [Turn(g, jnp.int32(2), jnp.int32(beat), jnp.float32(0)) for beat in range(T) for g in range(groups)]
    firsts, ends = np.array([made.work(None, None, None, turn)[1] for turn in turns]).T
    assert not ends[: groups - 1].any()
    assert firsts[groups - 1] == 0 < ends[groups - 1]
    np.testing.assert_array_equal(firsts[groups:], ends[groups - 1 : -1])
    assert ends[-1] == updates
    assert np.ptp((ends - firsts)[groups - 1 :]) <= 1


def test_without_lag_all_updates_are_made_in_the_last_turn():
    settings = PPO(segment_length=T, num_epochs=7, num_minibatches=1, lag=0)
    made = settings.bind(CategoricalMLP(2, (4,)), probes.constant(num_envs=3, groups=3))
    assert not made.due.ravel()[:-1].any()
    assert made.updates_due(jnp.int32(T - 1), 2) == (0, 7)


@pytest.mark.parametrize("size", [1, 2, 1_000, 70_000])  # up to two sorts
def test_the_permutation_is_that_of_jax(size):
    key = jax.random.key(size)
    order = jax.jit(permutation, static_argnums=1)(key, size)
    np.testing.assert_array_equal(order, jax.random.permutation(key, size))
    assert order.dtype == jnp.int32
