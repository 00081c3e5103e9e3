"""Advantage actor-critic: one network, many environments, and learning while emulators step.

Mnih et al. 2016 (arXiv 1602.01783) in the form of GA3C (Babaeizadeh et al. 2017, arXiv 1611.06256), with a fixed
schedule in place of its queues. In round r every group collects a segment with the parameters of that round, while
`work` goes through the segments of round r - lag in micro-batches, spread evenly over the beats; `finish` updates the
parameters. Data are therefore exactly `lag` rounds old. With `lag` 0 nothing overlaps: the round has one more beat,
which completes the segments, and `finish` learns from them all; the timestep of that beat is never learned from. Where
u rounds share an update, data are `lag / u` updates old on average, and at most that rounded up.

    env = vx.envs.atari("Pong", num_envs=64, groups=2)
    network = vx.networks.ActorCritic(env.spec.num_outputs, vx.networks.SmallTorso())
    algorithm = vx.learn(vx.A3C(), network, env)  # or vx.A3C.ga3c(), or vx.A3C(lag=2, learning_rate=1e-4)
"""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from volvox._checks import Optimizer, gradient_transformation, group_size, integers, numbers
from volvox.data import metrics, segments
from volvox.data.metrics import Maximum, Metrics
from volvox.data.normalization import Moments
from volvox.data.returns import lambda_returns, vtrace
from volvox.data.segments import Segment
from volvox.learners.collecting import Acting, Collecting
from volvox.learners.protocol import Made, Progress
from volvox.networks.actor_critics import ActorCriticNetwork, actor_critic
from volvox.sparsity import clipped, init_optimizers
from volvox.types import Array, ArrayTree, Env, EnvGroup, Policy, TimeStep


