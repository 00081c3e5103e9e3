"""Primal-dual π learning against updates written out in NumPy, and on probes whose solutions are known."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from flax import linen as nn

from volvox import sparsity
from volvox.envs import cartpole
from volvox.learners import PrimalDual, learn
from volvox.learners.primal_dual import Transition
from volvox.networks import CategoricalMLP, GaussianMLP, RecurrentActorCritic

CRITICS = [{"critic": "lagrangian", "penalty": 0.7}, {"critic": "td"}]
each_critic = pytest.mark.parametrize("critic", CRITICS, ids=["lagrangian", "td"])


def transitions(n, seed=0):
    random = np.random.default_rng(seed)
    return Transition(
        observation=random.normal(size=(n, 4)).astype(np.float32),
        action=random.integers(0, 2, n).astype(np.int32),
        reward=random.normal(size=n).astype(np.float32),
        discount=random.choice([0.0, 0.9], n).astype(np.float32),
        next_observation=random.normal(size=(n, 4)).astype(np.float32),
        valid=random.uniform(size=n) < 0.7,
    )


@each_critic
def test_an_update_is_the_formulas(critic):
    settings = PrimalDual(discount=0.9, learning_rate=0.1, optimizer=optax.sgd, **critic)
    learner = settings.bind(CategoricalMLP(2, hidden=()), cartpole())
    learning, batch = learner.init(jax.random.key(0))[1], transitions(40)
    after = jax.jit(learner.update)(learning, batch, jnp.float32(0))

    def layer(params, name):
        return tuple(np.asarray(params[name][part], float) for part in ("kernel", "bias"))

    (w, b), (u, c) = (layer(learning.params, name) for name in ("Dense_0", "Dense_1"))
    x, y = batch.observation.astype(float), batch.next_observation.astype(float)
    v, v_next = (x @ u + c)[:, 0], (y @ u + c)[:, 0]
    advantage = batch.reward + batch.discount * v_next - v
    if critic["critic"] == "lagrangian":
        # d/dv of (1 - γ) v + A + c A², and d/dv' of the same.
        at_v = (1 - 0.9) - 1 - 2 * 0.7 * advantage
        at_next = batch.discount * (1 + 2 * 0.7 * advantage)
    else:
        at_v, at_next = -advantage, np.zeros(40)
    logits = x @ w + b
    policy = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    at_logits = -advantage[:, None] * (np.eye(2)[batch.action] - policy)
    weight = batch.valid / batch.valid.sum()
    expected = {
        "Dense_0": (w - 0.1 * x.T @ (weight[:, None] * at_logits), b - 0.1 * weight @ at_logits),
        "Dense_1": (
            u - 0.1 * (x.T @ (weight * at_v) + y.T @ (weight * at_next))[:, None],
            c - 0.1 * weight @ (at_v + at_next),
        ),
    }
    for name, (kernel, bias) in expected.items():
        np.testing.assert_allclose(after.params[name]["kernel"], kernel, atol=1e-5)
        np.testing.assert_allclose(after.params[name]["bias"], bias, atol=1e-5)
    assert after.update == 1


class Table(nn.Module):
    """Logits and a value for each of three observations, 0, 1 and whatever else."""

    @nn.compact
    def __call__(self, x):
        place = jnp.clip(x[:, 0].astype(jnp.int32), 0, 2)
        logits, values = self.param("logits", nn.initializers.zeros, (3, 2)), self.param("v", nn.initializers.zeros, 3)
        return logits[place], values[place]


def learned(env, iterations=1, seed=0, network=None, **settings):
    """(state, metrics, algorithm) after some iterations."""
    settings = {"learning_rate": 0.02, "timesteps_per_iteration": 4_000, "discount": 0.9} | settings
    algorithm = learn(PrimalDual(**settings), network or Table(), env)
    state, row = algorithm.init(jax.random.key(seed)), {}
    for _ in range(iterations):
        state, row = algorithm.step(state)
    algorithm.close()
    return state, row, algorithm


@pytest.mark.parametrize("penalty", [0.5, 2.0])
def test_values_solve_the_relaxed_program(penalty):
    # A = -γ / 2c at the first timestep, and -γ² / 2c at the second: see the module.
    state, _, _ = learned(probes.delayed_reward(), penalty=penalty)
    second = 1 + 0.9**2 / (2 * penalty)
    first = 0.9 * second + 0.9 / (2 * penalty)
    np.testing.assert_allclose(state.learning.params["v"][:2], [first, second], atol=0.02)


def test_values_of_the_one_step_actor_critic_are_the_true_ones():
    state, _, _ = learned(probes.delayed_reward(), critic="td")
    np.testing.assert_allclose(state.learning.params["v"][:2], [0.9, 1.0], atol=0.02)


@each_critic
def test_policies_learn_what_is_rewarded(critic):
    state, row, _ = learned(probes.chosen_reward(), **critic)
    assert jax.nn.softmax(state.learning.params["logits"][0])[1] > 0.95
    assert row["training_mean"] > 0.8


def test_sparse_networks_begin_and_stay_sparse():
    """As with the other learners: masks are drawn from the run's seed, and rewards reach the rule."""
    rule = sparsity.Dynamic(sparsity=0.5)
    settings = {"optimizer": sparsity.sparse(optax.adam, rule, min_side=8), "timesteps_per_iteration": 50}
    network = CategoricalMLP(2, hidden=(16, 16))
    masks = []
    for seed in (0, 1):
        algorithm = learn(PrimalDual(**settings), network, cartpole(num_envs=4))
        state = algorithm.init(seed)
        masks.append(np.asarray(algorithm.variables(state)["Dense_1"]["kernel"]) == 0)
        state, row = algorithm.step(state)
        assert row["compression"] > 0.2
        algorithm.close()
    assert [mask.mean() for mask in masks] == [0.5, 0.5]
    assert (masks[0] != masks[1]).any()


