"""PQN: targets and loss against NumPy, environments whose action values are known, exploration."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from flax import linen as nn

import volvox as vx
from volvox.networks import MLP, QValues, RecurrentQValues, q_network
from volvox.networks.distributions import Categorical, EpsilonGreedy, MultiCategorical, mask_logits
from volvox.sparsity import Dynamic, sparse
from volvox.types import Axis

FAST = {
    "segment_length": 8,
    "learning_rate": 1e-2,
    "discount": 0.9,
    "num_epochs": 2,
    "num_minibatches": 2,
    "epsilon": 0.5,
    "normalize_rewards": False,
}
NETWORK = MLP(2, (16,), layer_norm=True)


@pytest.fixture
def learned(trained):
    """A function that returns parameters after training, the network as functions, and the metrics."""

    def make(env, module=NETWORK, rounds=150, **options):
        settings = vx.PQN(**FAST | {"rounds_per_iteration": rounds} | options)
        _, state, metrics = trained(settings, module, env)
        return state.learning.params, settings.bind(module, env).network, metrics

    return make


@pytest.mark.parametrize("lag", [0, 1])
def test_values_of_actions_are_known(lag, learned):
    params, functions, _ = learned(probes.matched_reward(num_envs=8), lag=lag)
    output, value, _ = functions.apply(params, jnp.float32([[-1.0], [1.0]]), ())
    np.testing.assert_allclose(output, [[1.0, -1.0], [-1.0, 1.0]], atol=0.1)
    np.testing.assert_array_equal(value, output.max(axis=1))


def test_values_of_several_components_are_learned(learned):
    """Each component earns a reward of its own."""

    def step(state, action, key):
        return state, 1.0 * (action[0] == 1) + 2.0 * (action[1] == 2), True

    options = {"num_envs": 8, "num_choices": (2, 3), "name": "components", "max_episode_steps": 5}
    env = vx.envs.from_functions(lambda key: jnp.float32(0), step, lambda state: state[None], **options)
    params, functions, _ = learned(env, MLP(5, (16,), layer_norm=True))
    output = functions.apply(params, jnp.zeros((1, 1)), ())[0][0]
    np.testing.assert_allclose(output[:2, None] + output[2:], [[0, 0, 2], [1, 1, 3]], atol=0.1)


@pytest.mark.slow
def test_sparse_networks_learn_values(learned):
    optimizer = sparse(optax.radam(1e-2), Dynamic(sparsity=0.5, drop=0.2, every=50))
    network = MLP(2, (16, 16), layer_norm=True)
    params, functions, _ = learned(probes.matched_reward(num_envs=8), network, optimizer=optimizer, learning_rate=None)
    kernel = params["Dense_1"]["kernel"]
    assert 0.4 < (np.asarray(kernel) == 0).mean() < 0.7
    output, _, _ = functions.apply(params, jnp.float32([[-1.0], [1.0]]), ())
    np.testing.assert_allclose(output, [[1.0, -1.0], [-1.0, 1.0]], atol=0.2)


@pytest.mark.slow
@pytest.mark.optimized
def test_the_defaults_learn_cartpole():
    """The longest episodes earn 500."""
    env, network = vx.envs.cartpole(num_envs=32), MLP(2, (64, 64), nn.relu, layer_norm=True)
    algorithm = vx.learn(vx.PQN(), network, env, num_learners=2, evaluate_every=50_000, num_evaluation_episodes=20)
    run = vx.train(algorithm, seed=0, max_timesteps=300_000, progress=False)
    assert run.metrics[-1]["evaluation_best"] > 475


@pytest.mark.slow
def test_a_recurrent_network_recalls(recall, learned):
    epsilon = optax.linear_schedule(1.0, 0.0, 8_000)
    *_, metrics = learned(recall, RecurrentQValues(2, MLP(16, ()), width=8), rounds=200, epsilon=epsilon)
    assert metrics["training_mean"] > 0.8
    assert metrics["epsilon"] == pytest.approx(np.mean([max(0, 1 - i * 8 * 16 / 8_000) for i in range(200)]), rel=1e-3)


def test_targets_are_q_lambda():
    """Gallici et al. 2024, equation 6, in NumPy: greedy values of next observations, mixed with next targets."""
    settings, env = vx.PQN(**FAST | {"num_epochs": 1, "trace_decay": 0.7}), probes.corridor(num_envs=3)
    learner, rng = settings.bind(NETWORK, env), np.random.default_rng(0)
    collected, learning = jax.jit(learner.init)(jax.random.key(0))
    (data,) = collected.collectors
    shape = data.ring.reward.shape
    names = ("reward", "value", "bootstrap")
    drawn = {name: rng.normal(size=getattr(data.ring, name).shape).astype(np.float32) for name in names}
    ends = rng.choice(3, p=[0.6, 0.2, 0.2], size=shape)
    ring = data.ring._replace(**drawn, terminated=ends == 1, truncated=ends == 2, valid=np.ones(shape, bool))
    collected = collected._replace(collectors=(data._replace(ring=ring),))
    batch = jax.jit(learner.prepare)(collected, learning, jax.random.key(1), jnp.int32(1)).batch
    expected = np.zeros((8, 3))
    for b in range(3):
        target = drawn["bootstrap"][1, b]
        for t in reversed(range(8)):
            following = drawn["bootstrap"][1, b] if t == 7 else drawn["value"][1, t + 1, b]
            mixed = following if ends[1, t, b] == 2 else 0.3 * following + 0.7 * target
            target = drawn["reward"][1, t, b] + (0 if ends[1, t, b] == 1 else 0.9 * mixed)
            expected[t, b] = target
    np.testing.assert_allclose(batch.target.ravel(), expected.ravel()[np.ravel(batch.rows)], rtol=1e-5)


def test_the_loss_is_half_the_mean_squared_error_of_the_actions():
    """Timesteps that are not valid count for nothing."""
    env, rng = probes.corridor(num_envs=4), np.random.default_rng(0)
    learner = vx.PQN(**FAST).bind(NETWORK, env)
    collected, learning = jax.jit(learner.init)(jax.random.key(0))
    ring = collected.collectors[0].ring
    segment = jax.tree.map(lambda x: x[0], ring)._replace(
        observation=rng.normal(size=(8, 4, 1)).astype(np.float32),
        action=rng.integers(0, 2, (8, 4)),
        valid=rng.random((8, 4)) < 0.7,
    )
    target = rng.normal(size=(8, 4)).astype(np.float32)
    loss, _ = jax.jit(learner.loss)(learning.params, segment, target, target, jnp.float32(40), jnp.int32(0))
    q = learner.network.apply(learning.params, segment.observation.reshape(-1, 1), ())[0].reshape(8, 4, 2)
    taken = np.take_along_axis(np.asarray(q), segment.action[..., None], -1)[..., 0]
    assert loss == pytest.approx(0.5 * ((taken - target) ** 2)[segment.valid].sum() / 40, rel=1e-5)


def test_gradients_are_finite_where_a_mask_allows_nothing_of_one_component():
    """As after the end of an episode: the value of a forbidden action, squared, is not finite."""
    spec = {"observation": (5,), "action_mask": (5,)}
    env = probes.corridor(num_envs=1)
    dtypes = dict.fromkeys(spec, np.dtype(np.float32))
    spec = env.spec._replace(
        observation_shape=spec, observation_dtype=dtypes, num_actions=None, num_choices=(2, 3), action_shape=(2,)
    )
    learner = vx.PQN(segment_length=1, num_minibatches=1).bind(MLP(5, ()), env._replace(spec=spec))
    collected, learning = jax.jit(learner.init)(jax.random.key(0))
    segment = jax.tree.map(lambda x: x[0], collected.collectors[0].ring)
    mask = jnp.float32([[[0, 0, 1, 1, 1]]])
    segment = segment._replace(observation={"observation": jnp.ones((1, 1, 5)), "action_mask": mask})
    one = jnp.ones((1, 1))
    with jax.disable_jit():  # XLA may leave out what makes a NaN
        gradient = jax.grad(lambda x: learner.loss(x, segment, one, one, jnp.float32(1), jnp.int32(0))[0])
        found = gradient(learning.params)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(found))


def test_without_epsilon_actions_are_greedy_and_random_ones_are_even():
    env, key = probes.corridor(num_envs=4), jax.random.key(0)
    values = jnp.float32([[0.0, 3.0, 1.0, 2.0]])
    masked = mask_logits(values, jnp.array([[1, 0, 1, 1]]))
    for output, allowed in ((values, [0, 1, 2, 3]), (masked, [0, 2, 3])):
        best = int(output.argmax())
        for epsilon in (0.0, 0.4, 1.0):
            actions = EpsilonGreedy(Categorical(4), epsilon)
            drawn = jax.vmap(actions.sample, (0, None))(jax.random.split(key, 4_000), output)[:, 0]
            wanted = np.isin(np.arange(4), allowed) * epsilon / len(allowed) + (np.arange(4) == best) * (1 - epsilon)
            np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4_000, wanted, atol=0.03)
    settings = vx.PQN(**FAST | {"epsilon": optax.linear_schedule(1.0, 0.25, 80)})
    learner = settings.bind(NETWORK, env)
    _, learning = jax.jit(learner.init)(key)
    found = [float(learner.actions(learning._replace(round=jnp.int32(r))).epsilon) for r in range(4)]
    np.testing.assert_allclose(found, [1.0, 0.7, 0.4, 0.25], rtol=1e-6)
    two = settings.bind(NETWORK, env._replace(axis=Axis("devices", 2)))
    assert float(two.actions(learning._replace(round=jnp.int32(1))).epsilon) == pytest.approx(0.4)
    greedy = vx.PQN(**FAST | {"epsilon": optax.linear_schedule(1.0, 0.0, 80)}).bind(NETWORK, env).policy
    assert (greedy.sample(key, jnp.tile(jnp.float32([[0.0, 1.0]]), (99, 1))) == 1).all()  # the last ε counts


def test_each_learner_is_sampled_with_its_own_epsilon():
    settings = [vx.PQN(**FAST | {"epsilon": epsilon, "rounds_per_iteration": 1}) for epsilon in (0.0, 1.0)]
    run = vx.train(vx.learn(settings, NETWORK, probes.matched_reward(num_envs=8)), steps=1, progress=False)
    values = jnp.tile(jnp.float32([[0.0, 1.0]]), (999, 1))
    for i, share in enumerate((1.0, 0.5)):
        drawn = run.learner(i).algorithm.policy.sample(jax.random.key(0), values)
        assert float(drawn.mean()) == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize(("num_choices", "size"), [(None, 3), ((2, 3), 5)])
def test_values_are_finite_where_a_mask_allows_nothing(num_choices, size):
    spec = probes.corridor().spec._replace(num_actions=None if num_choices else size, num_choices=num_choices)
    spec = spec._replace(observation_shape={"observation": (1,), "action_mask": (size,)})
    spec = spec._replace(observation_dtype={"observation": np.float32, "action_mask": np.int8})
    network = q_network(QValues(size, MLP(4, ())), spec)
    x = {"observation": jnp.ones((2, 1)), "action_mask": jnp.zeros((2, size), jnp.int8).at[1].set(1)}
    _, value, _ = network.apply(jax.jit(network.policy.init)(jax.random.key(0)), x, ())
    assert np.abs(value).max() < 10


def test_several_components_add_up():
    spec = probes.corridor().spec._replace(num_actions=None, num_choices=(2, 3), action_shape=(2,))
    network, x = q_network(QValues(5, MLP(4, ())), spec), jnp.ones((1, 1))
    params = jax.jit(network.policy.init)(jax.random.key(0))
    output, value, _ = network.apply(params, x, ())
    assert value[0] == pytest.approx(float(output[0, :2].max() + output[0, 2:].max()))
    actions = EpsilonGreedy(MultiCategorical((2, 3)), 0.3)
    drawn = jax.vmap(actions.sample, (0, None))(jax.random.split(jax.random.key(1), 4_000), output)[:, 0]
    best = (drawn == actions.actions.mode(output)).all(axis=1)
    assert float(best.mean()) == pytest.approx(0.7 + 0.3 / 6, abs=0.03)
