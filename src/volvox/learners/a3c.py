"""Advantage actor-critic: one network, many environments, and learning while emulators step.

Mnih et al. 2016 (arXiv 1602.01783) in the form of GA3C (Babaeizadeh et al. 2017, arXiv 1611.06256), with a fixed
schedule in place of its queues. In round r every group collects a segment with the parameters of that round, while
`work` goes through the segments of round r - lag in micro-batches, spread evenly over the beats; `finish` updates the
parameters. Data are therefore exactly `lag` rounds old. With `lag` 0 all groups learn from their segments in the last
beat of the round, which completes the segments. Only the first timestep of the next segment, in the same beat, is one
round old. Where u rounds share an update, data are `lag / u` updates old on average, and at most `ceil(lag / u)`.

    env = vx.envs.atari("Pong", num_envs=64, groups=2)
    network = vx.networks.ActorCritic(env.spec.num_outputs, vx.networks.SmallTorso())
    algorithm = vx.learn(vx.A3C(), network, env)  # or vx.A3C.ga3c(), or vx.A3C(lag=2, learning_rate=1e-4)
"""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from volvox._checks import integers, numbers
from volvox.data import metrics, segments
from volvox.data.metrics import Metrics
from volvox.data.segments import Segment, lambda_returns
from volvox.learners.learner import Schedule, Turn, apply_gradient, with_metrics
from volvox.learners.on_policy import ON_POLICY_TRACED, OnPolicy, OnPolicyData, check_settings, micro_batch_size
from volvox.sparsity.optimizers import Optimizer, clipped, init_optimizers, make_optimizer
from volvox.types import Array, ArrayTree, Env

