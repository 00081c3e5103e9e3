"""What a policy's output says about actions."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from volvox.types import Array, EnvSpec


class Distribution(NamedTuple):
    """A family of distributions over actions, given by an output `[..., size]` of a network.

    Attributes:
      size: Numbers that describe one distribution.
      sample: (key, output `[..., size]`) -> action `[...]` or `[..., *action_shape]`.
      log_prob: (output, action, epsilon) -> `[...]`: the logarithm of the action's probability (density), `epsilon`
        added to a probability.
      entropy: (output, epsilon) -> `[...]`, nats.
    """

    size: int
    sample: Callable[[Array, Array], Array]
    log_prob: Callable[[Array, Array, float], Array]
    entropy: Callable[[Array, float], Array]


def distribution(spec: EnvSpec) -> Distribution:
    """The family that suits an environment: categorical for discrete actions, Gaussian for continuous ones."""
    if spec.num_actions is not None:
        return categorical(spec.num_actions)
    return gaussian(spec.action_shape or ())


def categorical(num_actions: int) -> Distribution:
    """Discrete actions; the output is logits `[..., num_actions]`, actions are int32.

    With `epsilon`, `log(p + epsilon)` takes the place of `log(p)`: its gradient stays bounded where another policy than
    the learner's took an action that the learner finds all but impossible (GA3C, arXiv 1611.06256, section 5.1).
    """

    def log_probs(output: Array, epsilon: float) -> Array:
        if epsilon == 0:
            return jax.nn.log_softmax(output)
        return jnp.log(jax.nn.softmax(output) + epsilon)

    def log_prob(output: Array, action: Array, epsilon: float = 0.0) -> Array:
        return jnp.take_along_axis(log_probs(output, epsilon), action[..., None], axis=-1)[..., 0]

    def entropy(output: Array, epsilon: float = 0.0) -> Array:
        return -jnp.sum(jax.nn.softmax(output) * log_probs(output, epsilon), axis=-1)

    return Distribution(
        size=num_actions,
        sample=lambda key, output: jax.random.categorical(key, output).astype(jnp.int32),
        log_prob=log_prob,
        entropy=entropy,
    )


def gaussian(shape: tuple[int, ...]) -> Distribution:
    """Continuous actions of independent components; the output is means, then logarithms of standard deviations.

    The environment gets the sample clipped to its bounds; probabilities are the unclipped sample's. `epsilon` is not
    used: a density has no smallest value worth adding to.
    """
    count = math.prod(shape)

    def parts(output: Array) -> tuple[Array, Array]:
        return output[..., :count], output[..., count:]

    def sample(key: Array, output: Array) -> Array:
        mean, log_std = parts(output)
        action = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape, mean.dtype)
        return action.reshape(*output.shape[:-1], *shape)

    def log_prob(output: Array, action: Array, epsilon: float = 0.0) -> Array:
        del epsilon
        mean, log_std = parts(output)
        z = (action.reshape(mean.shape) - mean) * jnp.exp(-log_std)
        return jnp.sum(-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(output: Array, epsilon: float = 0.0) -> Array:
        del epsilon
        return jnp.sum(parts(output)[1] + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    return Distribution(
        size=2 * count,
        sample=sample,
        log_prob=log_prob,
        entropy=entropy,
    )
