"""The base of on-policy learners: a network with a policy and a value acts, and segments of its data are collected.

A learner such as `A3C` or `PPO` adds its state of learning, its loss, and when it learns. In round r every group
collects a segment, which is learned from in round `r + lag`. The reward of its last timestep comes with the first
timestep of the next segment, for which the policy acts before anything is learned. With `lag` 0 this is the last beat
of round r: segments begin one beat before their round, and the very first ones lack their first timestep.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from volvox._checks import integers, numbers
from volvox.data import metrics, normalization, segments
from volvox.data.metrics import Metrics
from volvox.data.normalization import Moments, Normalized, Rewards
from volvox.data.segments import Segment
from volvox.learners.learner import Learner, Turn
from volvox.networks.actor_critics import ActorCriticNetwork, actor_critic
from volvox.networks.distributions import clip_action
from volvox.sparsity.optimizers import make_optimizer
from volvox.types import Array, ArrayTree, Env, EnvSpec, TimeStep, replaced

ON_POLICY_TRACED = ("learning_rate", "max_gradient_norm", "discount", "trace_decay", "reward_bound")
"""Numbers of on-policy settings that are arguments of compiled programs."""


class Collector(NamedTuple):
    """Data of one group of environments.

    Attributes:
      ring: Its latest segments.
      recurrent: Recurrent state of the policy, leaves `[B, ...]`.
      lives: int32 `[B]`: Lives left at the last timestep; 0 without `episodic_life`.
    """

    ring: Segment
    recurrent: ArrayTree
    lives: Array


class OnPolicyData(NamedTuple):
    """Data that acting collects.

    Attributes:
      collectors: Data of each group.
      moments: Moments of the observations; () unless they are normalised.
      rewards: Scale of the rewards; () unless they are normalised.
    """

    collectors: tuple[Collector, ...]
    moments: Moments | tuple[()]
    rewards: Rewards | tuple[()]


def check_settings(settings: Any) -> None:
    """Checks the settings that on-policy learners share."""
    integers(settings, "segment_length", "micro_batch", low=1)
    integers(settings, "lag", low=0)
    integers(settings, "anneal_timesteps", low=1, high=None)
    numbers(settings, "learning_rate", "max_gradient_norm", "reward_bound", above=0)
    numbers(settings, "discount", "trace_decay", low=0, high=1)
    make_optimizer(settings.optimizer, settings.learning_rate)
    if settings.anneal_timesteps is not None and (settings.learning_rate is None or callable(settings.learning_rate)):
        raise ValueError(f"anneal_timesteps={settings.anneal_timesteps} needs a learning_rate that is a number.")


class OnPolicy(Learner):
    """A learner that collects segments.

    Subclasses define `init` and `work`, `finish` where they need it, and the state `learning`, which has the fields
    `params`, `optimizer`, `update` and `metrics`.

    Attributes:
      settings: Settings with the fields `segment_length`, `lag`, `discount`, `reward_bound`, `episodic_life`,
        `normalize_observations` and `normalize_rewards`, as in `A3C`.
      env: The environments.
      network: The network as pure functions.
      policy: The network's policy, which normalises observations if `settings.normalize_observations`.
      num_envs: Environments B of a group.
      num_segments: Number of segments that a group keeps: the one being collected and those not learned from yet.
    """

    def __init__(self, settings: Any, network: Any, env: Env):
        """Raises ValueError if network or environment do not fit."""
        if settings.episodic_life and "lives" not in env.spec.extras:
            raise ValueError(f"episodic_life=True needs lives, which {env.spec.name} does not report; leave it out.")
        self.settings, self.env = settings, env
        self.network = self.functions(network, env.spec)
        self.num_envs, self.num_segments = env.num_envs // env.num_groups, max(settings.lag, 1) + 1
        policy = self.network.policy
        self.policy = normalization.normalizing(policy, env.spec) if settings.normalize_observations else policy

    def functions(self, network: Any, spec: EnvSpec) -> ActorCriticNetwork:
        """Returns the network as pure functions."""
        return actor_critic(network, spec)

    def actions(self, learning: Any) -> Any:
        """Returns the distribution from which actions are drawn, given the network's outputs."""
        return self.network.distribution

    def init_collected(self) -> OnPolicyData:
        """Returns the data at the beginning of a run."""
        env, s, b = self.env, self.settings, self.num_envs
        spec, policy = env.spec, self.network.policy
        if s.normalize_observations:
            spec = spec._replace(observation_dtype=jax.tree.map(lambda _: jnp.float32, spec.observation_dtype))

        def collector() -> Collector:
            recurrent = policy.initial_state(b)
            ring = segments.init(self.num_segments, s.segment_length, b, spec, recurrent)
            return Collector(ring, recurrent, jnp.zeros(b, jnp.int32))

        moments = normalization.init(env.spec.observation) if s.normalize_observations else ()
        rewards = normalization.init_rewards(env.num_groups, b) if s.normalize_rewards else ()
        return OnPolicyData(tuple(collector() for _ in range(env.num_groups)), moments, rewards)

    def act(
        self, collected: OnPolicyData, learning: Any, keys: Array, turn: Turn, timestep: TimeStep
    ) -> tuple[OnPolicyData, Array]:
        """Samples actions from the policy, and adds the timestep to the group's segment."""
        s, g = self.settings, turn.group
        actions = self.actions(learning)
        data, moments, rewards = collected.collectors[g], collected.moments, collected.rewards
        reward, lives = timestep.reward, data.lives
        if isinstance(moments, Moments):
            observation = jax.tree.map(lambda x: x.astype(jnp.float32), timestep.observation)
            moments = normalization.update(moments, observation, self.env.axis)
            # The segment holds the observation that the policy saw, so that probabilities can be computed again.
            timestep = timestep._replace(observation=normalization.normalize(moments, observation))
        if isinstance(rewards, Rewards):
            rewards = normalization.update_rewards(rewards, g, timestep, s.discount, self.env.axis)
            reward = reward * normalization.reward_scale(rewards)
        recurrent = self.network.reset(timestep.first, data.recurrent)
        output, value, next_recurrent = self.network.apply(learning.params, timestep.observation, recurrent)
        action = jax.vmap(actions.sample)(keys, output)
        if s.reward_bound is not None:
            reward = jnp.clip(reward, -s.reward_bound, s.reward_bound)
        if s.episodic_life:
            left = timestep.extras["lives"].astype(jnp.int32)
            lost, lives = ~timestep.first & (left < lives), left
            timestep = timestep._replace(terminated=timestep.terminated | lost, truncated=timestep.truncated & ~lost)
        chosen = {"action": action, "log_prob": actions.log_prob(output, action), "version": learning.update}
        chosen |= {"reward": reward, "value": value, "recurrent": recurrent}
        # With lag 0 the last beat of a round is the first timestep of the next segment.
        later, beat = jnp.divmod(turn.beat + (s.lag == 0), s.segment_length)
        ring = segments.add(data.ring, turn.round + later, beat, timestep, **chosen)
        collectors = replaced(collected.collectors, g, Collector(ring, next_recurrent, lives))
        return OnPolicyData(collectors, moments, rewards), clip_action(action, self.env.spec)

    def slot(self, turn: Turn) -> Array:
        """Returns the slot of the segments that are learned from in a turn."""
        return (turn.round - self.settings.lag) % self.num_segments

    def summed(self, each: dict[str, Array], segment: Segment, update: Array) -> tuple[dict[str, Array], Metrics]:
        """Returns the sums of numbers `[T, B]` over valid timesteps, and metrics: their means and the lag."""
        lag = jnp.where(segment.valid, update - segment.version, 0).astype(jnp.float32)
        sums = {name: x.sum(where=segment.valid) for name, x in (each | {"lag_mean": lag}).items()}
        return sums, metrics.means(sums, count=segment.valid.sum()) | {"lag_max": metrics.Maximum(lag.max())}

    def variables(self, collected: OnPolicyData, learning: Any) -> ArrayTree:
        """Returns the variables of the policy."""
        params, moments = learning.params, collected.moments
        return Normalized(params, moments) if isinstance(moments, Moments) else params


def micro_batch_size(micro_batch: int | None, num_rows: int, length: int) -> int:
    """Returns the number of rows of `length` timesteps in one gradient computation, a divisor of `num_rows`.

    The default is the largest divisor with at most 32 transitions on a CPU, in whose cache they stay, and 8,192
    elsewhere, but at least one row.
    """
    if micro_batch is not None and num_rows % micro_batch:
        raise ValueError(f"{micro_batch=} does not divide {num_rows}, the rows of a group in a batch; give a divisor.")
    divisors = [m for m in range(1, num_rows + 1) if num_rows % m == 0]
    limit = 32 if jax.default_backend() == "cpu" else 8_192
    return micro_batch or max((m for m in divisors if m * length <= limit), default=1)
