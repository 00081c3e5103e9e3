"""REINFORCE with a baseline (Williams 1992): a learner of one's own, on the base of on-policy learners."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import volvox as vx
from volvox.data import metrics, segments
from volvox.learners import OnPolicy, Schedule, Turn
from volvox.learners.learner import with_metrics
from volvox.learners.on_policy import OnPolicyData


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reinforce:
    """Settings of REINFORCE.

    Attributes:
      segment_length: Timesteps of a segment, after which the parameters are updated.
      learning_rate: Learning rate.
      discount: Discount of a timestep.
      value_coefficient: Weight of half the squared error of the baseline.
      reward_bound: Rewards are clipped to ± this number. None: they are not clipped.
      episodic_life: Whether the loss of a life ends an episode.
      normalize_observations: Whether observations are normalised.
      normalize_rewards: Whether rewards are normalised.
      updates_per_iteration: Updates in one iteration.
    """

    segment_length: int = 16
    learning_rate: float = 1e-2
    discount: float = 0.99
    value_coefficient: float = 0.5
    reward_bound: float | None = None
    episodic_life: bool = False
    normalize_observations: bool = False
    normalize_rewards: bool = False
    updates_per_iteration: int = 100
    lag = 0  # not a setting

    def schedule(self, env: vx.Env) -> Schedule:
        """Rounds of a segment."""
        return Schedule(self.segment_length, rounds_per_iteration=self.updates_per_iteration)

    def bind(self, network: Any, env: vx.Env) -> "ReinforceLearner":
        """Returns the learner."""
        return ReinforceLearner(self, network, env)


class Learning(NamedTuple):
    """State of learning."""

    params: Any
    optimizer: Any
    update: jax.Array
    metrics: dict


class ReinforceLearner(OnPolicy):
    """Collects a segment in each round, and learns from it at its end."""

    def __init__(self, settings: Reinforce, network: Any, env: vx.Env):
        super().__init__(settings, network, env)
        self.optimizer = optax.adam(settings.learning_rate)

    def init(self, key: jax.Array) -> tuple[OnPolicyData, Learning]:
        collected, params = self.init_collected(), self.network.policy.init(key)
        learning = Learning(params, self.optimizer.init(params), jnp.int32(0), {})
        turn = Turn(0, jnp.int32(0), jnp.int32(0), jnp.float32(0))
        return collected, with_metrics(learning, lambda learning: self.update(collected, learning, turn))

    def loss(self, params: Any, segment: segments.Segment) -> tuple[jax.Array, dict]:
        """The sum of `-log π(a) (G - V) + value_coefficient / 2 (G - V)^2`, and metrics."""
        s, actions = self.settings, self.network.distribution
        output, value = self.network.unroll(params, segment.observation, segment.first, segment.recurrent)
        v_t = jax.lax.stop_gradient(jnp.concatenate([value[1:], segment.bootstrap[None]]))
        discount_t, lambda_t = s.discount * (1.0 - segment.terminated), 1.0 - segment.truncated
        returns = jax.vmap(vx.data.lambda_returns, 1, 1)(segment.reward, discount_t, v_t, lambda_t)
        advantage = jax.lax.stop_gradient(returns - value)
        each = -actions.log_prob(output, segment.action) * advantage
        each += s.value_coefficient * 0.5 * (returns - value) ** 2
        total = each.sum(where=segment.valid)
        return total, metrics.means({"loss": total}, count=segment.valid.sum())

    def finish(self, collected: OnPolicyData, learning: Learning, key: jax.Array, turn: Turn) -> Any:
        """Updates the parameters."""
        return collected, self.update(collected, learning, turn)

    def update(self, collected: OnPolicyData, learning: Learning, turn: Turn) -> Learning:
        """Updates the parameters by the segments of all groups."""
        gradient, count, gathered = jax.tree.map(jnp.zeros_like, learning.params), jnp.float32(0), learning.metrics
        for data in collected.collectors:
            segment = segments.take(data.ring, self.slot(turn), jnp.int32(0), self.num_envs)
            (_, new), more = jax.value_and_grad(self.loss, has_aux=True)(learning.params, segment)
            gradient, count = jax.tree.map(jnp.add, gradient, more), count + segment.valid.sum()
            gathered = metrics.add(gathered, new)
        gradient, count = self.env.axis.sum((gradient, count))
        gradient = jax.tree.map(lambda g: g / jnp.maximum(count, 1.0), gradient)
        changes, optimizer = self.optimizer.update(gradient, learning.optimizer)
        return Learning(optax.apply_updates(learning.params, changes), optimizer, learning.update + 1, gathered)
