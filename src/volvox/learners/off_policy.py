"""The base of off-policy learners: a deterministic or stochastic actor, twin critics and a replay.

`act` explores and adds to a replay; `work` makes the updates of a beat while simulators step. Several learners in one
program make their updates together, when each of them has enough timesteps.
"""

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import integers, numbers
from volvox.data import metrics, normalization, replay
from volvox.data.metrics import Metrics
from volvox.data.normalization import Moments, Normalized, Rewards
from volvox.data.replay import Batch, Replay
from volvox.learners.learner import Learner, Turn, apply_gradient, with_metrics
from volvox.networks.genotypes import no_sample
from volvox.networks.perceptrons import ActorAndCritic, Params, actor_and_critics
from volvox.ops.batching import min_over_rows
from volvox.sparsity.optimizers import init_optimizers, make_optimizer
from volvox.types import Array, ArrayTree, Axis, Env, Policy, TimeStep, pick, replaced

_LEARNING = 2**31
"""Folded into the key for learning. For actions, an int32 count is folded in."""
_MOST_CREDIT = 2**30
"""Largest credit that timesteps can build up before updates are made for them; far below the largest int32."""
_OPEN = float(np.nextafter(np.float32(-1), np.float32(0)))
"""The smallest number with a finite normal quantile."""
OFF_POLICY_TRACED = ("learning_rate", "discount", "target_rate")
"""Numbers of off-policy settings that are arguments of compiled programs."""


class OffPolicyData(NamedTuple):
    """Data that acting collects.

    Attributes:
      credit: int32: A timestep adds the numerator of `OffPolicy.ratio`, an update subtracts the denominator. While it
        is negative, actions are random. Unlike a count of all timesteps, it cannot overflow.
      replays: Replay of each group.
      moments: Moments of the observations; () unless they are normalised.
      rewards: Scale of the rewards; () unless they are normalised.
    """

    credit: Array
    replays: tuple[Replay, ...]
    moments: Moments | tuple[()]
    rewards: Rewards | tuple[()]


class OffPolicyLearning(NamedTuple):
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


def check_settings(settings: Any) -> None:
    """Checks the settings that off-policy learners share."""
    integers(settings, "batch_size", "replay_size", "n_step", "timesteps_per_iteration", low=1)
    integers(settings, "random_timesteps", low=0)
    numbers(settings, "discount", "target_rate", low=0, high=1)
    numbers(settings, "learning_rate", above=0)
    make_optimizer(settings.optimizer, settings.learning_rate)


