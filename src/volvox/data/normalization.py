"""Normalisation of observations and rewards by running moments, for any learner.

    moments = normalization.init(spec.observation)
    moments = normalization.update(moments, observation)
    observation = normalization.normalize(moments, observation)

    rewards = normalization.init_rewards(num_groups, num_envs)
    rewards = normalization.update_rewards(rewards, g, timestep, discount)
    reward = timestep.reward * normalization.reward_scale(rewards)

A policy made by `normalizing` has the moments among its variables, so that a saved policy normalises observations by
itself. An observation is an array, or a dict or a tuple of arrays, each of which has its own moments.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from volvox.types import ALONE, Array, ArrayTree, Axis, EnvSpec, Policy, TimeStep, replaced

_LIMIT = 10.0
"""Largest absolute value of a normalised number."""
_MAX_COUNT = 2.0**23
"""Largest count of observations. From there on, older observations are scaled down."""


class Moments(NamedTuple):
    """Running moments of numbers `[n...]`, such as observations.

    Attributes:
      num: float32: Number of observations, at most 2^23.
      mean: float32, leaves `[n...]`.
      rest: float32, leaves `[n...]`: Rounding error of `mean`, added to its next change (compensated summation).
        Without it small changes would be lost, large ones would not, and the mean would drift away.
      squares: float32, leaves `[n...]`: Sum of squared differences from the mean.
    """

    num: Array
    mean: ArrayTree
    rest: ArrayTree
    squares: ArrayTree


def init(like: ArrayTree) -> Moments:
    """Returns the moments before any observation; `like` is an observation, or its shapes (`EnvSpec.observation`)."""
    mean, rest, squares = (jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), like) for _ in range(3))
    return Moments(jnp.float32(0), mean, rest, squares)


def update(moments: Moments, observation: ArrayTree, axis: Axis = ALONE) -> Moments:
    """Adds observations `[B, n...]` of all devices (Chan et al. 1979, Updating formulae for computing variances)."""
    b = jax.tree.leaves(observation)[0].shape[0]
    mean = jax.tree.map(lambda x: x / axis.size, axis.sum(jax.tree.map(lambda x: x.mean(axis=0), observation)))
    squares = axis.sum(jax.tree.map(lambda x, mean: ((x - mean) ** 2).sum(axis=0), observation, mean))
    return _merged(moments, b * axis.size, mean, squares)


def _merged(moments: Moments, b: int | Array, mean: ArrayTree, squares: ArrayTree) -> Moments:
    """Returns the moments with `b` further numbers that have a mean and a sum of squared differences from it."""
    count = moments.num + b
    difference = jax.tree.map(jnp.subtract, mean, moments.mean)
    total = jax.tree.map(
        lambda old, new, d: old + new + d**2 * (moments.num * b / count), moments.squares, squares, difference
    )
    change = jax.tree.map(lambda d, rest: d * (b / count) + rest, difference, moments.rest)
    mean = jax.tree.map(jnp.add, moments.mean, change)
    kept = jnp.minimum(1.0, _MAX_COUNT / count)
    return Moments(
        num=count * kept,
        mean=mean,
        rest=jax.tree.map(lambda old, change, new: change - (new - old), moments.mean, change, mean),
        squares=jax.tree.map(lambda x: x * kept, total),
    )


def normalize(moments: Moments, observation: ArrayTree) -> ArrayTree:
    """Returns observations `[..., n...]` with mean 0 and variance 1, clipped to ±10; unchanged if none is counted.

    The entry `action_mask` of a dict is never changed.
    """

    def normalize_leaf(mean: Array, inverse: Array, observation: Array) -> Array:
        scaled = (observation - mean) * inverse
        return jnp.where(moments.num > 0, jnp.clip(scaled, -_LIMIT, _LIMIT), observation)

    normalized = jax.tree.map(normalize_leaf, moments.mean, _inverse_deviation(moments), observation)
    if isinstance(observation, dict) and "action_mask" in observation:
        normalized["action_mask"] = observation["action_mask"]
    return normalized


def _inverse_deviation(moments: Moments) -> ArrayTree:
    return jax.tree.map(lambda x: jax.lax.rsqrt(x / jnp.maximum(moments.num, 1.0) + 1e-8), moments.squares)


class Rewards(NamedTuple):
    """Scale of rewards: the standard deviation of discounted sums of the rewards so far.

    This is the rule of Gym's `NormalizeReward` with one deviation for all environments. As in Gym, a sum continues
    after a time limit. A sum ends with the reward of a termination; in Gym, the next sum begins with this reward.

    Attributes:
      moments: Moments of the sums.
      returns: float32 `[B]` for each group: Sums of each environment's rewards so far, discounted by their age.
    """

    moments: Moments
    returns: tuple[Array, ...]


def init_rewards(num_groups: int, num_envs: int) -> Rewards:
    """Returns the scale before any reward, of groups of `num_envs` environments."""
    return Rewards(init(jnp.float32(0)), tuple(jnp.zeros(num_envs, jnp.float32) for _ in range(num_groups)))


def update_rewards(rewards: Rewards, g: int, timestep: TimeStep, discount: float, axis: Axis = ALONE) -> Rewards:
    """Adds the rewards of one timestep of group `g`; timesteps that begin an episode do not count.

    Args:
      rewards: The scale so far.
      g: Index of the group.
      timestep: Fields `[B]`; the observation is not used.
      discount: Discount γ of a timestep.
      axis: Device axis to sum over.
    """
    live = ~timestep.first
    returns = jnp.where(live, rewards.returns[g] * discount + timestep.reward, rewards.returns[g])
    num, total = axis.sum((live.sum(dtype=jnp.float32), returns.sum(where=live)))
    mean = total / jnp.maximum(num, 1.0)
    merged = _merged(rewards.moments, num, mean, axis.sum(((returns - mean) ** 2).sum(where=live)))
    moments = jax.tree.map(lambda new, old: jnp.where(num > 0, new, old), merged, rewards.moments)
    left = jnp.where(live & timestep.terminated, 0.0, returns)
    return Rewards(moments, replaced(rewards.returns, g, left))


def reward_scale(rewards: Rewards) -> Array:
    """Returns the factor for rewards; 1 while all sums of rewards are equal up to rounding."""
    num, mean, _, squares = rewards.moments
    return jnp.where(squares > 1e-8 * num * mean**2, _inverse_deviation(rewards.moments), 1.0)


class Normalized(NamedTuple):
    """The variables of a policy that normalises observations.

    Attributes:
      params: Variables of the policy that takes normalised observations.
      moments: Moments of the observations.
    """

    params: ArrayTree
    moments: Moments


def normalizing(policy: Policy, spec: EnvSpec) -> Policy:
    """Returns a policy that normalises observations first; its variables are `Normalized`."""

    def apply(variables: Normalized, observation: ArrayTree, state: ArrayTree) -> tuple[Array, ArrayTree]:
        normalized = normalize(variables.moments, jax.tree.map(lambda x: x.astype(jnp.float32), observation))
        return policy.apply(variables.params, normalized, state)

    def begin(key: Array) -> Normalized:
        return Normalized(policy.init(key), init(spec.observation))

    return policy._replace(init=begin, apply=apply)
