"""Virtual batch normalisation, and the network that evolution strategies use with it (Salimans et al. 2016 and 2017).

Layers are normalised by the statistics of one fixed reference batch, computed anew for every parameter vector: once,
when a genotype is prepared, not in every step.
"""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from volvox._settings import describe
from volvox.networks.genotypes import genotype_from_functions, own_initial_std
from volvox.networks.images import scaled
from volvox.networks.interception import low_rank_kernels, use_kernels
from volvox.networks.modules import batch_of, check_module
from volvox.types import Array, ArrayTree, EnvSpec, Genotype

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
    Output: float32 `[B, num_actions]`. Made a genotype by `reference_genotype`.

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


def reference_genotype(module: nn.Module, spec: EnvSpec, reference: Array | np.ndarray) -> Genotype:
    """Makes a genotype of a flax module with `VirtualBatchNorm` layers.

    net = reference_genotype(VirtualBatchNormNet(env.spec.num_actions), env.spec, volvox.loop.reference_batch(env))

    Args:
      module: its variables are parameters and the collection `reference`.
      spec: the environment it is to act in.
      reference: observations `[R, *observation_shape]`, for example of `volvox.loop.reference_batch`.

    Returns:
      The genotype; `prepare` runs the reference batch through the network. Its policy's config names the batch by a
      hash.

    Raises:
      TypeError: `module` is no flax module.
      ValueError: observations of another shape or dtype, no normalised layer, or an output that does not fit the
        environment's actions.
    """
    frames = np.asarray(reference)
    if frames.ndim < 2 or frames.shape[1:] != tuple(spec.observation_shape) or frames.dtype != spec.observation_dtype:
        raise ValueError(
            f"the reference batch is {frames.dtype} {list(frames.shape)}; {spec.name} has observations of "
            f"{np.dtype(spec.observation_dtype)} [R, {', '.join(map(str, spec.observation_shape))}]."
        )
    observation = batch_of(spec.observation_shape, spec.observation_dtype)
    variables = check_module(module, spec, (observation,), collections=("params", REFERENCE))
    if REFERENCE not in variables:
        raise ValueError(
            f"{type(module).__name__} has no VirtualBatchNorm layer; make a genotype of it by volvox.networks.genotype."
        )

    def init(key: Array) -> ArrayTree:
        return module.init(key, jnp.zeros((1, *observation.shape[1:]), observation.dtype))["params"]

    def prepare(params: ArrayTree) -> ArrayTree:
        # The barrier keeps the batch from being folded into larger constants when a program is compiled.
        batch = jax.lax.optimization_barrier(jnp.asarray(frames))
        with use_kernels():
            _, statistics = module.apply({"params": params}, batch, mutable=REFERENCE)  # pyright: ignore
        return {"params": params, **statistics}

    def apply(variables: ArrayTree, observation: Array) -> Any:
        with use_kernels():
            return module.apply(variables, observation)

    digest = hashlib.sha256(frames.tobytes()).hexdigest()[:16]
    return genotype_from_functions(
        init,
        apply,
        spec,
        name=type(module).__name__,
        prepare=prepare,
        initial_std=own_initial_std(module),
        low_rank=low_rank_kernels(prepare, variables["params"]),
        config={**describe(module), "reference": [len(frames), digest]},
    )
