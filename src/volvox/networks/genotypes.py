"""Genotypes of flax modules or of functions, and the convolutional networks that were evolved on Atari.

    net = genotype(MLP(spec.num_outputs), spec)
    variables = net.prepare(net.policy.init(jax.random.key(0)))
    logits, state = net.policy.apply(variables, observation, net.policy.initial_state(len(observation)))
    action = net.policy.mode(logits)

Genetic algorithms evolve `DeepGA` (Such et al. 2017, arXiv 1712.06567). Evolution strategies use `VirtualBatchNormNet`
(Salimans et al. 2016, arXiv 1606.03498, and 2017, arXiv 1703.03864): its layers are normalised by the statistics of one
fixed reference batch, which are computed once for each parameter vector, when a genotype is prepared.
"""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from volvox._checks import check_type, typed_key
from volvox.networks.distributions import clip_action, distribution, mask_logits
from volvox.networks.initializers import ZEROS, bias_like_kernel
from volvox.networks.interception import low_rank_kernels, use_kernels
from volvox.ops.flat import is_kernel, leaf_path
from volvox.types import Array, ArrayTree, EnvSpec, Genotype, Policy, zeros

Activation = Callable[[Array], Array]
InitialStd = Callable[[tuple[str, ...]], float]
"""Path of a kernel, such as `("Dense_0", "kernel")`, -> standard deviation times the root of its fan-in."""
BATCH = 7
"""Size of the batches with which networks are checked; errors show it as B."""
_REFERENCE = "reference"
"""The collection of variables that holds the statistics of virtual batch normalisation."""


def genotype(module: nn.Module, spec: EnvSpec, *, reference: Array | np.ndarray | None = None) -> Genotype:
    """Makes a genotype of an unmodified flax module.

        net = genotype(DeepGA(env.spec.num_outputs), env.spec)
        net = genotype(VirtualBatchNormNet(env.spec.num_outputs), env.spec, reference=vx.reference_batch(env))

    The module is called as `module.apply({"params": params}, observation)`, `[B, *observation_shape]` -> `[B, A]`. Its
    plain `nn.Dense` and `nn.Conv` layers run in `volvox.ops`, which makes `jax.vmap(policy.apply)` over the parameters
    of many networks fast. If it has a method `initial_std(path)`, that is the spread of the first generation's kernels,
    see `genotype_from_functions`.

    Args:
      module: Any flax module that has only parameters (no batch statistics, no dropout, no recurrent state). With a
        reference batch, it also has `VirtualBatchNorm` layers.
      spec: The environment; it needs `A == spec.num_outputs`.
      reference: Observations `[R, *observation_shape]`, for example of `volvox.reference_batch`. `prepare` runs them
        through the network for the statistics of `VirtualBatchNorm`. `vx.load` makes `vx.reference_batch(env, size=R)`
        again; with any other batch, pass the genotype in its `custom`.

    Raises:
      TypeError: `module` is not a flax module.
      ValueError: The module cannot take the observations, has other variables, or its output does not fit the
        environment's actions; or the reference batch does not fit the environment, or no layer uses it.
    """
    collections = ("params",) if reference is None else ("params", _REFERENCE)
    variables = check_module(module, spec, (observations(spec),), collections=collections)
    params, init = variables.get("params", {}), partial(init_params, module, spec)
    initial_std = getattr(module, "initial_std", None)
    if reference is None:
        apply = partial(apply_module, module)
        low_rank = low_rank_kernels(apply, params, observations(spec))
        return genotype_from_functions(init, apply, spec, initial_std=initial_std, low_rank=low_rank, config=module)
    wanted = spec.split_mask(spec.observation)[0]
    if not isinstance(wanted, jax.ShapeDtypeStruct):
        raise ValueError(f"{spec.name} has several observations; a reference batch needs one array")
    frames = np.asarray(spec.split_mask(reference)[0])
    if frames.shape[1:] != wanted.shape or frames.dtype != wanted.dtype or not frames.size:
        raise ValueError(f"the reference batch is {frames.dtype}{frames.shape}; {spec.name} needs R of {wanted}")
    if _REFERENCE not in variables:
        raise ValueError(f"{type(module).__name__} has no VirtualBatchNorm layer, so it needs no reference batch")

    def prepare(params: ArrayTree) -> ArrayTree:
        # The barrier keeps XLA from folding the batch into larger constants at compile time.
        batch = jax.lax.optimization_barrier(jnp.asarray(frames))
        _, statistics = apply_module(module, params, batch, mutable=_REFERENCE)
        return {"params": params, **statistics}

    def apply_prepared(variables: ArrayTree, observation: Array) -> Any:
        with use_kernels():
            return module.apply(variables, observation)

    return genotype_from_functions(
        init,
        apply_prepared,
        spec,
        prepare=prepare,
        initial_std=initial_std,
        low_rank=low_rank_kernels(prepare, params),
        config={"type": "volvox.networks.genotype", "module": module, "reference": len(frames)},
    )


