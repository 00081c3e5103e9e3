"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347), learning while emulators step.

In each round every group collects a segment, which is learned from in epochs of shuffled minibatches. With `lag` 1
these updates are spread evenly over the next round, in which the latest parameters act. Data are then on average half a
round of updates older than in the textbook; `lag_mean` measures it. Ratios are exact, since each timestep keeps the
probability with which its action was drawn. With `lag` 0, the textbook's form, nothing overlaps: the round has one more
beat, which completes the segments and is never learned from, and `finish` makes all updates.

    env = vx.envs.mujoco("HalfCheetah-v4", num_envs=1)
    algorithm = vx.learn(vx.PPO.mujoco(), vx.networks.GaussianMLP(6), env)  # or vx.PPO.atari(), or vx.PPO(lag=0)
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from volvox._checks import Optimizer, gradient_transformation, integers, numbers
from volvox.data import metrics, minibatches, segments
from volvox.data.metrics import Maximum, Metrics
from volvox.data.normalization import Moments
from volvox.data.returns import lambda_returns
from volvox.learners.collecting import Acting, Collecting
from volvox.learners.protocol import Made, Progress
from volvox.networks.actor_critics import ActorCriticNetwork, actor_critic
from volvox.sparsity import clipped, init_optimizers
from volvox.types import Array, ArrayTree, Env, EnvGroup, Policy, TimeStep

