"""Parameterised primal-dual π learning, and the one-step actor-critic with which it was compared.

Cho & Wang 2017 (arXiv 1712.02467). The optimal values of a Markov decision process solve a linear program: they are the
smallest v, weighed by any distribution ξ of states, with `v(s) >= r(s, a) + γ E[v(s')]` for all states and actions.
With a multiplier λ(s, a) for each of these inequalities, the Lagrangian is

    L(v, λ) = Σ_s (1 - γ) ξ(s) v(s) + Σ_(s, a) λ(s, a) A(s, a),    A(s, a) = r(s, a) + γ E[v(s')] - v(s),

which the values minimise and the multipliers maximise. Two changes let networks take the place of tables:

- *Relaxed Lagrangian*: the multipliers are `λ(s, a) = ξ(s) π(a | s)`, where ξ is the distribution of visited states.
  Otherwise each update would need another distribution over all states.
- *Advantage penalty*: the values also minimise `c A(s, a)²`, without which nothing bounds a nonlinear v.

The policy's gradient is then that of the one-step actor-critic, `A ∇ log π(a | s)`. What differs is how values are
learned, and here it is all that differs: `critic="lagrangian"` or `critic="td"`. The minimum of the former is no exact
solution of Bellman's equation: after t timesteps of an episode, the mean advantage is `-γ^(t + 1) / (2 c)`.

Each transition is learned once, while the environments play the action after it.

    env = vx.envs.cartpole(num_envs=1)
    network = vx.networks.ActorCritic(2, vx.networks.MLP(64, (64,)))
    algorithm = vx.learn(vx.learners.PrimalDual(), network, env)  # or PrimalDual(critic="td")
"""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from volvox._checks import Optimizer, gradient_transformation, group_size, integers, numbers
from volvox.data import metrics
from volvox.data.metrics import Episodes, Metrics, RunningEpisodes
from volvox.learners.protocol import Made, Progress, timesteps_progress
from volvox.learners.side_by_side import compression_row
from volvox.networks.actor_critics import ActorCriticNetwork, actor_critic, clipped
from volvox.sparsity import init_optimizers
from volvox.types import Array, ArrayTree, Env, EnvGroup, Policy, TimeStep, replaced, zeros


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrimalDual:
    """Settings of primal-dual π learning.

    Attributes:
      critic: How values are learned. lagrangian: they minimise the relaxed Lagrangian with the advantage penalty; td:
        they follow one-step targets, as in the one-step temporal-difference actor-critic.
      penalty: c, the weight of the squared advantage in the Lagrangian. Only for `critic="lagrangian"`.
      learning_rate: Of policy and values: a number, or a schedule over updates; None if the optimizer is ready-made.
      optimizer: A function of the learning rate, such as `optax.adam`, or a ready-made `optax.GradientTransformation`.
      discount: γ, below 1.
      timesteps_per_iteration: Timesteps in one iteration, and so in one row of metrics; the iteration ends at the first
        multiple of it or some timesteps later.

    Raises:
      ValueError: A setting is out of range, or two contradict each other.
    """

    critic: Literal["lagrangian", "td"] = "lagrangian"
    penalty: float = 1.0
    learning_rate: float | optax.Schedule | None = 3e-4
    optimizer: Optimizer = optax.adam
    discount: float = 0.99
    timesteps_per_iteration: int = 5_000

    def __post_init__(self):
        integers(self, "timesteps_per_iteration", low=1)
        numbers(self, "learning_rate", "penalty", above=0)
        numbers(self, "discount", low=0, high=1)
        gradient_transformation(self.optimizer, self.learning_rate)
        if self.critic not in ("lagrangian", "td"):
            raise ValueError(f"critic={self.critic!r}: take 'lagrangian' or 'td'.")
        if self.critic == "td" and self.penalty != 1.0:
            raise ValueError(f"penalty={self.penalty} belongs to critic='lagrangian'; leave it out.")
        if self.critic == "lagrangian" and self.discount == 1:
            raise ValueError("discount=1: the linear program needs a discount below 1.")

    def bind(self, network: nn.Module, env: Env) -> "_PrimalDual":
        """The learner of a module with two outputs in an environment; raises ValueError where they do not fit."""
        group_size(env.num_envs, env.num_groups)
        made = actor_critic(network, env.spec)
        if jax.tree.leaves(jax.eval_shape(lambda: made.policy.initial_state(1))):
            name = type(network).__name__
            raise ValueError(f"{name} is recurrent, which one-step updates cannot train; take a network that is not.")
        return _PrimalDual(self, env, made)


