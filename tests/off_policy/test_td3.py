"""TD3 against updates written out in NumPy, and on a probe with a known answer."""

import re
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from volvox.off_policy import policy_of, reference, table_of, td3
from volvox.off_policy import schedule as schedules
from volvox.off_policy.learner import Learner, LossSettings, Normalizer, counted, learner, normalized

from volvox import networks
from volvox.data import replay
from volvox.data.replay import Batch
from volvox.envs import probe
from volvox.networks.off_policy import actor_and_critics
from volvox.sparsity import dynamic, keep_n_of_m, magnitude, masks_of, reward_aware, sparse
from volvox.training import train
from volvox.types import TimeStep

ENV = probe.target(size=1, num_envs=8, groups=2)
ACTOR = networks.MLP(1, hidden=(16,), activation=nn.relu)
CRITIC = networks.QNetwork(hidden=(16,))
FEATURES = networks.NextObservationNetwork((6, 6), (5,))
SMALL = {
    "batch_size": 32,
    "random_steps": 64,
    "replay_size": 2_000,
    "steps_per_iteration": 400,
    "learning_rate": 3e-3,
}


def make(env=ENV, **options):
    return td3(ACTOR, CRITIC, env, **(SMALL | options))


def linear(policy_delay, rate=0.1, noise=0.3):
    """Networks of one linear layer, so that every gradient can be written down."""
    net = actor_and_critics(networks.MLP(1, hidden=()), networks.QNetwork(hidden=()), ENV.spec)
    settings = LossSettings(jnp.array([noise]), 0.25, policy_delay, 0.05)
    learn = learner(
        net, settings=settings, optimizer=optax.sgd(1.0), learning_rate=jnp.array([rate]), observation_shape=(1,)
    )
    return learn, learn.init(jax.random.split(jax.random.key(0), 1))


def batch_of(n, seed=0):
    random = np.random.default_rng(seed)
    return Batch(
        observation=random.normal(size=(n, 1)).astype(np.float32),
        action=random.uniform(-1, 1, (n, 1)).astype(np.float32),
        reward=random.normal(size=n).astype(np.float32),
        discount=random.choice([0.0, 0.99], n).astype(np.float32),
        following=random.normal(size=(n, 1)).astype(np.float32),
        valid=random.uniform(size=n) < 0.8,
    )


def numpy_params(tree):
    """(kernel, bias) of the only layer of the only learner, in doubles."""
    layer = tree["Dense_0"]
    return np.asarray(layer["kernel"], float)[0], np.asarray(layer["bias"], float)[0]


def both(critics):
    """(kernels `[2, ...]`, biases `[2, ...]`)."""
    return tuple(np.stack(pair) for pair in zip(*map(numpy_params, critics), strict=True))


