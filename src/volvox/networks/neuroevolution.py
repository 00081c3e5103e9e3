"""The convolutional networks of deep neuroevolution on Atari, and virtual batch normalisation.

`DeepGA` is what genetic algorithms evolve (Such et al. 2017, arXiv 1712.06567). `VirtualBatchNormNet` is what evolution
strategies use (Salimans et al. 2016, arXiv 1606.03498, and 2017, arXiv 1703.03864): its layers are normalised by the
statistics of one fixed reference batch, computed anew for every parameter vector: once, when a genotype is prepared,
not in every step.
"""

import hashlib
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from volvox._settings import describe
from volvox.networks import genotypes
from volvox.networks.interception import low_rank_kernels, use_kernels
from volvox.types import Array, ArrayTree, EnvSpec, Genotype

REFERENCE = "reference"
"""The collection of variables that holds the statistics."""

_EPSILON = 1e-3
_OUTPUT_STD = 0.1
_NORMAL = nn.initializers.variance_scaling(1.0, "fan_in", "normal")

CONVOLUTIONS = {"large": ((32, 8, 4), (64, 4, 2), (64, 3, 1)), "small": ((16, 8, 4), (32, 4, 2))}
"""(features, kernel size, stride) of each layer; the hidden dense layer has `WIDTHS` units."""
WIDTHS = {"large": 512, "small": 256}


def scaled(images: Array) -> Array:
    """Returns integers 0..255 as float32 in [0, 1]; floating-point images are taken as scaled already."""
    if jnp.issubdtype(images.dtype, jnp.integer):
        return images.astype(jnp.float32) * jnp.float32(1 / 255)
    return images


def torso(
    images: Array, size: str, *, kernel_init: Any, dtype: Any = None, padding: str = "SAME", normalized: bool = False
) -> Array:
    """Features `[B, WIDTHS[size]]` of images `[B, H, W, C]`, inside a compact method: convolutions, one dense layer.

    Integers are scaled from 0..255 to [0, 1]. With `normalized`, `VirtualBatchNorm` takes the place of biases.
    """
    options: Any = {"kernel_init": kernel_init, "dtype": dtype, "use_bias": not normalized}

    def activated(x: Array) -> Array:
        return nn.relu(VirtualBatchNorm()(x) if normalized else x)

    if images.ndim != 4:
        raise ValueError(f"images [B, H, W, C] are needed, not {images.ndim} axes; vx.networks.MLP takes vectors")
    x = scaled(images)
    for features, window, stride in CONVOLUTIONS[size]:
        x = activated(nn.Conv(features, (window, window), (stride, stride), padding=padding, **options)(x))
    return activated(nn.Dense(WIDTHS[size], **options)(x.reshape(x.shape[0], -1)))


class DeepGA(genotypes.Sized, nn.Module):
    """Convolutional network over stacked Atari frames; with 18 actions 4 052 658 or 1 008 450 parameters.

    Convolutions with SAME padding, one hidden dense layer, ReLU after all but the output. Parameters are called
    `Conv_i` and `Dense_i`, so that their flat order (`volvox.ops.flat`) is the layer order of the published networks.

        net = vx.networks.DeepGA(env.spec.num_outputs, size="small")

    Input: integers `[B, 84, 84, 4]`, scaled from 0..255 to [0, 1]; floating-point input is taken as scaled already.
    Output: `[B, num_actions]`, float32 if the parameters are.

    Attributes:
      num_actions: Length of the output.
      size: "large": 32@8x8/4, 64@4x4/2, 64@3x3/1, dense 512. "small": 16@8x8/4, 32@4x4/2, dense 256.
      dtype: In which all layers but the output compute, e.g. `jnp.bfloat16`; None takes that of parameters and
        observations.
    """

    num_actions: int
    size: Literal["large", "small"] = "large"
    dtype: Any = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Logits `[B, num_actions]` of observations `[B, 84, 84, 4]`."""
        if self.size not in CONVOLUTIONS:
            raise ValueError(f"DeepGA has sizes {', '.join(CONVOLUTIONS)}; got {self.size!r}.")
        x = torso(x, self.size, kernel_init=_NORMAL, dtype=self.dtype)
        output = nn.initializers.variance_scaling(_OUTPUT_STD**2, "fan_in", "normal")
        return nn.Dense(self.num_actions, kernel_init=output)(x)

    @nn.nowrap
    def initial_std(self, path: tuple[str, ...]) -> float:
        """Standard deviation of an initial kernel, times the root of its fan-in: 0.1 for the output, 1 elsewhere."""
        return _OUTPUT_STD if path[0] == "Dense_1" else 1.0


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


class VirtualBatchNormNet(genotypes.Sized, nn.Module):
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
        x = torso(x, "small", kernel_init=_NORMAL, normalized=True)
        return nn.Dense(self.num_actions, kernel_init=_NORMAL)(x)


def reference_genotype(module: nn.Module, spec: EnvSpec, reference: Array | np.ndarray) -> Genotype:
    """Makes a genotype of a flax module with `VirtualBatchNorm` layers.

        net = reference_genotype(VirtualBatchNormNet(env.spec.num_outputs), env.spec, vx.reference_batch(env))

    Args:
      module: Its variables are parameters and the collection `reference`.
      spec: The environment it is to act in.
      reference: Observations `[R, *observation_shape]`, for example of `volvox.rollout.reference_batch`.

    Returns:
      The genotype; `prepare` runs the reference batch through the network. Its policy's config names the batch by a
      hash.

    Raises:
      TypeError: `module` is no flax module.
      ValueError: observations of another shape or dtype, no normalised layer, or an output that does not fit the
        environment's actions.
    """
    frames = np.asarray(reference)
    right = frames.ndim >= 2 and frames.shape[1:] == tuple(spec.observation_shape) and len(frames) > 0
    if not right or frames.dtype != spec.observation_dtype:
        raise ValueError(
            f"the reference batch is {frames.dtype} {list(frames.shape)}; {spec.name} has observations of "
            f"{np.dtype(spec.observation_dtype)} [R, {', '.join(map(str, spec.observation_shape))}]."
        )
    variables = genotypes.check_module(module, spec, (genotypes.observations(spec),), collections=("params", REFERENCE))
    name = type(module).__name__
    if REFERENCE not in variables:
        raise ValueError(f"{name} has no VirtualBatchNorm layer; make a genotype of it by volvox.networks.genotype.")

    def prepare(params: ArrayTree) -> ArrayTree:
        # The barrier keeps the batch from being folded into larger constants when a program is compiled.
        batch = jax.lax.optimization_barrier(jnp.asarray(frames))
        _, statistics = genotypes.apply_module(module, params, batch, mutable=REFERENCE)
        return {"params": params, **statistics}

    def apply(variables: ArrayTree, observation: Array) -> Any:
        with use_kernels():
            return module.apply(variables, observation)

    init, low_rank = partial(genotypes.init_params, module, spec), low_rank_kernels(prepare, variables["params"])
    std = genotypes.own_initial_std(module)
    config = {**describe(module), "reference": [len(frames), hashlib.sha256(frames.tobytes()).hexdigest()[:16]]}
    return genotypes.genotype_from_functions(
        init, apply, spec, name=name, prepare=prepare, initial_std=std, low_rank=low_rank, config=config
    )
