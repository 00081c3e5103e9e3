"""SAC against updates written out in NumPy, and on a probe with a known answer."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest

import volvox as vx
from volvox.data.replay import Batch
from volvox.networks import MLP, ActorAndCritic, NextObservationNetwork, QNetwork
from volvox.networks.distributions import tanh_gaussian
from volvox.sparsity import Dynamic, masks_of, sparse

ENV = probes.target(size=1, num_envs=8, groups=2)
LINEAR = ActorAndCritic(MLP(2, hidden=()), QNetwork(hidden=()))
SMALL: dict[str, Any] = {
    "temperature_learning_rate": 3e-3,
    "batch_size": 32,
    "random_timesteps": 64,
    "replay_size": 2_000,
    "learning_rate": 3e-3,
}


def test_densities_are_those_of_a_change_of_variables():
    """The density of tanh(x) is that of x over the slope of tanh, here by differences in doubles."""
    mean, log_std = np.array([[0.3, -1.0]]), np.array([[-0.5, 0.2]])
    noise = np.random.default_rng(0).normal(size=(50, 2))
    action, log_prob = tanh_gaussian(*map(jnp.float32, (mean, log_std, noise)))
    x, h = mean + np.exp(log_std) * noise, 1e-5
    normal = np.exp(-0.5 * ((x - mean) / np.exp(log_std)) ** 2) / (np.exp(log_std) * np.sqrt(2 * np.pi))
    slope = (np.tanh(x + h) - np.tanh(x - h)) / (2 * h)
    np.testing.assert_allclose(action, np.tanh(x), rtol=1e-5)
    np.testing.assert_allclose(log_prob, np.log(normal / slope).sum(1), rtol=1e-3, atol=1e-3)
    far = tanh_gaussian(jnp.float32([[20.0]]), jnp.float32([[0.0]]), jnp.float32([[0.0]]))
    np.testing.assert_allclose(far[1], [-0.5 * np.log(2 * np.pi) - 2 * (np.log(2) - 20)], rtol=1e-5)


@pytest.mark.parametrize("given", [None, -0.5])
def test_the_temperature_follows_the_target_entropy(given):
    """By default minus the number of the action's components."""
    network = ActorAndCritic(MLP(4, hidden=()), QNetwork(hidden=()))
    learner = vx.SAC(**SMALL, target_entropy=given).bind(network, probes.target(size=2, num_envs=8, groups=2))
    learner.temperature_optimizer = optax.sgd(1.0)
    _, learning = learner.init(jax.random.key(0))
    x, noise = jax.random.normal(jax.random.key(1), (2, 5, 2))
    batch = Batch(x, x, jnp.ones(5), jnp.ones(5), x, jnp.arange(5) < 3)
    new = learner.update_temperature(learning, batch, noise)
    _, log_prob = tanh_gaussian(*learner.networks.gaussian(learning.params.actor, x), noise)
    wanted = float(log_prob[:3].mean()) + (-2.0 if given is None else given)
    assert float(new.log_temperature) == pytest.approx(wanted, rel=1e-4)


def test_exploration_draws_from_the_policy():
    learner, noise = vx.SAC(**SMALL).bind(LINEAR, ENV), jax.random.normal(jax.random.key(1), (50, 1))
    actor = {"Dense_0": {"kernel": jnp.zeros((1, 2)), "bias": jnp.float32([0.2, -0.7])}}
    params = learner.policy.init(jax.random.key(0))._replace(actor=actor)
    found = learner.explore(learner.choose(params, jnp.ones((50, 1))), noise)
    np.testing.assert_allclose(found, np.tanh(0.2 + np.exp(-0.7) * noise), rtol=1e-5)


def test_standard_deviations_are_limited():
    networks = vx.SAC(**SMALL).bind(LINEAR, ENV).networks
    for given, log_std in ((-30.0, -20.0), (1.5, 1.5), (3.0, 2.0)):
        actor = {"Dense_0": {"kernel": jnp.zeros((1, 2)), "bias": jnp.float32([7.0, given])}}
        np.testing.assert_allclose(networks.gaussian(actor, jnp.zeros((1, 1))), [[[7.0]], [[log_std]]])


