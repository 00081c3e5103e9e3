"""Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018, arXiv 1802.09477), on pipelined environments.

`act` explores and adds to a replay, `work` makes the updates of a beat while simulators step. Several learners, with
seeds or settings of their own, learn side by side in one program, each from its share of the environments: arrays of
all learners have a leading axis S, and all counts in the settings are of each learner.

    env = vx.envs.mujoco("HalfCheetah", num_envs=4, groups=2)
    networks = vx.networks.ActorAndCritic(vx.networks.MLP(6, activation=nn.relu), vx.networks.QNetwork())
    algorithm = vx.learn(vx.TD3(), networks, env)
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from volvox._checks import Optimizer, gradient_transformation, group_size, integer, integers, numbers
from volvox.data import metrics, normalization, replay
from volvox.data.metrics import Episodes, Metrics, RunningEpisodes
from volvox.data.normalization import Moments, Rewards
from volvox.data.replay import Batch, Replay
from volvox.learners import side_by_side
from volvox.learners.learner import LearnState
from volvox.learners.protocol import Made, Progress, timesteps_progress
from volvox.learners.side_by_side import MOST_CREDIT, kept, over_devices, setting, update_ratio
from volvox.networks.perceptrons import ActorAndCritic, ActorAndCritics, Params, actor_and_critics
from volvox.sparsity import init_optimizers
from volvox.types import Array, ArrayTree, Env, EnvGroup, Policy, TimeStep, replaced

_LEARNING = 2**31  # folded into the key for learning; for actions their count is folded in, an int32
_OPEN = float(np.nextafter(np.float32(-1), np.float32(0)))  # the smallest number with a finite normal quantile


@dataclasses.dataclass(frozen=True, kw_only=True)
class TD3:
    """Settings of TD3; the defaults are those that reference implementations share.

    Attributes:
      num_learners: Number S of learners side by side.
      learning_rate: One number for all learners, or one for each. None: `optimizer` is ready-made.
      optimizer: A function of the learning rate, such as `optax.adam`, or a ready-made `optax.GradientTransformation`.
        With `volvox.sparsity.sparse` actor, critics and targets are sparse, and rows have their `compression`.
      batch_size: Transitions of an update; a multiple of the number of groups.
      discount: Discount γ of a timestep.
      target_rate: Share τ by which targets move towards the parameters that they follow, at each of their updates.
      exploration_noise: Standard deviation of the noise on actions in [-1, 1]; one number, or one for each learner.
      target_noise: Standard deviation of the noise on target actions; one number, or one for each learner.
      target_noise_clip: Largest absolute value of that noise.
      policy_delay: Updates of the critics for each update of the actor and the targets.
      random_timesteps: Timesteps with uniformly random actions at the beginning, before anything is learned.
      replay_size: Timesteps that the replay holds, rounded down to whole rows of the environments.
      updates_per_timestep: Updates for each timestep that does not begin an episode. Multiplied by the number of a
        learner's environments in a group it must be a whole number.
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

    num_learners: int = 1
    learning_rate: float | Sequence[float] | None = 3e-4
    optimizer: Optimizer = optax.adam
    batch_size: int = 256
    discount: float = 0.99
    target_rate: float = 0.005
    exploration_noise: float | Sequence[float] = 0.1
    target_noise: float | Sequence[float] = 0.2
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

    def __post_init__(self):
        integers(self, "num_learners", "batch_size", "policy_delay", "replay_size", low=1)
        integers(self, "n_step", "timesteps_per_iteration", low=1)
        integers(self, "random_timesteps", low=0)
        integer("random_timesteps of all learners", self.random_timesteps * self.num_learners, low=0)
        numbers(self, "discount", "target_rate", low=0, high=1)
        numbers(self, "target_noise_clip", low=0)
        rate = self.learning_rate
        if callable(rate):
            raise ValueError(f"learning_rate={rate!r}: give numbers; a schedule belongs in a ready-made optimizer.")
        gradient_transformation(self.optimizer, 1.0 if callable(self.optimizer) and rate is not None else rate)
        setting(self, "learning_rate", above=0.0)
        setting(self, "exploration_noise", low=0.0)
        setting(self, "target_noise", low=0.0)

    def bind(self, network: ActorAndCritic, env: Env) -> "_TD3":
        """Returns the learners; raises ValueError if networks or environment do not fit the settings."""
        networks = actor_and_critics(network, env.spec)
        group = group_size(env.num_envs, env.num_groups) * env.axis.size  # on all devices
        ratio = update_ratio(self, group, env.axis.size)
        if self.batch_size % (groups := env.num_groups * env.axis.size):
            raise ValueError(f"batch_size={self.batch_size} must be a multiple of the number of groups, {groups}.")
        if network.representation is not None and self.n_step != 1:
            raise ValueError(f"n_step={self.n_step}: a representation predicts one timestep ahead; take 1.")
        width = env.all_envs // self.num_learners
        return _TD3(
            settings=self,
            env=env,
            networks=networks,
            num_updates=int(ratio * group),
            ratio=ratio,
            num_rows=replay.num_rows(self.replay_size, width, batch_size=self.batch_size, n_step=self.n_step),
            unsaved=() if self.save_replay and env.axis.size == 1 else ("replays",),
        )


