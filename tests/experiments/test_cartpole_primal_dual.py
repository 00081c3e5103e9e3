"""Primal-dual π learning against updates written out in NumPy, and on an environment whose solution is known."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

LEARNERS = ["primal-dual", "actor-critic"]


class Linear(nn.Module):
    """Linear logits and values."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2, name="policy")(x), nn.Dense(1, name="value")(x)[:, 0]


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_gradient_is_the_formula(module, learner):
    settings = module.Settings(learner=learner, discount=0.9, penalty=0.7)
    random, n = np.random.default_rng(0), 40
    batch = module.Transition(
        state=random.normal(size=(n, 4)).astype(np.float32),
        action=random.integers(0, 2, n),
        reward=random.normal(size=n).astype(np.float32),
        discount=random.choice([0.0, 0.9], n).astype(np.float32),
        next_state=random.normal(size=(n, 4)).astype(np.float32),
    )
    params = jax.jit(Linear().init)(jax.random.key(0), batch.state)["params"]
    gradient = jax.jit(jax.grad(partial(module.loss, settings, Linear())))(params, batch)

    w, u = (np.asarray(params[name]["kernel"], float) for name in ("policy", "value"))
    x, y = batch.state.astype(float), batch.next_state.astype(float)
    advantage = batch.reward + batch.discount * (y @ u)[:, 0] - (x @ u)[:, 0]
    if learner == "primal-dual":  # d/dv of (1 - γ) v + A + c A², and d/dv' of the same
        at_v, at_next = (1 - 0.9) - 1 - 2 * 0.7 * advantage, batch.discount * (1 + 2 * 0.7 * advantage)
    else:
        at_v, at_next = -advantage, np.zeros(n)
    policy = np.exp(x @ w) / np.exp(x @ w).sum(axis=1, keepdims=True)
    at_logits = -advantage[:, None] * (np.eye(2)[batch.action] - policy)
    np.testing.assert_allclose(gradient["policy"]["kernel"], x.T @ at_logits / n, atol=1e-5)
    np.testing.assert_allclose(gradient["value"]["kernel"][:, 0], (x.T @ at_v + y.T @ at_next) / n, atol=1e-5)


class Table(nn.Module):
    """Logits and a value for each of two states, 0 and 1."""

    @nn.compact
    def __call__(self, x):
        place = jnp.clip(x[:, 0].astype(jnp.int32), 0, 1)
        logits, values = self.param("logits", nn.initializers.zeros, (2, 2)), self.param("v", nn.initializers.zeros, 2)
        return logits[place], values[place]


def chain(module, limit=10, rewarded=lambda action: 1.0):
    """The states 0 and 1; the action in state 1 is rewarded and ends the episode."""

    def step(state, action):
        last = state[0] == 1
        return state + 1, jnp.where(last, rewarded(action), 0.0), last

    return module.Environment(lambda key: jnp.zeros(1), step, limit)


def trained(module, env, learner, **settings):
    chosen = {"iterations": 1, "timesteps_per_iteration": 3_000, "discount": 0.9, "num_envs": 8} | settings
    chosen = module.Settings(learner=learner, **chosen)
    return jax.jit(partial(module.train, chosen, Table(), env, 0.02))(jax.random.key(0))


@pytest.mark.parametrize(("learner", "penalty"), [("primal-dual", 0.5), ("primal-dual", 2.0), ("actor-critic", 1.0)])
def test_values_solve_the_program(module, learner, penalty):
    """The mean advantage is -γ / 2c at the first timestep and -γ² / 2c at the second; 0 in the actor-critic."""
    params, returns = trained(module, chain(module), learner, penalty=penalty)
    bias = 1 / (2 * penalty) if learner == "primal-dual" else 0.0
    second = 1 + 0.9**2 * bias
    np.testing.assert_allclose(params["v"], [0.9 * second + 0.9 * bias, second], atol=0.03)
    np.testing.assert_array_equal(returns, np.tile([[np.nan], [1.0]], (1_500, 8)))


@pytest.mark.parametrize("learner", LEARNERS)
def test_policies_learn_rewarded_actions(module, learner):
    params, returns = trained(module, chain(module, rewarded=lambda action: 1.0 * action), learner)
    assert jax.nn.softmax(params["logits"][1])[1] > 0.95
    assert module.learning_curve(np.asarray(returns), 1)[0] > 0.9


def test_a_time_limit_is_no_end(module):
    """Episodes of one timestep are truncated before the reward, whose value the critic cannot learn but bootstraps."""
    params, returns = trained(module, chain(module, limit=1), "actor-critic", timesteps_per_iteration=200)
    assert not np.isnan(returns).any()
    np.testing.assert_array_equal(params["v"], [0.0, 0.0])


def test_a_learning_curve_averages_the_latest_returns(module):
    returns = np.full((400, 1), np.nan)
    returns[10:310, 0] = np.arange(300)
    assert module.learning_curve(returns, 4) == [44.5, 139.5, 239.5, 249.5]
    assert np.isnan(module.learning_curve(np.full((4, 1), np.nan), 2)).all()


@pytest.mark.slow
def test_the_script_writes_a_file_for_each_rate(module, tmp_path, monkeypatch, capsys):
    words = ["actor-critic", "--name", "td", "--rates", "1e-3", "1e-4", "--seeds", "2", "--iterations", "2"]
    words += ["--timesteps-per-iteration", "30", "--run-dir", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["cartpole_primal_dual.py", *words])
    assert module.main() == 0
    assert {path.name for path in tmp_path.iterdir()} == {"td_rate_0.001.json", "td_rate_0.0001.json"}
    assert "td, rate 0.001: " in capsys.readouterr().out