@pytest.mark.parametrize("policy_delay", [1, 2])
def test_an_update_is_the_algorithms(policy_delay):
    n, rate = 12, 0.1
    learn, state = linear(policy_delay, rate)
    batch, drawn = batch_of(n), np.random.default_rng(5).standard_normal((n, 1)).astype(np.float32)
    new = jax.jit(learn.update)(state, jax.tree.map(lambda x: jnp.asarray(x)[None], batch), drawn[None], jnp.zeros(1))

    (wa, ba), (wq, bq) = numpy_params(state.actor), both(state.critics)
    noise = np.clip(0.3 * drawn, -0.25, 0.25)
    following = np.clip(np.tanh(batch.following @ wa + ba) + noise, -1, 1)

    def values(observation, action):
        x = np.concatenate([observation, action], 1)
        return x, [x @ wq[i] + bq[i] for i in (0, 1)]

    _, q_following = values(batch.following, following)
    target = batch.reward[:, None] + batch.discount[:, None] * np.minimum(*q_following)
    x, q = values(batch.observation, batch.action)
    weight = batch.valid[:, None] / batch.valid.sum()
    new_wq = np.stack([wq[i] - rate * x.T @ (2 * weight * (q[i] - target)) for i in (0, 1)])
    new_bq = np.stack([bq[i] - rate * (2 * weight * (q[i] - target)).sum(0) for i in (0, 1)])
    found_wq, found_bq = both(new.critics)
    np.testing.assert_allclose(found_wq, new_wq, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found_bq, new_bq, rtol=1e-4, atol=1e-6)

    if policy_delay == 2:  # the first update is the critics' alone
        jax.tree.map(np.testing.assert_array_equal, new.actor, state.actor)
        jax.tree.map(np.testing.assert_array_equal, new.target_critics, state.target_critics)
        return
    # d/da q1 is the action's weight; d/d(params) of tanh(o w + b).
    squashed = np.tanh(batch.observation @ wa + ba)
    of_output = -weight * new_wq[0, 1] * (1 - squashed**2)
    new_wa, new_ba = wa - rate * batch.observation.T @ of_output, ba - rate * of_output.sum(0)
    found_wa, found_ba = numpy_params(new.actor)
    np.testing.assert_allclose(found_wa, new_wa, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found_ba, new_ba, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(numpy_params(new.target_actor)[0], wa + 0.05 * (new_wa - wa), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(both(new.target_critics)[0], wq + 0.05 * (new_wq - wq), rtol=1e-4, atol=1e-6)


def test_moments_of_observations():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (5, 7, 2)).astype(np.float32)
    moments = Normalizer(jnp.float32(0), jnp.zeros(2), jnp.zeros(2))
    np.testing.assert_array_equal(normalized(moments, rows[0]), rows[0])
    for part in rows:
        moments = counted(moments, part)
    every = rows.reshape(-1, 2)
    np.testing.assert_allclose(moments.mean, every.mean(0), rtol=1e-5)
    expected = (rows[0] - every.mean(0)) / every.std(0)
    np.testing.assert_allclose(normalized(moments, rows[0]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_steps": 3}, {"num_learners": 2}, {"normalize_observations": True}, {"representation": FEATURES}],
    ids=["plain", "n-step", "two-learners", "normalized", "representation"],
)
def test_the_answer_is_found(options):
    """Every step asks for another number; random answers earn -8 * 2/3 an episode, the right ones nothing."""
    actor, critic = networks.MLP(1, hidden=(32,), activation=nn.relu), networks.QNetwork(hidden=(32,))
    algorithm = td3(actor, critic, ENV, **(SMALL | {"discount": 0.5, "steps_per_iteration": 1_400} | options))
    state, metrics = algorithm.step(algorithm.init(jax.random.key(0)))
    params = algorithm.policy(state)
    asked = np.linspace(-0.9, 0.9, 7, dtype=np.float32)[:, None]
    answer, _ = algorithm.network.apply(params, jnp.asarray(asked), (), None)
    np.testing.assert_allclose(answer, asked, atol=0.2)
    assert metrics["training_mean"] > -0.5
    algorithm.close()


def test_actions_are_uniform_at_first_and_then_the_policys_with_noise():
    """Of one beat of 4 096 environments with actions from -2 to 4."""
    learn, memory = linear(2)
    memory = memory._replace(actor=jax.tree.map(lambda x: jnp.full_like(x, 0.1), memory.actor))
    net = actor_and_critics(networks.MLP(1, hidden=()), networks.QNetwork(hidden=()), ENV.spec)
    stages = schedules.stages(
        net,
        learn,
        schedules.Exploration(jnp.array([0.2]), 10),
        schedules.Sampling(32, 0.99, 1, 1),
        num_learners=1,
        action_bounds=(-2.0, 4.0),
        normalize=False,
    )
    (group,) = probe.target(size=1, num_envs=4_096).make(0)
    _, timestep = group.recv(group.init())
    timestep = timestep._replace(observation=jnp.ones_like(timestep.observation), first=jnp.zeros(4_096, bool))
    rows = (replay.empty(2, 4_096, ENV.spec),)
    carry = schedules.begin((group,), rows, jax.random.key(0), jnp.int32(0), jnp.int32(0), schedules.no_episodes(1))

    def stored(carry):
        return np.asarray(carry.collectors[0].replay.action)[0].ravel()

    carry, action = jax.jit(partial(stages.act, g=0))(carry, memory, (), timestep=timestep)
    np.testing.assert_allclose(action.ravel(), 1 + 3 * stored(carry), rtol=1e-5, atol=1e-5)
    assert np.abs(stored(carry)).max() <= 1
    assert stored(carry).mean() == pytest.approx(0, abs=0.04)
    assert stored(carry).var() == pytest.approx(1 / 3, abs=0.02)
    assert int(carry.steps) == 4_096

    carry, _ = jax.jit(partial(stages.act, g=0))(carry, memory, (), timestep=timestep)
    noise = np.asarray(carry.collectors[0].replay.action)[1].ravel() - np.tanh(0.2)
    assert noise.mean() == pytest.approx(0, abs=0.015)
    assert noise.std() == pytest.approx(0.2, rel=0.04)
    assert (noise**4).mean() == pytest.approx(3 * 0.2**4, rel=0.2)  # of a normal distribution


@pytest.mark.parametrize(("ratio", "num_learners"), [(0.5, 1), (2.0, 2)])
def test_as_many_updates_are_made_as_asked_for(ratio, num_learners):
    """Of steps, not of resets, which are a ninth of what 8 environments do here; and steps end where they should."""
    algorithm = make(updates_per_env_step=ratio, random_steps=16, steps_per_iteration=100, num_learners=num_learners)
    state = algorithm.init(jax.random.key(0))
    for i in (1, 2, 3):
        state, metrics = algorithm.step(state)
        assert 100 * i <= metrics["steps"] < 100 * i + 8
        assert metrics["update"] == pytest.approx(ratio * (metrics["steps"] - 16), abs=ratio * 4)
    algorithm.close()


def test_a_learner_that_is_not_there_is_named():
    state = make().init(jax.random.key(0))
    for function in (policy_of, table_of):
        function(state)
        with pytest.raises(ValueError, match="learner=1: there are 1, counted from 0"):
            function(state, 1)


def test_traced_is_driven():
    states = []
    for host in (False, True):
        algorithm = make(host=host, steps_per_iteration=100)
        state, _ = algorithm.step(algorithm.init(jax.random.key(3)))
        states.append((state.learner.actor, state.replays, state.episodes))
        algorithm.close()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *states)


def test_learners_have_their_own_settings_and_environments():
    algorithm = make(num_learners=2, learning_rate=(3e-3, 1e-12), steps_per_iteration=200)
    began = algorithm.init(jax.random.key(0))
    state, metrics = algorithm.step(began)
    moved = jax.tree.map(
        lambda new, old: np.abs(new - old).max(axis=tuple(range(1, new.ndim))), state.learner.actor, began.learner.actor
    )
    for first, second in jax.tree.leaves(moved):
        assert first > 1e-4
        assert second < 1e-6
    assert metrics["training_mean_0"] != metrics["training_mean_1"]
    # Half of the environments of each group: steps and updates are counted for each learner.
    assert metrics["steps"] == pytest.approx(200, abs=40)
    assert metrics["update"] == pytest.approx(200 - 64, abs=40)
    algorithm.close()


@pytest.mark.parametrize("save_replay", [True, False])
def test_a_run_goes_on_where_it_was(tmp_path, save_replay):
    options = {"steps_per_iteration": 120, "save_replay": save_replay}
    run = train(make(**options), jax.random.key(0), steps=2, run_dir=tmp_path / "run", progress=False)
    before = run.state
    algorithm = make(**options)
    restored = algorithm.restore(make(**options).save(before))
    jax.tree.map(np.testing.assert_array_equal, restored.learner.actor, before.learner.actor)
    if save_replay:
        jax.tree.map(np.testing.assert_array_equal, restored.replays, before.replays)
    else:
        assert int(restored.replays[0].rows) == 0
    again = train(algorithm, jax.random.key(0), steps=3, run_dir=tmp_path / "run", resume=True, progress=False)
    assert len(again.metrics) == 3
    assert again.metrics[-1]["steps"] > run.metrics[-1]["steps"]
    made = again.metrics[-1]["update"] - run.metrics[-1]["update"]
    # Without its replay it first gathers the 64 steps anew.
    assert made > 80 if save_replay else 30 < made < 80


@pytest.mark.parametrize("num_learners", [1, 2])
def test_a_sparse_optimiser_keeps_everything_sparse(num_learners):
    rule = dynamic(sparsity=0.5, drop=0.2, every=51)  # odd: changes fall between the targets' moves, too
    optimizer = sparse(optax.adam(3e-3), rule, dense=("Dense_1/kernel",))
    algorithm = make(optimizer=optimizer, num_learners=num_learners, steps_per_iteration=250)
    state = algorithm.init(jax.random.key(0))
    began = masks_of(state.learner.critics_optimizer)
    state, metrics = algorithm.step(state)
    masks = masks_of(state.learner.critics_optimizer)
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(began), jax.tree.leaves(masks), strict=True))
    of_actor = masks_of(state.learner.actor_optimizer)
    pairs = [*zip(state.learner.critics, masks, strict=True), *zip(state.learner.target_critics, masks, strict=True)]
    for one, mask in [*pairs, (state.learner.actor, of_actor), (state.learner.target_actor, of_actor)]:
        kernel, live = (np.asarray(tree["Dense_0"]["kernel"]) for tree in (one, mask))
        assert live.mean() == 0.5
        assert not kernel[~live[:, :, 0]].any()
        assert np.asarray(one["Dense_1"]["kernel"]).all()
    assert table_of(state, num_learners - 1)[-1]["compression"] == pytest.approx(metrics["compression"])
    assert algorithm.config["optimizer"]["sparsity"] == 0.5
    # Half of the first layers' 16 and 2 * 32 weights, of 49 and 2 * 65 with biases and outputs, and a bit for each.
    assert metrics["compression"] == pytest.approx((8 + 2 * 16 - (16 + 2 * 32) / 32) / (49 + 2 * 65))
    algorithm.close()