def test_each_transition_is_learned_once():
    # With one environment, an episode of n timesteps is n + 1 beats; the one that begins it teaches nothing.
    state, row, _ = learned(probes.countdown(num_envs=1), timesteps_per_iteration=500)
    assert state.learning.update == row["update"] == row["timesteps"] == 500


def test_a_count_of_timesteps_that_overflows_changes_nothing():
    """An int32 ends at 2**31 - 1: the iteration after it ends where it should."""
    algorithm = learn(PrimalDual(timesteps_per_iteration=500), CategoricalMLP(2), cartpole(num_envs=4))
    state, late = algorithm.init(jax.random.key(0)), 2**31 - 10
    state = state._replace(acting=state.acting._replace(timesteps=jnp.int32(late)), timesteps=late)
    new, row = algorithm.step(state)
    algorithm.close()
    assert int(new.acting.timesteps) < 0
    assert 2_147_484_000 <= row["timesteps"] == new.timesteps < 2_147_484_004


def test_an_observation_that_begins_an_episode_is_no_transition():
    learner = PrimalDual().bind(CategoricalMLP(2), cartpole(num_envs=3))
    acting, learning = learner.init(jax.random.key(0))
    (group,) = cartpole(num_envs=3).make(0)
    acting = learner.begin(acting, (group,))
    _, timestep = group.recv(group.init())
    acting, _ = learner.act(acting, learning, jax.random.key(1), 0, timestep)
    _, after = learner.work(acting, learning, jax.random.key(1), 0)
    assert after.update == 0
    jax.tree.map(np.testing.assert_array_equal, after.optimizer, learning.optimizer)


def test_a_time_limit_is_no_end():
    learner = PrimalDual(discount=0.9).bind(CategoricalMLP(2), cartpole(num_envs=2))
    acting, learning = learner.init(jax.random.key(0))
    (group,) = cartpole(num_envs=2, max_episode_steps=1).make(0)
    acting = learner.begin(acting, (group,))
    state, timestep = group.recv(group.init())
    acting, action = learner.act(acting, learning, jax.random.key(1), 0, timestep)
    _, last = group.recv(group.send(state, action))
    assert last.truncated.all()
    last = last._replace(terminated=jnp.array([True, False]))
    acting, _ = learner.act(acting, learning, jax.random.key(1), 0, last)
    transition = acting.collectors[0].transition
    np.testing.assert_allclose(transition.discount, [0.0, 0.9])
    np.testing.assert_array_equal(transition.observation, timestep.observation)
    np.testing.assert_array_equal(transition.next_observation, last.observation)
    np.testing.assert_array_equal(transition.action, action)
    assert transition.valid.all()


@pytest.mark.slow
def test_runs_repeat_bit_for_bit():
    one, other = (learned(cartpole(num_envs=4, groups=2), network=CategoricalMLP(2))[0] for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, one.learning.params, other.learning.params)


def test_continuous_actions_learn_too():
    env = probes.target(size=1, num_envs=16)
    settings = {"learning_rate": 3e-3, "timesteps_per_iteration": 15_000, "penalty": 5.0}
    _, row, _ = learned(env, iterations=2, network=GaussianMLP(1, (16,), initial_log_std=-1.0), **settings)
    assert row["training_mean"] > -8 / 3 * 0.6  # of the action 0: -8 / 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"critic": "both"}, "take 'lagrangian' or 'td'"),
        ({"critic": "td", "penalty": 0.5}, "penalty=0.5 belongs to critic='lagrangian'"),
        ({"penalty": 0.0}, "penalty=0.0: give a finite number above 0"),
        ({"discount": 1.0}, "needs a discount below 1"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PrimalDual(**settings)


def test_recurrent_networks_are_refused():
    with pytest.raises(ValueError, match="RecurrentActorCritic is recurrent"):
        PrimalDual().bind(RecurrentActorCritic(2, nn.Dense(3)), cartpole())
