"""Virtual batch normalisation, and the network that evolution strategies use with it (Salimans et al. 2016 and 2017).

Layers are normalised by the statistics of one fixed reference batch, computed anew for every parameter vector: once,
when a policy is prepared, not in every step.
"""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from volvox.networks.images import scaled
from volvox.networks.interception import low_rank_kernels, use_kernels
from volvox.networks.policies import module_settings, own_initial_std, policy_from_functions
from volvox.types import Array, ArrayTree, EnvSpec, Policy

REFERENCE = "reference"
"""The collection of variables that holds the statistics."""

_EPSILON = 1e-3


class VirtualBatchNorm(nn.Module):
    """Normalises each feature by its mean and variance over the reference batch; then adds a bias.

    Where the collection `reference` is mutable, the input is the reference batch and its statistics are stored.
    """

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Normalised features `[B, ..., C]`."""
        bias = self.param("bias", nn.initializers.zeros_init(), (x.shape[-1],))
        axes = tuple(range(x.ndim - 1))
        mean = self.variable(REFERENCE, "mean", lambda: jnp.zeros(x.shape[-1]))
        variance = self.variable(REFERENCE, "variance", lambda: jnp.ones(x.shape[-1]))
        if self.is_mutable_collection(REFERENCE):
            mean.value, variance.value = x.mean(axes), x.var(axes)
        return (x - mean.value) * jax.lax.rsqrt(variance.value + _EPSILON) + bias


class VirtualBatchNormNet(nn.Module):
    """The convolutional network of evolution strategies on Atari: the small `DeepGA`, each hidden layer normalised.

    Input: integers `[B, 84, 84, 4]`, scaled from 0..255 to [0, 1]; floating-point input is taken as scaled already.
    Output: float32 `[B, num_actions]`. Made a policy by `reference_policy`.

    Attributes:
      num_actions: Length of the output.
    """

    num_actions: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Logits `[B, num_actions]` of observations `[B, 84, 84, 4]`."""
        x = scaled(x)
        normal = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
        for features, kernel, stride in ((16, 8, 4), (32, 4, 2)):
            x = nn.Conv(features, (kernel, kernel), (stride, stride), use_bias=False, kernel_init=normal)(x)
            x = nn.relu(VirtualBatchNorm()(x))
        x = nn.Dense(256, use_bias=False, kernel_init=normal)(x.reshape(x.shape[0], -1))
        x = nn.relu(VirtualBatchNorm()(x))
        return nn.Dense(self.num_actions, kernel_init=normal)(x)


def reference_policy(module: nn.Module, spec: EnvSpec, reference: Array | np.ndarray) -> Policy:
    """Makes a policy of a flax module with `VirtualBatchNorm` layers.

    Args:
      module: its variables are parameters and the collection `reference`.
      spec: the environment it is to act in.
      reference: observations `[R, *observation_shape]`, for example of `volvox.loop.reference_batch`.

    Returns:
      The policy; `prepare` runs the reference batch through the network. Its config names the batch by a hash.

    Raises:
      ValueError: observations of another shape, no normalised layer, or an output that does not fit the actions.
    """
    frames = np.asarray(reference)
    if frames.ndim < 2 or frames.shape[1:] != tuple(spec.observation_shape) or frames.dtype != spec.observation_dtype:
        raise ValueError(
            f"the reference batch is {frames.dtype} {list(frames.shape)}; {spec.name} has observations of "
            f"{np.dtype(spec.observation_dtype)} [R, {', '.join(map(str, spec.observation_shape))}]."
        )
    one = jnp.zeros((1, *spec.observation_shape), spec.observation_dtype)
    collections = set(jax.eval_shape(module.init, jax.random.key(0), one))
    if REFERENCE not in collections:
        raise ValueError(
            f"{type(module).__name__} has no VirtualBatchNorm layer; make a policy of it by volvox.networks.policy."
        )
    if others := sorted(collections - {"params", REFERENCE}):
        raise ValueError(
            f"{type(module).__name__} keeps variables besides params and {REFERENCE}: {', '.join(others)}."
        )

    def init(key: Array) -> ArrayTree:
        return module.init(key, one)["params"]

    def prepare(params: ArrayTree) -> ArrayTree:
        # Kept from being folded into larger constants when a program is compiled.
        batch = jax.lax.optimization_barrier(jnp.asarray(frames))
        with use_kernels():
            _, statistics = module.apply({"params": params}, batch, mutable=REFERENCE)  # pyright: ignore
        return {"params": params, **statistics}

    def apply(variables: ArrayTree, observation: Array) -> Any:
        with use_kernels():
            return module.apply(variables, observation)

    digest = hashlib.sha256(frames.tobytes()).hexdigest()[:16]
    return policy_from_functions(
        init,
        apply,
        spec,
        name=type(module).__name__,
        prepare=prepare,
        initial_std=own_initial_std(module),
        low_rank=low_rank_kernels(prepare, jax.eval_shape(init, jax.random.key(0))),
        config={**module_settings(module), "reference": [len(frames), digest]},
    )