def test_each_learners_sparsity_goes_by_its_own_returns():
    """The second plays almost at random; zeros, or each other's returns, would lie outside of what was seen."""
    optimizer = sparse(optax.adam(3e-3), magnitude(reward_aware(final_sparsity=0.5, increment=0.01), every=1))
    algorithm = make(optimizer=optimizer, num_learners=2, exploration_noise=(0.01, 3.0), discount=0.5)
    state = algorithm.init(jax.random.key(0))
    for _ in range(3):
        state, metrics = algorithm.step(state)
    for kept in (state.learner.actor_optimizer, state.learner.critics_optimizer):
        best, worst = (np.asarray(x) for x in (kept.schedule.best, kept.schedule.worst))
        for s in range(2):
            assert worst[s] - 1e-3 <= metrics[f"recent_mean_{s}"] <= best[s] + 1e-3 < 0
        assert best[1] < metrics["recent_mean_0"]
    algorithm.close()


def test_a_learner_whose_returns_fall_gets_weights_back():
    net = actor_and_critics(ACTOR, CRITIC, ENV.spec)
    rule = magnitude(reward_aware(final_sparsity=0.75, increment=0.25), every=1)
    learn = learner(
        net,
        settings=LossSettings(jnp.zeros(2), 0.5, 1, 0.05),
        optimizer=sparse(optax.sgd(1e-3), rule),
        learning_rate=jnp.ones(2),
        observation_shape=(1,),
    )
    state = learn.init(jax.random.split(jax.random.key(0), 2))
    batch = jax.tree.map(lambda x: jnp.stack([x, x]), batch_of(12))
    for returns in ((0.0, 0.0), (20.0, 20.0), (0.0, 20.0)):
        state = learn.update(state, batch, jnp.zeros((2, 12, 1)), jnp.array(returns))
    for params, kept in ((state.actor, state.actor_optimizer), (state.critics[0], state.critics_optimizer)):
        np.testing.assert_allclose(kept.schedule.sparsity, [0.25, 0.75])
        mask = masks_of(kept)
        live = np.asarray((mask if kept is state.actor_optimizer else mask[0])["Dense_0"]["kernel"])
        np.testing.assert_allclose(live.reshape(2, -1).mean(axis=1), [0.75, 0.25])
        assert not np.asarray(params["Dense_0"]["kernel"])[~live[:, :, 0]].any()