class Acting(NamedTuple):
    """What acting changes.

    Attributes:
      draws: int32: How often each environment drew an action; it makes the keys of the next, see `Env.keys`.
      timesteps: int32: Timesteps of all environments, without those that begin an episode.
      credit: int32: A timestep adds the numerator of `_TD3.ratio`, an update subtracts the denominator. While it is
        negative, actions are random. Unlike a count of all timesteps, it cannot overflow.
      episodes: Scores of the episodes that have ended, leaves `[S, ...]`.
      replays: One a group, of all its environments; those of a learner stand side by side.
      collectors: Episodes that have not ended, one a group, leaves `[S, B / S]`; () between pools.
      rewards: What rewards are scaled by, leaves `[S, ...]`; () unless they are normalised.
    """

    draws: Array
    timesteps: Array
    credit: Array
    episodes: Episodes
    replays: tuple[Replay, ...]
    collectors: tuple[RunningEpisodes, ...]
    rewards: Rewards | tuple[()] = ()


class Learning(NamedTuple):
    """What learning changes; leaves `[S, ...]` but for `update`.

    Attributes:
      params: Parameters of actor, critics and representation.
      targets: Parameters of the targets; the representation has none.
      optimizer: States of the optimizer, one for each part of `params`.
      moments: Moments of the observations; empty unless observations are normalised.
      update: int32: Updates made.
      metrics: Metrics of this iteration.
    """

    params: Params
    targets: Params
    optimizer: Params
    moments: Moments
    update: Array
    metrics: Metrics


class Variables(NamedTuple):
    """The variables of one learner's policy.

    Attributes:
      actor, representation: Parameters; () without a representation.
      moments: Moments of the observations.
    """

    actor: ArrayTree
    representation: ArrayTree
    moments: Moments


