"""Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018, arXiv 1802.09477).

The actor is deterministic, and noise on its actions explores.

    env = vx.envs.mujoco("HalfCheetah", num_envs=4, groups=2)
    networks = vx.networks.ActorAndCritic.mlp(env.spec.num_outputs)
    algorithm = vx.learn(vx.TD3(), networks, env)
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from volvox._checks import integers, numbers
from volvox.data import metrics
from volvox.data.replay import Batch
from volvox.learners.learner import Schedule
from volvox.learners.off_policy import OFF_POLICY_TRACED, OffPolicy, OffPolicyLearning, check_settings
from volvox.networks.perceptrons import ActorAndCritic, Params
from volvox.ops.batching import min_over_rows
from volvox.sparsity.masks import pruned_if_sparse
from volvox.sparsity.optimizers import Optimizer
from volvox.types import Array, ArrayTree, Env, zeros


@dataclasses.dataclass(frozen=True, kw_only=True)
class TD3:
    """Settings of TD3, with the defaults of its reference implementations.

    Attributes:
      learning_rate: Learning rate. None: `optimizer` is ready-made.
      optimizer: A function of the learning rate, such as `optax.adam`, or a ready-made `optax.GradientTransformation`.
        With `volvox.sparsity.sparse` actor, critics and targets are sparse, and rows have their `compression`.
      batch_size: Transitions of an update; a multiple of the number of groups, over all devices.
      discount: Discount γ of a timestep.
      target_rate: Share τ by which targets move towards the parameters that they follow, at each of their updates.
      exploration_noise: Standard deviation of the noise on actions in [-1, 1].
      target_noise: Standard deviation of the noise on target actions.
      target_noise_clip: Largest absolute value of that noise.
      policy_delay: Updates of the critics for each update of the actor and the targets.
      random_timesteps: Timesteps with uniformly random actions at the beginning, before anything is learned.
      replay_size: Timesteps that the replay holds, rounded down to whole rows of the environments.
      updates_per_timestep: Updates for each timestep that does not begin an episode. Multiplied by the number of
        environments in a group, over all devices, it must be a whole number of at least 1.
      n_step: Timesteps n of n-step targets.
      normalize_observations: Whether observations are normalised to mean 0 and variance 1, by running moments.
      normalize_rewards: Whether rewards are divided by the standard deviation of discounted returns before learning.
      timesteps_per_iteration: Timesteps in one iteration, and so in one row of metrics; the iteration ends at the first
        multiple of it or some timesteps later.
      save_replay: Whether checkpoints hold the replay. Without it, a resumed run gathers `random_timesteps` anew before
        it learns again.

    Raises:
      ValueError: A setting is out of range, or two contradict each other.
    """

    learning_rate: float | None = 3e-4
    optimizer: Optimizer = optax.adam
    batch_size: int = 256
    discount: float = 0.99
    target_rate: float = 0.005
    exploration_noise: float = 0.1
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    policy_delay: int = 2
    random_timesteps: int = 25_000
    replay_size: int = 1_000_000
    updates_per_timestep: float = 1.0
    n_step: int = 1
    normalize_observations: bool = False
    normalize_rewards: bool = False
    timesteps_per_iteration: int = 5_000
    save_replay: bool = True
    traced = (*OFF_POLICY_TRACED, "exploration_noise", "target_noise", "target_noise_clip")

    def __post_init__(self):
        check_settings(self)
        integers(self, "policy_delay", low=1)
        numbers(self, "exploration_noise", "target_noise", "target_noise_clip", low=0)

    def schedule(self, env: Env) -> Schedule:
        """Returns the schedule: rounds of one beat."""
        return Schedule(timesteps_per_iteration=self.timesteps_per_iteration)

    def bind(self, network: ActorAndCritic, env: Env) -> "_TD3":
        """Returns the learner; raises ValueError if networks or environment do not fit the settings."""
        return _TD3(self, network, env)


class _TD3(OffPolicy):
    settings: TD3

    def critic_loss(self, critics, params: Params, targets: Params, noise: Array, batch: Batch):
        """Returns the squared errors of the critics, by clipped double Q-learning and smoothed targets."""
        net, clip = self.networks, self.settings.target_noise_clip
        noise = jnp.clip(self.settings.target_noise * noise, -clip, clip)
        next_action = jnp.clip(net.act(targets.actor, batch.next_observation) + noise, -1.0, 1.0)
        first, second = net.values(targets.critics, params.representation, batch.next_observation, next_action)
        target = batch.reward + batch.discount * jnp.minimum(first, second)
        first, second = net.values(critics, params.representation, batch.observation, batch.action)
        loss = metrics.mean((first - target) ** 2 + (second - target) ** 2, batch.valid)
        return loss, {"critic_loss": loss, "value": metrics.mean(first, batch.valid)}

    def actor_loss(self, actor, params: Params, batch: Batch):
        """Returns minus the first critic's value of the actor's actions."""
        net, action = self.networks, self.networks.act(actor, batch.observation)
        (value,) = net.values(params.critics[:1], params.representation, batch.observation, action)
        loss = -metrics.mean(value, batch.valid)
        return loss, {"actor_loss": loss}

    def update(self, learning: OffPolicyLearning, batch: Batch, noise: Array, mean_return: Array) -> OffPolicyLearning:
        """Makes one update (algorithm 1) by transitions `[N, ...]`, with noise `[N, A]`."""
        s, step = self.settings, learning.update + 1
        state, batch = self.represent(learning, batch, step, mean_return)
        arguments = (state[0], learning.targets, noise)
        state = self.descend("critics", self.critic_loss, state, batch, step, mean_return, *arguments)
        # Targets are pruned at once, because they are used before they move again.
        critics = pruned_if_sparse(learning.targets.critics, state[1].critics)

        def update_actor(params: Params, optimizer: Params, targets: Params):
            params, optimizer, new = self.descend(
                "actor", self.actor_loss, (params, optimizer, {}), batch, step, mean_return, params
            )
            moved: Any = optax.incremental_update(params._replace(representation=()), targets, s.target_rate)
            return (params, optimizer, moved._replace(actor=pruned_if_sparse(moved.actor, optimizer.actor))), new

        def skip(*state: Params):
            return state, zeros(jax.eval_shape(update_actor, *state)[1])

        due = min_over_rows(step) % s.policy_delay == 0
        operands = (*state[:2], learning.targets._replace(critics=critics))
        (params, optimizer, targets), new = jax.lax.cond(due, update_actor, skip, *operands)
        return OffPolicyLearning(params, targets, optimizer, step, metrics.add(state[2], new))

    def choose(self, params: Params, observation: ArrayTree) -> Array:
        """Returns actions `[B, A]` in [-1, 1] of the actor."""
        return self.networks.act(params.actor, self.networks.encode_observation(params.representation, observation))

    def explore(self, output: Array, noise: Array) -> Array:
        """Returns the actor's actions `[B, A]` with noise, in [-1, 1]."""
        return jnp.clip(output + self.settings.exploration_noise * noise, -1.0, 1.0)