def test_learners_draw_from_their_own_environments():
    """Of two groups of four environments, each of which observes its own number."""

    class Drawn(NamedTuple):
        update: jax.Array
        observation: jax.Array

    def update(memory, batch, noise, mean_return):
        return Drawn(memory.update + 1, batch.observation)

    stages = schedules.stages(
        actor_and_critics(ACTOR, CRITIC, ENV.spec),
        Learner(lambda keys: None, update),
        schedules.Exploration(jnp.zeros(2), 0),
        schedules.Sampling(64, 0.99, 1, 1),
        num_learners=2,
        action_bounds=(-1.0, 1.0),
        normalize=False,
    )
    rows, no = [], jnp.zeros(4, bool)
    for g in range(2):
        seen = TimeStep(4.0 * g + jnp.arange(4.0)[:, None], jnp.zeros(4), no, no, no, {})
        rows.append(replay.empty(5, 4, ENV.spec))
        for _ in range(5):
            rows[g] = replay.append(rows[g], seen, jnp.zeros((4, 1)))
    groups = ENV.make(0)
    carry = schedules.begin(
        groups, tuple(rows), jax.random.key(0), jnp.int32(0), jnp.int32(40), schedules.no_episodes(2)
    )
    _, memory = stages.work(carry, Drawn(jnp.int32(0), jnp.zeros((2, 64, 1))), (), 0)
    assert [set(drawn.ravel().tolist()) for drawn in memory.observation] == [{0, 1, 4, 5}, {2, 3, 6, 7}]


