"""Distributions over actions that a policy's output parametrises.

    actions = distribution(env.spec)
    action = actions.sample(key, output)
    log_prob, entropy = actions.log_prob(output, action), actions.entropy(output)

`distribution` returns that of the actions of an environment.
"""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp

from volvox.types import Array, EnvSpec


@dataclasses.dataclass(frozen=True)
class Categorical:
    """Discrete actions; the output is logits `[..., num_actions]`, actions are int32 `[...]`.

    With `epsilon`, `log(p + epsilon)` replaces `log(p)`: its gradient stays bounded if the learned policy finds an
    action almost impossible that another policy took (GA3C, arXiv 1611.06256, section 5.1).

    Attributes:
      size: Length of the output: the number of actions.
    """

    size: int

    def sample(self, key: Array, output: Array) -> Array:
        """Draws actions `[...]`."""
        return jax.random.categorical(key, output).astype(jnp.int32)

    def mode(self, output: Array) -> Array:
        """Most likely actions `[...]`."""
        return output.argmax(axis=-1).astype(jnp.int32)

    def log_prob(self, output: Array, action: Array, epsilon: float = 0.0) -> Array:
        """Logarithms `[...]` of the actions' probabilities."""
        return self.take(_log_softmax(output, epsilon), action)

    def take(self, output: Array, action: Array) -> Array:
        """Returns the entries `[...]` of the actions, for example their values; 0 for actions that do not exist."""
        # A gather's gradient is a scatter, which is slow on CPUs.
        return jnp.where(action[..., None] == jnp.arange(self.size), output, 0.0).sum(axis=-1)

    def entropy(self, output: Array, epsilon: float = 0.0) -> Array:
        """Entropies `[...]` in nats; actions with a logit of -inf add nothing."""
        p, log_p = jax.nn.softmax(output), _log_softmax(output, epsilon)
        return -jnp.sum(p * jnp.where(p > 0, log_p, 0.0), axis=-1)


@dataclasses.dataclass(frozen=True)
class MultiCategorical:
    """Actions of several independent discrete components; each is a `Categorical`.

    The output is the logits of all components, `[..., sum(num_choices)]`; actions are int32 `[..., len(num_choices)]`.

    Attributes:
      num_choices: Number of choices of each component.
    """

    num_choices: tuple[int, ...]

    @property
    def size(self) -> int:
        """Length of the output."""
        return sum(self.num_choices)

    def _components(self, output: Array) -> list[tuple[Categorical, Array]]:
        ends = list(itertools.accumulate(self.num_choices))
        parts = jnp.split(output, ends[:-1], axis=-1)
        return [(Categorical(number), part) for number, part in zip(self.num_choices, parts, strict=True)]

    def sample(self, key: Array, output: Array) -> Array:
        """Draws actions `[..., len(num_choices)]`."""
        keys = jax.random.split(key, len(self.num_choices))
        draws = [actions.sample(k, part) for k, (actions, part) in zip(keys, self._components(output), strict=True)]
        return jnp.stack(draws, axis=-1)

    def mode(self, output: Array) -> Array:
        """Most likely actions `[..., len(num_choices)]`."""
        # jax2onnx cannot convert `jnp.stack`.
        return jnp.concatenate([actions.mode(part)[..., None] for actions, part in self._components(output)], axis=-1)

    def log_prob(self, output: Array, action: Array, epsilon: float = 0.0) -> Array:
        """Logarithms `[...]` of the actions' probabilities: sums over the components."""
        components = enumerate(self._components(output))
        log_probs = (actions.log_prob(part, action[..., i], epsilon) for i, (actions, part) in components)
        return sum(log_probs, jnp.float32(0))

    def take(self, output: Array, action: Array) -> Array:
        """Returns the sums `[...]` of the components' entries of the actions."""
        taken = (actions.take(part, action[..., i]) for i, (actions, part) in enumerate(self._components(output)))
        return sum(taken, jnp.float32(0))

    def entropy(self, output: Array, epsilon: float = 0.0) -> Array:
        """Entropies `[...]` in nats: sums over the components."""
        return sum((actions.entropy(part, epsilon) for actions, part in self._components(output)), jnp.float32(0))


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """Continuous actions of independent components; the output is means, then logarithms of standard deviations.

    Actions are float32 `[..., *shape]` without bounds. Environments receive clipped actions, and probabilities are of
    the unclipped actions. `epsilon` has no effect on densities.

    Attributes:
      shape: Shape of one action.
    """

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Length of the output."""
        return 2 * math.prod(self.shape)

    def _parts(self, output: Array) -> tuple[Array, Array]:
        return output[..., : self.size // 2], output[..., self.size // 2 :]

    def sample(self, key: Array, output: Array) -> Array:
        """Draws actions `[..., *shape]`."""
        mean, log_std = self._parts(output)
        action = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape, mean.dtype)
        return action.reshape(*output.shape[:-1], *self.shape)

    def mode(self, output: Array) -> Array:
        """Most likely actions `[..., *shape]`: the means."""
        return self._parts(output)[0].reshape(*output.shape[:-1], *self.shape)

    def log_prob(self, output: Array, action: Array, epsilon: float = 0.0) -> Array:
        """Logarithms `[...]` of the actions' probability densities."""
        mean, log_std = self._parts(output)
        z = (action.reshape(mean.shape) - mean) * jnp.exp(-log_std)
        return jnp.sum(-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self, output: Array, epsilon: float = 0.0) -> Array:
        """Differential entropies `[...]` in nats."""
        return jnp.sum(self._parts(output)[1] + 0.5 * math.log(2 * math.pi * math.e), axis=-1)


