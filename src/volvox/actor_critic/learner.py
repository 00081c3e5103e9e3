"""The learning half of an actor-critic: the loss of a micro-batch, its gradient, and the update that ends a round."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from volvox.data.returns import lambda_returns
from volvox.data.segments import Segment
from volvox.data.vtrace import vtrace
from volvox.networks.actor_critic import ActorCriticNetwork
from volvox.networks.distributions import Distribution
from volvox.ops.batching import where_rows
from volvox.sparsity import is_sparse, pruned
from volvox.types import Array, ArrayTree


class LossSettings(NamedTuple):
    """What the loss is made of.

    Attributes:
      trace_decay: λ of the returns; 1 gives n-step returns.
      correct: V-trace instead of plain returns.
      log_epsilon: Added to probabilities before their logarithm is taken.
      value_coefficient: Weight of half the squared error of values.
    """

    discount: float
    trace_decay: float
    correct: bool
    rho_clip: float
    c_clip: float
    log_epsilon: float
    value_coefficient: float


class Sums(NamedTuple):
    """Sums over the transitions learned from, float32 scalars; and their number.

    Attributes:
      lag: Updates between acting and learning.
      lag_max: The largest, not a sum.
    """

    policy_loss: Array
    value_loss: Array
    entropy: Array
    lag: Array
    lag_max: Array
    transitions: Array


class LearnerState(NamedTuple):
    """What learning changes.

    Attributes:
      gradient: Sum over the micro-batches since the last update, as `params`.
      update: int32: updates made.
      pending: float32: transitions in `gradient`.
      sums: Since the host last looked.
      gradient_norm: float32: sum over updates since then, before clipping.
    """

    params: ArrayTree
    optimizer: ArrayTree
    gradient: ArrayTree
    update: Array
    pending: Array
    sums: Sums
    gradient_norm: Array


def no_sums() -> Sums:
    """Zeros."""
    return Sums(*(jnp.float32(0) for _ in Sums._fields))


def loss(
    params: ArrayTree,
    segment: Segment,
    entropy_coefficient: Array,
    update: Array,
    *,
    network: ActorCriticNetwork,
    actions: Distribution,
    settings: LossSettings,
) -> tuple[Array, Sums]:
    """Summed actor-critic loss of `[T, B]` transitions (Mnih et al. 2016, arXiv 1602.01783, section 4).

    `sum(-log π(a) * A - entropy_coefficient * H + value_coefficient / 2 * (G - V)^2)` over valid transitions, where
    returns `G` and advantages `A = G - V` are constants. A termination ends a return, a time limit bootstraps it.

    Args:
      params: of the network.
      segment: `[T, B]` transitions.
      entropy_coefficient: float32 scalar.
      update: updates made so far, from which the lag is counted.
      network: its `apply`.
      actions: the policy's family of distributions.
      settings: the rest.

    Returns:
      (loss, sums).
    """
    output, value = unrolled(params, segment, network)
    constant_value = jax.lax.stop_gradient(value)
    next_value = jnp.concatenate([constant_value[1:], segment.bootstrap[None]])
    discount = settings.discount * (1.0 - segment.terminated)
    decay = settings.trace_decay * (1.0 - segment.truncated)
    log_prob = actions.log_prob(output, segment.action, settings.log_epsilon)
    if settings.correct:
        plain = actions.log_prob(jax.lax.stop_gradient(output), segment.action, 0.0)
        ratio = jnp.exp(plain - segment.log_prob)
        of_one = lambda *xs: vtrace(*xs, rho_clip=settings.rho_clip, c_clip=settings.c_clip)  # noqa: E731
        target, advantage = jax.vmap(of_one, in_axes=1, out_axes=1)(
            constant_value, next_value, segment.reward, discount, ratio, decay
        )
    else:
        target = jax.vmap(lambda_returns, in_axes=1, out_axes=1)(segment.reward, discount, next_value, decay)
        advantage = target - constant_value

    def total(x: Array) -> Array:
        return jnp.sum(jnp.where(segment.valid, x, 0.0))

    policy_loss = total(-log_prob * advantage)
    value_loss = total(0.5 * (target - value) ** 2)
    entropy = total(actions.entropy(output, settings.log_epsilon))
    lag = (update - segment.version)[:, None].astype(jnp.float32)
    sums = Sums(
        policy_loss=policy_loss,
        value_loss=value_loss,
        entropy=entropy,
        lag=total(lag),
        lag_max=jnp.max(jnp.where(segment.valid, lag, 0.0)),
        transitions=total(jnp.ones_like(value)),
    )
    return policy_loss - entropy_coefficient * entropy + settings.value_coefficient * value_loss, sums


def unrolled(params: ArrayTree, segment: Segment, network: ActorCriticNetwork) -> tuple[Array, Array]:
    """Outputs `[T, B, size]` and values `[T, B]` along a segment; recurrent state is reset where episodes begin."""
    length, num_envs = segment.first.shape
    if not network.recurrent:
        rows = segment.observation.reshape(length * num_envs, *segment.observation.shape[2:])
        output, value, _ = network.apply(params, rows, ())
        return output.reshape(length, num_envs, -1), value.reshape(length, num_envs)

    def step(state: ArrayTree, seen: tuple[Array, Array]):
        observation, first = seen
        state = where_rows(first, network.initial_state(num_envs), state)
        output, value, state = network.apply(params, observation, state)
        return state, (output, value)

    _, outputs = jax.lax.scan(step, segment.recurrent, (segment.observation, segment.first))
    return outputs


class Learner(NamedTuple):
    """The learning half as pure functions.

    Attributes:
      init: key -> state.
      accumulate: (state, micro-batch) -> state with its gradient added.
      apply: (state, mean return lately) -> state after an update by the gradient gathered.
    """

    init: Callable[[Array], LearnerState]
    accumulate: Callable[[LearnerState, Segment], LearnerState]
    apply: Callable[[LearnerState, Array], LearnerState]


def learner(
    network: ActorCriticNetwork,
    actions: Distribution,
    *,
    settings: LossSettings,
    entropy_coefficient: Callable[[Array], Array],
    optimizer: optax.GradientTransformation,
    loss_reduction: Literal["sum", "mean"],
) -> Learner:
    """Makes the learning half.

    Args:
      network: with a policy's output and a value.
      actions: the policy's family of distributions.
      settings: of the loss.
      entropy_coefficient: updates made -> float32.
      optimizer: any; a sparse one (`volvox.sparsity.sparse`) is told the mean return.
      loss_reduction: over the transitions of an update.

    Returns:
      `Learner`.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def init(key: Array) -> LearnerState:
        params = network.init(key)
        optimizer_state = optimizer.init(params)
        if is_sparse(optimizer_state):
            params = pruned(params, optimizer_state)
        return LearnerState(
            params=params,
            optimizer=optimizer_state,
            gradient=jax.tree.map(jnp.zeros_like, params),
            update=jnp.int32(0),
            pending=jnp.float32(0),
            sums=no_sums(),
            gradient_norm=jnp.float32(0),
        )

    def accumulate(state: LearnerState, segment: Segment) -> LearnerState:
        of_params = jax.value_and_grad(loss, has_aux=True)
        (_, sums), gradient = of_params(
            state.params,
            segment,
            entropy_coefficient(state.update),
            state.update,
            network=network,
            actions=actions,
            settings=settings,
        )
        total = jax.tree.map(jnp.add, state.sums, sums)
        return state._replace(
            gradient=jax.tree.map(jnp.add, state.gradient, gradient),
            pending=state.pending + sums.transitions,
            sums=total._replace(lag_max=jnp.maximum(state.sums.lag_max, sums.lag_max)),
        )

    def apply(state: LearnerState, mean_return: Array) -> LearnerState:
        gradient = state.gradient
        if loss_reduction == "mean":
            gradient = jax.tree.map(lambda g: g / jnp.maximum(state.pending, 1.0), gradient)
        changes, optimizer_state = optimizer.update(
            gradient, state.optimizer, state.params, step=state.update + 1, mean_return=mean_return
        )
        return state._replace(
            params=optax.apply_updates(state.params, changes),
            optimizer=optimizer_state,
            gradient=jax.tree.map(jnp.zeros_like, state.gradient),
            update=state.update + 1,
            pending=jnp.float32(0),
            gradient_norm=state.gradient_norm + optax.tree.norm(gradient),
        )

    return Learner(init, accumulate, apply)