def test_without_its_replay_a_resumed_run_gathers_anew_before_it_learns():
    options = {"save_replay": False, "random_steps": 200, "steps_per_iteration": 160}
    algorithm = make(**options)
    state = algorithm.init(jax.random.key(0))
    for _ in range(3):
        state, _ = algorithm.step(state)
    updates = int(state.learner.update)
    assert updates > 0
    saved = algorithm.save(state)
    algorithm.close()
    again = make(**options)
    state, _ = again.step(again.restore(saved))
    assert int(state.learner.update) == updates  # 160 steps are held, of 200
    state, _ = again.step(state)
    assert int(state.learner.update) > updates
    again.close()


def test_what_does_not_suit_the_critics_is_told_before_anything_is_done():
    optimizer = sparse(optax.adam(1e-3), keep_n_of_m(1, 3))  # 2 inputs of the critics, 1 of the actor
    with pytest.raises(ValueError, match=r"m=3 does not divide the input axis of Dense_0/kernel"):
        make(optimizer=optimizer)
    optimizer = sparse(optax.adam(1e-3), keep_n_of_m(1, 3), min_side=2)
    with pytest.raises(ValueError, match=r"does not suit the critics: m=3 does not divide .* 0/Dense_0/kernel"):
        make(optimizer=optimizer)


def test_an_interrupted_step_leaves_its_state():
    from volvox.types import Interrupted

    algorithm = make(chunk_seconds=1e-9, steps_per_iteration=400)
    state = algorithm.init(jax.random.key(0))
    with pytest.raises(Interrupted, match="of 400 steps were made and are dropped"):
        algorithm.step(state, monitor=lambda progress: progress["phase"] == "training")
    state, metrics = algorithm.step(state)
    assert metrics["steps"] > 300
    algorithm.close()


def test_not_finite_is_an_error_of_a_learner():
    algorithm = make(learning_rate=(1e-3, 1e30), num_learners=2)
    state = algorithm.init(jax.random.key(0))
    with pytest.raises(FloatingPointError, match=r"critics, actor, of learner 1 of 2; .* Lower the learning rate"):
        algorithm.step(state)


