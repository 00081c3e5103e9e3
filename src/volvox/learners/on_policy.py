"""The base of on-policy learners: a network with a policy and a value acts, and segments of its data are collected.

A learner such as `A3C` or `PPO` adds its state of learning, its loss, and when it learns. In round r every group
collects a segment; the segments of round `r - lag` are learned from.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from volvox._checks import integers, numbers
from volvox.data import normalization, segments
from volvox.data.normalization import Moments, Normalized, Rewards
from volvox.data.segments import Segment
from volvox.learners.learner import Learner, Turn, make_optimizer
from volvox.networks.actor_critics import actor_critic
from volvox.networks.distributions import clip_action
from volvox.sparsity.optimizers import init_optimizers
from volvox.types import Array, ArrayTree, Env, TimeStep, replaced, zeros

TRACED = ("learning_rate", "max_gradient_norm", "discount", "trace_decay", "reward_bound")
TRACED += ("entropy_coefficient", "value_coefficient")
"""Numbers of on-policy settings that are arguments of compiled programs."""
_MICRO_BATCH_TRANSITIONS = 64


class Collector(NamedTuple):
    """Data of one group of environments.

    Attributes:
      ring: Its latest segments.
      recurrent: Recurrent state of the policy, leaves `[B, ...]`.
      lives: int32 `[B]`: Lives left at the last timestep; 0 without `episodic_life`.
      raw_observation: float32 `[B, ...]`: The latest observations before they were normalised; () if they are not.
    """

    ring: Segment
    recurrent: ArrayTree
    lives: Array
    raw_observation: ArrayTree


class Collected(NamedTuple):
    """Data that acting collects.

    Attributes:
      collectors: Data of each group.
      rewards: Scale of the rewards; () unless they are normalised.
    """

    collectors: tuple[Collector, ...]
    rewards: Rewards | tuple[()]


def check_settings(settings: Any) -> None:
    """Checks the settings that on-policy learners share."""
    integers(settings, "segment_length", "micro_batch", low=1)
    integers(settings, "lag", low=0)
    numbers(settings, "learning_rate", "max_gradient_norm", "reward_bound", above=0)
    numbers(settings, "discount", "trace_decay", low=0, high=1)
    numbers(settings, "entropy_coefficient", "value_coefficient", low=0)
    make_optimizer(settings.optimizer, settings.learning_rate)


class OnPolicy(Learner):
    """A learner that collects segments.

    Subclasses define `init`, `work` and `finish`, and the state `learning`, which has the fields `params`, `optimizer`,
    `moments` (of observations, () unless they are normalised), `update` and `metrics`.

    Attributes:
      settings: Settings with the fields that `check_settings` checks, and `episodic_life`, `normalize_observations` and
        `normalize_rewards`; see `A3C`.
      env: The environments.
      network: The network as pure functions.
      num_envs: Environments B of a group.
      length: Timesteps L of a segment in the ring, one more than `segment_length` without lag.
    """

    def __init__(self, settings: Any, network: Any, env: Env):
        """Raises ValueError if network or environment do not fit."""
        if settings.episodic_life and "lives" not in env.spec.extras:
            raise ValueError(f"episodic_life=True needs lives, which {env.spec.name} does not report; leave it out.")
        self.settings, self.env, self.network = settings, env, actor_critic(network, env.spec)
        self.num_envs, self.length = env.num_envs // env.num_groups, settings.segment_length + (settings.lag == 0)
        policy = self.network.policy
        self.policy = normalization.normalizing(policy, env.spec) if settings.normalize_observations else policy

    def collect(self) -> Collected:
        """Returns the data before the first timestep."""
        env, s, b = self.env, self.settings, self.num_envs
        spec, policy = env.spec, self.network.policy
        if s.normalize_observations:
            spec = spec._replace(observation_dtype=jax.tree.map(lambda _: jnp.float32, spec.observation_dtype))

        def collector() -> Collector:
            recurrent = policy.initial_state(b)
            raw_observation = zeros(spec.observation, b) if s.normalize_observations else ()
            ring = segments.init(s.lag + 1, self.length, b, spec, recurrent)
            return Collector(ring, recurrent, jnp.zeros(b, jnp.int32), raw_observation)

        rewards = normalization.init_rewards(env.num_groups, b) if s.normalize_rewards else ()
        return Collected(tuple(collector() for _ in range(env.num_groups)), rewards)

    def init_learning(self, key: Array, optimizer: Any) -> tuple[ArrayTree, ArrayTree, Moments | tuple[()]]:
        """Returns (parameters, state of the optimiser, moments of observations) at the beginning of a run."""
        networks = [self.network.policy.init(key)]
        (params,), (state,) = init_optimizers(optimizer, networks)
        normalized = self.settings.normalize_observations
        return params, state, normalization.init(self.env.spec.observation) if normalized else ()

    def act(
        self, collected: Collected, learning: Any, keys: Array, turn: Turn, timestep: TimeStep
    ) -> tuple[Collected, Array]:
        """Samples actions from the policy, and adds the timestep to the group's segment."""
        s, g, actions, data = self.settings, turn.group, self.network.distribution, collected.collectors[turn.group]
        raw_observation, rewards, reward, lives = data.raw_observation, collected.rewards, timestep.reward, data.lives
        if s.normalize_observations:
            raw_observation = jax.tree.map(lambda x: x.astype(jnp.float32), timestep.observation)
            # The segment holds the observation that the policy saw, so that probabilities can be computed again.
            timestep = timestep._replace(observation=normalization.normalize(learning.moments, raw_observation))
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
        ring = segments.add(data.ring, turn.round, turn.beat, timestep, **chosen)
        data = Collector(ring, next_recurrent, lives, raw_observation)
        collectors = replaced(collected.collectors, g, data)
        return Collected(collectors, rewards), clip_action(action, self.env.spec)

    def observe(self, collected: Collected, learning: Any, turn: Turn) -> Any:
        """Returns the state of learning, whose moments count the latest observations of the group."""
        if not self.settings.normalize_observations:
            return learning
        raw_observation = collected.collectors[turn.group].raw_observation
        return learning._replace(moments=normalization.update(learning.moments, raw_observation, self.env.axis))

    def variables(self, learning: Any) -> list[ArrayTree]:
        """Returns the variables of the policy."""
        normalized = self.settings.normalize_observations
        return [Normalized(learning.params, learning.moments) if normalized else learning.params]


def micro_batch_size(given: int | None, num_rows: int, length: int) -> int:
    """Returns the number of rows of `length` timesteps in one gradient computation, a divisor of `num_rows`.

    The default has about 64 transitions, which stay in a CPU's cache.
    """
    if given is not None and num_rows % given:
        raise ValueError(f"micro_batch={given} does not divide {num_rows}, the rows of a group; give a divisor.")
    divisors = [m for m in range(1, num_rows + 1) if num_rows % m == 0]
    return given or max((m for m in divisors if m * length <= _MICRO_BATCH_TRANSITIONS), default=1)
