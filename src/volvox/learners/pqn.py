"""Parallelised Q-network (Gallici et al. 2024, arXiv 2407.04811): Q-learning without replay and target network.

In each round every group collects a segment with ε-greedy actions. Its targets are Peng's Q(λ), computed from the
values that were predicted when the actions were chosen, and it is learned from as in `PPO`: in epochs of shuffled
minibatches, which with `lag` 1 are spread over the next round. Layer normalisation takes the place of the target
network, so give the network, or its torso, `layer_norm=True`.

    env = vx.envs.cartpole(num_envs=32)
    algorithm = vx.learn(vx.PQN(), vx.networks.MLP(2, (256, 256), nn.relu, layer_norm=True), env)
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import optax
from flax import linen as nn

from volvox._checks import INT32, number, numbers
from volvox.data import metrics
from volvox.data.metrics import Metrics
from volvox.data.segments import Segment
from volvox.learners.learner import Schedule
from volvox.learners.on_policy import ON_POLICY_TRACED
from volvox.learners.ppo import Epochs, EpochsLearning, check_epochs, epochs_schedule
from volvox.networks.actor_critics import ActorCriticNetwork, q_network
from volvox.networks.distributions import EpsilonGreedy
from volvox.sparsity.optimizers import Optimizer
from volvox.types import Array, ArrayTree, Env, EnvSpec

_EPSILON = optax.linear_schedule(1.0, 0.2, 100_000)
_EPSILON_ATARI = optax.linear_schedule(1.0, 0.001, 1_000_000)
_EPSILON_CLEANRL = optax.linear_schedule(1.0, 0.01, 1_000_000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PQN:
    """Settings of a parallelised Q-network, with purejaxql's constants for CartPole with 32 environments.

    Instead of normalising rewards, purejaxql multiplies them by 0.1. Its learning rate falls to 0, and it treats time
    limits as terminations.

    Evaluation is greedy; `run.evaluate(sampled=True)` uses the last ε of the settings. The value of a multi-discrete
    action is the sum of the values of its components; the network's output holds those of all choices.

    Attributes:
      segment_length: Timesteps T of a segment; all groups collect one in each round.
      epsilon: Probability of a random action: a number, or a schedule over timesteps of all environments of a learner,
        which changes after each round. That of `PQN()` falls from 1 to 0.2 over 100,000 timesteps.
      learning_rate: Learning rate: a number, or a schedule over updates. None: `optimizer` is ready-made.
      optimizer: A function of the learning rate, such as `optax.radam`, or a ready-made `optax.GradientTransformation`.
        With `volvox.sparsity.sparse` the network is sparse, and rows have its `compression`.
      anneal_timesteps: Timesteps of all environments over which the learning rate, a number, falls linearly to 0, round
        by round. Timesteps that begin an episode count, unlike in `max_timesteps` of `train`. None: it stays.
      max_gradient_norm: Largest global norm of a gradient; longer gradients are scaled down to it. None: no limit.
      num_epochs: Number of passes through the data of a round.
      num_minibatches: Minibatches of an epoch: of timesteps, or of whole environments where the network is recurrent.
      discount: Discount γ of a timestep.
      trace_decay: Trace decay λ of the targets.
      reward_bound: Rewards are clipped to ± this number before they are learned from. None: they are not clipped.
      episodic_life: Whether losing a life ends the episode in the targets. Scores are always of whole games.
      normalize_observations: Whether observations are normalised to mean 0 and variance 1, by running moments.
      normalize_rewards: Whether rewards are divided by the standard deviation of discounted returns before clipping.
      lag: 1: the updates by a round's data are spread over the next round. 0: they are made at its end, when the
        first actions of the next are chosen. Metrics give the lag in updates.
      micro_batch: Timesteps of each group (with a recurrent network, environments) in one gradient computation, a
        divisor of the group's timesteps (environments) in a minibatch. None: the whole minibatch; of images at most
        32 timesteps of all groups on a CPU and 8,192 elsewhere.
      rounds_per_iteration: Rounds in one iteration, and so in one row of metrics.

    Raises:
      ValueError: A setting is out of range, or two contradict each other.
    """

    segment_length: int = 64
    epsilon: float | optax.Schedule = _EPSILON
    learning_rate: float | optax.Schedule | None = 1e-4
    optimizer: Optimizer = optax.radam
    anneal_timesteps: int | None = None
    max_gradient_norm: float | None = 10.0
    num_epochs: int = 4
    num_minibatches: int = 16
    discount: float = 0.99
    trace_decay: float = 0.95
    reward_bound: float | None = None
    episodic_life: bool = False
    normalize_observations: bool = False
    normalize_rewards: bool = True
    lag: int = 0
    micro_batch: int | None = None
    rounds_per_iteration: int = 10
    traced = (*ON_POLICY_TRACED, "epsilon")

    def __post_init__(self):
        check_epochs(self)
        numbers(self, "epsilon", low=0, high=1)

    @classmethod
    def atari(cls) -> "PQN":
        """Returns purejaxql's constants for Atari, for 128 environments and 10 million timesteps.

        The network is `vx.networks.QValues(env.spec.num_outputs, vx.networks.NatureTorso(layer_norm=True))`. Longer
        runs need a longer schedule of `epsilon`, a tenth of the run; here it falls from 1 to 0.001 over a million
        timesteps. As in `PPO.atari`, a time limit bootstraps, timesteps whose action the emulator discards are left
        out, and a lost life changes nothing in the game; the output kernel begins as in PyTorch.
        """
        return cls(
            segment_length=32,
            epsilon=_EPSILON_ATARI,
            learning_rate=2.5e-4,
            num_epochs=2,
            num_minibatches=32,
            trace_decay=0.65,
            reward_bound=1.0,
            episodic_life=True,
            normalize_rewards=False,
            rounds_per_iteration=2,
        )

    @classmethod
    def cleanrl(cls) -> "PQN":
        """Returns the constants of CleanRL's pqn_atari_envpool.py, for 8 environments and 10 million timesteps.

        The differences listed in `atari` apply here too. CleanRL's script also bootstraps across the ends of episodes,
        does not halve squared errors (which matters where gradients are clipped), normalises layers over whole images,
        and initialises the output with orthogonal weights.
        """
        sizes: Any = {"segment_length": 128, "num_epochs": 4, "num_minibatches": 4, "anneal_timesteps": 10_000_000}
        return dataclasses.replace(cls.atari(), **sizes, epsilon=_EPSILON_CLEANRL, rounds_per_iteration=5)

    def schedule(self, env: Env) -> Schedule:
        """Returns the schedule: a beat for each timestep of a segment; raises ValueError if ε leaves [0, 1]."""
        if callable(self.epsilon):  # not in `__post_init__`, as it may start JAX's backend
            for timesteps in (0, INT32):
                number("epsilon", float(self.epsilon_at(timesteps)), low=0, high=1)
        return epochs_schedule(self)

    def bind(self, network: nn.Module, env: Env) -> "_PQN":
        """Returns the learner of a module with the values of all actions; see `volvox.networks.q_network`."""
        return _PQN(self, network, env)

    def epsilon_at(self, timesteps: Any) -> Any:
        """Returns ε after a number of timesteps of all environments."""
        return self.epsilon(timesteps) if callable(self.epsilon) else self.epsilon


class _PQN(Epochs):
    settings: PQN

    def functions(self, network: nn.Module, spec: EnvSpec) -> ActorCriticNetwork:
        """Returns the network as pure functions; its policy samples actions with the final ε."""
        made = q_network(network, spec)
        last = EpsilonGreedy(made.distribution, self.settings.epsilon_at(INT32))  # pyright: ignore[reportArgumentType]
        return made._replace(policy=made.policy._replace(sample=last.sample))

    def actions(self, learning: EpochsLearning) -> EpsilonGreedy:
        """Returns the ε-greedy distribution, given the values of all actions."""
        timesteps = learning.round.astype(jnp.float32) * (self.settings.segment_length * self.env.all_envs)
        return EpsilonGreedy(self.network.distribution, self.settings.epsilon_at(timesteps))  # pyright: ignore[reportArgumentType]

    def loss(
        self, params: ArrayTree, segment: Segment, advantage: Array, target: Array, num_valid: Array, update: Array
    ) -> tuple[Array, Metrics]:
        """Returns the share of a micro-batch in the mean of `(G - Q(s, a))^2 / 2`, and metrics."""
        output, _ = self.network.unroll(params, segment.observation, segment.first, segment.recurrent)
        actions: Any = self.network.distribution
        value = actions.take(output, segment.action)
        error = jnp.where(segment.valid, value - target, 0.0)  # values of forbidden actions would overflow
        sums, new = self.summed({"value_loss": 0.5 * error**2, "value": value}, segment, update)
        return sums["value_loss"] / jnp.maximum(num_valid, 1.0), new

    def prepare(self, collected: Any, learning: EpochsLearning, key: Array, slot: Array) -> EpochsLearning:
        """Computes targets, shuffles the segments at `slot` for all epochs, and adds ε to the metrics."""
        new = metrics.means({"epsilon": jnp.asarray(self.actions(learning).epsilon)})
        learning = super().prepare(collected, learning, key, slot)
        return learning._replace(metrics=metrics.add(learning.metrics, new))