_SHUFFLES = 2**31  # folded into the key for shuffles; for actions their count is folded in, an int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPO:
    """Settings of proximal policy optimisation; the defaults are those of CleanRL's ppo.py, without clipped values.

    Attributes:
      segment_length: Timesteps T of a segment; all groups collect one in each round.
      learning_rate: Learning rate: a number, or a schedule over updates. None: `optimizer` is ready-made.
      optimizer: A function of the learning rate, such as `optax.adam`, or a ready-made `optax.GradientTransformation`.
        With `volvox.sparsity.sparse` the network is sparse, and rows have its `compression`.
      anneal_timesteps: Timesteps of all environments, those that begin an episode included, over which the learning
        rate, a number, falls linearly to 0, round by round. None: it stays.
      max_gradient_norm: Global norm to which the gradient is clipped before the optimizer. None: it is not clipped.
      num_epochs: How often each round is learned from.
      num_minibatches: Minibatches of an epoch: of timesteps, or of whole environments where the policy is recurrent.
      clip: Largest change ε of the probability ratio that the objective rewards.
      value_clip: Largest change of a value since it was predicted that the loss rewards. None: it is not clipped.
      kl_stop: Approximate KL divergence of an epoch's last minibatch above which no further epoch begins. None: none.
      normalize_advantages: Whether advantages have mean 0 and standard deviation 1 in each minibatch.
      discount: Discount γ of a timestep.
      trace_decay: Trace decay λ of the advantages.
      entropy_coefficient: Weight of the policy's entropy.
      value_coefficient: Weight of half the squared error of values.
      reward_bound: Rewards are clipped to ± this number before they are learned from. None: they are not clipped.
      episodic_life: Whether the loss of a life ends an episode for the loss. Scores are always of whole games.
      normalize_observations: Whether observations are normalised to mean 0 and variance 1, by running moments.
      normalize_rewards: Whether rewards are divided by the standard deviation of discounted returns before clipping.
      lag: Rounds between acting and learning, 0 or 1; metrics give it in updates.
      micro_batch: Timesteps of each group (with a recurrent policy, environments) in one gradient computation, a
        divisor of those in a minibatch. None: about 64 timesteps of images, otherwise the whole minibatch.
      rounds_per_iteration: Rounds in one iteration, and so in one row of metrics.

    Raises:
      ValueError: A setting is out of range, or two contradict each other.
    """

    segment_length: int = 128
    learning_rate: float | optax.Schedule | None = 2.5e-4
    optimizer: Optimizer = functools.partial(optax.adam, eps=1e-5)  # noqa: RUF009  # a constant
    anneal_timesteps: int | None = None
    max_gradient_norm: float | None = 0.5
    num_epochs: int = 4
    num_minibatches: int = 4
    clip: float = 0.2
    value_clip: float | None = None
    kl_stop: float | None = None
    normalize_advantages: bool = True
    discount: float = 0.99
    trace_decay: float = 0.95
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    reward_bound: float | None = None
    episodic_life: bool = False
    normalize_observations: bool = False
    normalize_rewards: bool = False
    lag: int = 1
    micro_batch: int | None = None
    rounds_per_iteration: int = 10

    def __post_init__(self):
        integers(self, "segment_length", "num_epochs", "num_minibatches", "micro_batch", "rounds_per_iteration", low=1)
        integers(self, "anneal_timesteps", low=1, high=None)
        integers(self, "lag", low=0, high=1)
        numbers(self, "learning_rate", "max_gradient_norm", "clip", "value_clip", "kl_stop", "reward_bound", above=0)
        numbers(self, "discount", "trace_decay", low=0, high=1)
        numbers(self, "entropy_coefficient", "value_coefficient", low=0)
        gradient_transformation(self.optimizer, self.learning_rate)
        if self.anneal_timesteps is not None and (self.learning_rate is None or callable(self.learning_rate)):
            raise ValueError(f"anneal_timesteps={self.anneal_timesteps} needs a number as learning_rate; give one.")

    @classmethod
    def atari(cls) -> "PPO":
        """Returns the constants of CleanRL's ppo_atari_envpool.py, for 8 environments and 10 million timesteps.

        Five things differ: `lag` is 1, a time limit bootstraps, timesteps whose action the emulator discards are left
        out, a minibatch has as many timesteps of each group, and after a lost life the game goes on as it is. (There
        the emulator is told of lives, and plays no-ops and FIRE after each: `vx.envs.atari(..., episodic_life=True)`.)
        Longer runs need a larger `anneal_timesteps`.
        """
        return cls(anneal_timesteps=10_000_000, clip=0.1, value_clip=0.1, reward_bound=1.0, episodic_life=True)

    @classmethod
    def mujoco(cls) -> "PPO":
        """Returns the constants of CleanRL's ppo_continuous_action.py, for 1 environment and 1 million timesteps.

        Three things differ: `lag` is 1, a time limit bootstraps, and the reward that ends an episode is added to the
        discounted return by which rewards are scaled (`volvox.data.normalization`).
        """
        sizes = {"segment_length": 2_048, "num_epochs": 10, "num_minibatches": 32, "rounds_per_iteration": 5}
        rates = {"learning_rate": 3e-4, "anneal_timesteps": 1_000_000, "entropy_coefficient": 0.0}
        scales = {"normalize_observations": True, "normalize_rewards": True, "reward_bound": 10.0, "value_clip": 0.2}
        return cls(**sizes, **rates, **scales)

    def timesteps_per_round(self, env: Env) -> int:
        """Timesteps of all environments in a round, those that begin an episode included."""
        return env.all_envs * (self.segment_length + (self.lag == 0))

    def bind(self, network: nn.Module, env: Env) -> "_PPO":
        """Returns the learner of a module with two outputs; raises ValueError if module or environment do not fit."""
        functions, beats = actor_critic(network, env.spec), self.segment_length + (self.lag == 0)
        collecting = Collecting(self, env, functions, num_segments=self.lag + 1, length=beats, with_values=True)
        layout = minibatches.layout(self, env, whole=collecting.recurrent)
        return _PPO(self, functions, collecting, layout, beats, collecting.policy)


class Learning(NamedTuple):
    """What learning changes.

    Attributes:
      params: Parameters of the network.
      optimizer: State of the optimizer.
      batch: The round that is learned from.
      stopped: bool: There are no further epochs of that round.
      round: int32: Rounds learned from, this one included.
      update: int32: Updates made.
      metrics: Metrics of this iteration.
      moments: Moments of the observations; () unless they are normalised.
    """

    params: ArrayTree
    optimizer: ArrayTree
    batch: minibatches.Batch
    stopped: Array
    round: Array
    update: Array
    metrics: Metrics
    moments: Moments | tuple[()]