Distribution = Categorical | MultiCategorical | Gaussian


@dataclasses.dataclass(frozen=True)
class EpsilonGreedy:
    """Takes the action with the highest value, or with probability `epsilon` a uniformly random allowed action.

    The output is the values of the actions.

    Attributes:
      actions: Distribution of actions whose mode is the action with the highest value.
      epsilon: Probability of a random action, a scalar.
    """

    actions: Categorical | MultiCategorical
    epsilon: Array | float

    def sample(self, key: Array, output: Array) -> Array:
        """Draws actions as `actions.sample` does."""
        chance, draw = jax.random.split(key)
        greedy, uniform = self.actions.mode(output), self.actions.sample(draw, _uniform(output))
        shape = output.shape[:-1]
        random = jax.random.uniform(chance, shape) < self.epsilon
        return jnp.where(random.reshape(*shape, *[1] * (greedy.ndim - len(shape))), uniform, greedy)

    def log_prob(self, output: Array, action: Array) -> Array:
        """Zeros `[...]`: Q-learning does not use probabilities."""
        return jnp.zeros(output.shape[:-1])


def distribution(spec: EnvSpec) -> Distribution:
    """Returns the distribution for an environment's actions: categorical if discrete, Gaussian if continuous."""
    if spec.num_actions is not None:
        return Categorical(spec.num_actions)
    return Gaussian(spec.action_shape or ()) if spec.continuous else MultiCategorical(spec.num_choices or ())


def _log_softmax(output: Array, epsilon: float) -> Array:
    return jax.nn.log_softmax(output) if epsilon == 0 else jnp.log(jax.nn.softmax(output) + epsilon)


def _uniform(output: Array) -> Array:
    """Returns logits of the uniform distribution over the actions that `mask_logits` allows."""
    lowest = jnp.finfo(output.dtype).min
    return jnp.where(output == lowest, lowest, 0.0)


def mask_logits(output: Array, mask: Array | None) -> Array:
    """Sets the logits of masked actions to the lowest finite number, so that their probability is 0.

    Entropies and gradients are finite. Where no action is allowed, sampling takes the first one, and all have the same
    `log_prob`. (Huang and Ontañón 2022, arXiv 2006.14171.)

    Args:
      output: Logits `[..., n]` of a categorical distribution, or the concatenated logits of several components.
      mask: `[..., n]`, or several dimensions with n entries in all; not 0 where an action is allowed. None allows all.

    Returns:
      Logits `[..., n]`.
    """
    return output if mask is None else jnp.where(mask.reshape(output.shape) != 0, output, jnp.finfo(output.dtype).min)


def tanh_gaussian(mean: Array, log_std: Array, noise: Array) -> tuple[Array, Array]:
    """Returns tanh(mean + std * noise) and its log density (Haarnoja et al. 2018, arXiv 1812.05905, appendix C).

    Args:
      mean: `[..., A]`: Means.
      log_std: `[..., A]`: Logarithms of standard deviations.
      noise: `[..., A]`: Normally distributed numbers.

    Returns:
      (actions `[..., A]` in [-1, 1], logarithms `[...]` of their probability densities).
    """
    x = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
    # log(1 - tanh(x)^2), without cancellation.
    return jnp.tanh(x), jnp.sum(log_prob - 2 * (math.log(2) - x - jax.nn.softplus(-2 * x)), axis=-1)


def clip_action(action: Array, spec: EnvSpec) -> Array:
    """Clips continuous actions to the environment's bounds; returns discrete actions unchanged."""
    return jnp.clip(action, spec.action_low, spec.action_high) if spec.continuous else action
