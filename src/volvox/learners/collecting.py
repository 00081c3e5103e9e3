"""Acting by a network with a policy and a value, and keeping what happened in segments: what A3C and PPO share.

collecting = Collecting(settings, env, network, num_segments=2, length=settings.segment_length)
acting = collecting.begin(collecting.init(), groups)
acting, action = collecting.act(acting, learning, key, g, timestep)
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from volvox.data import metrics, normalization, segments
from volvox.data.metrics import Episodes, RunningEpisodes
from volvox.data.normalization import Moments, Normalized, Rewards
from volvox.data.segments import Segment
from volvox.learners.side_by_side import compression_row
from volvox.networks.actor_critics import ActorCriticNetwork
from volvox.networks.distributions import clip_action
from volvox.types import Array, ArrayTree, Env, EnvGroup, Policy, TimeStep, replaced, zeros


class Collector(NamedTuple):
    """What one group of environments is doing.

    Attributes:
      ring: Its latest segments.
      recurrent: The state of the policy, leaves `[B, ...]`.
      running: Episodes that have not ended.
      lives: int32 `[B]`: Lives left at the last timestep; 0 without `episodic_life`.
      seen: float32 `[B, ...]`: The latest observations before they were normalised; () if they are not.
    """

    ring: Segment
    recurrent: ArrayTree
    running: RunningEpisodes
    lives: Array
    seen: ArrayTree = ()


class Acting(NamedTuple):
    """What acting changes.

    Attributes:
      round: int32: Rounds begun before this one, since the pools were made.
      beat: int32: Beats of this round before this one.
      draws: int32: How often each environment drew an action; it makes the keys of the next, see `Env.keys`.
      timesteps: int32: Timesteps of all environments, without those that begin an episode.
      episodes: Scores of the episodes that have ended.
      collectors: One a group; () between pools.
      rewards: What rewards are scaled by, `Rewards`; () unless they are normalised.
    """

    round: Array
    beat: Array
    draws: Array
    timesteps: Array
    episodes: Episodes
    collectors: tuple[Collector, ...]
    rewards: Rewards | tuple[()] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Collecting:
    """Pure functions that act and collect segments.

    What learning changes, `learning`, has the fields `params`, the network's parameters; `optimizer`, its state;
    `update`, the updates made; and `moments`, those of observations, or () where these are not normalised.

    Attributes:
      settings: Settings of the learner: `segment_length`, `discount`, `reward_bound`, `episodic_life`,
        `normalize_observations` and `normalize_rewards`, see `volvox.A3C`.
      env: The environments.
      network: The network.
      num_segments: Segments in the ring of a group.
      length: Timesteps of a segment in the ring.
      with_values: Whether segments keep the values predicted while acting.

    Raises:
      ValueError: The environment does not fit the settings.
    """

    settings: Any
    env: Env
    network: ActorCriticNetwork
    num_segments: int
    length: int
    with_values: bool = False

    def __post_init__(self):
        if self.settings.episodic_life and "lives" not in (spec := self.env.spec).extras:
            raise ValueError(f"episodic_life=True needs lives, which {spec.name} does not report; leave it out.")

    @property
    def recurrent(self) -> bool:
        """Whether the policy is recurrent."""
        return bool(jax.tree.leaves(jax.eval_shape(lambda: self.network.policy.initial_state(1))))

    @property
    def policy(self) -> Policy:
        """The policy; it normalises observations if the settings say so."""
        policy = self.network.policy
        return normalization.normalizing(policy, self.env.spec) if self.settings.normalize_observations else policy

    def variables(self, learning: Any) -> ArrayTree:
        """Returns the variables of `policy`."""
        return Normalized(learning.params, learning.moments) if learning.moments else learning.params

    def watched(self, learning: Any) -> dict[str, ArrayTree]:
        """Returns, by name, what must stay finite."""
        moments = {"moments of observations": learning.moments} if learning.moments else {}
        return {"parameters": learning.params} | moments

    def init(self) -> Acting:
        """Returns what acting changes at the beginning of a run, without collectors."""
        zero, b, groups = jnp.int32(0), self.env.num_envs // self.env.num_groups, self.env.num_groups
        rewards = normalization.init_rewards(groups, b) if self.settings.normalize_rewards else ()
        return Acting(zero, zero, zero, zero, metrics.init_episodes(), collectors=(), rewards=rewards)

    def moments(self) -> Moments | tuple[()]:
        """Returns the moments before any observation; () if observations are not normalised."""
        return normalization.init(self.env.spec.observation_shape) if self.settings.normalize_observations else ()

    def begin(self, acting: Acting, groups: tuple[EnvGroup, ...]) -> Acting:
        """Returns `acting` with the collectors for pools that were just made."""
        collectors = tuple(self.collector(group.num_envs) for group in groups)
        return acting._replace(round=jnp.int32(0), beat=jnp.int32(0), collectors=collectors)

    def collector(self, b: int) -> Collector:
        """Returns the collector of `b` environments that were just made."""
        spec, state, lives = self.env.spec, self.network.policy.initial_state(b), jnp.zeros(b, jnp.int32)
        seen: ArrayTree = ()
        if self.settings.normalize_observations:
            spec = spec._replace(observation_dtype=jax.tree.map(lambda _: jnp.float32, spec.observation_dtype))
            seen = zeros(spec.observation, b)
        ring = segments.init(self.num_segments, self.length, b, spec, state, with_values=self.with_values)
        return Collector(ring, state, metrics.init_running(b), lives, seen)

    def act(self, acting: Acting, learning: Any, key: Array, g: int, timestep: TimeStep) -> tuple[Acting, Array]:
        """Group `g` samples actions from the policy, and adds the timestep to its segment; (acting, action)."""
        s, actions, me = self.settings, self.network.distribution, acting.collectors[g]
        episodes, running = metrics.update_episodes(acting.episodes, me.running, timestep)
        seen, rewards = me.seen, acting.rewards
        reward, lives, learned = timestep.reward, me.lives, timestep
        if isinstance(learning.moments, Moments):
            seen = jax.tree.map(lambda x: x.astype(jnp.float32), timestep.observation)
            # The segment holds what the policy saw, so that probabilities are those of the same observations.
            timestep = timestep._replace(observation=normalization.normalize(learning.moments, seen))
        if isinstance(rewards, Rewards):
            rewards = normalization.update_rewards(rewards, g, timestep, s.discount, self.env.axis)
            reward = reward * normalization.reward_scale(rewards)
        recurrent = self.network.reset(timestep.first, me.recurrent)
        output, value, next_recurrent = self.network.apply(learning.params, timestep.observation, recurrent)
        action = jax.vmap(actions.sample)(self.env.keys(key, acting.draws, g), output)
        if s.reward_bound is not None:
            reward = jnp.clip(reward, -s.reward_bound, s.reward_bound)
        if s.episodic_life:
            learned, lives = segments.end_with_lives(timestep, me.lives)
        place, log_prob = (acting.round, acting.beat), actions.log_prob(output, action)
        ring = segments.complete(me.ring, *place, learned, reward, value)
        kept = value if self.with_values else ()
        ring = segments.add(ring, *place, timestep, action, log_prob, learning.update, recurrent, kept)
        me = Collector(ring, next_recurrent, running, lives, seen)
        acting = acting._replace(
            draws=acting.draws + (g == self.env.num_groups - 1),
            timesteps=acting.timesteps + (~timestep.first).sum(dtype=jnp.int32),
            episodes=episodes,
            collectors=replaced(acting.collectors, g, me),
            rewards=rewards,
        )
        return acting, clip_action(action, self.env.spec)

    def observe(self, acting: Acting, moments: Any, g: int) -> Any:
        """Returns the moments with the latest observations of group `g`; for `work`, which may change them."""
        if not isinstance(moments, Moments):
            return moments
        return normalization.update(moments, acting.collectors[g].seen, self.env.axis)

    def mean_return(self, acting: Acting) -> Array:
        """Returns the mean return of the latest episodes of all devices, for sparse optimizers."""
        return metrics.latest_mean(acting.episodes, num_envs=self.env.all_envs, axis=self.env.axis)

    def row(self, acting: Acting, learning: Any, rate: Any) -> dict[str, Any]:
        """Returns the metrics of episodes, the learning rate where it changes, and of sparse networks `compression`.

        Args:
          acting: What acting changed.
          learning: What learning changed.
          rate: The learning rate: a number or None if it stays, an array if it changes.
        """
        row = {"episodes": int(acting.episodes.total)} | metrics.scores(jax.device_get(acting.episodes))
        row |= {"learning_rate": float(rate)} if isinstance(rate, Array) else {}
        return row | compression_row({"params": learning.params}, {"params": learning.optimizer})