@dataclasses.dataclass(frozen=True, kw_only=True)
class A3C:
    """Settings of the advantage actor-critic.

    The defaults are later practice: averaged losses, clipped gradients, Adam, and IMPALA's V-trace (arXiv 1802.01561).

    Attributes:
      segment_length: Timesteps T of a segment; all groups collect one in each round.
      learning_rate: Learning rate: a number, or a schedule over updates. None: `optimizer` is ready-made.
      optimizer: A function of the learning rate, such as `optax.adam`, or a ready-made `optax.GradientTransformation`.
        With `volvox.sparsity.sparse` the network is sparse, and rows have its `compression`.
      max_gradient_norm: Global norm to which the gradient is clipped before the optimizer. None: it is not clipped.
      loss_reduction: "mean" or "sum" over the transitions of an update.
      anneal_frames: Emulator frames over which the learning rate, a number, falls linearly to 0. None: it stays.
      discount: Discount γ of a timestep.
      trace_decay: Trace decay λ of the returns; 1 gives n-step returns.
      entropy_coefficient: Weight of the policy's entropy: a number (A3C, IMPALA, GA3C), or a schedule over updates.
      value_coefficient: Weight of half the squared error of values.
      log_epsilon: Added to probabilities before their logarithm is taken, in the loss (GA3C, section 5.1).
      reward_bound: Rewards are clipped to ± this number before they are learned from. None: they are not clipped.
      episodic_life: Whether the loss of a life ends an episode for the loss. Scores are always of whole games.
      normalize_observations: Whether observations are normalised to mean 0 and variance 1, by running moments.
      normalize_rewards: Whether rewards are divided by the standard deviation of discounted returns, before they are
        clipped.
      lag: Rounds between acting and learning; metrics give it in updates. With 0 learning and environments take turns.
      rounds_per_update: Rounds that share an update; each has `num_envs * segment_length` timesteps.
      vtrace: Whether V-trace corrects the returns for the lag. All values are then those of the parameters that learn;
        without it, a segment is bootstrapped by the value predicted while acting, as in GA3C.
      rho_clip: V-trace's largest weight of a timestep, ρ̄.
      c_clip: V-trace's largest weight of a trace, c̄.
      micro_batch: Environments in one gradient computation, a divisor of a group's size. None: about 64 transitions.
      updates_per_iteration: Updates in one iteration, and so in one row of metrics.

    Raises:
      ValueError: A setting is out of range, or two contradict each other.
    """

    segment_length: int = 20
    learning_rate: float | optax.Schedule | None = 6e-4
    optimizer: Optimizer = functools.partial(optax.adam, eps=1e-5)  # noqa: RUF009  # a constant
    max_gradient_norm: float | None = 0.5
    loss_reduction: Literal["mean", "sum"] = "mean"
    anneal_frames: int | None = None
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
    updates_per_iteration: int = 250

    def __post_init__(self):
        integers(self, "segment_length", "rounds_per_update", "updates_per_iteration", "micro_batch", low=1)
        integers(self, "anneal_frames", low=1, high=None)
        integers(self, "lag", low=0)
        numbers(self, "rho_clip", "c_clip")
        numbers(self, "learning_rate", "max_gradient_norm", "reward_bound", above=0)
        numbers(self, "discount", "trace_decay", low=0, high=1)
        numbers(self, "entropy_coefficient", "value_coefficient", "log_epsilon", low=0)
        gradient_transformation(self.optimizer, self.learning_rate)
        if self.loss_reduction not in ("sum", "mean"):
            raise ValueError(f"loss_reduction={self.loss_reduction!r}: take 'sum' or 'mean'.")
        clips = f"rho_clip={self.rho_clip}, c_clip={self.c_clip}"
        if self.vtrace and self.lag == 0:
            raise ValueError("vtrace=True corrects for a lag, and lag=0 leaves none; take lag=1 or vtrace=False.")
        if not self.vtrace and (self.rho_clip, self.c_clip) != (1.0, 1.0):
            raise ValueError(f"{clips}: these are V-trace's; leave them out, or take vtrace=True.")
        if self.vtrace and not 0 < self.c_clip <= self.rho_clip < float("inf"):
            raise ValueError(f"{clips}: V-trace needs finite rho_clip >= c_clip > 0.")
        if self.vtrace and self.log_epsilon:
            raise ValueError(f"vtrace=True and log_epsilon={self.log_epsilon} cure the same thing; take one of them.")
        if self.anneal_frames is not None and (self.learning_rate is None or callable(self.learning_rate)):
            raise ValueError(f"anneal_frames={self.anneal_frames} needs a learning_rate that is a number; give one.")

    @classmethod
    def ga3c(cls) -> "A3C":
        """Returns GA3C's constants (arXiv 1611.06256 and its published code); the network is `volvox.networks.GA3C`.

        RMSProp as TensorFlow computes it (the average of squares begins at 1), summed losses, no clipping of gradients.
        One thing differs: an update sums the segments of all environments, and in GA3C those of one agent or a few.
        """
        return cls(
            segment_length=5,
            learning_rate=3e-4,
            optimizer=functools.partial(optax.rmsprop, decay=0.99, eps=0.1, initial_scale=1.0),
            max_gradient_norm=None,
            loss_reduction="sum",
            value_coefficient=1.0,
            log_epsilon=1e-6,
            vtrace=False,
        )

    @classmethod
    def mujoco(cls) -> "A3C":
        """Returns settings for continuous control: unclipped rewards, no entropy bonus and shorter traces."""
        return cls(trace_decay=0.95, learning_rate=3e-4, entropy_coefficient=0.0, reward_bound=None)

    @property
    def beats_per_round(self) -> int:
        """Beats of a round: one for each timestep of a segment, and one more without lag."""
        return self.segment_length + (self.lag == 0)

    def frames_per_update(self, env: Env) -> int:
        """Emulator frames of the rounds that share an update, those that begin an episode included."""
        return self.rounds_per_update * self.beats_per_round * env.all_envs * env.spec.frame_skip

    def bind(self, network: nn.Module, env: Env) -> "_A3C":
        """Returns the learner of a module with two outputs; raises ValueError if module or environment do not fit."""
        group = group_size(env.num_envs, env.num_groups)
        if self.segment_length > env.spec.max_episode_steps:
            longest = f"{env.spec.max_episode_steps}, the longest episode of {env.spec.name}"
            raise ValueError(f"segment_length={self.segment_length}: give at most {longest}.")
        functions, length = actor_critic(network, env.spec), self.beats_per_round
        collecting = Collecting(self, env, functions, num_segments=self.lag + 1, length=length)
        micro_batch = segments.micro_batch_size(self.micro_batch, group, self.segment_length)
        return _A3C(
            settings=self,
            env=env,
            network=functions,
            collecting=collecting,
            micro_batch=micro_batch,
            num_batches=group // micro_batch,
            beats_per_round=self.beats_per_round,
            timed_rounds=1 + self.rounds_per_update,
        )


