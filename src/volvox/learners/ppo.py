"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347), learning while emulators step.

In each round every group collects a segment, which is learned from in epochs of shuffled minibatches. With `lag` 1
these updates are spread evenly over the next round, in which the latest parameters act. Data are then on average half a
round of updates older than in the textbook; `lag_mean` measures it. Ratios are exact, since each timestep keeps the
probability with which its action was drawn. With `lag` 0, almost the textbook's form, all updates are made in the last
beat of the round, which completes the segments. Only the first timestep of the next segments, in this beat, is older.

    env = vx.envs.mujoco("HalfCheetah-v4", num_envs=1)
    algorithm = vx.learn(vx.PPO.mujoco(), vx.networks.GaussianMLP(6), env)  # or vx.PPO.atari(), or vx.PPO()
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

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
from volvox.types import Array, ArrayTree, Env, zeros

_SHUFFLES = 2**31
"""Folded into the key for shuffles. For actions, an int32 count is folded in."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPO:
    """Settings of proximal policy optimisation.

    Default values are those of CleanRL's ppo.py, but as in Stable-Baselines3 the learning rate is constant, values are
    not clipped, a round has ten epochs, and with 8 environments a minibatch has 64 timesteps. `atari` lists other
    differences.

    Attributes:
      segment_length: Timesteps T of a segment; all groups collect one in each round.
      learning_rate: Learning rate: a number, or a schedule over updates. None: `optimizer` is ready-made.
      optimizer: A function of the learning rate, such as `optax.adam`, or a ready-made `optax.GradientTransformation`.
        With `volvox.sparsity.sparse` the network is sparse, and rows have its `compression`.
      anneal_timesteps: Timesteps of all environments over which the learning rate, a number, falls linearly to 0, round
        by round. Timesteps that begin an episode count, unlike in `max_timesteps` of `train`. None: it stays.
      max_gradient_norm: Largest global norm of a gradient; longer gradients are scaled down to it. None: no limit.
      num_epochs: Number of passes through the data of a round.
      num_minibatches: Minibatches of an epoch: of timesteps, or of whole environments where the policy is recurrent. A
        divisor of those of a group.
      clip: Largest change ε of the probability ratio that the objective rewards.
      value_clip: Largest change of a value since it was predicted that the loss rewards. It is absolute, so it needs
        `normalize_rewards` where returns are large. None: it is not clipped.
      kl_stop: Approximate KL divergence of an epoch's last minibatch above which no further epoch begins. None: all
        epochs run.
      normalize_advantages: Whether advantages have mean 0 and standard deviation 1 in each minibatch.
      discount: Discount γ of a timestep.
      trace_decay: Trace decay λ of the advantages.
      entropy_coefficient: Weight of the policy's entropy.
      value_coefficient: Weight of half the squared error of values.
      reward_bound: Rewards are clipped to ± this number before they are learned from. None: they are not clipped.
      episodic_life: Whether losing a life ends the episode in returns and advantages. Scores are always of whole games.
      normalize_observations: Whether observations are normalised to mean 0 and variance 1, by running moments.
      normalize_rewards: Whether rewards are divided by the standard deviation of discounted returns before clipping.
      lag: Rounds over which the updates by a round's data are spread, 0 or 1; metrics give the lag in updates.
      micro_batch: Timesteps of each group (with a recurrent policy, environments) in one gradient computation, a
        divisor of the group's timesteps (environments) in a minibatch. None: the whole minibatch; of images at most
        32 timesteps of all groups on a CPU and 8,192 elsewhere.
      rounds_per_iteration: Rounds in one iteration, and so in one row of metrics.

    Raises:
      ValueError: A setting is out of range, or two contradict each other.
    """

    segment_length: int = 128
    learning_rate: float | optax.Schedule | None = 2.5e-4
    optimizer: Optimizer = functools.partial(optax.adam, eps=1e-5)  # noqa: RUF009  # a constant
    anneal_timesteps: int | None = None
    max_gradient_norm: float | None = 0.5
    num_epochs: int = 10
    num_minibatches: int = 16
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
    lag: int = 0
    micro_batch: int | None = None
    rounds_per_iteration: int = 10
    traced = (*ON_POLICY_TRACED, "entropy_coefficient", "value_coefficient", "clip", "value_clip", "kl_stop")

    def __post_init__(self):
        check_epochs(self)
        numbers(self, "entropy_coefficient", "value_coefficient", low=0)
        numbers(self, "clip", "value_clip", "kl_stop", above=0)

    @classmethod
    def atari(cls) -> "PPO":
        """Returns the constants of CleanRL's ppo_atari_envpool.py, for 8 environments and 10 million timesteps.

        Five things differ: `lag` is 1, a time limit bootstraps, timesteps whose action the emulator discards are left
        out, a minibatch has as many timesteps of each group, and a lost life changes nothing in the game. (There
        the emulator plays no-ops and FIRE after each lost life, as with `vx.envs.atari(..., episodic_life=True)`.)
        Longer runs need a larger `anneal_timesteps`.
        """
        clips: Any = {"clip": 0.1, "value_clip": 0.1, "reward_bound": 1.0}
        return cls(
            **clips,
            lag=1,
            num_epochs=4,
            num_minibatches=4,
            anneal_timesteps=10_000_000,
            episodic_life=True,
            rounds_per_iteration=5,
        )

    @classmethod
    def mujoco(cls) -> "PPO":
        """Returns the constants of CleanRL's ppo_continuous_action.py, for 1 environment and 1 million timesteps.

        Two things differ: a time limit bootstraps, and the reward that ends an episode is added to the discounted
        return by which rewards are scaled (`volvox.data.normalization`).
        """
        sizes = {"segment_length": 2_048, "num_epochs": 10, "num_minibatches": 32, "rounds_per_iteration": 5}
        rates = {"learning_rate": 3e-4, "anneal_timesteps": 1_000_000, "entropy_coefficient": 0.0}
        scales = {"normalize_observations": True, "normalize_rewards": True, "reward_bound": 10.0, "value_clip": 0.2}
        return cls(**sizes, **rates, **scales)

    def schedule(self, env: Env) -> Schedule:
        """Returns the schedule: a beat for each timestep of a segment."""
        return epochs_schedule(self)

    def bind(self, network: nn.Module, env: Env) -> "_PPO":
        """Returns the learner of a module with two outputs; raises ValueError if module or environment do not fit."""
        return _PPO(self, network, env)


def check_epochs(settings: Any) -> None:
    """Checks the settings of `Epochs`."""
    check_settings(settings)
    integers(settings, "num_epochs", "num_minibatches", "rounds_per_iteration", low=1)
    integers(settings, "lag", low=0, high=1)


def epochs_schedule(settings: Any) -> Schedule:
    """Returns the schedule of `Epochs`: a beat for each timestep of a segment."""
    rounds = settings.rounds_per_iteration
    return Schedule(settings.segment_length, rounds_per_iteration=rounds, delay=settings.lag)


def current_rate(settings: Any, env: Env, learning: "EpochsLearning") -> Any:
    """Returns the learning rate of the updates of a round; None for a ready-made optimizer."""
    rate: Any = settings.learning_rate
    if settings.anneal_timesteps is None:
        return rate(learning.update) if callable(rate) else rate
    num_rounds = settings.anneal_timesteps / (env.all_envs * settings.segment_length)
    return rate * jnp.clip(1 - (learning.round - 1) / num_rounds, 0.0, 1.0)


class Minibatches(NamedTuple):
    """The segments of a round in the order of learning: the J minibatches of all epochs.

    A minibatch has n rows of each of G groups. A row is a timestep (L is 1), or a whole segment of an environment if
    the policy is recurrent (L is T). Every epoch has each row once.

    Attributes:
      rows: int32 `[J, G, n]`.
      advantage: float32 `[J, G, L, n]`.
      target: float32 `[J, G, L, n]`: Value target.
      num_valid: float32 `[J]`: Valid timesteps on all devices.
    """

    rows: Array
    advantage: Array
    target: Array
    num_valid: Array


class EpochsLearning(NamedTuple):
    """State of learning.

    Attributes:
      params: Parameters of the network.
      optimizer: State of the optimiser.
      batch: The round that is learned from.
      stopped: bool: `kl_stop` has ended the epochs of that round.
      round: int32: Rounds learned from, including this one.
      update: int32: Number of updates.
      metrics: Metrics of this iteration.
    """

    params: ArrayTree
    optimizer: ArrayTree
    batch: Minibatches
    stopped: Array
    round: Array
    update: Array
    metrics: Metrics


class Epochs(OnPolicy):
    """A learner that learns from the segments of a round in epochs of shuffled minibatches.

    Subclasses define `loss`, and `stops` if epochs may end early. Settings have the fields that `check_epochs` checks.

    Attributes:
      stops_early: Whether `stops` may end the epochs of a round.
    """

    stops_early = False

    def __init__(self, settings: Any, network: nn.Module, env: Env):
        super().__init__(settings, network, env)
        length = settings.segment_length
        self.recurrent = bool(jax.tree.leaves(jax.eval_shape(lambda: self.network.policy.initial_state(1))))
        self.num_rows = self.num_envs if self.recurrent else self.num_envs * length
        if self.num_rows % settings.num_minibatches:
            kind = "environments (the policy is recurrent)" if self.recurrent else "timesteps"
            raise ValueError(
                f"num_minibatches={settings.num_minibatches} does not divide the {self.num_rows} {kind} of a group; "
                "give a divisor."
            )
        rows, micro_batch = self.num_rows // settings.num_minibatches, settings.micro_batch
        if micro_batch is None and all(len(x.shape) < 3 for x in jax.tree.leaves(env.spec.observation)):
            micro_batch = rows  # only images are too large for a CPU's cache
        self.micro_batch = micro_batch_size(micro_batch, rows, (length if self.recurrent else 1) * env.num_groups)
        self.num_micro_batches = rows // self.micro_batch
        self.num_updates = settings.num_epochs * settings.num_minibatches  # of a round
        low, high = self.updates_due(np.arange(length)[:, None], np.arange(env.num_groups))
        self.due = low < high

    def init(self, key: Array) -> tuple[OnPolicyData, EpochsLearning]:
        """Returns (collected, learning) at the beginning of a run."""
        s, zero, collected = self.settings, jnp.int32(0), self.init_collected()
        rate = s.learning_rate(zero) if callable(s.learning_rate) else s.learning_rate
        (params,), (optimizer,) = init_optimizers(self.optimizer(rate), [self.network.policy.init(key)])
        numbers = jnp.zeros((self.env.num_groups, s.segment_length, self.num_envs), jnp.float32)
        batch = zeros(jax.eval_shape(self.shuffle, key, numbers, numbers, numbers > 0))
        learning = EpochsLearning(params, optimizer, batch, jnp.array(False), zero, zero, {})
        turn = Turn(0, zero, zero, jnp.float32(0))
        update = lambda x: self.update(collected, self.prepare(collected, x, key, zero), turn, zero, zero)  # noqa: E731
        return collected, with_metrics(learning, update)

    def prepare(self, collected: OnPolicyData, learning: EpochsLearning, key: Array, slot: Array) -> EpochsLearning:
        """Computes returns and advantages (equation 11) of the segments at `slot`, and shuffles them for all epochs."""
        s, axis = self.settings, self.env.axis
        parts = [segments.take(data.ring, slot, jnp.int32(0), self.num_envs) for data in collected.collectors]
        part: Segment = jax.tree.map(lambda *x: jnp.stack(x), *parts)  # [G, T, B, ...]
        v_t = jnp.concatenate([part.value[:, 1:], part.bootstrap[:, None]], axis=1)
        discount_t, lambda_t = s.discount * (1.0 - part.terminated), s.trace_decay * (1.0 - part.truncated)
        target = jax.vmap(jax.vmap(lambda_returns, 1, 1))(part.reward, discount_t, v_t, lambda_t)
        advantage = target - part.value
        key = jax.random.fold_in(jax.random.fold_in(key, _SHUFFLES), learning.round)
        batch = self.shuffle(key, target, advantage, part.valid)
        spread, left = (metrics.variance(x, part.valid, axis) for x in (target, advantage))
        new = metrics.means({"explained_variance": jnp.where(spread > 0, 1 - left / spread, 0.0)})
        learning = learning._replace(batch=batch, stopped=jnp.array(False), round=learning.round + 1)
        return learning._replace(metrics=metrics.add(learning.metrics, new))

    def shuffle(self, key: Array, target: Array, advantage: Array, valid: Array) -> Minibatches:
        """Shuffles the rows of `[G, T, B]` anew for every epoch."""
        s, axis, groups = self.settings, self.env.axis, self.env.num_groups
        numbers = axis.number() * groups + jnp.arange(groups)
        keys = jax.vmap(lambda g: jax.random.split(jax.random.fold_in(key, g), s.num_epochs))(numbers)
        order = jax.vmap(jax.vmap(lambda key: permutation(key, self.num_rows)))(keys)
        rows = order.reshape(groups, -1, self.num_rows // s.num_minibatches).swapaxes(0, 1)  # [J, G, n]

        def ordered(x: Array) -> Array:
            x = x if self.recurrent else x.reshape(groups, 1, -1)
            each_group = jax.vmap(lambda x, rows: x[:, rows])
            return jax.vmap(each_group, (None, 0))(x, rows)

        target, advantage, held = map(ordered, (target, advantage, valid))
        count = axis.sum(jnp.ones_like(advantage).sum((1, 2, 3), where=held, keepdims=True))
        advantage = self.normalized(advantage, held, count)
        return Minibatches(rows, advantage, target, count.ravel())

    def take(
        self, collected: OnPolicyData, slot: Array, batch: Minibatches, j: Array, k: Array
    ) -> tuple[Segment, Array, Array]:
        """Returns (segment, advantages, targets) `[L, N, ...]` of micro-batch `k` of minibatch `j`, int32 scalars."""
        begin, size, length = k * self.micro_batch, self.micro_batch, self.settings.segment_length
        rows, advantage, target = (jax.lax.dynamic_slice_in_dim(x[j], begin, size, axis=-1) for x in batch[:3])
        parts = []
        for data, row in zip(collected.collectors, rows, strict=True):
            t, b = (jnp.arange(length)[:, None], row) if self.recurrent else jnp.divmod(row, self.num_envs)
            parts.append(segments.gather(data.ring, slot, t, b[None])._replace(bootstrap=()))
        recurrent = jax.tree.map(lambda *x: jnp.concatenate(x), *(part.recurrent for part in parts))
        parts = [part._replace(recurrent=()) for part in parts]
        segment: Segment = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *parts)
        advantage, target = (x.swapaxes(0, 1).reshape(x.shape[1], -1) for x in (advantage, target))
        return segment._replace(recurrent=recurrent), advantage, target

    def loss(
        self, params: ArrayTree, segment: Segment, advantage: Array, target: Array, num_valid: Array, update: Array
    ) -> tuple[Array, Metrics]:
        """Returns the share of a micro-batch `[L, N, ...]` in the loss of a minibatch, and metrics.

        `advantage` `[L, N]` is as `normalized` returns it, and `target` `[L, N]` are λ-returns. The minibatch has
        `num_valid` valid timesteps on all devices; `update` updates have been made.
        """
        raise NotImplementedError

    def normalized(self, advantage: Array, valid: Array, count: Array) -> Array:
        """Returns advantages `[J, G, L, n]` as the loss takes them; a minibatch has `count` valid ones."""
        return advantage

    def stops(self, new: Metrics) -> Array:
        """Returns whether no further epoch begins, given the metrics of a minibatch of this device."""
        raise NotImplementedError

    def gradient(
        self, collected: OnPolicyData, learning: EpochsLearning, slot: Array, j: Array
    ) -> tuple[ArrayTree, Metrics]:
        """Returns the gradient of minibatch `j`, the sum over its micro-batches, and metrics of this device."""
        batch, loss = learning.batch, jax.value_and_grad(self.loss, has_aux=True)

        def part(k: Array) -> tuple[ArrayTree, Metrics]:
            taken = self.take(collected, slot, batch, j, k)
            (_, new), gradient = loss(learning.params, *taken, batch.num_valid[j], learning.update)
            return gradient, new

        def add(k: Array, old: tuple[ArrayTree, Metrics]) -> tuple[ArrayTree, Metrics]:
            gradient, new = part(k)
            return jax.tree.map(jnp.add, old[0], gradient), metrics.add(old[1], new)

        if self.num_micro_batches == 1:
            gradient, new = part(jnp.int32(0))
        else:
            nothing = zeros(jax.eval_shape(part, jnp.int32(0)))
            gradient, new = jax.lax.fori_loop(0, self.num_micro_batches, add, nothing)
        return self.env.axis.sum(gradient), new

    def update(
        self, collected: OnPolicyData, learning: EpochsLearning, turn: Turn, slot: Array, j: Array
    ) -> EpochsLearning:
        """Makes one update by minibatch `j` of the round."""
        s, rate, step = self.settings, current_rate(self.settings, self.env, learning), learning.update + 1
        gradient, new = self.gradient(collected, learning, slot, j)
        further = {"learning_rate": rate, "step": step, "mean_return": turn.mean_return}
        params, state = apply_gradient(self.optimizer(rate), gradient, learning.optimizer, learning.params, **further)
        stopped = self.stops(new) & ((j + 1) % s.num_minibatches == 0) if self.stops_early else jnp.array(False)
        learning = learning._replace(params=params, optimizer=state, stopped=stopped, update=step)
        new |= metrics.means({"gradient_norm": optax.tree.norm(gradient)})
        if s.anneal_timesteps is not None or callable(s.learning_rate):
            new |= metrics.means({"learning_rate": jnp.asarray(rate, jnp.float32)})
        return learning._replace(metrics=metrics.add(learning.metrics, new))

    def optimizer(self, rate: Any) -> optax.GradientTransformationExtraArgs:
        """Returns the optimiser with a learning rate."""
        return clipped(make_optimizer(self.settings.optimizer, rate), self.settings.max_gradient_norm)

    def work(
        self, collected: OnPolicyData, learning: EpochsLearning, key: Array, turn: Turn
    ) -> tuple[OnPolicyData, EpochsLearning]:
        """Makes the updates that are due in this turn."""
        return collected, self.learn(collected, learning, key, turn, *self.updates_due(turn.beat, turn.group))

    def updates_due(self, beat: Any, group: Any) -> tuple[Any, Any]:
        """Returns (first, end) of the updates that are made in a turn.

        With lag 0 all are due in the last turn of the round, which completes its segments. With lag 1 those of the
        round before are complete when the last group has acted in beat 0, and the updates are spread evenly from there.
        """
        groups, length = self.env.num_groups, self.settings.segment_length
        first = 0 if self.settings.lag else length - 1
        number = (beat - first) * groups + group - (groups - 1)
        count = (length - 1 - first) * groups + 1
        low, high = (-(-self.num_updates * (number + i).clip(0, count) // count) for i in (0, 1))
        return low, high

    def learn(
        self, collected: OnPolicyData, learning: EpochsLearning, key: Array, turn: Turn, low: Array, high: Array
    ) -> EpochsLearning:
        """Makes updates `low` to `high` of the segments that are due, unless their round is stopped."""
        slot, has_data = self.slot(turn), turn.round >= self.settings.lag

        def prepare(i: Array, learning: EpochsLearning) -> EpochsLearning:
            # If nothing depended on `i`, XLA would compute this before the loop, in every beat.
            return self.prepare(collected, learning, key, slot + jnp.minimum(i, 0))

        def due(x: tuple[Array, EpochsLearning]) -> Array:
            # Without early stops it does not depend on the state, so that under `vmap` it stays one loop.
            return (x[0] < high) & has_data & (~x[1].stopped if self.stops_early else True)

        # Loops, not conditions, so that the state of learning stays in place.
        begins = (has_data & (low == 0) & (high > 0)).astype(jnp.int32)
        first = (low, jax.lax.fori_loop(0, begins, prepare, learning))
        return jax.lax.while_loop(due, lambda x: (x[0] + 1, self.update(collected, x[1], turn, slot, x[0])), first)[1]


def permutation(key: Array, size: int) -> Array:
    """Returns `jax.random.permutation(key, size)`, the same numbers; XLA's CPU sorts them four times as fast.

    JAX sorts pairs of random bits and numbers. Here, each pair is one integer of 64 bits.
    """
    order = jnp.arange(size, dtype=jnp.int32)
    for _ in range(math.ceil(3 * math.log(size) / math.log(2**32 - 1))):
        key, subkey = jax.random.split(key)
        bits = jax.random.bits(subkey, (size,), jnp.uint32)
        with jax.enable_x64(True):
            pairs = (bits.astype(jnp.uint64) << 32) | jnp.arange(size, dtype=jnp.uint64)
            places = jnp.sort(pairs).astype(jnp.uint32)
        order = order[places]
    return order


class _PPO(Epochs):
    settings: PPO

    def __init__(self, settings: PPO, network: nn.Module, env: Env):
        super().__init__(settings, network, env)
        self.stops_early = settings.kl_stop is not None

    def loss(
        self, params: ArrayTree, segment: Segment, advantage: Array, target: Array, num_valid: Array, update: Array
    ) -> tuple[Array, Metrics]:
        """Returns the share of a micro-batch in the loss of a minibatch with `num_valid` timesteps, and metrics.

        The loss is the mean of `-min(ρ A, clip(ρ, 1 ± ε) A) + value_coefficient / 2 * (G - V)^2 - entropy_coefficient *
        H` (equations 7 and 9), where ρ is an action's probability over that with which it was drawn.
        """
        s, actions = self.settings, self.network.distribution
        output, value = self.network.unroll(params, segment.observation, segment.first, segment.recurrent)
        log_ratio = jnp.where(segment.valid, actions.log_prob(output, segment.action) - segment.log_prob, 0.0)
        ratio, error = jnp.exp(log_ratio), (value - target) ** 2
        if s.value_clip is not None:
            near = segment.value + jnp.clip(value - segment.value, -s.value_clip, s.value_clip)
            error = jnp.maximum(error, (near - target) ** 2)
        each = {
            "policy_loss": -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - s.clip, 1 + s.clip) * advantage),
            "value_loss": 0.5 * error,
            "entropy": actions.entropy(output),
            "approx_kl": ratio - 1 - log_ratio,
            "clip_fraction": (jnp.abs(ratio - 1) > s.clip).astype(jnp.float32),
        }
        sums, new = self.summed(each, segment, update)
        loss = sums["policy_loss"] + s.value_coefficient * sums["value_loss"] - s.entropy_coefficient * sums["entropy"]
        return loss / jnp.maximum(num_valid, 1.0), new

    def normalized(self, advantage: Array, valid: Array, count: Array) -> Array:
        """Returns advantages with mean 0 and the standard deviation of a sample 1, as PyTorch computes it."""
        axis, each = self.env.axis, {"axis": (1, 2, 3), "keepdims": True, "where": valid}
        if not self.settings.normalize_advantages:
            return advantage
        centered = advantage - axis.sum(advantage.sum(**each)) / jnp.maximum(count, 1)
        deviation = jnp.sqrt(axis.sum((centered**2).sum(**each)) / jnp.maximum(count - 1, 1))
        return centered / (deviation + 1e-8)

    def stops(self, new: Metrics) -> Array:
        """Returns whether the approximate KL divergence is above `kl_stop`."""
        kl: Any = self.env.axis.sum(new["approx_kl"])
        return kl.total > self.settings.kl_stop * kl.num
