"""Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018, arXiv 1802.09477), on pipelined environments.

`act` explores and adds to a replay; `work` makes the updates of a beat while simulators step. Several learners in one
program make their updates together, when each of them has enough timesteps.

    env = vx.envs.mujoco("HalfCheetah", num_envs=4, groups=2)
    networks = vx.networks.ActorAndCritic.mlp(env.spec.num_outputs)
    algorithm = vx.learn(vx.TD3(), networks, env)
"""

import dataclasses
import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from volvox._checks import integers, number, numbers
from volvox.data import metrics, normalization, replay
from volvox.data.metrics import Metrics
from volvox.data.normalization import Moments, Normalized, Rewards
from volvox.data.replay import Batch, Replay
from volvox.learners.learner import Learner, Optimizer, Schedule, Turn, apply_gradient, make_optimizer, with_metrics
from volvox.learners.training import LearnState, networks_and_masks, pick
from volvox.networks.perceptrons import ActorAndCritic, Params, actor_and_critics
from volvox.ops.batching import min_over_rows
from volvox.sparsity.masks import is_sparse, pruned, table
from volvox.sparsity.optimizers import init_optimizers
from volvox.types import Array, ArrayTree, Axis, Env, TimeStep, replaced, zeros

_LEARNING = 2**31
"""Folded into the key for learning. For actions, an int32 count is folded in."""
_MOST_CREDIT = 2**30
"""Largest credit that timesteps can build up before updates are made for them; far below the largest int32."""
_OPEN = float(np.nextafter(np.float32(-1), np.float32(0)))
"""The smallest number with a finite normal quantile."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TD3:
    """Settings of TD3, with the defaults of its reference implementations.

    Attributes:
      learning_rate: Learning rate. None: `optimizer` is ready-made.
      optimizer: A function of the learning rate, such as `optax.adam`, or a ready-made `optax.GradientTransformation`.
        With `volvox.sparsity.sparse` actor, critics and targets are sparse, and rows have their `compression`.
      batch_size: Transitions of an update; a multiple of the number of groups.
      discount: Discount γ of a timestep.
      target_rate: Share τ by which targets move towards the parameters that they follow, at each of their updates.
      exploration_noise: Standard deviation of the noise on actions in [-1, 1].
      target_noise: Standard deviation of the noise on target actions.
      target_noise_clip: Largest absolute value of that noise.
      policy_delay: Updates of the critics for each update of the actor and the targets.
      random_timesteps: Timesteps with uniformly random actions at the beginning, before anything is learned.
      replay_size: Timesteps that the replay holds, rounded down to whole rows of the environments.
      updates_per_timestep: Updates for each timestep that does not begin an episode. Multiplied by the number of
        environments in a group it must be a whole number.
      n_step: Timesteps n of n-step targets.
      normalize_observations: Whether observations are normalised to mean 0 and variance 1, by running moments.
      normalize_rewards: Whether rewards are divided by the standard deviation of discounted returns, when learned from.
      timesteps_per_iteration: Timesteps in one iteration, and so in one row of metrics; the iteration ends at the first
        multiple of it or some timesteps later.
      save_replay: Whether checkpoints hold the replay. Without it, a resumed run gathers `random_timesteps` anew before
        it learns again.

    Raises:
      ValueError: a setting is out of range, or two contradict each other.
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
    traced = ("learning_rate", "discount", "target_rate", "exploration_noise", "target_noise", "target_noise_clip")

    def __post_init__(self):
        integers(self, "batch_size", "policy_delay", "replay_size", "n_step", "timesteps_per_iteration", low=1)
        integers(self, "random_timesteps", low=0)
        numbers(self, "discount", "target_rate", low=0, high=1)
        numbers(self, "exploration_noise", "target_noise", "target_noise_clip", low=0)
        if self.learning_rate is not None:
            number("learning_rate", self.learning_rate, above=0)
        make_optimizer(self.optimizer, self.learning_rate)

    def schedule(self, env: Env) -> Schedule:
        """Returns the schedule: rounds of one beat."""
        return Schedule(timesteps_per_iteration=self.timesteps_per_iteration)

    def bind(self, network: ActorAndCritic, env: Env) -> "_TD3":
        """Returns the learner; raises ValueError if networks or environment do not fit the settings."""
        return _TD3(self, network, env)