class OffPolicy(Learner):
    """A learner from a replay. Subclasses define `update`, `explore` and `choose`.

    Attributes:
      settings: Settings with the fields that `check_settings` checks, and `updates_per_timestep`,
        `normalize_observations`, `normalize_rewards` and `save_replay`; see `TD3`.
      env: The environments.
      networks: The networks as pure functions.
      ratio: Updates for each timestep of any environment.
    """

    def __init__(self, settings: Any, network: ActorAndCritic, env: Env, *, outputs: int = 1):
        """Raises ValueError if networks or environment do not fit; the actor has `outputs` numbers a component."""
        self.settings, self.env, s = settings, env, settings
        self.networks = actor_and_critics(network, env.spec, outputs)
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
        policy = Policy(
            init=lambda key: self.networks.init(key)._replace(critics=()),
            initial_state=lambda batch_size: (),
            apply=lambda params, observation, state: (self.choose(params, observation), state),
            sample=no_sample,
            mode=self.networks.scale,
            config=network,
        )
        self.policy = normalization.normalizing(policy, env.spec) if s.normalize_observations else policy
        self.optimizer = make_optimizer(s.optimizer, s.learning_rate)

    def init(self, key: Array) -> tuple[OffPolicyData, OffPolicyLearning]:
        """Returns (collected, learning) at the beginning of a run."""
        s, env, key = self.settings, self.env, jax.random.fold_in(key, 0)
        params, optimizer = init_optimizers(self.optimizer, self.networks.init(key))
        params, optimizer = Params(*params), Params(*optimizer)
        credit = jnp.int32(-s.random_timesteps * self.ratio.numerator)
        replays = tuple(replay.init(self.num_rows, self.num_envs, env.spec) for _ in range(env.num_groups))
        moments = normalization.init(env.spec.observation) if s.normalize_observations else ()
        rewards = normalization.init_rewards(env.num_groups, self.num_envs) if s.normalize_rewards else ()
        collected = OffPolicyData(credit, replays, moments, rewards)
        targets = params._replace(representation=())
        learning = self.begin(OffPolicyLearning(params, targets, optimizer, jnp.int32(0), {}))

        def update(learning: Any) -> Any:
            batch = pick(self.sample(key, collected), 0)
            return self.update(learning, batch, self.draw(key, batch.action.shape), jnp.float32(0))

        return collected, with_metrics(learning, update)

    def begin(self, learning: OffPolicyLearning) -> Any:
        """Returns the first state of learning; a subclass may add fields."""
        return learning

    def update(self, learning: Any, batch: Batch, noise: Array, mean_return: Array) -> Any:
        """Makes one update by transitions `[N, ...]`, with the numbers of `draw`."""
        raise NotImplementedError

    def draw(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Returns normally distributed numbers for updates whose actions are shaped `[..., A]`."""
        return jax.random.normal(key, shape, jnp.float32)

    def choose(self, params: Params, observation: ArrayTree) -> Array:
        """Returns the policy's output for observations `[B, ...]`, which are normalised if the settings say so."""
        raise NotImplementedError

    def explore(self, output: Array, noise: Array) -> Array:
        """Returns actions `[B, A]` in [-1, 1], given the policy's output and normally distributed numbers `[B, A]`."""
        raise NotImplementedError

    def descend(
        self,
        name: str,
        loss: Callable[..., Any],
        state: tuple[Params, Params, Metrics],
        batch: Batch,
        step: Array,
        mean_return: Array,
        *args: Any,
    ) -> tuple[Params, Params, Metrics]:
        """Updates the field `name` of the parameters by the gradient of its loss; returns the new state.

        `loss` is (part, *args, batch) -> (loss, metrics), and `state` (parameters, states of the optimiser, metrics).
        `step` is the number of this update, from 1.
        """
        params, optimizer, gathered = state
        part, kept = getattr(params, name), getattr(optimizer, name)
        (_, new), gradient = jax.value_and_grad(loss, has_aux=True)(part, *args, batch)
        gradient = mean_over_devices(gradient, batch.valid, self.env.axis)
        rate = self.settings.learning_rate
        part, kept = apply_gradient(self.optimizer, gradient, kept, part, step, mean_return, rate)
        params, optimizer = params._replace(**{name: part}), optimizer._replace(**{name: kept})
        return params, optimizer, metrics.add(gathered, metrics.means(new))

    def represent(
        self, learning: Any, batch: Batch, step: Array, mean_return: Array
    ) -> tuple[tuple[Params, Params, Metrics], Batch]:
        """Learns the representation, by itself; returns the state for `descend`, and features for observations."""
        state = (learning.params, learning.optimizer, learning.metrics)
        if learning.params.representation:
            state = self.descend("representation", self.representation_loss, state, batch, step, mean_return)
        encode = functools.partial(self.networks.encode_observation, state[0].representation)
        return state, batch.map_observations(encode)

    def representation_loss(self, representation, batch: Batch):
        """Returns the squared error of the predictions of the representation."""
        predicted = self.networks.predict(representation, batch.observation, batch.action)
        loss = metrics.mean(((predicted - batch.next_observation) ** 2).mean(axis=-1), batch.valid)
        return loss, {"representation_loss": loss}

    def act(
        self, collected: OffPolicyData, learning: Any, keys: Array, turn: Turn, timestep: TimeStep
    ) -> tuple[OffPolicyData, Array]:
        """Acts at random at first, then by `explore`, and adds the timestep to the replay."""
        s, g, rewards, observation = self.settings, turn.group, collected.rewards, timestep.observation
        if isinstance(collected.moments, Moments):
            moments = normalization.update(collected.moments, observation, self.env.axis)
            collected = collected._replace(moments=moments)
        # One draw for both kinds: making random numbers takes a loop each time.
        shape = self.env.spec.action.shape
        drawn = jax.vmap(lambda key: jax.random.uniform(key, shape, jnp.float32, minval=_OPEN, maxval=1.0))(keys)
        output, _ = self.policy.apply(self.variables(collected, learning), observation, ())
        explored = self.explore(output, 2**0.5 * jax.lax.erf_inv(drawn))
        action = jnp.where(collected.credit < 0, drawn, explored)
        if isinstance(rewards, Rewards):
            rewards = normalization.update_rewards(rewards, g, timestep, s.discount, self.env.axis)
        rows = replaced(collected.replays, g, replay.add(collected.replays[g], timestep, action))
        added = self.env.axis.sum((~timestep.first).sum(dtype=jnp.int32)) * self.ratio.numerator
        credit = jnp.minimum(collected.credit + added, _MOST_CREDIT)
        return collected._replace(credit=credit, replays=rows, rewards=rewards), self.networks.scale(action)

    def work(self, collected: OffPolicyData, learning: Any, key: Array, turn: Turn) -> tuple[OffPolicyData, Any]:
        """Makes the updates that are due for the timesteps so far, after the group has added its own."""
        s, axis, credit = self.settings, self.env.axis, collected.credit
        # A resumed run may have to fill its replay anew.
        filled = replay.filled(collected.replays, s.random_timesteps // axis.size, s.n_step)

        # Drawn for all updates of the beat at once.
        key = functools.reduce(jax.random.fold_in, (_LEARNING, learning.update, axis.number()), key)
        noise_key, sample_key = jax.random.split(key)
        batches = self.sample(sample_key, collected)
        noise = self.draw(noise_key, batches.action.shape)

        def one(i: Array, learning: Any) -> Any:
            batch, drawn = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), (batches, noise))
            return self.update(learning, batch, drawn, turn.mean_return)

        due = min_over_rows(jnp.where(filled, jnp.clip(credit // self.ratio.denominator, 0, self.num_updates), 0))
        # A trip count, not a condition, so that the state of learning stays in place.
        learning = jax.lax.fori_loop(0, due, one, learning)
        return collected._replace(credit=credit - due * self.ratio.denominator), learning

    def sample(self, key: Array, collected: OffPolicyData) -> Batch:
        """Returns this device's share of the batches of a beat's updates, leaves `[U, N, ...]`."""
        s, sizes = self.settings, (self.settings.batch_size // self.env.axis.size, self.num_updates)
        batches = replay.sample_batches(key, collected.replays, *sizes, discount=s.discount, n_step=s.n_step)
        if isinstance(collected.moments, Moments):
            batches = batches.map_observations(functools.partial(normalization.normalize, collected.moments))
        if isinstance(collected.rewards, Rewards):
            batches = batches._replace(reward=batches.reward * normalization.reward_scale(collected.rewards))
        return batches

    def variables(self, collected: OffPolicyData, learning: Any) -> ArrayTree:
        """Returns the variables of the policy: those of the actor and the representation, and moments."""
        params, moments = learning.params._replace(critics=()), collected.moments
        return Normalized(params, moments) if isinstance(moments, Moments) else params


def mean_over_devices(gradient: ArrayTree, valid: Array, axis: Axis) -> ArrayTree:
    """Returns the gradient of the mean loss over the valid transitions of all devices.

    `gradient` is that of the mean over the transitions of this device that are `valid`, `[N]`.
    """
    if axis.name is None:
        return gradient
    count = valid.sum(dtype=jnp.float32)
    share = count / jnp.maximum(axis.sum(count), 1.0)
    return axis.sum(jax.tree.map(lambda g: share.astype(g.dtype) * g, gradient))