def test_the_reference_settings_are_settings():
    algorithm = td3(ACTOR, CRITIC, ENV, **(reference() | {"replay_size": 10_000}))
    assert algorithm.config["batch_size"] == 256


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_learners": 3}, "num_learners=3 do not share a group of 4 environments evenly"),
        ({"batch_size": 33}, "batch_size=33 must be a multiple of the number of groups, 2"),
        ({"replay_size": 31}, "replay_size=31 is too small: in whole rows of a learner's 8 environments a batch of 32"),
        # Of 16 steps each has but 12 in whole rows.
        ({"replay_size": 15, "num_learners": 2, "batch_size": 14}, "4 environments a batch of 14 and targets of 1"),
        ({"replay_size": 39, "num_steps": 4}, "and targets of 4 steps need 40"),
        (
            {"num_learners": 2, "learning_rate": [1e-3, 1e-4], "optimizer": optax.adam(1e-3)},
            "learning_rate=[0.001, 0.0001] is for an optimiser given by name",
        ),
        ({"updates_per_env_step": 0.3}, "are 1.2 updates a beat"),
        ({"updates_per_env_step": np.inf}, "are inf updates a beat"),
        ({"discount": 1.5}, "discount=1.5: give a number from 0 to 1"),
        ({"learning_rate": (1e-3, 1e-3)}, "learning_rate has 2 entries for num_learners=1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0: give a finite number above 0"),
        ({"learning_rate": optax.constant_schedule(1e-3)}, "give numbers; a rate that changes belongs"),
        ({"exploration_noise": -1.0}, "exploration_noise=-1.0: give a finite number of at least 0"),
        ({"random_steps": -1}, "random_steps must be an integer of at least 0, got -1"),
        ({"optimizer": "adamm"}, "optax.adamm"),
        ({"representation": FEATURES, "num_steps": 2}, "num_steps=2: a representation predicts"),
        ({"env": ENV._replace(spec=ENV.spec._replace(action_high=np.inf))}, "has actions from -1.0 to inf"),
        ({"env": probe.corridor(num_envs=8, groups=2)}, "has no continuous actions"),
    ],
)
def test_mistakes_are_told(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make(**options)


def test_modules_that_do_not_fit_are_told():
    with pytest.raises(ValueError, match=r"actor MLP must give \[B, 1\]"):
        td3(networks.MLP(2), CRITIC, ENV)
    with pytest.raises(ValueError, match="a critic both to"):
        td3(ACTOR, networks.MLP(1), ENV)
    with pytest.raises(TypeError, match="critic must be a flax"):
        td3(ACTOR, networks.QNetwork, ENV)


def test_a_representation_learns_by_itself_and_first():
    """Its update is by the prediction's gradient alone, and critics learn on the features after it."""
    net = actor_and_critics(networks.MLP(1, hidden=()), networks.QNetwork(hidden=()), ENV.spec, FEATURES)
    settings = LossSettings(jnp.zeros(1), 0.5, 2, 0.05)
    learn = learner(
        net, settings=settings, optimizer=optax.sgd(1.0), learning_rate=jnp.array([0.1]), observation_shape=(1,)
    )
    state = learn.init(jax.random.split(jax.random.key(0), 1))
    batch = jax.tree.map(jnp.asarray, batch_of(12))
    new = learn.update(state, jax.tree.map(lambda x: x[None], batch), jnp.zeros((1, 12, 1)), jnp.ones(1))
    before, after = (jax.tree.map(lambda x: x[0], s._replace(update=s.update[None])) for s in (state, new))
    weight = batch.valid / batch.valid.sum()

    def prediction_loss(params):
        predicted = FEATURES.apply({"params": params}, batch.observation, batch.action)
        return (weight * ((predicted - batch.following) ** 2).sum(axis=1)).sum()

    expected = jax.tree.map(
        lambda p, g: p - 0.1 * g, before.representation, jax.grad(prediction_loss)(before.representation)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), after.representation, expected)

    bound = FEATURES.bind({"params": expected})
    seen, following = bound.observed(batch.observation), bound.observed(batch.following)
    np.testing.assert_array_equal(seen[:, -1:], batch.observation)  # densely connected: the input is a part
    assert (seen.shape[1], bound.acted(seen, batch.action).shape[1]) == (13, 19)

    def value(params, seen, action):
        inputs = jnp.concatenate([bound.acted(seen, action), action], axis=1)
        return (inputs @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])[:, 0]

    act = following @ before.target_actor["Dense_0"]["kernel"] + before.target_actor["Dense_0"]["bias"]
    target = batch.reward + batch.discount * jnp.minimum(
        *(value(critic, following, jnp.tanh(act)) for critic in before.target_critics)
    )
    for old, found in zip(before.critics, after.critics, strict=True):
        loss = lambda params: (weight * (value(params, seen, batch.action) - target) ** 2).sum()  # noqa: E731
        step = jax.tree.map(lambda p, g: p - 0.1 * g, old, jax.grad(loss)(old))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, step)


def test_densely_connected_layers_see_all_before_them():
    x = jax.random.normal(jax.random.key(0), (4, 3))
    net = networks.MLP(2, hidden=(5, 6), densely_connected=True)
    params = net.init(jax.random.key(1), x)["params"]
    first = np.tanh(x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
    seen = np.concatenate([first, x], axis=1)
    second = np.concatenate([np.tanh(seen @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]), seen], axis=1)
    assert second.shape == (4, 14)
    expected = second @ params["Dense_2"]["kernel"] + params["Dense_2"]["bias"]
    np.testing.assert_allclose(net.apply({"params": params}, x), expected, rtol=1e-4, atol=1e-5)
    critic = networks.QNetwork((5, 6), densely_connected=True).init(jax.random.key(1), x, x)["params"]
    assert critic["Dense_2"]["kernel"].shape == (6 + 5 + 6, 1)


def test_a_checkpoint_of_another_network_is_refused():
    saved = make().save(make().init(jax.random.key(0)))
    with pytest.raises(ValueError, match="the checkpoint is of another network or optimiser: at "):
        td3(networks.MLP(1, hidden=(8,)), CRITIC, ENV, **SMALL).restore(saved)
    with pytest.raises(ValueError, match="the checkpoint is of another replay"):
        make(replay_size=4_000).restore(saved)
