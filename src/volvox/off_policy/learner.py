"""The learning half of TD3: what one update does to several learners side by side."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from volvox.data.replay import Batch
from volvox.networks.off_policy import ActorAndCritics
from volvox.sparsity import is_sparse, pruned
from volvox.types import Array, ArrayTree


class LossSettings(NamedTuple):
    """What the losses are made of; the first is of each learner, `[S]`.

    Attributes:
      target_noise: Standard deviation of the noise on target actions.
      policy_delay: Updates of the critics for one of the actor and the targets.
      target_rate: τ, how far targets move towards what they follow.
    """

    target_noise: Array
    target_noise_clip: float
    policy_delay: int
    target_rate: float


class Normalizer(NamedTuple):
    """Running moments of observations, leaves `[S, ...]`.

    Attributes:
      seen: float32 `[S]`, how many; 0 where observations are left as they are.
      squares: Sum of squared differences from the mean.
    """

    seen: Array
    mean: Array
    squares: Array


class Sums(NamedTuple):
    """Sums over updates since the host last looked, float32 `[S]`.

    Attributes:
      actor_loss: Of the updates that had one.
      value: Mean value of the batch's actions.
      representation_loss: 0 without a representation.
    """

    critic_loss: Array
    actor_loss: Array
    value: Array
    representation_loss: Array


class LearnerState(NamedTuple):
    """What learning changes; leaves `[S, ...]` but for `update`.

    Attributes:
      representation: () without one.
      update: int32: updates made.
    """

    actor: ArrayTree
    critics: tuple[ArrayTree, ArrayTree]
    target_actor: ArrayTree
    target_critics: tuple[ArrayTree, ArrayTree]
    representation: ArrayTree
    actor_optimizer: ArrayTree
    critics_optimizer: ArrayTree
    representation_optimizer: ArrayTree
    normalizer: Normalizer
    update: Array
    sums: Sums


class Learner(NamedTuple):
    """The learning half as pure functions of S learners.

    Attributes:
      init: keys `[S]` -> state.
      update: (state, batches `[S, N, ...]`, standard normal noise `[S, N, A]`, mean returns lately `[S]`) -> state.
    """

    init: Callable[[Array], LearnerState]
    update: Callable[[LearnerState, Batch, Array, Array], LearnerState]


def no_sums(num_learners: int) -> Sums:
    """Zeros."""
    return Sums(*(jnp.zeros(num_learners) for _ in Sums._fields))


def normalized(normalizer: Normalizer, observation: Array) -> Array:
    """Observations `[..., n]` of one learner with the running mean 0 and variance 1, within 10 of it.

    Left as they are while nothing is counted.
    """
    count = jnp.maximum(normalizer.seen, 1.0)
    scaled = (observation - normalizer.mean) * jax.lax.rsqrt(normalizer.squares / count + 1e-8)
    return jnp.where(normalizer.seen > 1, jnp.clip(scaled, -10.0, 10.0), observation)


def counted(normalizer: Normalizer, observation: Array) -> Normalizer:
    """The moments with observations `[B, ...]` of one learner among them (Chan et al. 1979)."""
    b = observation.shape[0]
    mean = observation.mean(axis=0)
    squares = ((observation - mean) ** 2).sum(axis=0)
    count = normalizer.seen + b
    difference = mean - normalizer.mean
    return Normalizer(
        seen=count,
        mean=normalizer.mean + difference * (b / count),
        squares=normalizer.squares + squares + difference**2 * (normalizer.seen * b / count),
    )


def learner(
    network: ActorAndCritics,
    *,
    settings: LossSettings,
    optimizer: optax.GradientTransformation,
    learning_rate: Array,
    observation_shape: tuple[int, ...],
) -> Learner:
    """Makes the learning half (Fujimoto et al. 2018, arXiv 1802.09477, algorithm 1).

    Args:
      network: actor and critics.
      settings: of the losses.
      optimizer: made with a learning rate of 1. A sparse one (`volvox.sparsity.sparse`) keeps the targets sparse, too;
        its steps are updates of the critics, for the actor as well.
      learning_rate: float32 `[S]`, by which its updates are multiplied.
      observation_shape: of one observation.

    Returns:
      `Learner`.
    """
    num_learners = learning_rate.shape[0]
    optimizer = optax.with_extra_args_support(optimizer)

    def kept(params, optimizer_state):
        """What a sparse optimiser's masks leave of parameters."""
        return jax.vmap(pruned)(params, optimizer_state) if is_sparse(optimizer_state) else params

    def init(keys: Array) -> LearnerState:
        made = jax.vmap(network.init)(keys)
        optimizers = [jax.vmap(optimizer.init)(params) if jax.tree.leaves(params) else () for params in made]
        actor, critics, representation = map(kept, made, optimizers)
        moments = jnp.zeros((num_learners, *observation_shape))
        return LearnerState(
            actor=actor,
            critics=critics,
            # Copies: what is donated may be named once only.
            target_actor=jax.tree.map(jnp.copy, actor),
            target_critics=jax.tree.map(jnp.copy, critics),
            representation=representation,
            actor_optimizer=optimizers[0],
            critics_optimizer=optimizers[1],
            representation_optimizer=optimizers[2],
            normalizer=Normalizer(jnp.zeros(num_learners), moments, jnp.copy(moments)),
            update=jnp.int32(0),
            sums=no_sums(num_learners),
        )

    def mean(x: Array, valid: Array) -> Array:
        return jnp.where(valid, x, 0.0).sum(axis=-1) / jnp.maximum(valid.sum(), 1)

    def prediction_loss(representation, batch: Batch):
        assert network.predicted is not None
        predicted = network.predicted(representation, batch.observation, batch.action)
        return mean(((predicted - batch.following) ** 2).mean(axis=-1), batch.valid)

    def critic_loss(critics, target_actor, target_critics, representation, batch, noise, target_noise):
        noise = jnp.clip(target_noise * noise, -settings.target_noise_clip, settings.target_noise_clip)
        following = jnp.clip(network.act(target_actor, batch.following) + noise, -1.0, 1.0)
        known = network.acted(representation, batch.following, following)
        first, second = (network.value(critic, known, following) for critic in target_critics)
        target = batch.reward + batch.discount * jnp.minimum(first, second)
        known = network.acted(representation, batch.observation, batch.action)
        first, second = (network.value(critic, known, batch.action) for critic in critics)
        return mean((first - target) ** 2 + (second - target) ** 2, batch.valid), mean(first, batch.valid)

    def actor_loss(actor, critics, representation, batch: Batch):
        action = network.act(actor, batch.observation)
        known = network.acted(representation, batch.observation, action)
        return -mean(network.value(critics[0], known, action), batch.valid)

    def descend(step: Array, mean_return: Array, gradient, state, params):
        def one(gradient, state, params, rate, mean_return):
            updates, state = optimizer.update(gradient, state, params, step=step, mean_return=mean_return)
            return optax.apply_updates(params, jax.tree.map(lambda x: rate * x, updates)), state

        return jax.vmap(one)(gradient, state, params, learning_rate, mean_return)

    def moved(target, followed):
        return jax.tree.map(lambda t, x: t + settings.target_rate * (x - t), target, followed)

    def update(state: LearnerState, batch: Batch, noise: Array, mean_return: Array) -> LearnerState:
        seen = jax.vmap(normalized)
        batch = batch._replace(
            observation=seen(state.normalizer, batch.observation), following=seen(state.normalizer, batch.following)
        )
        step = state.update + 1
        if network.predicted is not None:
            # Learned first and by itself; to actor and critics its features are what is observed.
            loss, gradient = jax.vmap(jax.value_and_grad(prediction_loss))(state.representation, batch)
            representation, representation_optimizer = descend(
                step, mean_return, gradient, state.representation_optimizer, state.representation
            )
            state = state._replace(
                representation=representation,
                representation_optimizer=representation_optimizer,
                sums=state.sums._replace(representation_loss=state.sums.representation_loss + loss),
            )
        observed = jax.vmap(network.observed)
        batch = batch._replace(
            observation=observed(state.representation, batch.observation),
            following=observed(state.representation, batch.following),
        )
        (loss, value), gradient = jax.vmap(jax.value_and_grad(critic_loss, has_aux=True))(
            state.critics,
            state.target_actor,
            state.target_critics,
            state.representation,
            batch,
            noise,
            settings.target_noise,
        )
        critics, critics_optimizer = descend(step, mean_return, gradient, state.critics_optimizer, state.critics)
        state = state._replace(
            critics=critics,
            # At once, for they are values of what follows before they move again.
            target_critics=kept(state.target_critics, critics_optimizer),
            critics_optimizer=critics_optimizer,
            update=step,
            sums=state.sums._replace(critic_loss=state.sums.critic_loss + loss, value=state.sums.value + value),
        )

        def of_actor(state: LearnerState) -> LearnerState:
            loss, gradient = jax.vmap(jax.value_and_grad(actor_loss))(
                state.actor, state.critics, state.representation, batch
            )
            actor, actor_optimizer = descend(step, mean_return, gradient, state.actor_optimizer, state.actor)
            return state._replace(
                actor=actor,
                actor_optimizer=actor_optimizer,
                target_actor=kept(moved(state.target_actor, actor), actor_optimizer),
                target_critics=moved(state.target_critics, state.critics),
                sums=state.sums._replace(actor_loss=state.sums.actor_loss + loss),
            )

        return jax.lax.cond(step % settings.policy_delay == 0, of_actor, lambda state: state, state)

    return Learner(init, update)