class Transition(NamedTuple):
    """What the latest action of each environment of a group led to.

    Attributes:
      observation: `[B, ...]`: s, where the action was chosen.
      action: `[B, ...]`: a.
      reward: float32 `[B]`: r.
      discount: float32 `[B]`: γ, or 0 where the episode terminated.
      next_observation: `[B, ...]`: s'.
      valid: bool `[B]`: False where the action was discarded, because s was an episode's last observation.
    """

    observation: Array
    action: Array
    reward: Array
    discount: Array
    next_observation: Array
    valid: Array


class Collector(NamedTuple):
    """What one group of environments is doing.

    Attributes:
      transition: The latest.
      action: `[B, ...]`: chosen at its `next_observation`.
      running: Episodes that have not ended.
    """

    transition: Transition
    action: Array
    running: RunningEpisodes


class Acting(NamedTuple):
    """What acting changes.

    Attributes:
      draws: int32: how often actions were drawn; names the next draw.
      timesteps: int32: timesteps of all environments, those that begin an episode not counted.
      episodes: Episodes that have ended.
      collectors: One a group; () between pools.
    """

    draws: Array
    timesteps: Array
    episodes: Episodes
    collectors: tuple[Collector, ...]


class Learning(NamedTuple):
    """What learning changes.

    Attributes:
      params: Parameters of the network.
      optimizer: State of the optimizer.
      update: int32: updates made.
      metrics: Of this iteration.
    """

    params: ArrayTree
    optimizer: ArrayTree
    update: Array
    metrics: Metrics