@dataclasses.dataclass(frozen=True, eq=False)
class _PPO:
    """The learner in an environment, see `protocol.Learner`: pure functions, in the order of the algorithm."""

    settings: PPO
    network: ActorCriticNetwork
    collecting: Collecting
    layout: minibatches.Layout
    beats_per_round: int
    policy: Policy
    timed_rounds: int = 2
    unsaved: tuple[str, ...] = ()
    parallel: bool = True

    def prepare(self, acting: Acting, learning: Learning, key: Array, slot: Array) -> Learning:
        """Computes returns and advantages (equation 11) of the segments at `slot`, and shuffles them for all epochs."""
        s, whole = self.settings, (jnp.int32(0), self.layout.num_envs, self.layout.segment_length)
        parts = [segments.take(me.ring, slot, *whole) for me in acting.collectors]
        part: segments.Segment = jax.tree.map(lambda *x: jnp.stack(x), *parts)  # [G, T, B, ...]
        v_t = jnp.concatenate([part.value[:, 1:], part.bootstrap[:, None]], axis=1)
        discount_t, lambda_t = s.discount * (1.0 - part.terminated), s.trace_decay * (1.0 - part.truncated)
        target = jax.vmap(jax.vmap(lambda_returns, 1, 1))(part.reward, discount_t, v_t, lambda_t)
        advantage = target - part.value
        key = jax.random.fold_in(jax.random.fold_in(key, _SHUFFLES), learning.round)
        batch = self.layout.shuffle(key, target, advantage, part.valid, normalize=s.normalize_advantages)
        spread, left = (metrics.variance(x, part.valid, self.layout.axis) for x in (target, advantage))
        new = metrics.means({"explained_variance": jnp.where(spread > 0, 1 - left / spread, 0.0)})
        learning = learning._replace(batch=batch, stopped=jnp.array(False), round=learning.round + 1)
        return learning._replace(metrics=metrics.add(learning.metrics, new))

    def loss(self, params: ArrayTree, part: minibatches.Part, update: Array) -> tuple[Array, Metrics]:
        """Returns what a part of a minibatch adds to its loss, and metrics.

        The loss is the mean of `-min(ρ A, clip(ρ, 1 ± ε) A) + value_coefficient / 2 * (G - V)^2 - entropy_coefficient *
        H` (equations 7 and 9), where ρ is an action's probability over that with which it was drawn.
        """
        (segment, advantage, target, num_valid), s, actions = part, self.settings, self.network.distribution
        output, value = self.network.unroll(params, segment.observation, segment.first, segment.recurrent)
        log_ratio = jnp.where(segment.valid, actions.log_prob(output, segment.action) - segment.log_prob, 0.0)
        ratio, error = jnp.exp(log_ratio), (value - target) ** 2
        if s.value_clip is not None:
            near = segment.value + jnp.clip(value - segment.value, -s.value_clip, s.value_clip)
            error = jnp.maximum(error, (near - target) ** 2)
        lag = jnp.where(segment.valid, update - segment.version, 0).astype(jnp.float32)
        each = {
            "policy_loss": -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - s.clip, 1 + s.clip) * advantage),
            "value_loss": 0.5 * error,
            "entropy": actions.entropy(output),
            "approx_kl": ratio - 1 - log_ratio,
            "clip_fraction": (jnp.abs(ratio - 1) > s.clip).astype(jnp.float32),
            "lag_mean": lag,
        }
        sums = {name: x.sum(where=segment.valid) for name, x in each.items()}
        loss = sums["policy_loss"] + s.value_coefficient * sums["value_loss"] - s.entropy_coefficient * sums["entropy"]
        new = metrics.means(sums, count=segment.valid.sum()) | {"lag_max": Maximum(lag.max())}
        return loss / jnp.maximum(num_valid, 1.0), new

    def update(self, acting: Acting, learning: Learning, slot: Array, j: Array) -> Learning:
        """Makes one update by minibatch `j` of the round."""
        loss, rings = functools.partial(self.loss, update=learning.update), [me.ring for me in acting.collectors]
        gradient, new = self.layout.gradient(loss, learning.params, rings, slot, learning.batch, j)
        new |= metrics.means({"gradient_norm": optax.tree.norm(gradient)})
        further = {"step": learning.update + 1, "mean_return": self.collecting.mean_return(acting)}  # if it is sparse
        s, optimizer = self.settings, self.optimizer(self.rate(learning))
        changes, state = optimizer.update(gradient, learning.optimizer, learning.params, **further)
        kl: Any = self.layout.axis.sum(new["approx_kl"])
        stopped = ((j + 1) % s.num_minibatches == 0) & (kl.total > (s.kl_stop or jnp.inf) * kl.num)
        changed = {"params": optax.apply_updates(learning.params, changes), "optimizer": state, "stopped": stopped}
        return learning._replace(**changed, update=learning.update + 1, metrics=metrics.add(learning.metrics, new))

    def rate(self, learning: Learning) -> Any:
        rate: Any = (s := self.settings).learning_rate
        if (total := s.anneal_timesteps) is None:
            return rate(learning.update) if callable(rate) else rate
        return rate * jnp.maximum(1 - (learning.round - 1) / (total / s.timesteps_per_round(self.collecting.env)), 0.0)

    def optimizer(self, rate: Any) -> optax.GradientTransformationExtraArgs:
        return clipped(gradient_transformation(self.settings.optimizer, rate), self.settings.max_gradient_norm)

    def act(self, acting: Acting, learning: Learning, key: Array, g: int, timestep: TimeStep) -> tuple[Acting, Array]:
        return self.collecting.act(acting, learning, key, g, timestep)

    def work(self, acting: Acting, learning: Learning, key: Array, g: int) -> tuple[Acting, Learning]:
        """Makes the updates of this turn, as soon as all groups have completed the segments of the round before."""
        learning = learning._replace(moments=self.collecting.observe(acting, learning.moments, g))
        if self.settings.lag == 1:
            learning = self.learn(acting, learning, key, *self.layout.turn(acting.beat, g))
        return acting._replace(beat=acting.beat + (g == self.layout.num_groups - 1)), learning

    def finish(self, acting: Acting, learning: Learning, key: Array) -> tuple[Acting, Learning]:
        if self.settings.lag == 0:
            learning = self.learn(acting, learning, key, jnp.int32(0), jnp.int32(self.layout.num_updates))
        return acting._replace(round=acting.round + 1, beat=jnp.int32(0)), learning

    def learn(self, acting: Acting, learning: Learning, key: Array, low: Array, high: Array) -> Learning:
        """Makes updates `low` to `high` of the segments of `lag` rounds ago, unless their round is stopped."""
        slot, there_is = (acting.round - (lag := self.settings.lag)) % (lag + 1), acting.round >= lag

        def prepare(i: Array, learning: Learning) -> Learning:
            # If nothing depended on `i`, XLA would compute this before the loop, in every beat.
            return self.prepare(acting, learning, key, slot + jnp.minimum(i, 0))

        def due(x: tuple[Array, Learning]) -> Array:
            return (x[0] < high) & there_is & ~x[1].stopped

        # Loops, not conditions, so that what is learned stays in place.
        begins = (there_is & (low == 0) & (high > 0)).astype(jnp.int32)
        given = (low, jax.lax.fori_loop(0, begins, prepare, learning))
        return jax.lax.while_loop(due, lambda x: (x[0] + 1, self.update(acting, x[1], slot, x[0])), given)[1]

    def init(self, key: Array) -> tuple[Acting, Learning]:
        networks, rate = [self.network.policy.init(key)], None if self.settings.learning_rate is None else 1.0
        (params,), (optimizer,) = init_optimizers(self.optimizer(rate), networks)
        zero, acting, false, moments = jnp.int32(0), self.collecting.init(), jnp.array(False), self.collecting.moments()
        learning = Learning(params, optimizer, self.layout.empty(), false, zero, zero, {}, moments)

        def learned(learning: Learning) -> Learning:
            one = self.collecting.collector(self.layout.num_envs)
            full = acting._replace(collectors=(one,) * self.layout.num_groups)
            return self.update(full, self.prepare(full, learning, key, zero), zero, zero)

        return acting, learning._replace(metrics=metrics.zeros(jax.eval_shape(learned, learning).metrics))

    def begin(self, acting: Acting, groups: tuple[EnvGroup, ...]) -> Acting:
        return self.collecting.begin(acting, groups)

    def progress(self, start: Acting, acting: Acting, made: Made) -> Progress:
        lag, total = self.settings.lag, self.settings.rounds_per_iteration
        before, now = (max(int(x.round) - lag, 0) for x in (start, acting))  # the first round has nothing to learn
        return Progress(now - before, total, "rounds", rounds_left=lag + before + total - int(acting.round))

    def watched(self, learning: Learning) -> dict[str, ArrayTree]:
        return self.collecting.watched(learning)

    def row(self, acting: Acting, learning: Learning, timesteps: int) -> dict[str, Any]:
        return {"timesteps": timesteps} | self.collecting.row(acting, learning, self.rate(learning))

    def candidates(self, learning: Learning) -> list[ArrayTree]:
        return [self.collecting.variables(learning)]
