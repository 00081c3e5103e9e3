"""Genotypes of flax modules, or of any network given as functions: what evolves.

net = genotype(MLP(spec.num_actions), spec)
variables = net.prepare(net.policy.init(jax.random.key(0)))
logits, state = net.policy.apply(variables, observation, net.policy.initial_state(len(observation)))
action = net.policy.mode(logits)
"""

import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from volvox._settings import describe
from volvox.networks.distributions import Categorical
from volvox.networks.interception import low_rank_kernels, use_kernels
from volvox.networks.modules import batch_of, check_module, check_output
from volvox.ops.flat import is_kernel, leaf_path, num_parameters
from volvox.types import Array, ArrayTree, Config, EnvSpec, Genotype, Policy

InitialStd = Callable[[tuple[str, ...]], float]
"""Path of a kernel, such as `("Dense_0", "kernel")`, -> standard deviation times the root of its fan-in."""


def genotype(
    module: nn.Module,
    spec: EnvSpec,
    *,
    prepare: Callable[[ArrayTree], ArrayTree] | None = None,
    initial_std: InitialStd | None = None,
) -> Genotype:
    """Makes a genotype of an unmodified flax module.

    The module is called as `module.apply({"params": params}, observation)`, `[B, *observation_shape]` -> `[B, A]`. Its
    plain `nn.Dense` and `nn.Conv` layers run in `volvox.ops`, which makes `jax.vmap(policy.apply)` over the parameters
    of many networks fast.

    Args:
      module: any flax module that has parameters only (no batch statistics, no dropout, no recurrent state).
      spec: the environment it is to act in; needs `A == num_actions`, or `A` = the size of one continuous action.
      prepare: params -> variables, computed once per genome; what it returns is passed to the module as params.
      initial_std: spread of the first generation's kernels, see `genotype_from_functions`; None asks the module's own
        method `initial_std(path)` if it has one, and is 1 otherwise.

    Returns:
      The genotype. Its policy's config names the module's class, its fields and its number of parameters.

    Raises:
      TypeError: `module` is no flax module.
      ValueError: it cannot take the observations, keeps other variables than parameters, or its output does not fit
        the environment's actions.
    """
    observation = batch_of(spec.observation_shape, spec.observation_dtype)
    variables = check_module(module, spec, (observation,))

    def init(key: Array) -> ArrayTree:
        return module.init(key, jnp.zeros((1, *observation.shape[1:]), observation.dtype)).get("params", {})

    def apply(params: ArrayTree, observation: Array) -> Any:
        with use_kernels():
            return module.apply({"params": params}, observation)

    return genotype_from_functions(
        init,
        apply,
        spec,
        name=type(module).__name__,
        prepare=prepare,
        initial_std=initial_std or own_initial_std(module),
        # Members of low rank would not share what `prepare` makes of a kernel.
        low_rank=low_rank_kernels(module.apply, variables, observation) if prepare is None else (),
        config=describe(module),
    )


def genotype_from_functions(
    init: Callable[[Array], ArrayTree],
    apply: Callable[[ArrayTree, Array], Array],
    spec: EnvSpec,
    *,
    name: str | None = None,
    prepare: Callable[[ArrayTree], ArrayTree] | None = None,
    initial_std: InitialStd | None = None,
    low_rank: Collection[tuple[str, ...]] = (),
    config: Config | None = None,
) -> Genotype:
    """Makes a genotype of a network that is given as functions.

    The first generation's parameters are a map of standard normal noise, leaf by leaf and element by element: a kernel
    (at least two dimensions, not called `bias` or `scale`) is noise times `initial_std(path) / sqrt(fan_in)`, fan-in
    being the product of all its dimensions but the last; every other leaf is what `init` gives it, without noise.

    Args:
      init: key -> params.
      apply: (variables, observation `[B, *observation_shape]`) -> output `[B, A]`: logits, or one continuous action.
      spec: the environment it is to act in; needs `A == num_actions`, or `A` = the size of one continuous action.
      name: of the network, in messages; None takes the name of `apply`.
      prepare: params -> variables, computed once per genome; None is the identity.
      initial_std: see above; None is 1 everywhere.
      low_rank: paths of the kernels for which `prepare` and `apply` take a `volvox.ops.low_rank.LowRank` as well.
      config: JSON values, the network's settings; None names `apply`.

    Returns:
      The genotype; its policy has no recurrent state, and discrete actions can be sampled.

    Raises:
      ValueError: the output does not fit the environment's actions.
    """
    prepare = prepare or (lambda params: params)
    network = name or getattr(apply, "__name__", type(apply).__name__)
    if spec.num_actions is not None:
        size, meaning = spec.num_actions, f"one for each of the {spec.num_actions} actions"
        sample, mode = Categorical(size).sample, Categorical(size).mode
    else:
        size = math.prod(spec.action_shape or ())
        meaning = f"one for each entry of an action of shape {spec.action_shape}"
        sample, mode = partial(_no_sample, network), partial(_bounded, spec)
    meaning += f". Make the last layer {size} wide and keep the batch axis first"
    shapes = jax.eval_shape(init, jax.random.key(0))
    observation = batch_of(spec.observation_shape, spec.observation_dtype)
    output = jax.eval_shape(lambda params, observation: apply(prepare(params), observation), shapes, observation)
    check_output(network, spec, (observation,), output, batch_of((size,)), meaning)
    policy = Policy(
        init=init,
        initial_state=lambda batch_size: (),
        apply=lambda variables, observation, state: (apply(variables, observation), state),
        sample=sample,
        mode=mode,
        config={**(describe(apply) if config is None else config), "num_parameters": num_parameters(shapes)},
    )
    return Genotype(policy, prepare, _first_generation(init, shapes, initial_std), frozenset(low_rank))


def own_initial_std(module: nn.Module) -> InitialStd | None:
    """The module's own method `initial_std(path)`, if it has one; see `genotype_from_functions`."""
    method: Any = getattr(module, "initial_std", None)
    return method if callable(method) else None  # pyright: ignore[reportReturnType]


def _first_generation(
    init: Callable[[Array], ArrayTree], shapes: ArrayTree, initial_std: InitialStd | None
) -> Callable[[ArrayTree], ArrayTree]:
    """`Genotype.from_noise`; see `genotype_from_functions`."""
    stds = [
        (1.0 if initial_std is None else initial_std(leaf_path(path))) / math.sqrt(math.prod(leaf.shape[:-1]))
        if is_kernel(path, leaf)
        else None
        for path, leaf in jax.tree_util.tree_flatten_with_path(shapes)[0]
    ]

    @jax.jit  # so that kernels are never drawn
    def constants(key: Array) -> list[Array | None]:
        return [leaf if std is None else None for leaf, std in zip(jax.tree.leaves(init(key)), stds, strict=True)]

    fixed = constants(jax.random.key(0))

    def from_noise(noise: ArrayTree) -> ArrayTree:
        leaves, treedef = jax.tree.flatten(noise)
        return treedef.unflatten(
            noise * jnp.asarray(std, noise.dtype) if constant is None else constant.astype(noise.dtype)
            for noise, std, constant in zip(leaves, stds, fixed, strict=True)
        )

    return from_noise


def _no_sample(name: str, key: Array, output: Array) -> Array:
    raise ValueError(f"{name} gives one action and no distribution: it cannot be sampled from.")


def _bounded(spec: EnvSpec, output: Array) -> Array:
    action = output.reshape(*output.shape[:-1], *(spec.action_shape or ()))
    return jnp.clip(action, spec.action_low, spec.action_high)
