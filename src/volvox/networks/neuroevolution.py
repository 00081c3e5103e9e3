"""The convolutional networks of deep neuroevolution on Atari, and virtual batch normalisation.

Genetic algorithms evolve `DeepGA` (Such et al. 2017, arXiv 1712.06567). Evolution strategies use `VirtualBatchNormNet`
(Salimans et al. 2016, arXiv 1606.03498, and 2017, arXiv 1703.03864): its layers are normalised by the statistics of one
fixed reference batch, which are computed once for each parameter vector, when a genotype is prepared.
"""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from volvox.networks import genotypes
from volvox.networks.interception import low_rank_kernels, use_kernels
from volvox.networks.perceptrons import Activation
from volvox.types import Array, ArrayTree, EnvSpec, Genotype

REFERENCE = "reference"
"""The collection of variables that holds the statistics."""

_EPSILON = 1e-3
_OUTPUT_STD = 0.1
_NORMAL = nn.initializers.variance_scaling(1.0, "fan_in", "normal")

CONVOLUTIONS = {"large": ((32, 8, 4), (64, 4, 2), (64, 3, 1)), "small": ((16, 8, 4), (32, 4, 2))}
"""(features, kernel size, stride) of each layer."""
HIDDEN = {"large": (512,), "small": (256,)}
"""Widths of the dense layers."""


def torso(
    images: Array, size: str, hidden: tuple[int, ...], activation: Activation, padding: str = "SAME", **options: Any
) -> Array:
    """Features `[B, n]` of images `[B, H, W, C]`, inside a compact method: convolutions, then dense layers.

    Integers are scaled from 0..255 to [0, 1]. `options` are those of all layers, such as `kernel_init`.
    """
    if images.ndim != 4:
        raise ValueError(f"images [B, H, W, C] are needed, not {images.ndim} axes; vx.networks.MLP takes vectors")
    x = images.astype(jnp.float32) * jnp.float32(1 / 255) if jnp.issubdtype(images.dtype, jnp.integer) else images
    for features, window, stride in CONVOLUTIONS[size]:
        x = activation(nn.Conv(features, (window, window), (stride, stride), padding=padding, **options)(x))
    x = x.reshape(x.shape[0], -1)
    for width in hidden:
        x = activation(nn.Dense(width, **options)(x))
    return x


class DeepGA(nn.Module):
    """Convolutional network over stacked Atari frames; with 18 actions 4 052 658 or 1 008 450 parameters.

    Convolutions with SAME padding, a hidden dense layer, ReLU after all but the output. Parameters are named `Conv_i`
    and `Dense_i`, so that their flat order (`volvox.ops.flat`) is the layer order of the published networks.

        net = vx.networks.DeepGA(env.spec.num_outputs, size="small")

    Input: integers `[B, 84, 84, 4]`, scaled from 0..255 to [0, 1]; floating-point input is not scaled.
    Output: `[B, num_actions]`, float32 if the parameters are.

    Attributes:
      num_actions: Length of the output.
      size: "large": 32@8x8/4, 64@4x4/2, 64@3x3/1, dense 512. "small": 16@8x8/4, 32@4x4/2, dense 256.
      dtype: Dtype in which all layers but the output compute, e.g. `jnp.bfloat16`; None takes that of parameters and
        observations.
      hidden: Widths of the dense layers; None: those of the size.
      activation: Applied after all layers but the output.
    """

    num_actions: int
    size: Literal["large", "small"] = "large"
    dtype: Any = None
    hidden: tuple[int, ...] | None = None
    activation: Activation = nn.relu

    @property
    def _hidden(self) -> tuple[int, ...]:
        return HIDDEN[self.size] if self.hidden is None else self.hidden

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Logits `[B, num_actions]` of observations `[B, 84, 84, 4]`."""
        x = torso(x, self.size, self._hidden, self.activation, kernel_init=_NORMAL, dtype=self.dtype)
        output = nn.initializers.variance_scaling(_OUTPUT_STD**2, "fan_in", "normal")
        return nn.Dense(self.num_actions, kernel_init=output)(x)

    @nn.nowrap
    def initial_std(self, path: tuple[str, ...]) -> float:
        """Standard deviation of an initial kernel, times the root of its fan-in: 0.1 for the output, 1 elsewhere."""
        return _OUTPUT_STD if path[0] == f"Dense_{len(self._hidden)}" else 1.0


class VirtualBatchNorm(nn.Module):
    """Normalises each feature by its mean and variance over the reference batch, and adds a bias.

    If the collection `reference` is mutable, the input is the reference batch, and its statistics are stored.
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

    Input: integers `[B, 84, 84, 4]`, scaled from 0..255 to [0, 1]; floating-point input is not scaled.
    Output: float32 `[B, num_actions]`. `reference_genotype` makes a genotype of it.

    Attributes:
      num_actions: Length of the output.
      hidden: Widths of the dense layers.
      activation: Applied after all layers but the output.
    """

    num_actions: int
    hidden: tuple[int, ...] = (256,)
    activation: Activation = nn.relu

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Logits `[B, num_actions]` of observations `[B, 84, 84, 4]`."""

        def normalized(x: Array) -> Array:
            return self.activation(VirtualBatchNorm()(x))

        x = torso(x, "small", self.hidden, normalized, kernel_init=_NORMAL, use_bias=False)
        return nn.Dense(self.num_actions, kernel_init=_NORMAL)(x)


def reference_genotype(module: nn.Module, spec: EnvSpec, reference: Array | np.ndarray) -> Genotype:
    """Makes a genotype of a flax module with `VirtualBatchNorm` layers.

        net = reference_genotype(VirtualBatchNormNet(env.spec.num_outputs), env.spec, vx.reference_batch(env))

    Args:
      module: A module whose variables are parameters and the collection `reference`.
      spec: The environment.
      reference: Observations `[R, *observation_shape]`, for example of `volvox.reference_batch`.

    Returns:
      The genotype; `prepare` runs the reference batch through the network. The policy's config holds the module and R.

    Raises:
      TypeError: `module` is no flax module.
      ValueError: The observations have another shape or dtype, no layer is normalised, or the output does not fit the
        environment's actions.
    """
    frames, wanted = np.asarray(reference), spec.observation
    if frames.shape[1:] != wanted.shape or frames.dtype != wanted.dtype or not frames.size:
        raise ValueError(f"the reference batch is {frames.dtype}{frames.shape}; {spec.name} needs R of {wanted}")
    variables = genotypes.check_module(module, spec, (genotypes.observations(spec),), collections=("params", REFERENCE))
    name = type(module).__name__
    if REFERENCE not in variables:
        raise ValueError(f"{name} has no VirtualBatchNorm layer; make a genotype of it with volvox.networks.genotype")

    def prepare(params: ArrayTree) -> ArrayTree:
        # The barrier keeps XLA from folding the batch into larger constants at compile time.
        batch = jax.lax.optimization_barrier(jnp.asarray(frames))
        _, statistics = genotypes.apply_module(module, params, batch, mutable=REFERENCE)
        return {"params": params, **statistics}

    def apply(variables: ArrayTree, observation: Array) -> Any:
        with use_kernels():
            return module.apply(variables, observation)

    init, std = partial(genotypes.init_params, module, spec), getattr(module, "initial_std", None)
    low_rank = low_rank_kernels(prepare, variables["params"])
    config = {"type": "volvox.networks.reference_genotype", "module": module, "reference": len(frames)}
    return genotypes.genotype_from_functions(
        init, apply, spec, name=name, prepare=prepare, initial_std=std, low_rank=low_rank, config=config
    )