@dataclasses.dataclass(frozen=True, eq=False)
class _TD3:
    """The learners in an environment, see `protocol.Learner`: pure functions, in the order of the algorithm."""

    settings: TD3
    env: Env
    networks: ActorAndCritics
    num_updates: int  # updates in one beat of a group in which no episode begins
    ratio: Fraction  # updates for each timestep of any environment
    num_rows: int  # rows of a group's replay
    unsaved: tuple[str, ...]
    parallel: bool = True
    beats_per_round: int = 1
    timed_rounds: int = 20
    finish: None = None

    def critic_loss(self, critics, params: Params, targets: Params, batch: Batch, noise: Array, target_noise: Array):
        """Returns the squared errors of one learner's critics, by clipped double Q-learning and smoothed targets."""
        net, clip = self.networks, self.settings.target_noise_clip
        noise = jnp.clip(target_noise * noise, -clip, clip)
        next_action = jnp.clip(net.act(targets.actor, batch.next_observation) + noise, -1.0, 1.0)
        encoded = net.encode_action(params.representation, batch.next_observation, next_action)
        first, second = (net.value(critic, encoded, next_action) for critic in targets.critics)
        target = batch.reward + batch.discount * jnp.minimum(first, second)
        encoded = net.encode_action(params.representation, batch.observation, batch.action)
        first, second = (net.value(critic, encoded, batch.action) for critic in critics)
        loss = metrics.mean((first - target) ** 2 + (second - target) ** 2, batch.valid)
        return loss, {"critic_loss": loss, "value": metrics.mean(first, batch.valid)}

    def actor_loss(self, actor, params: Params, batch: Batch):
        """Returns minus the first critic's value of one learner's actions."""
        action = self.networks.act(actor, batch.observation)
        encoded = self.networks.encode_action(params.representation, batch.observation, action)
        loss = -metrics.mean(self.networks.value(params.critics[0], encoded, action), batch.valid)
        return loss, {"actor_loss": loss}

    def representation_loss(self, representation, batch: Batch):
        """Returns the squared error of the predictions of one learner's representation."""
        predicted = self.networks.predict(representation, batch.observation, batch.action)
        loss = metrics.mean(((predicted - batch.next_observation) ** 2).mean(axis=-1), batch.valid)
        return loss, {"representation_loss": loss}

    def update(self, learning: Learning, batch: Batch, noise: Array, mean_return: Array) -> Learning:
        """Makes one update (algorithm 1) by transitions `[S, N, ...]`, noise `[S, N, A]` and mean returns `[S]`."""
        s, step = self.settings, learning.update + 1
        descend = functools.partial(self.descend, step, mean_return, batch.valid)
        batch = batch.map_observations(functools.partial(jax.vmap(normalization.normalize), learning.moments))
        params, optimizer, gathered = learning.params, learning.optimizer, learning.metrics
        if params.representation:
            # It is learned first and by itself. For actor and critics its features take the place of observations.
            new, representation, state = descend(
                self.representation_loss, params.representation, optimizer.representation, batch
            )
            params, optimizer = params._replace(representation=representation), optimizer._replace(representation=state)
            gathered = metrics.add(gathered, new)
        batch = batch.map_observations(
            functools.partial(jax.vmap(self.networks.encode_observation), params.representation)
        )

        given = (params, learning.targets, batch, noise, setting(s, "target_noise"))
        new, critics, state = descend(self.critic_loss, params.critics, optimizer.critics, *given)
        params, optimizer = params._replace(critics=critics), optimizer._replace(critics=state)
        # Targets are pruned at once, because they are used before they move again.
        targets = learning.targets._replace(critics=kept(learning.targets.critics, optimizer.critics))
        gathered = metrics.add(gathered, new)

        def update_actor(params: Params, targets: Params, optimizer: Params):
            new, actor, state = descend(self.actor_loss, params.actor, optimizer.actor, params, batch)
            params, optimizer = params._replace(actor=actor), optimizer._replace(actor=state)
            moved: Any = optax.incremental_update(Params(actor, params.critics, ()), targets, s.target_rate)
            return (params, moved._replace(actor=kept(moved.actor, state)), optimizer), new

        def skip(*state: Params):
            return state, metrics.zeros(jax.eval_shape(update_actor, *state)[1])

        due = step % s.policy_delay == 0
        (params, targets, optimizer), new = jax.lax.cond(due, update_actor, skip, params, targets, optimizer)
        return Learning(params, targets, optimizer, learning.moments, step, metrics.add(gathered, new))

    def descend(self, step: Array, mean_return: Array, valid: Array, loss: Callable[..., Any], params, state, *args):
        """Updates each learner's parameters by the gradient of its loss; (metrics, params, optimizer's state)."""
        (_, new), gradient = jax.vmap(jax.value_and_grad(loss, has_aux=True))(params, *args)

        def one(gradient, state, params, rate, mean_return):
            updates, state = self.optimizer(rate).update(gradient, state, params, step=step, mean_return=mean_return)
            return optax.apply_updates(params, updates), state

        rate, gradient = setting(self.settings, "learning_rate"), over_devices(gradient, valid, self.env.axis)
        return metrics.means(new), *jax.vmap(one)(gradient, state, params, rate, mean_return)

    def optimizer(self, rate: Array) -> optax.GradientTransformationExtraArgs:
        return gradient_transformation(self.settings.optimizer, None if self.settings.learning_rate is None else rate)

    def act(self, acting: Acting, learning: Learning, key: Array, g: int, timestep: TimeStep) -> tuple[Acting, Array]:
        """Group `g` acts at random at first, then by its actors with noise, and adds the timestep to its replay."""
        s = self.settings
        scored = self.split(timestep._replace(observation=(), extras={}))
        episodes, running = jax.vmap(metrics.update_episodes)(acting.episodes, acting.collectors[g], scored)
        chosen = jax.vmap(self.choose)(_variables(learning), self.split(timestep.observation))
        # One draw for both kinds: making random numbers takes a loop each time.
        draw = functools.partial(jax.random.uniform, shape=chosen.shape[2:], minval=_OPEN, maxval=1.0)
        drawn = jax.vmap(draw)(self.env.keys(key, acting.draws, g)).reshape(chosen.shape)
        noise = setting(s, "exploration_noise")[:, None, None] * (2**0.5 * jax.lax.erf_inv(drawn))
        action = jnp.where(acting.credit < 0, drawn, jnp.clip(chosen + noise, -1.0, 1.0)).reshape(-1, chosen.shape[-1])
        rows = replay.add(acting.replays[g], timestep, action)
        acting = acting._replace(
            draws=acting.draws + (g == self.env.num_groups - 1),
            timesteps=acting.timesteps + (~timestep.first).sum(dtype=jnp.int32),
            episodes=episodes,
            replays=replaced(acting.replays, g, rows),
            collectors=replaced(acting.collectors, g, running),
            rewards=side_by_side.update_rewards(acting.rewards, g, scored, s.discount, self.env.axis),
        )
        return acting, self.networks.scale(action)

    def choose(self, variables: Variables, observation: ArrayTree) -> Array:
        """Returns actions `[B, A]` in [-1, 1] of one learner's actor."""
        seen = normalization.normalize(variables.moments, observation)
        return self.networks.act(variables.actor, self.networks.encode_observation(variables.representation, seen))

    def work(self, acting: Acting, learning: Learning, key: Array, g: int) -> tuple[Acting, Learning]:
        """Makes the updates that are due for the timesteps so far, after group `g` has added its own."""
        s, axis, newest = self.settings, self.env.axis, replay.latest(acting.replays[g])
        width = self.env.all_envs // s.num_learners
        if s.normalize_observations:
            update = jax.vmap(functools.partial(normalization.update, axis=axis))
            learning = learning._replace(moments=update(learning.moments, self.split(newest.observation)))
        added = axis.sum((~newest.first).sum(dtype=jnp.int32)) * self.ratio.numerator
        credit = jnp.minimum(acting.credit + added, MOST_CREDIT)
        # A resumed run may have to fill its replay anew.
        filled = replay.filled(acting.replays, s.random_timesteps * s.num_learners // axis.size, s.n_step)
        mean_return = jax.vmap(functools.partial(metrics.latest_mean, num_envs=width, axis=axis))(acting.episodes)

        # Drawn for all updates of the beat at once.
        key = functools.reduce(jax.random.fold_in, (_LEARNING, learning.update, axis.number()), key)
        keys = jax.random.split(key, s.num_learners + 1)
        batches = self.sample(keys[1:], acting)
        noise = jax.random.normal(keys[0], batches.action.shape)

        def one(i: Array, learning: Learning) -> Learning:
            batch, drawn = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), (batches, noise))
            return self.update(learning, batch, drawn, mean_return)

        due = jnp.where(filled, jnp.clip(credit // self.ratio.denominator, 0, self.num_updates), 0)
        acting = acting._replace(credit=credit - due * self.ratio.denominator)
        # A trip count, not a condition, so that what is learned stays in place.
        return acting, jax.lax.fori_loop(0, due, one, learning)

    def sample(self, keys: Array, acting: Acting) -> Batch:
        """Returns this device's share of the batches of a beat's updates, leaves `[U, S, N, ...]`."""
        s, sizes = self.settings, (self.settings.batch_size // self.env.axis.size, self.num_updates)
        batches = replay.sample_batches(keys, acting.replays, *sizes, discount=s.discount, n_step=s.n_step)
        return side_by_side.scaled(batches, acting.rewards)

    def split(self, tree: ArrayTree) -> ArrayTree:
        """Leaves `[B, ...]` -> `[S, B / S, ...]`."""
        return jax.tree.map(lambda x: x.reshape(self.settings.num_learners, -1, *x.shape[1:]), tree)

    @property
    def policy(self) -> Policy:
        def init(key: Array) -> Variables:
            params, moments = self.networks.init(key), normalization.init(self.env.spec.observation_shape)
            return Variables(params.actor, params.representation, moments)

        return self.networks.policy(init, self.choose)

    def init(self, key: Array) -> tuple[Acting, Learning]:
        s, zero = self.settings, jnp.int32(0)
        keys = jax.random.split(key, s.num_learners)

        def one(key: Array, rate: Any) -> tuple[Params, Params, Moments, Episodes]:
            networks = self.networks.init(key)
            params, optimizer = init_optimizers(self.optimizer(rate), networks)
            moments = normalization.init(self.env.spec.observation_shape)
            return Params(*params), Params(*optimizer), moments, metrics.init_episodes()

        def updated(learning: Learning) -> Learning:
            batch = jax.tree.map(lambda x: x[0], self.sample(keys, acting))
            return self.update(learning, batch, batch.action, jnp.zeros(s.num_learners))

        params, optimizer, moments, episodes = jax.vmap(one)(keys, setting(s, "learning_rate"))
        credit = jnp.int32(-s.random_timesteps * s.num_learners * self.ratio.numerator)
        acting = Acting(zero, zero, credit, episodes, self.empty_replays(), (), side_by_side.init_rewards(s, self.env))
        learning = Learning(params, params._replace(representation=()), optimizer, moments, zero, metrics={})
        return acting, learning._replace(metrics=metrics.zeros(jax.eval_shape(updated, learning).metrics))

    def empty_replays(self) -> tuple[Replay, ...]:
        b, groups = self.env.num_envs // self.env.num_groups, range(self.env.num_groups)
        return tuple(replay.init(self.num_rows, b, self.env.spec) for _ in groups)

    def begin(self, acting: Acting, groups: tuple[EnvGroup, ...]) -> Acting:
        running = tuple(self.split(metrics.init_running(group.num_envs)) for group in groups)
        return acting._replace(replays=acting.replays or self.empty_replays(), collectors=running)

    def progress(self, start: Acting, acting: Acting, made: Made) -> Progress:
        s = self.settings
        return timesteps_progress(made, s.timesteps_per_iteration, self.env, s.num_learners)

    def watched(self, learning: Learning) -> dict[str, ArrayTree]:
        return side_by_side.each(learning.params._asdict() | {"moments": learning.moments}, self.settings.num_learners)

    def row(self, acting: Acting, learning: Learning, timesteps: int) -> dict[str, Any]:
        n = self.settings.num_learners
        row = {"timesteps": timesteps // n, "episodes": int(acting.episodes.total.sum())}
        row |= side_by_side.compression_row(learning.params._asdict(), learning.optimizer._asdict(), n)
        return row | side_by_side.score_row(acting.episodes, self.env.all_envs // n)

    def candidates(self, learning: Learning) -> list[Variables]:
        return [side_by_side.pick(_variables(learning), i) for i in range(self.settings.num_learners)]


def variables_of(state: LearnState, learner: int = 0) -> Variables:
    """Returns the variables of one learner's policy; raises ValueError if there is no such learner."""
    return side_by_side.pick(_variables(state.learning), learner)


def _variables(learning: Learning) -> Variables:
    return Variables(learning.params.actor, learning.params.representation, learning.moments)
