"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905).

The network of the actor gives a mean and a standard deviation for each component of an action (`gaussian=True`).

    env = vx.envs.mujoco("HalfCheetah", num_envs=4, groups=2)
    networks = vx.networks.ActorAndCritic.mlp(env.spec.num_outputs, gaussian=True)
    algorithm = vx.learn(vx.SAC(), networks, env)
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from volvox._checks import numbers
from volvox.data import metrics
from volvox.data.metrics import Metrics
from volvox.data.replay import Batch
from volvox.learners.learner import Schedule
from volvox.learners.off_policy import (
    OFF_POLICY_TRACED,
    OffPolicy,
    OffPolicyLearning,
    check_settings,
    mean_over_devices,
)
from volvox.networks.distributions import tanh_gaussian
from volvox.networks.perceptrons import ActorAndCritic, Params
from volvox.sparsity.masks import pruned_if_sparse
from volvox.sparsity.optimizers import Optimizer
from volvox.types import Array, ArrayTree, Env


@dataclasses.dataclass(frozen=True, kw_only=True)
class SAC:
    """Settings of soft actor-critic, with the defaults of the paper.

    Attributes:
      learning_rate: Learning rate. None: `optimizer` is ready-made.
      optimizer: A function of the learning rate, such as `optax.adam`, or a ready-made `optax.GradientTransformation`.
        With `volvox.sparsity.sparse` actor, critics and targets are sparse, and rows have their `compression`.
      batch_size: Transitions of an update; a multiple of the number of groups, over all devices.
      discount: Discount γ of a timestep.
      target_rate: Weight τ of the new parameters in the moving average of the target critics.
      temperature: Weight α of the policy's entropy. None: it starts at 1 and is learned, so that the entropy is
        `target_entropy`.
      target_entropy: Entropy in nats of actions in [-1, 1], independent of the environment's bounds; below log 2 for
        each component. None: minus the number of components.
      temperature_learning_rate: Learning rate of Adam for the logarithm of the temperature.
      random_timesteps: Timesteps with uniformly random actions at the beginning, before anything is learned.
      replay_size: Timesteps that the replay holds, rounded down to whole rows of the environments.
      updates_per_timestep: Updates for each timestep that does not begin an episode. Multiplied by the number of
        environments in a group, over all devices, it must be a whole number of at least 1.
      n_step: Timesteps n of n-step targets; only the last action's entropy counts.
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
    temperature: float | None = None
    target_entropy: float | None = None
    temperature_learning_rate: float = 3e-4
    random_timesteps: int = 10_000
    replay_size: int = 1_000_000
    updates_per_timestep: float = 1.0
    n_step: int = 1
    normalize_observations: bool = False
    normalize_rewards: bool = False
    timesteps_per_iteration: int = 5_000
    save_replay: bool = True
    traced = (*OFF_POLICY_TRACED, "temperature", "target_entropy", "temperature_learning_rate")

    def __post_init__(self):
        check_settings(self)
        numbers(self, "temperature_learning_rate", above=0)
        numbers(self, "temperature", low=0)
        numbers(self, "target_entropy")
        if self.temperature is not None and self.target_entropy is not None:
            raise ValueError(f"target_entropy={self.target_entropy} needs temperature=None, which is learned.")

    def schedule(self, env: Env) -> Schedule:
        """Returns the schedule: rounds of one beat."""
        return Schedule(timesteps_per_iteration=self.timesteps_per_iteration)

    def bind(self, network: ActorAndCritic, env: Env) -> "_SAC":
        """Returns the learner; raises ValueError if networks or environment do not fit the settings."""
        return _SAC(self, network, env)


class SACLearning(NamedTuple):
    """State of learning.

    Attributes:
      params: Parameters of actor, critics and representation.
      targets: Parameters of the critics' targets.
      optimizer: States of the optimiser, one for each part of `params`.
      log_temperature: float32: Logarithm of the temperature; it stays if the temperature is given.
      temperature_optimizer: State of its optimiser.
      update: int32: Number of updates.
      metrics: Metrics of this iteration.
    """

    params: Params
    targets: tuple[ArrayTree, ArrayTree]
    optimizer: Params
    log_temperature: Array
    temperature_optimizer: ArrayTree
    update: Array
    metrics: Metrics


class _SAC(OffPolicy):
    settings: SAC

    def __init__(self, settings: SAC, network: ActorAndCritic, env: Env):
        super().__init__(settings, network, env, outputs=2)
        net, target, largest = self.networks, settings.target_entropy, math.log(2) * env.spec.action.shape[-1]
        if target is not None and not isinstance(target, jax.Array) and target >= largest:
            raise ValueError(
                f"target_entropy={target} must be below {largest:.6g}, that of uniform actions in [-1, 1]."
            )

        def sample(key: Array, output: Array) -> Array:
            noise = jax.random.normal(key, (*output.shape[:-1], *net.spec.action.shape), output.dtype)
            return net.scale(self.explore(output, noise))

        self.policy = self.policy._replace(sample=sample, mode=lambda output: net.scale(self.explore(output, 0.0)))
        self.temperature_optimizer = optax.adam(settings.temperature_learning_rate)

    def begin(self, learning: OffPolicyLearning) -> SACLearning:
        log_temperature = jnp.float32(0)
        state = self.temperature_optimizer.init(log_temperature)
        params, _, optimizer, update, gathered = learning
        return SACLearning(params, params.critics, optimizer, log_temperature, state, update, gathered)

    def draw(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Returns numbers `[..., 2, A]`: for the actions of the target and of the actor."""
        return super().draw(key, (*shape[:-1], 2, shape[-1]))

    def temperature(self, learning: SACLearning) -> Any:
        """Returns α."""
        given = self.settings.temperature
        return jnp.exp(learning.log_temperature) if given is None else given

    def critic_loss(self, critics, params: Params, learning: SACLearning, noise: Array, batch: Batch):
        """Returns half the squared errors of the critics (equations 5 and 6)."""
        net = self.networks
        next_action, log_prob = tanh_gaussian(*net.gaussian(params.actor, batch.next_observation), noise)
        first, second = net.values(learning.targets, params.representation, batch.next_observation, next_action)
        soft = jnp.minimum(first, second) - self.temperature(learning) * log_prob
        target = batch.reward + batch.discount * soft
        first, second = net.values(critics, params.representation, batch.observation, batch.action)
        loss = metrics.mean(0.5 * (first - target) ** 2 + 0.5 * (second - target) ** 2, batch.valid)
        return loss, {"critic_loss": loss, "value": metrics.mean(first, batch.valid)}

    def actor_loss(self, actor, params: Params, learning: SACLearning, noise: Array, batch: Batch):
        """Returns the mean of `α log π(a) - min(Q_1(a), Q_2(a))` (equation 9)."""
        net = self.networks
        action, log_prob = tanh_gaussian(*net.gaussian(actor, batch.observation), noise)
        first, second = net.values(params.critics, params.representation, batch.observation, action)
        loss = metrics.mean(self.temperature(learning) * log_prob - jnp.minimum(first, second), batch.valid)
        return loss, {"actor_loss": loss, "entropy": -metrics.mean(log_prob, batch.valid)}

    def update(self, learning: SACLearning, batch: Batch, noise: Array, mean_return: Array) -> SACLearning:
        """Makes one update (algorithm 1) by transitions `[N, ...]`, with noise `[N, 2, A]`."""
        step = learning.update + 1
        state, batch = self.represent(learning, batch, step, mean_return)
        state = self.descend(
            "critics", self.critic_loss, state, batch, step, mean_return, state[0], learning, noise[:, 0]
        )
        state = self.descend("actor", self.actor_loss, state, batch, step, mean_return, state[0], learning, noise[:, 1])
        params, optimizer, gathered = state
        targets: Any = optax.incremental_update(params.critics, learning.targets, self.settings.target_rate)
        targets = pruned_if_sparse(targets, optimizer.critics)
        learning = learning._replace(params=params, optimizer=optimizer, targets=targets)
        gathered = metrics.add(gathered, metrics.means({"temperature": jnp.asarray(self.temperature(learning))}))
        learning = learning._replace(update=step, metrics=gathered)
        if self.settings.temperature is not None:
            return learning
        return self.update_temperature(learning, batch, noise[:, 1])

    def update_temperature(self, learning: SACLearning, batch: Batch, noise: Array) -> SACLearning:
        """Moves log α down if the entropy is above its target: equation 18, whose gradient lacks its factor α here."""
        target = self.settings.target_entropy
        target = -float(noise.shape[-1]) if target is None else target
        _, log_prob = tanh_gaussian(*self.networks.gaussian(learning.params.actor, batch.observation), noise)
        gradient = -metrics.mean(log_prob + target, batch.valid)
        gradient = mean_over_devices(gradient, batch.valid, self.env.axis)
        change, optimizer = self.temperature_optimizer.update(gradient, learning.temperature_optimizer)
        log_temperature = optax.apply_updates(learning.log_temperature, change)
        return learning._replace(log_temperature=log_temperature, temperature_optimizer=optimizer)

    def choose(self, params: Params, observation: ArrayTree) -> Array:
        """Returns means and logarithms of standard deviations `[B, 2 * A]`."""
        features = self.networks.encode_observation(params.representation, observation)
        return jnp.concatenate(self.networks.gaussian(params.actor, features), -1)

    def explore(self, output: Array, noise: Array | float) -> Array:
        """Returns actions `[B, A]` drawn from the policy."""
        mean, log_std = jnp.split(output, 2, axis=-1)
        return jnp.tanh(mean + jnp.exp(log_std) * noise)
