"""TD3 against updates written out in NumPy, and on a probe with a known answer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from flax import linen as nn

from volvox import SAC, TD3, learn, networks
from volvox.data.replay import Batch
from volvox.learners import Turn
from volvox.learners.training import networks_and_masks
from volvox.sparsity import Dynamic, Magnitude, RewardAware, masks_of, sparse, table
from volvox.types import Axis, pick

ENV = probes.target(size=1, num_envs=8, groups=2)
ACTOR = networks.MLP(1, hidden=(16,), activation=nn.relu)
CRITIC = networks.QNetwork(hidden=(16,))
FEATURES = networks.NextObservationNetwork((6, 6), (5,))
SMALL = {
    "batch_size": 32,
    "random_timesteps": 64,
    "replay_size": 2_000,
    "timesteps_per_iteration": 400,
    "learning_rate": 3e-3,
}


def make(env=ENV, num_learners=1, **options):
    return learn(TD3(**SMALL | options), networks.ActorAndCritic(ACTOR, CRITIC), env, num_learners=num_learners)


GRADIENT = {"batch_size": 32, "learning_rate": 0.1, "optimizer": optax.sgd}
LINEAR = networks.ActorAndCritic(networks.MLP(1, hidden=()), networks.QNetwork(hidden=()))


def bound(network=LINEAR, env=ENV, **options):
    """The learner, and its state of learning to begin with."""
    learner = TD3(**(SMALL | options)).bind(network, env)
    return learner, jax.jit(learner.init)(jax.random.key(0))[1]


def test_batches_have_the_n_steps_of_the_settings():
    learner = TD3(**SMALL, n_step=3).bind(LINEAR, ENV)
    collected, _ = jax.jit(learner.init)(jax.random.key(0))
    ones = lambda x: x.timestep._replace(reward=jnp.ones_like(x.timestep.reward))  # noqa: E731
    full = tuple(x._replace(num_added=jnp.int32(100), timestep=ones(x)) for x in collected.replays)
    batch = learner.sample(jax.random.key(1), collected._replace(replays=full))
    np.testing.assert_allclose(batch.reward, 1 + 0.99 + 0.99**2, rtol=1e-5)
    np.testing.assert_allclose(batch.discount, 0.99**3, rtol=1e-5)


def test_explored_actions_are_those_that_the_simulator_takes():
    learner, _ = bound(exploration_noise=1.0)
    found = learner.explore(jnp.zeros((2, 1)), jnp.float32([[9.0], [-9.0]]))
    np.testing.assert_array_equal(found, [[1.0], [-1.0]])


def test_a_saved_replay_is_kept_where_environments_begin_anew():
    def make_envs(*given, **options):
        return tuple(group._replace(resumable=False) for group in ENV.make(*given, **options))

    algorithm, again = (make(env=ENV._replace(make=make_envs)) for _ in range(2))
    state, _ = algorithm.step(algorithm.init(0))
    algorithm.close()
    begun = again.step.__self__.begin(again.restore(algorithm.save(state)).acting)
    assert int(begun.collected.replays[0].num_added) == int(state.acting.collected.replays[0].num_added) > 0
    assert (int(begun.round), int(begun.beat)) == (0, 0) != (int(state.acting.round), int(state.acting.beat))
    assert int(begun.draws) == int(state.acting.draws) > 0  # noise is not drawn twice


def batch_of(n, seed=0):
    random = np.random.default_rng(seed)
    return Batch(
        observation=random.normal(size=(n, 1)).astype(np.float32),
        action=random.uniform(-1, 1, (n, 1)).astype(np.float32),
        reward=random.normal(size=n).astype(np.float32),
        discount=random.choice([0.0, 0.99], n).astype(np.float32),
        next_observation=random.normal(size=(n, 1)).astype(np.float32),
        valid=random.uniform(size=n) < 0.8,
    )


def numpy_params(tree):
    """(kernel, bias) of the only layer, in doubles."""
    layer = tree["Dense_0"]
    return np.asarray(layer["kernel"], float), np.asarray(layer["bias"], float)


def both(critics):
    """(kernels `[2, ...]`, biases `[2, ...]`)."""
    return tuple(np.stack(pair) for pair in zip(*map(numpy_params, critics), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "size", "shape"), [(TD3(policy_delay=1, **GRADIENT), 1, (12, 1)), (SAC(**GRADIENT), 2, (12, 2, 1))]
)
def test_an_update_follows_the_mean_gradient_of_all_devices(settings, size, shape):
    """Devices have different numbers of valid transitions, by which their gradients count."""
    network = networks.ActorAndCritic(networks.MLP(size, hidden=()), networks.QNetwork(hidden=()))
    alone, two = (settings.bind(network, env) for env in (ENV, ENV._replace(axis=Axis("devices", 2))))
    state = jax.jit(alone.init)(jax.random.key(0))[1]
    batch = batch_of(12)._replace(valid=np.arange(12) >= 5)  # one of six, and all six
    noise = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    given = jax.tree.map(jnp.asarray, (batch, noise))
    whole = jax.jit(alone.update)(state, *given, jnp.float32(0))
    halves = jax.tree.map(lambda x: x.reshape(2, 6, *x.shape[1:]), given)
    update = jax.vmap(lambda batch, noise: two.update(state, batch, noise, jnp.float32(0)), axis_name="devices")
    parts = jax.jit(update)(*halves)
    learned = lambda x: jax.tree.leaves((x.params, getattr(x, "log_temperature", ())))  # noqa: E731
    for found, wanted in zip(learned(parts), learned(whole), strict=True):
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy_delay", [1, 2])
def test_an_update_is_the_algorithms(policy_delay):
    n, rate = 12, 0.1
    settings = {"policy_delay": policy_delay, "learning_rate": rate, "target_noise": 0.3, "target_rate": 0.05}
    settings |= {"target_noise_clip": 0.25, "optimizer": optax.inject_hyperparams(optax.sgd)}
    learner, _ = bound(**settings)
    _, state = bound(**settings | {"learning_rate": 9.0})  # the rate of the settings counts, not that of the state
    batch, drawn = batch_of(n), np.random.default_rng(5).standard_normal((n, 1)).astype(np.float32)
    new = jax.jit(learner.update)(state, jax.tree.map(jnp.asarray, batch), drawn, jnp.float32(0))

    (wa, ba), (wq, bq) = numpy_params(state.params.actor), both(state.params.critics)
    noise = np.clip(0.3 * drawn, -0.25, 0.25)
    following = np.clip(np.tanh(batch.next_observation @ wa + ba) + noise, -1, 1)

    def values(observation, action):
        x = np.concatenate([observation, action], 1)
        return x, [x @ wq[i] + bq[i] for i in (0, 1)]

    _, q_following = values(batch.next_observation, following)
    target = batch.reward[:, None] + batch.discount[:, None] * np.minimum(*q_following)
    x, q = values(batch.observation, batch.action)
    weight = batch.valid[:, None] / batch.valid.sum()
    new_wq = np.stack([wq[i] - rate * x.T @ (2 * weight * (q[i] - target)) for i in (0, 1)])
    new_bq = np.stack([bq[i] - rate * (2 * weight * (q[i] - target)).sum(0) for i in (0, 1)])
    found_wq, found_bq = both(new.params.critics)
    np.testing.assert_allclose(found_wq, new_wq, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found_bq, new_bq, rtol=1e-4, atol=1e-6)

    if policy_delay == 2:  # the first update is the critics' alone
        jax.tree.map(np.testing.assert_array_equal, new.params.actor, state.params.actor)
        jax.tree.map(np.testing.assert_array_equal, new.targets, state.targets)
        assert new.metrics["actor_loss"].num == 0
        return
    # d/da q1 is the action's weight; d/d(params) of tanh(o w + b).
    squashed = np.tanh(batch.observation @ wa + ba)
    of_output = -weight * new_wq[0, 1] * (1 - squashed**2)
    new_wa, new_ba = wa - rate * batch.observation.T @ of_output, ba - rate * of_output.sum(0)
    found_wa, found_ba = numpy_params(new.params.actor)
    np.testing.assert_allclose(found_wa, new_wa, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found_ba, new_ba, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(numpy_params(new.targets.actor)[0], wa + 0.05 * (new_wa - wa), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(both(new.targets.critics)[0], wq + 0.05 * (new_wq - wq), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", [{}, pytest.param({"n_step": 3}, marks=pytest.mark.slow)], ids=["plain", "n-step"])
def test_the_answer_is_found(options, trained):
    """Every step asks for another number; random answers earn -8 * 2/3 an episode, the right ones nothing."""
    actor, critic = networks.MLP(1, hidden=(32,), activation=nn.relu), networks.QNetwork(hidden=(32,))
    network = networks.ActorAndCritic(actor, critic)
    settings = TD3(**SMALL | options | {"discount": 0.5, "timesteps_per_iteration": 1_400})
    algorithm, state, metrics = trained(settings, network, ENV)
    asked = np.linspace(-0.9, 0.9, 7, dtype=np.float32)[:, None]
    output, _ = algorithm.policy.apply(algorithm.variables(state), jnp.asarray(asked), ())
    np.testing.assert_allclose(algorithm.policy.mode(output), asked, atol=0.2)
    assert metrics["training_mean"] > -0.5


def test_actions_are_uniform_at_first_and_then_the_policys_with_noise():
    """Of one beat of 4 096 environments with actions from -2 to 4 and from 0 to 1."""
    env = probes.target(size=2, num_envs=4_096, groups=1)
    bounds = {"action_low": np.float32([-2, 0]), "action_high": np.float32([4, 1])}
    network = networks.ActorAndCritic(networks.MLP(2, hidden=()), networks.QNetwork(hidden=()))
    options = {"random_timesteps": 10, "exploration_noise": 0.2, "replay_size": 4_096 * 2}
    learner, learning = bound(network, env._replace(spec=env.spec._replace(**bounds)), **options)
    params = learning.params._replace(actor=jax.tree.map(lambda x: jnp.full_like(x, 0.1), learning.params.actor))
    learning = learning._replace(params=params)
    (group,) = env.make(0)
    _, timestep = group.recv(group.init())
    timestep = timestep._replace(observation=jnp.ones_like(timestep.observation), first=jnp.zeros(4_096, bool))
    acting, turn = jax.jit(learner.init)(jax.random.key(0))[0], Turn(0, *(jnp.int32(0),) * 2, jnp.float32(0))

    def stored(acting, row):
        return np.asarray(acting.replays[0].action)[row]

    @jax.jit
    def act(acting, learning, number):
        return learner.act(acting, learning, env.keys(jax.random.key(0), number, 0), turn, timestep)

    acting, action = act(acting, learning, 0)
    np.testing.assert_allclose(action, [1, 0.5] + np.float32([3, 0.5]) * stored(acting, 0), rtol=1e-5, atol=1e-5)
    assert np.abs(stored(acting, 0)).max() <= 1
    assert stored(acting, 0).mean() == pytest.approx(0, abs=0.04)
    assert stored(acting, 0).var() == pytest.approx(1 / 3, abs=0.02)
    assert int(acting.credit) >= 0

    acting, _ = act(acting, learning, 1)
    noise = stored(acting, 1).ravel() - np.tanh(0.3)
    assert noise.mean() == pytest.approx(0, abs=0.015)
    assert noise.std() == pytest.approx(0.2, rel=0.04)
    assert (noise**4).mean() == pytest.approx(3 * 0.2**4, rel=0.2)  # of a normal distribution


@pytest.mark.slow
def test_as_many_updates_are_made_as_asked_for():
    """Resets, a ninth of all timesteps here, cause no updates; iterations end at the right timestep.

    The same holds beyond 2**31 - 1 timesteps, the largest int32.
    """
    ratio, env = 1.5, probes.target(size=1, num_envs=4, groups=2)
    options = {"updates_per_timestep": ratio, "random_timesteps": 16, "timesteps_per_iteration": 100}
    algorithm = make(env, num_learners=2, **options)
    state = algorithm.init(jax.random.key(0))
    for i in (1, 2, 3):
        state, metrics = algorithm.step(state)
        assert 100 * i <= metrics["timesteps"] < 100 * i + 8
        assert metrics["update"] == pytest.approx(ratio * (metrics["timesteps"] - 16), abs=ratio * 4)
    late = (2**31 - 10) * 2
    new, row = algorithm.step(state._replace(timesteps=late))
    algorithm.close()
    assert 2_147_483_700 <= row["timesteps"] == new.timesteps // 2 < 2_147_483_708
    learned = (new.timesteps - late) / 2
    assert row["update"] - metrics["update"] == pytest.approx(ratio * learned, abs=ratio * 4)


@pytest.mark.slow
def test_a_sparse_optimiser_keeps_everything_sparse():
    rule = Dynamic(sparsity=0.5, drop=0.2, every=51)  # odd: changes fall between the targets' moves, too
    optimizer = sparse(optax.adam(3e-3), rule, dense=("Dense_1/kernel",))
    algorithm = make(optimizer=optimizer, learning_rate=None, num_learners=2, timesteps_per_iteration=250)
    state = algorithm.init(jax.random.key(0))
    began = masks_of(state.learning.optimizer.critics)
    state, metrics = algorithm.step(state)
    masks = masks_of(state.learning.optimizer.critics)
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(began), jax.tree.leaves(masks), strict=True))
    of_actor = masks_of(state.learning.optimizer.actor)
    params, moving = state.learning.params, state.learning.targets
    pairs = [*zip(params.critics, masks, strict=True), *zip(moving.critics, masks, strict=True)]
    for one, mask in [*pairs, (params.actor, of_actor), (moving.actor, of_actor)]:
        kernel, live = (np.asarray(tree["Dense_0"]["kernel"]) for tree in (one, mask))
        assert live.mean() == 0.5
        assert not kernel[~live[:, :, 0]].any()
        assert np.asarray(one["Dense_1"]["kernel"]).all()
    rows = table(*pick(networks_and_masks(state.learning), 1))
    assert rows[-1]["compression"] == pytest.approx(metrics["compression_each"][1])
    # Half of the first layers' 16 and 2 * 32 weights, of 49 and 2 * 65 with biases and outputs, and a bit for each.
    assert metrics["compression"] == pytest.approx((8 + 2 * 16 - (16 + 2 * 32) / 32) / (49 + 2 * 65))
    algorithm.close()


@pytest.mark.slow
def test_each_learners_sparsity_goes_by_its_own_returns():
    """The second plays almost at random; zeros, or the other learner's returns, would be out of range."""
    optimizer = sparse(optax.adam(3e-3), Magnitude(schedule=RewardAware(final_sparsity=0.5, increment=0.01), every=1))
    settings = TD3(**SMALL | {"optimizer": optimizer, "learning_rate": None, "discount": 0.5})
    each = [dataclasses.replace(settings, exploration_noise=noise) for noise in (0.01, 3.0)]
    algorithm = learn(each, networks.ActorAndCritic(ACTOR, CRITIC), ENV)
    state = algorithm.init(jax.random.key(0))
    for _ in range(3):
        state, metrics = algorithm.step(state)
    for kept in (state.learning.optimizer.actor, state.learning.optimizer.critics):
        best, worst = (np.asarray(x) for x in (kept.schedule.best, kept.schedule.worst))
        for s in range(2):
            assert worst[s] - 1e-3 <= metrics["recent_mean_each"][s] <= best[s] + 1e-3 < 0
        assert best[1] < metrics["recent_mean_each"][0]
    algorithm.close()