class Learning(NamedTuple):
    """What learning changes.

    Attributes:
      params: Parameters of the network.
      optimizer: State of the optimizer.
      gradient: Sum over the micro-batches since the last update, as `params`.
      transitions: float32: Number of transitions in `gradient`.
      update: int32: Updates made.
      metrics: Metrics of this iteration.
      moments: Moments of the observations; () unless they are normalised.
    """

    params: ArrayTree
    optimizer: ArrayTree
    gradient: ArrayTree
    transitions: Array
    update: Array
    metrics: Metrics
    moments: Moments | tuple[()] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class _A3C:
    """The learner in an environment, see `protocol.Learner`: pure functions, in the order of the algorithm."""

    settings: A3C
    env: Env
    network: ActorCriticNetwork
    collecting: Collecting
    micro_batch: int  # environments in a micro-batch
    num_batches: int  # micro-batches of a group's segment
    beats_per_round: int
    timed_rounds: int  # the first, and as many as make an update
    unsaved: tuple[str, ...] = ()
    parallel: bool = True

    @property
    def policy(self) -> Policy:
        return self.collecting.policy

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
        total = functools.partial(jnp.sum, where=segment.valid)
        policy_loss = total(-log_prob * advantage)
        value_loss = total(0.5 * (target - value) ** 2)
        entropy = total(actions.entropy(output, s.log_epsilon))
        weight = s.entropy_coefficient(update) if callable(s.entropy_coefficient) else s.entropy_coefficient
        loss = policy_loss - weight * entropy + s.value_coefficient * value_loss
        lag = jnp.where(segment.valid, (update - segment.version)[:, None], 0).astype(jnp.float32)
        sums = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "lag_mean": lag.sum()}
        return loss, metrics.means(sums, count=segment.valid.sum()) | {"lag_max": Maximum(lag.max())}

    def accumulate(self, learning: Learning, segment: Segment) -> Learning:
        """Adds the gradient of a micro-batch."""
        (_, new), gradient = jax.value_and_grad(self.loss, has_aux=True)(learning.params, segment, learning.update)
        return learning._replace(
            gradient=jax.tree.map(jnp.add, learning.gradient, gradient),
            transitions=learning.transitions + segment.valid.sum(dtype=jnp.float32),
            metrics=metrics.add(learning.metrics, new),
        )

    def update(self, learning: Learning, mean_return: Array) -> Learning:
        """Updates the parameters by the gradient gathered; sparse optimizers use the mean return."""
        gradient, transitions = self.env.axis.sum((learning.gradient, learning.transitions))
        if self.settings.loss_reduction == "mean":
            gradient = jax.tree.map(lambda g: g / jnp.maximum(transitions, 1.0), gradient)
        further = {"step": learning.update + 1, "mean_return": mean_return}
        changes, optimizer = self.optimizer.update(gradient, learning.optimizer, learning.params, **further)
        return learning._replace(
            params=optax.apply_updates(learning.params, changes),
            optimizer=optimizer,
            gradient=jax.tree.map(jnp.zeros_like, gradient),
            transitions=jnp.float32(0),
            update=learning.update + 1,
            metrics=metrics.add(learning.metrics, metrics.means({"gradient_norm": optax.tree.norm(gradient)})),
        )

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformationExtraArgs:
        return clipped(gradient_transformation(self.settings.optimizer, self.rate), self.settings.max_gradient_norm)

    @property
    def rate(self) -> Any:
        rate: Any = (s := self.settings).learning_rate
        if s.anneal_frames is None:
            return rate
        return optax.linear_schedule(rate, 0.0, max(s.anneal_frames // s.frames_per_update(self.env), 1))

    def act(self, acting: Acting, learning: Learning, key: Array, g: int, timestep: TimeStep) -> tuple[Acting, Array]:
        """Group `g` samples actions from the policy, and adds the timestep to its segment."""
        return self.collecting.act(acting, learning, key, g, timestep)

    def work(self, acting: Acting, learning: Learning, key: Array, g: int) -> tuple[Acting, Learning]:
        """Learns from this beat's share of the micro-batches of group `g`."""
        learning = learning._replace(moments=self.collecting.observe(acting, learning.moments, g))
        if self.settings.lag > 0:
            low, high = (self.num_batches * (acting.beat + i) // self.settings.segment_length for i in (0, 1))
            learning = self.learn(acting, learning, g, low, high)
        if g == self.env.num_groups - 1:
            acting = acting._replace(beat=acting.beat + 1)
        return acting, learning

    def finish(self, acting: Acting, learning: Learning, key: Array) -> tuple[Acting, Learning]:
        """Ends a round, with an update if one is due."""
        s = self.settings
        if s.lag == 0:
            for g in range(self.env.num_groups):
                learning = self.learn(acting, learning, g, jnp.int32(0), jnp.int32(self.num_batches))
        learned = acting.round - s.lag + 1  # rounds learned since the pools were made
        due = (learned > 0) & (learned % s.rounds_per_update == 0)
        mean_return = self.collecting.mean_return(acting)
        # A trip count, not a condition, so that parameters stay in place.
        learning = jax.lax.fori_loop(0, due.astype(jnp.int32), lambda _, x: self.update(x, mean_return), learning)
        return acting._replace(round=acting.round + 1, beat=jnp.int32(0)), learning

    def learn(self, acting: Acting, learning: Learning, g: int, low: Array, high: Array) -> Learning:
        """Accumulates the gradients of micro-batches `low` to `high` of group `g`."""
        s, ring = self.settings, acting.collectors[g].ring
        slot = (acting.round - s.lag) % (s.lag + 1)
        # Up to a lag of 1 the parameters that learn have predicted the bootstrap value themselves.
        part = {"num_envs": self.micro_batch, "length": s.segment_length, "with_next": s.vtrace and s.lag > 1}

        def one(i: Array, learning: Learning) -> Learning:
            # Where there is only one micro-batch, nothing else would depend on `i`: XLA would compute the gradient
            # before the loop, in every beat.
            place = slot + jnp.minimum(i, 0)
            return self.accumulate(learning, segments.take(ring, place, i * self.micro_batch, **part))

        # A trip count, not a condition, so that gradients stay in place.
        return jax.lax.fori_loop(low, jnp.where(acting.round >= s.lag, high, low), one, learning)

    def init(self, key: Array) -> tuple[Acting, Learning]:
        (params,), (optimizer,) = init_optimizers(self.optimizer, [self.network.policy.init(key)])
        zero, gradient = jnp.int32(0), jax.tree.map(jnp.zeros_like, params)
        learning = Learning(params, optimizer, gradient, jnp.float32(0), zero, {}, self.collecting.moments())
        segment = segments.take(self.collecting.collector(self.micro_batch).ring, zero, zero, self.micro_batch, 1)
        updated = jax.eval_shape(lambda x: self.update(self.accumulate(x, segment), jnp.float32(0)), learning)
        return self.collecting.init(), learning._replace(metrics=metrics.zeros(updated.metrics))

    def begin(self, acting: Acting, groups: tuple[EnvGroup, ...]) -> Acting:
        return self.collecting.begin(acting, groups)

    def progress(self, start: Acting, acting: Acting, made: Made) -> Progress:
        s = self.settings
        before = max(int(start.round) - s.lag, 0) // s.rounds_per_update  # the first rounds have nothing to learn
        last_round = s.lag + (before + s.updates_per_iteration) * s.rounds_per_update
        return Progress(made.updates, s.updates_per_iteration, "updates", rounds_left=last_round - int(acting.round))

    def watched(self, learning: Learning) -> dict[str, ArrayTree]:
        return self.collecting.watched(learning)

    def row(self, acting: Acting, learning: Learning, timesteps: int) -> dict[str, Any]:
        rate = self.rate(learning.update) if callable(self.rate) else self.rate
        return self.collecting.row(acting, learning, rate)

    def candidates(self, learning: Learning) -> list[ArrayTree]:
        return [self.collecting.variables(learning)]