def genotype_from_functions(
    init: Callable[[Array], ArrayTree],
    apply: Callable[[ArrayTree, Array], Array],
    spec: EnvSpec,
    *,
    prepare: Callable[[ArrayTree], ArrayTree] | None = None,
    initial_std: InitialStd | None = None,
    low_rank: Collection[tuple[str, ...]] = (),
    config: Any = None,
) -> Genotype:
    """Makes a genotype of a network that is given as functions.

        net = genotype_from_functions(lambda key: {"kernel": jnp.zeros((3, 2))}, lambda p, x: x @ p["kernel"], env.spec)
        net = genotype_from_functions(init, apply, env.spec, initial_std=lambda path: 0.1)

    The first generation's parameters are a map of standard normal noise, leaf by leaf and element by element: a kernel
    (at least two dimensions, not called `bias` or `scale`) is noise times `initial_std(path) / sqrt(fan_in)`, with
    fan-in the product of all its dimensions but the last; every other leaf is the leaf of `init`, without noise.

    Args:
      init: key -> params.
      apply: (variables, observation `[B, *observation_shape]`) -> output `[B, A]`: logits, or one continuous action.
      spec: The environment; it needs `A == spec.num_outputs`.
      prepare: params -> variables, computed once for each network; None is the identity.
      initial_std: See above; None is 1 everywhere.
      low_rank: Paths of the kernels for which `prepare` and `apply` accept a `volvox.ops.low_rank.LowRankKernel`.
      config: The policy's `config`; None describes this call.

    Returns:
      The genotype. Its policy has no recurrent state, and discrete actions can be sampled.

    Raises:
      ValueError: The output does not fit the environment's actions.
    """
    if config is None:
        config = {"type": "volvox.networks.genotype_from_functions", "init": init, "apply": apply}
        config |= {"prepare": prepare, "initial_std": initial_std, "low_rank": tuple(sorted(low_rank))}
    prepare, initial_std = prepare or (lambda params: params), initial_std or (lambda path: 1.0)
    inputs = (observations(spec),)
    output = jax.eval_shape(apply, jax.eval_shape(prepare, jax.eval_shape(init, jax.random.key(0))), *inputs)
    hint = "" if hasattr(output, "shape") else "; networks with several outputs are trained by volvox.learn"
    check_output("the network", spec, inputs, output, batch_of(spec.num_outputs), hint)

    def masked(variables: ArrayTree, observation: ArrayTree, state: ArrayTree) -> tuple[Array, ArrayTree]:
        observation, mask = spec.split_mask(observation)
        return mask_logits(apply(variables, observation), mask), state

    def one_action(output: Array) -> Array:
        return clip_action(output.reshape(*output.shape[:-1], *(spec.action_shape or ())), spec)

    actions = distribution(spec)
    policy = Policy(
        init=init,
        initial_state=lambda batch_size: (),
        apply=masked,
        sample=no_sample if spec.continuous else actions.sample,
        mode=one_action if spec.continuous else actions.mode,
        config=config,
    )
    return Genotype(policy, prepare, _first_generation(init, initial_std), frozenset(low_rank))


def no_sample(key: Array, output: Array) -> Array:
    """Raises ValueError: `Policy.sample` of a network whose output is one continuous action."""
    raise ValueError("the network gives one continuous action and no distribution to sample from")


