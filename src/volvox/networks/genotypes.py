"""Genotypes of flax modules, or of networks that are given as functions. Genotypes evolve.

net = genotype(MLP(spec.num_outputs), spec)
variables = net.prepare(net.policy.init(jax.random.key(0)))
logits, state = net.policy.apply(variables, observation, net.policy.initial_state(len(observation)))
action = net.policy.mode(logits)
"""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from volvox._checks import check_type, typed_key
from volvox.networks.distributions import Deterministic, clip_action, distribution
from volvox.networks.interception import low_rank_kernels, use_kernels
from volvox.ops.flat import is_kernel, leaf_path
from volvox.types import Array, ArrayTree, EnvSpec, Genotype, Policy, zeros

InitialStd = Callable[[tuple[str, ...]], float]
"""Path of a kernel, such as `("Dense_0", "kernel")`, -> standard deviation times the root of its fan-in."""
Prepare = Callable[[ArrayTree], ArrayTree]
"""params -> variables, computed once for each network."""
BATCH = 7
"""Size of the batches with which networks are checked; errors show it as B."""


def genotype(
    module: nn.Module, spec: EnvSpec, *, prepare: Prepare | None = None, initial_std: InitialStd | None = None
) -> Genotype:
    """Makes a genotype of an unmodified flax module.

    The module is called as `module.apply({"params": params}, observation)`, `[B, *observation_shape]` -> `[B, A]`. Its
    plain `nn.Dense` and `nn.Conv` layers run in `volvox.ops`, which makes `jax.vmap(policy.apply)` over the parameters
    of many networks fast.

    Args:
      module: Any flax module that has only parameters (no batch statistics, no dropout, no recurrent state).
      spec: The environment; it needs `A == spec.num_outputs`.
      prepare: params -> variables, computed once for each network; the module takes its result as params.
      initial_std: Spread of the first generation's kernels, see `genotype_from_functions`. None takes the module's
        method `initial_std(path)` if it has one, and 1 otherwise.

    Raises:
      TypeError: `module` is no flax module.
      ValueError: The module cannot take the observations, has other variables than parameters, or its output does not
        fit the environment's actions.
    """
    variables = check_module(module, spec, (observations(spec),))
    init, apply = partial(init_params, module, spec), partial(apply_module, module)
    # With `prepare`, members with low-rank noise could not share its results.
    low_rank = () if prepare else low_rank_kernels(apply, variables.get("params", {}), observations(spec))
    config: Any = module
    if prepare or initial_std:
        config = {"type": "volvox.networks.genotype", "module": module, "prepare": prepare, "initial_std": initial_std}
    name, std = type(module).__name__, initial_std or getattr(module, "initial_std", None)
    return genotype_from_functions(
        init, apply, spec, name=name, prepare=prepare, initial_std=std, low_rank=low_rank, config=config
    )


def genotype_from_functions(
    init: Callable[[Array], ArrayTree],
    apply: Callable[[ArrayTree, Array], Array],
    spec: EnvSpec,
    *,
    name: str | None = None,
    prepare: Prepare | None = None,
    initial_std: InitialStd | None = None,
    low_rank: Collection[tuple[str, ...]] = (),
    config: Any = None,
) -> Genotype:
    """Makes a genotype of a network that is given as functions.

        net = genotype_from_functions(lambda key: {"kernel": jnp.zeros((3, 2))}, lambda p, x: x @ p["kernel"], env.spec)
        net = genotype_from_functions(init, apply, env.spec, name="linear", initial_std=lambda path: 0.1)

    The first generation's parameters are a map of standard normal noise, leaf by leaf and element by element: a kernel
    (at least two dimensions, not called `bias` or `scale`) is noise times `initial_std(path) / sqrt(fan_in)`, with
    fan-in the product of all its dimensions but the last; every other leaf is the leaf of `init`, without noise.

    Args:
      init: key -> params.
      apply: (variables, observation `[B, *observation_shape]`) -> output `[B, A]`: logits, or one continuous action.
      spec: The environment; it needs `A == spec.num_outputs`.
      name: Name of the network in errors; None takes the name of `apply`.
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
        config = {
            **{"type": "volvox.networks.genotype_from_functions", "init": init, "apply": apply, "name": name},
            **{"prepare": prepare, "initial_std": initial_std, "low_rank": tuple(low_rank)},
        }
    prepare, initial_std = prepare or (lambda params: params), initial_std or (lambda path: 1.0)
    actions = Deterministic(spec.action_shape or ()) if spec.continuous else distribution(spec)
    inputs = (observations(spec),)
    output = jax.eval_shape(apply, jax.eval_shape(prepare, jax.eval_shape(init, jax.random.key(0))), *inputs)
    name = str(name or getattr(apply, "__name__", type(apply).__name__))
    hint = "" if hasattr(output, "shape") else "; networks with several outputs are trained by volvox.learn"
    check_output(name, spec, inputs, output, batch_of(spec.num_outputs), hint)
    policy = Policy(
        init=init,
        initial_state=lambda batch_size: (),
        apply=lambda variables, observation, state: (apply(variables, observation), state),
        sample=actions.sample,
        mode=lambda output: clip_action(actions.mode(output), spec),
        config=config,
    )
    return Genotype(policy, prepare, _first_generation(init, initial_std), frozenset(low_rank))


def _first_generation(init: Callable[[Array], ArrayTree], initial_std: InitialStd) -> Callable[[ArrayTree], ArrayTree]:
    """Returns `Genotype.from_noise`; see `genotype_from_functions`."""

    @jax.jit  # so that kernels are never drawn
    def constants(key: Array) -> ArrayTree:
        return jax.tree_util.tree_map_with_path(lambda path, x: None if is_kernel(path, x) else x, init(key))

    def leaf_from_noise(path: Any, noise: Array, constant: Array | None) -> Array:
        if constant is not None:
            return constant.astype(noise.dtype)
        std = initial_std(leaf_path(path)) / math.sqrt(math.prod(noise.shape[:-1]))
        return noise * jnp.asarray(std, noise.dtype)

    fixed = constants(jax.random.key(0))
    return lambda noise: jax.tree_util.tree_map_with_path(leaf_from_noise, noise, fixed)


def batch_of(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a batch `[B, *shape]`, for `check_module`."""
    return jax.ShapeDtypeStruct((BATCH, *shape), dtype)


def observations(spec: EnvSpec) -> Any:
    """Shape and dtype of a batch of an environment's observations."""
    return jax.tree.map(lambda x: batch_of(*x.shape, dtype=x.dtype), spec.observation)


def init_params(module: nn.Module, spec: EnvSpec, key: Array, *states: ArrayTree) -> ArrayTree:
    """Draws the parameters of a module that is called with an observation, and with a state if it is recurrent."""
    return module.init(typed_key(key), zeros(spec.observation, 1), *states).get("params", {})


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
      TypeError: `module` is no flax module.
      ValueError: The module cannot take the inputs, has other variables, or another output.
    """
    check_type(role, module, nn.Module, "a flax.linen module, for example volvox.networks.MLP(2)")
    name = type(module).__name__
    try:
        found, variables = jax.eval_shape(module.init_with_output, jax.random.key(0), *inputs)
    except Exception as error:  # the module's code may raise anything
        raise ValueError(f"{name} cannot take observations of {spec.name}, {shape_text(inputs)}: {error}") from error
    others = sorted(set(variables) - set(collections))
    if others:
        raise ValueError(
            f"{name} has variables besides parameters: {', '.join(others)}; use layers without running statistics, "
            "such as nn.LayerNorm, or VirtualBatchNorm with volvox.networks.reference_genotype"
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