@pytest.mark.slow
def test_without_its_replay_a_resumed_run_gathers_anew_before_it_learns():
    options = {"save_replay": False, "random_timesteps": 200, "timesteps_per_iteration": 160}
    algorithm = make(**options)
    state = algorithm.init(jax.random.key(0))
    for _ in range(3):
        state, _ = algorithm.step(state)
    updates = int(state.learning.update)
    assert updates > 0
    saved = algorithm.save(state)
    algorithm.close()
    again = make(**options)
    assert again.restore(saved).acting.collected.replays == ()
    state, _ = again.step(again.restore(saved))
    assert int(state.learning.update) == updates  # 160 steps are held, of 200
    state, _ = again.step(state)
    assert int(state.learning.update) > updates
    again.close()


@pytest.mark.slow
def test_a_representation_learns_by_itself_and_first():
    """Its update is by the prediction's gradient alone, and critics learn on the features after it."""
    network = networks.ActorAndCritic(LINEAR.actor, LINEAR.critic, FEATURES)
    options = {"optimizer": optax.sgd, "learning_rate": 0.1, "target_noise": 0.0, "target_rate": 0.05}
    learner, state = bound(network, **options)
    batch = jax.tree.map(jnp.asarray, batch_of(12))
    new = jax.jit(learner.update)(state, batch, jnp.zeros((12, 1)), jnp.float32(1))
    before, after, old_targets = state.params, new.params, state.targets
    weight = batch.valid / batch.valid.sum()

    def prediction_loss(params):
        predicted = FEATURES.apply({"params": params}, batch.observation, batch.action)
        return (weight * ((predicted - batch.next_observation) ** 2).sum(axis=1)).sum()

    expected = jax.tree.map(
        lambda p, g: p - 0.1 * g, before.representation, jax.grad(prediction_loss)(before.representation)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), after.representation, expected)

    features = FEATURES.bind({"params": expected})
    seen, following = map(features.encode_observation, (batch.observation, batch.next_observation))
    np.testing.assert_array_equal(seen[:, -1:], batch.observation)  # densely connected: the input is a part
    assert (seen.shape[1], features.encode_action(seen, batch.action).shape[1]) == (13, 19)

    def value(params, seen, action):
        inputs = jnp.concatenate([features.encode_action(seen, action), action], axis=1)
        return (inputs @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])[:, 0]

    act = following @ old_targets.actor["Dense_0"]["kernel"] + old_targets.actor["Dense_0"]["bias"]
    target = batch.reward + batch.discount * jnp.minimum(
        *(value(critic, following, jnp.tanh(act)) for critic in old_targets.critics)
    )
    for old, found in zip(before.critics, after.critics, strict=True):
        loss = lambda params: (weight * (value(params, seen, batch.action) - target) ** 2).sum()  # noqa: E731
        step = jax.tree.map(lambda p, g: p - 0.1 * g, old, jax.grad(loss)(old))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, step)