def _first_generation(init: Callable[[Array], ArrayTree], initial_std: InitialStd) -> Callable[[ArrayTree], ArrayTree]:
    """Returns `Genotype.from_noise`; see `genotype_from_functions`."""

    @jax.jit  # so that kernels are never drawn
    def constants(key: Array) -> ArrayTree:
        return jax.tree.map_with_path(lambda path, x: None if is_kernel(path, x) else x, init(key))

    def leaf_from_noise(path: Any, noise: Array, constant: Array | None) -> Array:
        if constant is not None:
            return constant.astype(noise.dtype)
        std = initial_std(leaf_path(path)) / math.sqrt(math.prod(noise.shape[:-1]))
        return noise * jnp.asarray(std, noise.dtype)

    fixed = constants(jax.random.key(0))
    return lambda noise: jax.tree.map_with_path(leaf_from_noise, noise, fixed)


def batch_of(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a batch `[B, *shape]`, for `check_module`."""
    return jax.ShapeDtypeStruct((BATCH, *shape), dtype)


def observations(spec: EnvSpec) -> Any:
    """Shape and dtype of a batch of the observations that a network takes."""
    return jax.tree.map(lambda x: batch_of(*x.shape, dtype=x.dtype), spec.split_mask(spec.observation)[0])


def init_params(module: nn.Module, spec: EnvSpec, key: Array, *states: ArrayTree) -> ArrayTree:
    """Draws the parameters of a module that is called with an observation, and with a state if it is recurrent."""
    observation = zeros(spec.split_mask(spec.observation)[0], 1)
    return module.init(typed_key(key), observation, *states).get("params", {})


def apply_module(module: nn.Module, params: ArrayTree, *args: ArrayTree, **options: Any) -> Any:
    """Computes `module.apply` with the kernels of `volvox.ops`."""
    with use_kernels():
        return module.apply({"params": params}, *args, **options)


def check_module(
    module: nn.Module,
    spec: EnvSpec,
    inputs: Sequence[ArrayTree],
    output: ArrayTree = None,
    *,
    role: str = "network",
    collections: Collection[str] = ("params",),
) -> ArrayTree:
    """Checks that a flax module fits an environment, without computing anything.

    Args:
      module: Any flax.linen module.
      spec: The environment.
      inputs: Shapes and dtypes of the module's arguments; the first is a batch of observations.
      output: Shapes of the required output; None allows any output.
      role: Name of the module in errors.
      collections: The collections of variables that the module may have.

    Returns:
      Shapes and dtypes of the module's variables, by collection.

    Raises:
      TypeError: `module` is not a flax module.
      ValueError: The module cannot take the inputs, has other variables, or another output.
    """
    check_type(role, module, nn.Module, "a flax.linen module, for example volvox.networks.MLP(2)")
    name = type(module).__name__
    try:
        found, variables = jax.eval_shape(module.init_with_output, jax.random.key(0), *inputs)
    except Exception as error:  # the module's code may raise anything
        taken = f"observations of {spec.name}, {shape_text(inputs)}, as the {role}"
        raise ValueError(f"{name} cannot take {taken}: {error}") from error
    others = sorted(set(variables) - set(collections))
    if others:
        raise ValueError(
            f"{name} has variables besides parameters: {', '.join(others)}; use layers without running statistics, "
            "such as nn.LayerNorm, or volvox.networks.genotypes.VirtualBatchNorm with a reference batch"
        )
    if output is not None:
        check_output(name, spec, inputs, found, output, f" as the {role}")
    return variables


def check_output(
    name: str, spec: EnvSpec, inputs: Sequence[ArrayTree], output: ArrayTree, required: ArrayTree, hint: str
) -> None:
    """Raises ValueError if the shapes of a network's output are not the required ones."""
    shapes = [(jax.tree.structure(tree), [x.shape for x in jax.tree.leaves(tree)]) for tree in (output, required)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{name} returns {shape_text(output)} for {shape_text(inputs)}; {spec.name} needs "
            f"{shape_text(required)}{hint}"
        )


def shape_text(tree: ArrayTree) -> str:
    """Shapes and dtypes as text, such as `(uint8[B, 84, 84, 4], float32[B, 2])`."""

    def one(x: Any) -> str:
        sizes = ("B" if i == 0 and n == BATCH else str(n) for i, n in enumerate(x.shape))
        return f"{x.dtype}[{', '.join(sizes)}]"

    return str(jax.tree.map(one, tree)).replace("'", "")


_EPSILON = 1e-3
_OUTPUT_STD = 0.1
_NORMAL = nn.initializers.variance_scaling(1.0, "fan_in", "normal")

_CONVOLUTIONS = {"large": ((32, 8, 4), (64, 4, 2), (64, 3, 1)), "small": ((16, 8, 4), (32, 4, 2))}
"""(features, kernel size, stride) of each layer."""
_HIDDEN = {"large": (512,), "small": (256,)}
"""Widths of the dense layers."""


def torso(
    images: Array, convolutions: Any, hidden: Any, activation: Activation, padding: str = "SAME", **options: Any
) -> Array:
    """Features `[B, n]` of images `[B, H, W, C]`, inside a compact method: convolutions, then dense layers.

    A convolution is (features, kernel size, stride). Integers are scaled from 0..255 to [0, 1]. `options`, such as
    `kernel_init`, apply to all layers.
    """
    if images.ndim != 4:
        raise ValueError(f"images [B, H, W, C] are needed, not {images.ndim} axes; vx.networks.MLP takes vectors")
    x = images.astype(jnp.float32) * jnp.float32(1 / 255) if jnp.issubdtype(images.dtype, jnp.integer) else images
    bias_init = options.pop("bias_init", ZEROS)
    for features, window, stride in convolutions:
        options["bias_init"] = bias_like_kernel(bias_init, window**2 * x.shape[-1])
        x = activation(nn.Conv(features, (window, window), (stride, stride), padding=padding, **options)(x))
    x = x.reshape(x.shape[0], -1)
    for width in hidden:
        options["bias_init"] = bias_like_kernel(bias_init, x.shape[-1])
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
      size: "large": `32@8x8/4, 64@4x4/2, 64@3x3/1`, dense 512. "small": `16@8x8/4, 32@4x4/2`, dense 256.
      dtype: Dtype in which all layers but the output compute, e.g. `jnp.bfloat16`. None: the dtype of parameters
        and observations.
      hidden: Widths of the dense layers. None: the widths of `size`.
      activation: Applied after all layers but the output.
    """

    num_actions: int
    size: Literal["large", "small"] = "large"
    dtype: Any = None
    hidden: tuple[int, ...] | None = None
    activation: Activation = nn.relu

    @property
    def _hidden(self) -> tuple[int, ...]:
        return _HIDDEN[self.size] if self.hidden is None else self.hidden

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Logits `[B, num_actions]` of observations `[B, 84, 84, 4]`."""
        x = torso(x, _CONVOLUTIONS[self.size], self._hidden, self.activation, kernel_init=_NORMAL, dtype=self.dtype)
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
        mean = self.variable(_REFERENCE, "mean", lambda: jnp.zeros(x.shape[-1]))
        variance = self.variable(_REFERENCE, "variance", lambda: jnp.ones(x.shape[-1]))
        if self.is_mutable_collection(_REFERENCE):
            mean.value, variance.value = x.mean(axes), x.var(axes)
        return (x - mean.value) * jax.lax.rsqrt(variance.value + _EPSILON) + bias


class VirtualBatchNormNet(nn.Module):
    """The convolutional network of evolution strategies on Atari: the small `DeepGA`, each hidden layer normalised.

    Input: integers `[B, 84, 84, 4]`, scaled from 0..255 to [0, 1]; floating-point input is not scaled.
    Output: float32 `[B, num_actions]`. `genotype` takes the reference batch.

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

        x = torso(x, _CONVOLUTIONS["small"], self.hidden, normalized, kernel_init=_NORMAL, use_bias=False)
        return nn.Dense(self.num_actions, kernel_init=_NORMAL)(x)
