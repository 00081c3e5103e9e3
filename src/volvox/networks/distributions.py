"""What a policy's output says about actions.

actions = distribution(env.spec)
action = actions.sample(key, output)
log_prob, entropy = actions.log_prob(output, action), actions.entropy(output)
"""

import dataclasses
import itertools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from volvox.types import Array, EnvSpec


@dataclasses.dataclass(frozen=True)
class Categorical:
    """Discrete actions; the output is logits `[..., num_actions]`, actions are int32 `[...]`.

    With `epsilon`, `log(p + epsilon)` takes the place of `log(p)`: its gradient stays bounded where the learned policy
    finds an action all but impossible that another policy took (GA3C, arXiv 1611.06256, section 5.1).

    Attributes:
      size: Numbers that describe one distribution: the number of actions.
    """

    kind: ClassVar[str] = "categorical"
    size: int

    def sample(self, key: Array, output: Array) -> Array:
        """Actions `[...]`, drawn."""
        return jax.random.categorical(key, output).astype(jnp.int32)

    def mode(self, output: Array) -> Array:
        """Actions `[...]`, the likeliest."""
        return output.argmax(axis=-1).astype(jnp.int32)

    def log_prob(self, output: Array, action: Array, epsilon: float = 0.0) -> Array:
        """Logarithms `[...]` of the actions' probabilities."""
        return jnp.take_along_axis(_log_softmax(output, epsilon), action[..., None], axis=-1)[..., 0]

    def entropy(self, output: Array, epsilon: float = 0.0) -> Array:
        """Entropies `[...]` in nats; choices with a logit of -inf, which cannot be made, add nothing."""
        p, log_p = jax.nn.softmax(output), _log_softmax(output, epsilon)
        return -jnp.sum(p * jnp.where(p > 0, log_p, 0.0), axis=-1)


@dataclasses.dataclass(frozen=True)
class MultiCategorical:
    """Actions of several discrete components, independent of one another; each is a `Categorical`.

    The output is the logits of all components side by side, `[..., sum(num_choices)]`, actions are int32
    `[..., len(num_choices)]`.

    Attributes:
      num_choices: Number of choices of each component.
    """

    kind: ClassVar[str] = "categorical"
    num_choices: tuple[int, ...]

    @property
    def size(self) -> int:
        """Numbers that describe one distribution."""
        return sum(self.num_choices)

    def _components(self, output: Array) -> list[tuple[Categorical, Array]]:
        ends = list(itertools.accumulate(self.num_choices))
        parts = jnp.split(output, ends[:-1], axis=-1)
        return [(Categorical(number), part) for number, part in zip(self.num_choices, parts, strict=True)]

    def sample(self, key: Array, output: Array) -> Array:
        """Actions `[..., len(num_choices)]`, drawn."""
        keys = jax.random.split(key, len(self.num_choices))
        drawn = [one.sample(k, part) for k, (one, part) in zip(keys, self._components(output), strict=True)]
        return jnp.stack(drawn, axis=-1)

    def mode(self, output: Array) -> Array:
        """Actions `[..., len(num_choices)]`, the likeliest."""
        return jnp.stack([one.mode(part) for one, part in self._components(output)], axis=-1)

    def log_prob(self, output: Array, action: Array, epsilon: float = 0.0) -> Array:
        """Logarithms `[...]` of the actions' probabilities: sums over the components."""
        components = enumerate(self._components(output))
        return sum((one.log_prob(part, action[..., i], epsilon) for i, (one, part) in components), jnp.float32(0))

    def entropy(self, output: Array, epsilon: float = 0.0) -> Array:
        """Entropies `[...]` in nats: sums over the components."""
        return sum((one.entropy(part, epsilon) for one, part in self._components(output)), jnp.float32(0))


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """Continuous actions of independent components; the output is means, then logarithms of standard deviations.

    Actions are float32 `[..., *shape]` without bounds: environments are given them clipped, and probabilities are those
    of the unclipped ones. `epsilon` has no effect on densities.

    Attributes:
      shape: Shape of one action.
    """

    kind: ClassVar[str] = "gaussian"
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Numbers that describe one distribution."""
        return 2 * math.prod(self.shape)

    def _parts(self, output: Array) -> tuple[Array, Array]:
        return output[..., : self.size // 2], output[..., self.size // 2 :]

    def sample(self, key: Array, output: Array) -> Array:
        """Actions `[..., *shape]`, drawn."""
        mean, log_std = self._parts(output)
        action = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape, mean.dtype)
        return action.reshape(*output.shape[:-1], *self.shape)

    def mode(self, output: Array) -> Array:
        """Actions `[..., *shape]`, the likeliest: the means."""
        return self._parts(output)[0].reshape(*output.shape[:-1], *self.shape)

    def log_prob(self, output: Array, action: Array, epsilon: float = 0.0) -> Array:
        """Logarithms `[...]` of the actions' probability densities."""
        mean, log_std = self._parts(output)
        z = (action.reshape(mean.shape) - mean) * jnp.exp(-log_std)
        return jnp.sum(-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self, output: Array, epsilon: float = 0.0) -> Array:
        """Differential entropies `[...]` in nats."""
        return jnp.sum(self._parts(output)[1] + 0.5 * math.log(2 * math.pi * math.e), axis=-1)


@dataclasses.dataclass(frozen=True)
class Deterministic:
    """One continuous action, which is the output `[..., size]` in the action's shape.

    Attributes:
      shape: Shape of one action.
      network: Name of the network, for the message about sampling.
    """

    shape: tuple[int, ...]
    network: str

    @property
    def size(self) -> int:
        """Length of the output."""
        return math.prod(self.shape)

    def sample(self, key: Array, output: Array) -> Array:
        """Raises ValueError: there is nothing to draw from."""
        raise ValueError(f"{self.network} gives one action and no distribution: it cannot be sampled from.")

    def mode(self, output: Array) -> Array:
        """Actions `[..., *shape]`."""
        return output.reshape(*output.shape[:-1], *self.shape)


Distribution = Categorical | MultiCategorical | Gaussian


def distribution(spec: EnvSpec) -> Distribution:
    """The family that suits an environment: categorical for discrete actions, Gaussian for continuous ones.

    Several discrete components are a product of categorical ones.
    """
    if spec.num_actions is not None:
        return Categorical(spec.num_actions)
    return Gaussian(spec.action_shape or ()) if spec.continuous else MultiCategorical(spec.num_choices or ())


def _log_softmax(output: Array, epsilon: float) -> Array:
    return jax.nn.log_softmax(output) if epsilon == 0 else jnp.log(jax.nn.softmax(output) + epsilon)


def clipped(action: Array, spec: EnvSpec) -> Array:
    """Continuous actions within the environment's bounds; discrete ones as they are."""
    return jnp.clip(action, spec.action_low, spec.action_high) if spec.continuous else action