@dataclasses.dataclass(frozen=True, eq=False)
class _PrimalDual:
    """The learner in an environment, see `protocol.Learner`: pure functions, in the order of the algorithm."""

    settings: PrimalDual
    env: Env
    network: ActorCriticNetwork
    beats_per_round: int = 1
    timed_rounds: int = 20
    finish: None = None
    unsaved: tuple[str, ...] = ()

    @property
    def policy(self) -> Policy:
        return self.network.policy

    def loss(self, params: ArrayTree, batch: Transition) -> tuple[Array, Metrics]:
        """Mean loss of transitions `[B]`, and metrics.

        The policy ascends and the values descend the relaxed Lagrangian `E[(1 - γ) v(s) + A]`, of which one transition
        gives an unbiased sample: its action was drawn from π, which stands for the sum over actions.
        """
        s, actions = self.settings, self.network.distribution
        output, v_tm1, _ = self.network.apply(params, batch.observation, ())
        _, v_t, _ = self.network.apply(params, batch.next_observation, ())
        advantage = batch.reward + batch.discount * v_t - v_tm1
        policy_loss = -actions.log_prob(output, batch.action) * jax.lax.stop_gradient(advantage)
        if s.critic == "lagrangian":
            # The gradient flows through both values: the multipliers weigh the whole inequality.
            value_loss = (1 - s.discount) * v_tm1 + advantage + s.penalty * advantage**2
        else:
            target = jax.lax.stop_gradient(batch.reward + batch.discount * v_t)
            value_loss = 0.5 * (target - v_tm1) ** 2
        found = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "value": v_tm1,
            "squared_advantage": advantage**2,
            "entropy": actions.entropy(output),
        }
        sums = {name: jnp.where(batch.valid, x, 0.0).sum() for name, x in found.items()}
        loss = (sums["policy_loss"] + sums["value_loss"]) / jnp.maximum(batch.valid.sum(), 1)
        return loss, metrics.means(sums, count=batch.valid.sum())

    def update(self, learning: Learning, batch: Transition, mean_return: Array) -> Learning:
        """One update by transitions `[B]`; sparse optimizers use the mean return."""
        (_, new), gradient = jax.value_and_grad(self.loss, has_aux=True)(learning.params, batch)
        new |= metrics.means({"gradient_norm": optax.tree.norm(gradient)})
        further = {"step": learning.update + 1, "mean_return": mean_return}
        changes, optimizer = self.optimizer.update(gradient, learning.optimizer, learning.params, **further)
        params = optax.apply_updates(learning.params, changes)
        return Learning(params, optimizer, learning.update + 1, metrics.add(learning.metrics, new))

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformationExtraArgs:
        return gradient_transformation(self.settings.optimizer, self.settings.learning_rate)

    def act(self, acting: Acting, learning: Learning, key: Array, g: int, timestep: TimeStep) -> tuple[Acting, Array]:
        """Group `g` samples actions from the policy, and keeps the transition that this timestep completes."""
        me = acting.collectors[g]
        episodes, running = metrics.update_episodes(acting.episodes, me.running, timestep)
        transition = Transition(
            observation=me.transition.next_observation,
            action=me.action,
            reward=timestep.reward,
            discount=self.settings.discount * (~timestep.terminated).astype(jnp.float32),
            next_observation=timestep.observation,
            valid=~timestep.first,
        )
        output, _, _ = self.network.apply(learning.params, timestep.observation, ())
        action = self.network.distribution.sample(jax.random.fold_in(key, acting.draws), output)
        me = Collector(transition, action, running)
        acting = Acting(
            draws=acting.draws + 1,
            timesteps=acting.timesteps + (~timestep.first).sum(dtype=jnp.int32),
            episodes=episodes,
            collectors=replaced(acting.collectors, g, me),
        )
        return acting, clipped(action, self.env.spec)

    def work(self, acting: Acting, learning: Learning, key: Array, g: int) -> tuple[Acting, Learning]:
        """Learns the latest transition of group `g` once, while its next action is played."""
        batch = acting.collectors[g].transition
        mean_return = metrics.latest_mean(acting.episodes, num_envs=self.env.num_envs)
        # A trip count, not a condition, so that parameters stay in place. Without a transition even Adam stands still.
        due = batch.valid.any().astype(jnp.int32)
        return acting, jax.lax.fori_loop(0, due, lambda _, x: self.update(x, batch, mean_return), learning)

    def init(self, key: Array) -> tuple[Acting, Learning]:
        (params,), (optimizer,) = init_optimizers(self.optimizer, [self.policy.init(key)], jax.random.fold_in(key, 1))
        zero = jnp.int32(0)
        learning = Learning(params, optimizer, zero, metrics={})
        shapes = jax.eval_shape(lambda: self.update(learning, self.collector(1).transition, jnp.float32(0)))
        learning = learning._replace(metrics=metrics.zeros(shapes.metrics))
        return Acting(zero, zero, metrics.init_episodes(), ()), learning

    def begin(self, acting: Acting, groups: tuple[EnvGroup, ...]) -> Acting:
        return acting._replace(collectors=tuple(self.collector(group.num_envs) for group in groups))

    def collector(self, b: int) -> Collector:
        observation, action = zeros((self.env.spec.observation, self.env.spec.action), b)
        nothing = jnp.zeros(b, jnp.float32)
        transition = Transition(observation, action, nothing, nothing, observation, jnp.zeros(b, bool))
        return Collector(transition, action, metrics.init_running(b))

    def progress(self, start: Acting, acting: Acting, made: Made) -> Progress:
        return timesteps_progress(made, self.settings.timesteps_per_iteration, self.env)

    def watched(self, learning: Learning) -> dict[str, ArrayTree]:
        return {"parameters": learning.params}

    def row(self, acting: Acting, learning: Learning, timesteps: int) -> dict[str, Any]:
        counts = {"timesteps": timesteps, "episodes": int(acting.episodes.total)}
        counts |= metrics.scores(jax.device_get(acting.episodes))
        return counts | compression_row({"params": learning.params}, {"params": learning.optimizer})

    def candidates(self, learning: Learning) -> list[ArrayTree]:
        return [learning.params]