class Collected(NamedTuple):
    """Data that acting collects.

    Attributes:
      credit: int32: A timestep adds the numerator of `_TD3.ratio`, an update subtracts the denominator. While it is
        negative, actions are random. Unlike a count of all timesteps, it cannot overflow.
      replays: Replay of each group.
      moments: Moments of the observations; they remain 0 unless observations are normalised.
      rewards: Scale of the rewards; () unless they are normalised.
    """

    credit: Array
    replays: tuple[Replay, ...]
    moments: Moments
    rewards: Rewards | tuple[()]


class Learning(NamedTuple):
    """State of learning.

    Attributes:
      params: Parameters of actor, critics and representation.
      targets: Parameters of the targets; the representation has none.
      optimizer: States of the optimiser, one for each part of `params`.
      update: int32: Number of updates.
      metrics: Metrics of this iteration.
    """

    params: Params
    targets: Params
    optimizer: Params
    update: Array
    metrics: Metrics


class _TD3(Learner):
    def __init__(self, settings: TD3, network: ActorAndCritic, env: Env):
        self.settings, self.env, self.networks, s = settings, env, actor_and_critics(network, env.spec), settings
        devices, self.num_envs = env.axis.size, env.num_envs // env.num_groups
        if s.batch_size % (groups := env.num_groups * devices):
            raise ValueError(f"batch_size={s.batch_size} must be a multiple of the number of groups, {groups}.")
        if network.representation is not None and s.n_step != 1:
            raise ValueError(f"n_step={s.n_step}: a representation predicts one timestep ahead; give 1.")
        width = self.num_envs * devices
        updates = s.updates_per_timestep * width
        if not (np.isfinite(updates) and round(updates) >= 1 and abs(updates - round(updates)) < 1e-6):
            raise ValueError(
                f"updates_per_timestep={s.updates_per_timestep} makes {updates:g} updates when the {width} "
                "environments of a group step; give a value that makes a whole number of at least 1."
            )
        self.num_updates = round(updates)  # in one beat of a group in which no episode begins
        self.ratio = Fraction(self.num_updates, width)  # updates for each timestep of any environment
        self.num_rows = replay.num_rows(s.replay_size, env.all_envs, s.batch_size, s.n_step)
        self.policy = self.networks.policy(self.init_policy, self.choose)
        self.optimizer = make_optimizer(s.optimizer, s.learning_rate)

    def init_policy(self, key: Array) -> Normalized:
        params = self.networks.init(key)._replace(critics=())
        return Normalized(params, normalization.init(self.env.spec.observation))

    def init(self, key: Array) -> tuple[Collected, Learning]:
        s, env, key = self.settings, self.env, jax.random.fold_in(key, 0)
        params, optimizer = init_optimizers(self.optimizer, self.networks.init(key))
        params, optimizer = Params(*params), Params(*optimizer)
        credit = jnp.int32(-s.random_timesteps * self.ratio.numerator)
        replays = tuple(replay.init(self.num_rows, self.num_envs, env.spec) for _ in range(env.num_groups))
        rewards: Any = normalization.init_rewards(env.num_groups, self.num_envs) if s.normalize_rewards else ()
        collected = Collected(credit, replays, normalization.init(env.spec.observation), rewards)
        learning = Learning(params, params._replace(representation=()), optimizer, jnp.int32(0), {})

        def update(learning: Learning) -> Learning:
            batch = jax.tree.map(lambda x: x[0], self.sample(key, collected))
            return self.update(learning, batch, batch.action, jnp.float32(0))

        return collected, with_metrics(learning, update)

    def critic_loss(self, critics, params: Params, targets: Params, batch: Batch, noise: Array):
        """Returns the squared errors of the critics, by clipped double Q-learning and smoothed targets."""
        net, clip = self.networks, self.settings.target_noise_clip
        noise = jnp.clip(self.settings.target_noise * noise, -clip, clip)
        next_action = jnp.clip(net.act(targets.actor, batch.next_observation) + noise, -1.0, 1.0)
        encoded = net.encode_action(params.representation, batch.next_observation, next_action)
        first, second = (net.value(critic, encoded, next_action) for critic in targets.critics)
        target = batch.reward + batch.discount * jnp.minimum(first, second)
        encoded = net.encode_action(params.representation, batch.observation, batch.action)
        first, second = (net.value(critic, encoded, batch.action) for critic in critics)
        loss = metrics.mean((first - target) ** 2 + (second - target) ** 2, batch.valid)
        return loss, {"critic_loss": loss, "value": metrics.mean(first, batch.valid)}

    def actor_loss(self, actor, params: Params, batch: Batch):
        """Returns minus the first critic's value of the actor's actions."""
        action = self.networks.act(actor, batch.observation)
        encoded = self.networks.encode_action(params.representation, batch.observation, action)
        loss = -metrics.mean(self.networks.value(params.critics[0], encoded, action), batch.valid)
        return loss, {"actor_loss": loss}

    def representation_loss(self, representation, batch: Batch):
        """Returns the squared error of the predictions of the representation."""
        predicted = self.networks.predict(representation, batch.observation, batch.action)
        loss = metrics.mean(((predicted - batch.next_observation) ** 2).mean(axis=-1), batch.valid)
        return loss, {"representation_loss": loss}

    def update(self, learning: Learning, batch: Batch, noise: Array, mean_return: Array) -> Learning:
        """Makes one update (algorithm 1) by transitions `[N, ...]`, with noise `[N, A]`."""
        s, step, valid = self.settings, learning.update + 1, batch.valid

        def descend(name: str, loss: Callable[..., Any], params: Params, optimizer: Params, *args: Any):
            """Updates one part of the parameters by the gradient of its loss."""
            part, state = getattr(params, name), getattr(optimizer, name)
            (_, new), gradient = jax.value_and_grad(loss, has_aux=True)(part, *args)
            gradient = _mean_over_devices(gradient, valid, self.env.axis)
            part, state = apply_gradient(self.optimizer, gradient, state, part, step, mean_return)
            return params._replace(**{name: part}), optimizer._replace(**{name: state}), metrics.means(new)

        params, optimizer, gathered = learning.params, learning.optimizer, learning.metrics
        if params.representation:
            # It is learned first and by itself. For actor and critics, its features replace observations.
            params, optimizer, new = descend("representation", self.representation_loss, params, optimizer, batch)
            gathered = metrics.add(gathered, new)
        batch = batch.map_observations(functools.partial(self.networks.encode_observation, params.representation))

        given = (params, learning.targets, batch, noise)
        params, optimizer, new = descend("critics", self.critic_loss, params, optimizer, *given)
        # Targets are pruned at once, because they are used before they move again.
        targets = learning.targets._replace(critics=_pruned(learning.targets.critics, optimizer.critics))
        gathered = metrics.add(gathered, new)

        def update_actor(params: Params, targets: Params, optimizer: Params):
            params, optimizer, new = descend("actor", self.actor_loss, params, optimizer, params, batch)
            moved: Any = optax.incremental_update(params._replace(representation=()), targets, s.target_rate)
            return (params, moved._replace(actor=_pruned(moved.actor, optimizer.actor)), optimizer), new

        def skip(*state: Params):
            return state, zeros(jax.eval_shape(update_actor, *state)[1])

        due = min_over_rows(step) % s.policy_delay == 0
        (params, targets, optimizer), new = jax.lax.cond(due, update_actor, skip, params, targets, optimizer)
        return Learning(params, targets, optimizer, step, metrics.add(gathered, new))

    def act(
        self, collected: Collected, learning: Learning, keys: Array, turn: Turn, timestep: TimeStep
    ) -> tuple[Collected, Array]:
        """Acts at random at first, then by the actor with noise, and adds the timestep to the replay."""
        s, g, rewards, observation = self.settings, turn.group, collected.rewards, timestep.observation
        if s.normalize_observations:
            moments = normalization.update(collected.moments, observation, self.env.axis)
            collected = collected._replace(moments=moments)
        chosen = self.choose(self.variables(collected, learning), observation)
        # One draw for both kinds: making random numbers takes a loop each time.
        draw = functools.partial(jax.random.uniform, shape=chosen.shape[1:], minval=_OPEN, maxval=1.0)
        drawn = jax.vmap(draw)(keys)
        noise = s.exploration_noise * (2**0.5 * jax.lax.erf_inv(drawn))
        action = jnp.where(collected.credit < 0, drawn, jnp.clip(chosen + noise, -1.0, 1.0))
        if isinstance(rewards, Rewards):
            rewards = normalization.update_rewards(rewards, g, timestep, s.discount, self.env.axis)
        rows = replaced(collected.replays, g, replay.add(collected.replays[g], timestep, action))
        return collected._replace(replays=rows, rewards=rewards), self.networks.scale(action)

    def choose(self, variables: Normalized, observation: ArrayTree) -> Array:
        """Returns actions `[B, A]` in [-1, 1] of the actor."""
        params, normalized = variables.params, normalization.normalize(variables.moments, observation)
        return self.networks.act(params.actor, self.networks.encode_observation(params.representation, normalized))

    def work(self, collected: Collected, learning: Learning, key: Array, turn: Turn) -> tuple[Collected, Learning]:
        """Makes the updates that are due for the timesteps so far, after the group has added its own."""
        s, axis, newest = self.settings, self.env.axis, replay.latest(collected.replays[turn.group])
        added = axis.sum((~newest.first).sum(dtype=jnp.int32)) * self.ratio.numerator
        credit = jnp.minimum(collected.credit + added, _MOST_CREDIT)
        # A resumed run may have to fill its replay anew.
        filled = replay.filled(collected.replays, s.random_timesteps // axis.size, s.n_step)

        # Drawn for all updates of the beat at once.
        key = functools.reduce(jax.random.fold_in, (_LEARNING, learning.update, axis.number()), key)
        noise_key, sample_key = jax.random.split(key)
        batches = self.sample(sample_key, collected)
        noise = jax.random.normal(noise_key, batches.action.shape)

        def one(i: Array, learning: Learning) -> Learning:
            batch, drawn = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), (batches, noise))
            return self.update(learning, batch, drawn, turn.mean_return)

        due = min_over_rows(jnp.where(filled, jnp.clip(credit // self.ratio.denominator, 0, self.num_updates), 0))
        # A trip count, not a condition, so that the state of learning stays in place.
        learning = jax.lax.fori_loop(0, due, one, learning)
        return collected._replace(credit=credit - due * self.ratio.denominator), learning

    def sample(self, key: Array, collected: Collected) -> Batch:
        """Returns this device's share of the batches of a beat's updates, normalised, leaves `[U, N, ...]`."""
        s, sizes = self.settings, (self.settings.batch_size // self.env.axis.size, self.num_updates)
        batches = replay.sample_batches(key, collected.replays, *sizes, discount=s.discount, n_step=s.n_step)
        batches = batches.map_observations(functools.partial(normalization.normalize, collected.moments))
        if not isinstance(collected.rewards, Rewards):
            return batches
        return batches._replace(reward=batches.reward * normalization.reward_scale(collected.rewards))

    def variables(self, collected: Collected, learning: Learning) -> Normalized:
        return Normalized(learning.params._replace(critics=()), collected.moments)


def _mean_over_devices(gradient: ArrayTree, valid: Array, axis: Axis) -> ArrayTree:
    """Returns the gradient of the mean loss over the valid transitions of all devices.

    `gradient` is that of the mean over the transitions of this device that are `valid`, `[N]`.
    """
    if axis.name is None:
        return gradient
    count = valid.sum(dtype=jnp.float32)
    share = count / jnp.maximum(axis.sum(count), 1.0)
    return axis.sum(jax.tree.map(lambda g: share.astype(g.dtype) * g, gradient))


def _pruned(params: ArrayTree, optimizer: ArrayTree) -> ArrayTree:
    """Returns the parameters, 0 where a sparse optimiser masks them."""
    return pruned(params, optimizer) if is_sparse(optimizer) else params


def table_of(state: LearnState, learner: int = 0) -> list[dict[str, Any]]:
    """Returns the stored numbers of one learner's networks by layer, as `volvox.sparsity.table`."""
    networks = networks_and_masks(state.learning)
    return table(*(pick(networks, learner) if state.key.ndim else networks))