def test_drawn_actions_have_the_bounds_of_the_environment():
    env = ENV._replace(spec=ENV.spec._replace(action_low=np.float32([-2]), action_high=np.float32([4])))
    policy = vx.SAC(**SMALL).bind(LINEAR, env).policy
    drawn = policy.sample(jax.random.key(0), jnp.float32([[0.0, -20.0]] * 4))
    np.testing.assert_allclose(drawn, 1.0, atol=1e-4)


def test_an_entropy_that_no_policy_has_is_refused():
    """Uniform actions in [-1, 1] have the largest, log 2."""
    vx.SAC(target_entropy=0.69).bind(LINEAR, ENV)
    with pytest.raises(ValueError, match="target_entropy"):
        vx.learn([vx.SAC(), vx.SAC(target_entropy=0.7)], LINEAR, ENV)


@pytest.mark.slow
def test_a_representation_learns_first():
    """By the gradient of its predictions alone; critics learn on the features after it."""
    network = ActorAndCritic(LINEAR.actor, LINEAR.critic, NextObservationNetwork((6, 6), (5,)))
    learner = vx.SAC(**SMALL | {"optimizer": optax.sgd, "learning_rate": 0.1}).bind(network, ENV)
    state = jax.jit(learner.init)(jax.random.key(0))[1]
    x, following, action = jax.random.uniform(jax.random.key(1), (3, 12, 1), minval=-1.0)
    batch, noise = Batch(x, action, x[:, 0], x[:, 0], following, jnp.ones(12, bool)), jnp.zeros((12, 2, 1))
    new = jax.jit(learner.update)(state, batch, noise, jnp.float32(0))

    def moved(part, loss, *given):
        gradient = jax.grad(lambda part: loss(part, *given)[0])(part)
        return jax.tree.map(lambda p, g: p - 0.1 * g, part, gradient)

    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    representation = moved(state.params.representation, learner.representation_loss, batch)
    jax.tree.map(close, new.params.representation, representation)
    params = state.params._replace(representation=representation)
    batch = batch.map_observations(functools.partial(learner.networks.encode_observation, representation))
    critics = moved(params.critics, learner.critic_loss, params, state, noise[:, 0], batch)
    jax.tree.map(close, new.params.critics, critics)


