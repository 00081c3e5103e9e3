"""A learner of one's own: one-step Q-learning (Watkins 1989; Mnih et al. 2016, arXiv 1602.01783, without targets)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import volvox as vx


@vx.recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class QLearning:
    learning_rate: float = 3e-3
    discount: float = 0.9
    epsilon: float = 0.2

    def bind(self, network: Any, env: vx.Env) -> vx.learners.Learner:
        policy, adam = vx.networks.genotype(network, env.spec).policy, optax.adam(self.learning_rate)

        def act(seen, state, key, timestep):
            values, _ = policy.apply(state.params, timestep.observation, ())
            drawn = jax.random.uniform(key, (len(values), 1 + values.shape[1]))
            action = policy.mode(jnp.where(drawn[:, :1] < self.epsilon, drawn[:, 1:], values))
            return vx.data.transitions.add(seen, timestep, action), action

        def loss(params, seen):
            (values, _), (after, _) = (policy.apply(params, x, ()) for x in (seen.observation, seen.next_observation))
            target = seen.reward + self.discount * (1 - seen.terminated) * jax.lax.stop_gradient(after.max(axis=-1))
            return jnp.where(seen.valid, (target - values[jnp.arange(len(values)), seen.action]) ** 2, 0.0).mean()

        def work(seen, state, key):
            error, gradient = jax.value_and_grad(loss)(state.params, seen)
            return state.apply_gradients(grads=gradient), {"squared_error": error}

        init = lambda key: TrainState.create(apply_fn=policy.apply, params=policy.init(key), tx=adam)  # noqa: E731
        return vx.learners.from_functions(policy, env, init=init, act=act, work=work)