_RMSPROP = functools.partial(optax.rmsprop, decay=0.99, eps=0.1, initial_scale=1.0)
"""As TensorFlow computes it: the average of squares begins at 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class A3C:
    """Settings of the advantage actor-critic.

    The defaults are later practice: averaged losses, clipped gradients, Adam, and IMPALA's V-trace (arXiv 1802.01561).

    Attributes:
      segment_length: Timesteps T of a segment; all groups collect one in each round.
      learning_rate: Learning rate: a number, or a schedule over updates. None: `optimizer` is ready-made.
      optimizer: A function of the learning rate, such as `optax.adam`, or a ready-made `optax.GradientTransformation`.
        With `volvox.sparsity.sparse` the network is sparse, and rows have its `compression`.
      max_gradient_norm: Largest global norm of a gradient; longer gradients are scaled down to it. None: no limit.
      loss_reduction: "mean" or "sum" over the transitions of an update.
      anneal_timesteps: Timesteps of all environments over which the learning rate, a number, falls linearly to 0.
        Timesteps that begin an episode count, unlike in `max_timesteps` of `train`. None: it stays.
      discount: Discount γ of a timestep.
      trace_decay: Trace decay λ of the returns; 1 gives n-step returns.
      entropy_coefficient: Weight of the policy's entropy: a number (A3C, IMPALA, GA3C), or a schedule over updates.
      value_coefficient: Weight of half the squared error of values.
      log_epsilon: Added to probabilities before their logarithm is taken, in the loss (GA3C, section 5.1).
      reward_bound: Rewards are clipped to ± this number before they are learned from. None: they are not clipped.
      episodic_life: Whether losing a life ends the episode in returns and advantages. Scores are always of whole games.
      normalize_observations: Whether observations are normalised to mean 0 and variance 1, by running moments.
      normalize_rewards: Whether rewards are divided by the standard deviation of discounted returns, before they are
        clipped.
      lag: Rounds between acting and learning; metrics give it in updates. With 0 learning and environments take turns,
        and the first timestep of a segment is one round old.
      rounds_per_update: Rounds that share an update; each has `num_envs * segment_length` timesteps.
      vtrace: Whether V-trace corrects the returns for the lag. The parameters that learn then predict all values.
        Without it, a segment is bootstrapped by the value predicted while acting, as in GA3C.
      rho_clip: V-trace's largest weight of a timestep, ρ̄.
      c_clip: V-trace's largest weight of a trace, c̄.
      micro_batch: Environments in one gradient computation, a divisor of a group's size. None: as many as have at most
        32 transitions on a CPU and 8,192 elsewhere.
      updates_per_iteration: Updates in one iteration, and so in one row of metrics.

    Raises:
      ValueError: A setting is out of range, or two contradict each other.
    """

    segment_length: int = 20
    learning_rate: float | optax.Schedule | None = 6e-4
    optimizer: Optimizer = functools.partial(optax.adam, eps=1e-5)  # noqa: RUF009  # a constant
    max_gradient_norm: float | None = 0.5
    loss_reduction: Literal["mean", "sum"] = "mean"
    anneal_timesteps: int | None = None
    discount: float = 0.99
    trace_decay: float = 1.0
    entropy_coefficient: float | optax.Schedule = 0.01
    value_coefficient: float = 0.5
    log_epsilon: float = 0.0
    reward_bound: float | None = 1.0
    episodic_life: bool = False
    normalize_observations: bool = False
    normalize_rewards: bool = False
    lag: int = 1
    rounds_per_update: int = 1
    vtrace: bool = True
    rho_clip: float = 1.0
    c_clip: float = 1.0
    micro_batch: int | None = None
    updates_per_iteration: int = 100
    traced = (*ON_POLICY_TRACED, "entropy_coefficient", "value_coefficient", "rho_clip", "c_clip")

    def __post_init__(self):
        check_settings(self)
        numbers(self, "entropy_coefficient", "value_coefficient", "log_epsilon", low=0)
        integers(self, "rounds_per_update", "updates_per_iteration", low=1)
        if self.loss_reduction not in ("sum", "mean"):
            raise ValueError(f"loss_reduction={self.loss_reduction!r}: give 'sum' or 'mean'.")
        if self.vtrace and not 0 < self.c_clip <= self.rho_clip < float("inf"):
            raise ValueError(f"V-trace needs finite rho_clip >= c_clip > 0, got {self.rho_clip} and {self.c_clip}.")

    @classmethod
    def ga3c(cls) -> "A3C":
        """Returns GA3C's constants (arXiv 1611.06256 and its published code); the network is `volvox.networks.GA3C`.

        RMSProp as TensorFlow computes it, summed losses, no clipping of gradients.
        One difference: an update sums the segments of all environments; in GA3C, the segments of one or a few agents.
        """
        return cls(
            segment_length=5,
            learning_rate=3e-4,
            optimizer=_RMSPROP,
            max_gradient_norm=None,
            loss_reduction="sum",
            value_coefficient=1.0,
            log_epsilon=1e-6,
            vtrace=False,
        )

    @classmethod
    def mujoco(cls) -> "A3C":
        """Returns settings for continuous control, chosen by a study of HalfCheetah with 16 environments.

        The study is `experiments/choose_settings.py a3c-halfcheetah`, of a million timesteps. Longer runs need
        `anneal_timesteps`, because with a constant rate they can fail when the policy has become narrow.
        """
        scales: Any = {"normalize_observations": True, "normalize_rewards": True, "reward_bound": 10.0}
        return cls(**scales, trace_decay=0.95, learning_rate=1e-3, entropy_coefficient=0.0)

    def schedule(self, env: Env) -> Schedule:
        """Returns the schedule: a beat for each timestep of a segment."""
        rounds = self.updates_per_iteration * self.rounds_per_update
        return Schedule(self.segment_length, rounds_per_iteration=rounds, delay=self.lag)

    def _rate_schedule(self, env: Env) -> Any:
        """Returns the learning rate: a number, a schedule over updates, or None for a ready-made optimizer."""
        rate: Any = self.learning_rate
        if self.anneal_timesteps is None:
            return rate
        num_updates = self.anneal_timesteps // (self.rounds_per_update * self.segment_length * env.all_envs)
        return optax.linear_schedule(rate, 0.0, max(num_updates, 1))

    def bind(self, network: nn.Module, env: Env) -> "_A3C":
        """Returns the learner of a module with two outputs; raises ValueError if module or environment do not fit."""
        return _A3C(self, network, env)


class A3CLearning(NamedTuple):
    """State of learning.

    Attributes:
      params: Parameters of the network.
      optimizer: State of the optimiser.
      gradient: Sum over the micro-batches since the last update, as `params`.
      transitions: float32: Number of transitions in `gradient`.
      update: int32: Number of updates.
      metrics: Metrics of this iteration.
    """

    params: ArrayTree
    optimizer: ArrayTree
    gradient: ArrayTree
    transitions: Array
    update: Array
    metrics: Metrics


class _A3C(OnPolicy):
    settings: A3C

    def __init__(self, settings: A3C, network: nn.Module, env: Env):
        super().__init__(settings, network, env)
        self.micro_batch = micro_batch_size(settings.micro_batch, self.num_envs, settings.segment_length)
        self.num_batches = self.num_envs // self.micro_batch
        self.rate = rate = settings._rate_schedule(env)
        self.optimizer = clipped(make_optimizer(settings.optimizer, rate), settings.max_gradient_norm)
        low, high = self.batches_due(np.arange(settings.segment_length))
        self.due = np.stack([low < high] * env.num_groups, axis=1)

    def init(self, key: Array) -> tuple[OnPolicyData, A3CLearning]:
        collected = self.init_collected()
        (params,), (optimizer,) = init_optimizers(self.optimizer, [self.network.policy.init(key)])
        gradient = jax.tree.map(jnp.zeros_like, params)
        learning = A3CLearning(params, optimizer, gradient, jnp.float32(0), jnp.int32(0), {})
        segment = segments.take(collected.collectors[0].ring, jnp.int32(0), jnp.int32(0), self.micro_batch)
        update = lambda learning: self.update(self.accumulate(learning, segment), jnp.float32(0))  # noqa: E731
        return collected, with_metrics(learning, update)

    def loss(self, params: ArrayTree, segment: Segment, update: Array) -> tuple[Array, Metrics]:
        """Returns the summed loss of `[T, B]` transitions (arXiv 1602.01783, section 4), and metrics.

        `sum(-log π(a) * A - entropy_coefficient * H + value_coefficient / 2 * (G - V)^2)` over valid transitions, where
        returns `G` and advantages `A = G - V` are constants. A termination ends a return, a time limit bootstraps it.
        """
        s, actions = self.settings, self.network.distribution
        output, value = self.network.unroll(params, segment.observation, segment.first, segment.recurrent)
        length = len(segment.reward)
        bootstrap = value[length:] if len(value) > length else segment.bootstrap[None]
        output, value = output[:length], value[:length]
        v_tm1 = jax.lax.stop_gradient(value)
        v_t = jax.lax.stop_gradient(jnp.concatenate([v_tm1[1:], bootstrap]))
        discount_t = s.discount * (1.0 - segment.terminated)
        lambda_t = s.trace_decay * (1.0 - segment.truncated)
        log_prob = actions.log_prob(output, segment.action, s.log_epsilon)
        per_env = functools.partial(jax.vmap, in_axes=1, out_axes=1)
        if s.vtrace:
            learned_log_prob = actions.log_prob(jax.lax.stop_gradient(output), segment.action)
            rho_tm1 = jnp.exp(learned_log_prob - segment.log_prob)
            correct = functools.partial(vtrace, rho_clip=s.rho_clip, c_clip=s.c_clip)
            target, advantage = per_env(correct)(v_tm1, v_t, segment.reward, discount_t, rho_tm1, lambda_t)
        else:
            target = per_env(lambda_returns)(segment.reward, discount_t, v_t, lambda_t)
            advantage = target - v_tm1
        each = {
            "policy_loss": -log_prob * advantage,
            "value_loss": 0.5 * (target - value) ** 2,
            "entropy": actions.entropy(output, s.log_epsilon),
        }
        sums, new = self.summed(each, segment, update)
        weight = s.entropy_coefficient(update) if callable(s.entropy_coefficient) else s.entropy_coefficient
        return sums["policy_loss"] - weight * sums["entropy"] + s.value_coefficient * sums["value_loss"], new

    def accumulate(self, learning: A3CLearning, segment: Segment) -> A3CLearning:
        """Adds the gradient of a micro-batch."""
        (_, new), gradient = jax.value_and_grad(self.loss, has_aux=True)(learning.params, segment, learning.update)
        return learning._replace(
            gradient=jax.tree.map(jnp.add, learning.gradient, gradient),
            transitions=learning.transitions + segment.valid.sum(dtype=jnp.float32),
            metrics=metrics.add(learning.metrics, new),
        )

    def update(self, learning: A3CLearning, mean_return: Array) -> A3CLearning:
        """Updates the parameters by the gradient gathered; sparse optimizers use the mean return."""
        gradient, transitions = self.env.axis.sum((learning.gradient, learning.transitions))
        if self.settings.loss_reduction == "mean":
            gradient = jax.tree.map(lambda g: g / jnp.maximum(transitions, 1.0), gradient)
        step, changes = learning.update + 1, callable(self.rate)
        rate = None if changes else self.rate  # the optimiser's state may hold the rate before a change
        given = gradient, learning.optimizer, learning.params, step, mean_return, rate
        params, state = apply_gradient(self.optimizer, *given)
        new = {"gradient_norm": optax.tree.norm(gradient)}
        if changes:
            new["learning_rate"] = jnp.asarray(self.rate(learning.update), jnp.float32)
        return learning._replace(
            params=params,
            optimizer=state,
            gradient=jax.tree.map(jnp.zeros_like, gradient),
            transitions=jnp.float32(0),
            update=step,
            metrics=metrics.add(learning.metrics, metrics.means(new)),
        )

    def work(
        self, collected: OnPolicyData, learning: A3CLearning, key: Array, turn: Turn
    ) -> tuple[OnPolicyData, A3CLearning]:
        """Accumulates the gradients of the group's micro-batches that are due in this beat."""
        s, ring, slot = self.settings, collected.collectors[turn.group].ring, self.slot(turn)
        low, high = self.batches_due(turn.beat)
        # Up to a lag of 1, the parameters that learn have predicted the bootstrap value themselves.
        part = {"num_envs": self.micro_batch, "with_next": s.vtrace and s.lag > 1}

        def one(i: Array, learning: A3CLearning) -> A3CLearning:
            # With one micro-batch, nothing else would depend on `i`, and XLA would compute the gradient before the
            # loop, in every beat.
            place = slot + jnp.minimum(i, 0)
            return self.accumulate(learning, segments.take(ring, place, i * self.micro_batch, **part))

        # A trip count, not a condition, so that gradients stay in place.
        return collected, jax.lax.fori_loop(low, jnp.where(turn.round >= s.lag, high, low), one, learning)

    def batches_due(self, beat: Any) -> tuple[Any, Any]:
        """Returns (first, end) of a group's micro-batches that are learned from in a beat; with lag 0 in the last."""
        length = self.settings.segment_length
        first = 0 if self.settings.lag else length - 1
        beats = length - first
        low, high = (self.num_batches * (beat - first + i).clip(0, beats) // beats for i in (0, 1))
        return low, high

    def finish(
        self, collected: OnPolicyData, learning: A3CLearning, key: Array, turn: Turn
    ) -> tuple[OnPolicyData, A3CLearning]:
        """Updates the parameters at the end of the last of the rounds that share an update."""
        learned = turn.round - self.settings.lag + 1  # rounds learned since the environments were made
        due = (learned > 0) & (learned % self.settings.rounds_per_update == 0)
        # A trip count, not a condition, so that parameters stay in place.
        update = lambda _, learning: self.update(learning, turn.mean_return)  # noqa: E731
        return collected, jax.lax.fori_loop(0, due.astype(jnp.int32), update, learning)


def vtrace(
    v_tm1: Array,
    v_t: Array,
    r_t: Array,
    discount_t: Array,
    rho_tm1: Array,
    lambda_t: Array,
    *,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> tuple[Array, Array]:
    """Returns V-trace's targets and advantages of one trajectory; `jax.vmap` it over environments.

    These are equations 1 and 4 of Espeholt et al. 2018 (arXiv 1802.01561):
    `vs[t] = v_tm1[t] + delta[t] + discount[t] * c[t] * (vs[t + 1] - v[t])`, with
    `delta[t] = rho[t] * (r[t] + discount[t] * v[t] - v_tm1[t])`, `rho = min(rho_clip, rho_tm1)` and
    `c = lambda * min(c_clip, rho_tm1)`; `vs[T]` is `v[T - 1]`. A timestep with `lambda_t` 0 bootstraps, and nothing
    after it counts.

    Args:
      v_tm1: `[T]`: Values of the observations at which actions were chosen.
      v_t: `[T]`: Values of the next observations; `v_t[t]` is `v_tm1[t + 1]`, except at the end.
      r_t: `[T]`: Rewards.
      discount_t: `[T]`: Discounts of the next timestep: 0 where the episode terminated.
      rho_tm1: `[T]`: Ratios of the probabilities of the actions under the learned and the acting policy.
      lambda_t: `[T]`: Trace decays: 0 at a time limit.
      rho_clip: Largest weight of a timestep.
      c_clip: Largest weight of the trace.

    Returns:
      (value targets `vs` `[T]`, advantages `[T]`, which weight the policy's gradient). An advantage is `rho[t] *
      (r[t] + discount[t] * (lambda[t] * vs[t + 1] + (1 - lambda[t]) * v[t]) - v_tm1[t])`. Gradients flow through
      `v_tm1`, `v_t` and `rho_tm1`: stop them where they are not wanted.
    """
    arguments = [v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_t]
    chex.assert_rank(arguments, 1)
    chex.assert_equal_shape(arguments)
    rho = jnp.minimum(rho_clip, rho_tm1)
    c = lambda_t * jnp.minimum(c_clip, rho_tm1)
    delta = rho * (r_t + discount_t * v_t - v_tm1)

    def backwards(error_t: Array, x: tuple[Array, Array, Array]):
        delta, discount_t, c = x
        error_tm1 = delta + discount_t * c * error_t
        return error_tm1, error_tm1

    _, error = jax.lax.scan(backwards, jnp.zeros_like(delta[0]), (delta, discount_t, c), reverse=True)
    target_t = v_t + lambda_t * jnp.append(error[1:], 0.0)
    return v_tm1 + error, rho * (r_t + discount_t * target_t - v_tm1)