@pytest.mark.parametrize("temperature", [None, 0.3])
def test_an_update_is_the_algorithms(temperature):
    """Of one linear layer each, by plain gradient descent; gradients of the actor by differences."""
    n, rate, random = 12, 0.1, np.random.default_rng(1)
    options = SMALL | {"learning_rate": rate, "optimizer": optax.sgd, "temperature": temperature, "target_rate": 0.05}
    learner = vx.SAC(**options).bind(LINEAR, ENV)
    state = jax.jit(learner.init)(jax.random.key(0))[1]._replace(log_temperature=jnp.float32(-0.5))
    observation, following = random.normal(size=(2, n, 1))
    action, reward = random.uniform(-1, 1, (n, 1)), random.normal(size=n)
    valid, discount = random.random(n) < 0.8, random.choice([0.0, 0.99], n)
    arrays: Any = map(jnp.float32, (observation, action, reward, discount, following))
    noise = random.normal(size=(n, 2, 1))
    new = jax.jit(learner.update)(state, Batch(*arrays, valid=jnp.asarray(valid)), jnp.float32(noise), jnp.float32(0))

    layer = lambda tree: [np.asarray(tree["Dense_0"][name], float) for name in ("kernel", "bias")]  # noqa: E731
    actor, critics, alpha = (
        layer(state.params.actor),
        list(map(layer, state.params.critics)),
        temperature or np.exp(-0.5),
    )
    mean = lambda x: (x * valid).sum() / valid.sum()  # noqa: E731

    def act(actor, observation, noise):
        mean, log_std = np.split(observation @ actor[0] + actor[1], 2, axis=1)
        x = mean + np.exp(log_std) * noise
        density = np.exp(-0.5 * noise**2) / np.sqrt(2 * np.pi) / np.exp(log_std) / (1 - np.tanh(x) ** 2)
        return np.tanh(x), np.log(density)[:, 0]

    def value(critic, observation, action):
        return (np.concatenate([observation, action], 1) @ critic[0] + critic[1])[:, 0]

    next_action, log_prob = act(actor, following, noise[:, 0])
    soft = np.minimum(*(value(critic, following, next_action) for critic in critics)) - alpha * log_prob
    target, x = reward + discount * soft, np.concatenate([observation, action], 1)
    learned = []
    for critic in critics:
        error = (value(critic, observation, action) - target) * valid / valid.sum()
        learned.append([critic[0] - rate * x.T @ error[:, None], critic[1] - rate * error.sum()])
    for found, wanted, old, moved in zip(new.params.critics, learned, critics, new.targets, strict=True):
        for i in (0, 1):
            np.testing.assert_allclose(layer(found)[i], wanted[i], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(layer(moved)[i], old[i] + 0.05 * (wanted[i] - old[i]), rtol=1e-4, atol=1e-5)

    def actor_loss(kernel, bias):
        action, log_prob = act((kernel, bias), observation, noise[:, 1])
        return mean(alpha * log_prob - np.minimum(*(value(critic, observation, action) for critic in learned)))

    found = layer(new.params.actor)
    for i in range(2):
        kernel, bias = (np.eye(1, 2, i) * 1e-5, np.eye(1, 2, i)[0] * 1e-5)
        slopes = [
            (actor_loss(actor[0] + kernel, actor[1]) - actor_loss(actor[0] - kernel, actor[1])) / 2e-5,
            (actor_loss(actor[0], actor[1] + bias) - actor_loss(actor[0], actor[1] - bias)) / 2e-5,
        ]
        np.testing.assert_allclose(found[0][0, i], actor[0][0, i] - rate * slopes[0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(found[1][i], actor[1][i] - rate * slopes[1], rtol=1e-3, atol=1e-4)
    _, log_prob = act(found, observation, noise[:, 1])
    moved = 0.0 if temperature else 3e-3 * np.sign(mean(log_prob - 1.0))  # the first update of Adam
    assert float(new.log_temperature) == pytest.approx(-0.5 + moved, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "densely_connected"),
    [
        ({}, False),
        ({"n_step": 2}, True),
        ({"optimizer": sparse(optax.adam(3e-3), Dynamic(sparsity=0.5, every=50)), "learning_rate": None}, True),
    ],
    ids=["plain", "two steps", "sparse"],
)
def test_the_answer_is_found(options, densely_connected, trained):
    """Every step asks for another number; random answers earn -8 * 2/3 an episode, the right ones nothing."""
    given = SMALL | {"discount": 0.5, "timesteps_per_iteration": 1_600, "target_entropy": -2.0} | options
    network = ActorAndCritic.mlp(1, (32, 32), gaussian=True, densely_connected=densely_connected)
    algorithm, state, row = trained(vx.SAC(**given), network, ENV)
    score = vx.play(ENV, algorithm.policy, algorithm.variables(state), num_episodes=100)
    assert score.mean > -0.2
    if "optimizer" in options:
        params, live = state.learning.params, masks_of(state.learning.optimizer.critics)
        for tree, mask in zip((*params.critics, *state.learning.targets), (*live, *live), strict=True):
            kernel, kept = (np.asarray(x["Dense_1"]["kernel"]) for x in (tree, mask))
            assert 0 < kept.mean() < 1
            assert not kernel[~kept[:, 0]].any()
    asked = np.linspace(-0.8, 0.8, 5, dtype=np.float32)[:, None]
    output, _ = algorithm.policy.apply(algorithm.variables(state), jnp.asarray(asked), ())
    np.testing.assert_allclose(algorithm.policy.mode(output), asked, atol=0.25)
    drawn = algorithm.policy.sample(jax.random.key(1), output[jnp.array([2, 2])])
    assert drawn.shape == (2, 1)
    assert drawn[0, 0] != drawn[1, 0]  # each environment has its own noise
    assert row["temperature"] < 0.5
