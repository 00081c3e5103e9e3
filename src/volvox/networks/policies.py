"""Policies from flax modules, or from any pair of functions."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from volvox.networks.interception import low_rank_kernels, use_kernels
from volvox.ops.flat import is_kernel, leaf_path, num_parameters
from volvox.types import Array, ArrayTree, Config, EnvSpec, Policy

InitialStd = Callable[[tuple[str, ...]], float]
"""Path of a kernel, such as `("Dense_0", "kernel")`, -> standard deviation times the root of its fan-in."""


def policy(
    module: nn.Module,
    spec: EnvSpec,
    *,
    prepare: Callable[[ArrayTree], ArrayTree] | None = None,
    initial_std: InitialStd | None = None,
) -> Policy:
    """Make a policy of an unmodified flax module.

    The module is called as `module.apply({"params": params}, observation)`, `[B, *observation_shape]` -> `[B, A]`. Its
    plain `nn.Dense` and `nn.Conv` layers run in `volvox.ops`, which makes `jax.vmap(policy.apply)` over the parameters
    of many networks fast.

    Args:
      module: any flax module that has parameters only (no batch statistics, no dropout, no recurrent state).
      spec: the environment it is to act in; needs `A == num_actions`, or `A` = the size of one continuous action.
      prepare: params -> variables, computed once per genome; what it returns is passed to the module as params.
      initial_std: spread of the first generation's kernels, see `policy_from_functions`; None asks the module's own
        method `initial_std(path)` if it has one, and is 1 otherwise.

    Returns:
      The policy. Its config names the module's class, its settings and its number of parameters.

    Raises:
      TypeError: if `module` is not a flax module.
      ValueError: if it cannot take the observations, keeps other variables than parameters, or its output does not fit
        the environment's actions.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"policy needs a flax.linen module, an instance and not its class; got {module!r}. For other networks "
            "there is policy_from_functions."
        )
    observation = jax.ShapeDtypeStruct((1, *spec.observation_shape), spec.observation_dtype)
    try:
        variables = jax.eval_shape(module.init, jax.random.key(0), observation)
    except Exception as error:  # whatever the module's own code raises
        raise ValueError(
            f"{type(module).__name__} cannot take observations of {spec.name}, {observation.dtype} "
            f"[B, {', '.join(map(str, spec.observation_shape))}]: {error}"
        ) from error
    others = sorted(set(variables) - {"params"})
    if others == ["reference"]:
        raise ValueError(
            f"{type(module).__name__} has VirtualBatchNorm layers: make the policy by "
            "volvox.networks.reference_policy, which takes their reference batch."
        )
    if others:
        raise ValueError(
            f"{type(module).__name__} keeps variables besides params: {', '.join(others)}. A policy has parameters "
            "only: choose layers without running statistics or caches, for example nn.LayerNorm for nn.BatchNorm."
        )

    def init(key: Array) -> ArrayTree:
        return module.init(key, jnp.zeros(observation.shape, observation.dtype)).get("params", {})

    def apply(params: ArrayTree, observation: Array) -> Array:
        with use_kernels():
            return module.apply({"params": params}, observation)  # pyright: ignore[reportReturnType]

    return policy_from_functions(
        init,
        apply,
        spec,
        name=type(module).__name__,
        prepare=prepare,
        initial_std=initial_std or own_initial_std(module),
        # What `prepare` makes of a kernel, members of low rank would not share.
        low_rank=low_rank_kernels(module.apply, variables, observation) if prepare is None else (),
        config=module_settings(module),
    )


def policy_from_functions(
    init: Callable[[Array], ArrayTree],
    apply: Callable[[ArrayTree, Array], Array],
    spec: EnvSpec,
    *,
    name: str | None = None,
    prepare: Callable[[ArrayTree], ArrayTree] | None = None,
    initial_std: InitialStd | None = None,
    low_rank: Collection[tuple[str, ...]] = (),
    config: Config | None = None,
) -> Policy:
    """Make a policy of any network that is given as functions.

    The first generation's parameters are a map of standard normal noise, leaf by leaf and element by element: a kernel
    (at least two dimensions, not called `bias` or `scale`) is noise times `initial_std(path) / sqrt(fan_in)`, fan-in
    being the product of all its dimensions but the last; every other leaf is what `init` gives it, without noise.

    Args:
      init: key -> params.
      apply: (variables, observation `[B, *observation_shape]`) -> output `[B, A]`.
      spec: the environment it is to act in; needs `A == num_actions`, or `A` = the size of one continuous action.
      name: of the network, in messages and in the config; None takes the name of `apply`.
      prepare: params -> variables, computed once per genome; None is the identity.
      initial_std: see above; None is 1 everywhere.
      low_rank: paths of the kernels for which `prepare` and `apply` take a `volvox.ops.low_rank.LowRank` as well.
      config: JSON values, the network's settings.

    Returns:
      The policy; without recurrent state.

    Raises:
      ValueError: if the output does not fit the environment's actions.
    """
    prepare_params = prepare or (lambda params: params)
    network = name or getattr(apply, "__name__", type(apply).__name__)
    shapes = jax.eval_shape(init, jax.random.key(0))
    _check_output(network, jax.eval_shape(prepare_params, shapes), apply, spec)
    constants = _constants(init)
    scales = jax.tree_util.tree_map_with_path(
        lambda path, leaf: _scale(leaf_path(path), leaf.shape, initial_std) if is_kernel(path, leaf) else 0.0, shapes
    )

    def apply_with_state(variables, observation, state, key):
        output = apply(variables, observation)
        if key is None:
            return output, state
        if spec.num_actions is None:
            raise ValueError(f"{network} gives one action and no distribution: it cannot be sampled from.")
        return perturbed(key, output), state

    def from_noise(noise: ArrayTree) -> ArrayTree:
        def leaf(path, noise, scale):
            constant = constants.get(leaf_path(path))
            return noise * jnp.asarray(scale, noise.dtype) if constant is None else constant.astype(noise.dtype)

        return jax.tree_util.tree_map_with_path(leaf, noise, scales)

    return Policy(
        init=init,
        prepare=prepare_params,
        initial_state=lambda batch_size: (),
        apply=apply_with_state,
        from_noise=from_noise,
        config={"network": network, "num_parameters": num_parameters(shapes), **(config or {})},
        low_rank=frozenset(low_rank),
    )


def perturbed(key: Array, logits: Array) -> Array:
    """Logits `[B, A]` whose largest is a sample from the categorical distribution they describe (Gumbel-max)."""
    return logits + jax.random.gumbel(key, logits.shape, logits.dtype)


def own_initial_std(module: nn.Module) -> InitialStd | None:
    """The module's own method `initial_std(path)`, if it has one; see `policy_from_functions`."""
    method: Any = getattr(module, "initial_std", None)
    return method if callable(method) else None  # pyright: ignore[reportReturnType]


def _scale(path: tuple[str, ...], shape: tuple[int, ...], initial_std: InitialStd | None) -> float:
    return (1.0 if initial_std is None else initial_std(path)) / math.sqrt(math.prod(shape[:-1]))


def _constants(init: Callable[[Array], ArrayTree]) -> dict[tuple[str, ...], Array]:
    """Initial values of the leaves that are no kernels, by path; jitted, so that kernels are never drawn."""

    def others(key):
        leaves, _ = jax.tree_util.tree_flatten_with_path(init(key))
        return [leaf for path, leaf in leaves if not is_kernel(path, leaf)]

    leaves, _ = jax.tree_util.tree_flatten_with_path(jax.eval_shape(init, jax.random.key(0)))
    paths = [leaf_path(path) for path, leaf in leaves if not is_kernel(path, leaf)]
    return dict(zip(paths, jax.jit(others)(jax.random.key(0)), strict=True))


def _check_output(name: str, variables: ArrayTree, apply: Callable[..., Any], spec: EnvSpec) -> None:
    batch = 2
    observation = jax.ShapeDtypeStruct((batch, *spec.observation_shape), spec.observation_dtype)
    output = jax.eval_shape(apply, variables, observation)
    if spec.num_actions is not None:
        required, meaning = spec.num_actions, f"one for each of the {spec.num_actions} actions"
    else:
        assert spec.action_shape is not None
        required = math.prod(spec.action_shape)
        meaning = f"one for each entry of an action of shape {spec.action_shape}"
    shape = getattr(output, "shape", None)
    if shape != (batch, required):
        got = f"an output of shape {_batch_shape(shape, batch)}" if shape is not None else f"{output}"
        raise ValueError(
            f"{name} gives {got} for observations [B, {', '.join(map(str, spec.observation_shape))}]; {spec.name} "
            f"requires [B, {required}], {meaning}. Make the last layer {required} wide and keep the batch axis first."
        )


def _batch_shape(shape: tuple[int, ...], batch: int) -> str:
    names = [("B" if i == 0 and n == batch else str(n)) for i, n in enumerate(shape)]
    return f"[{', '.join(names)}]"


def module_settings(module: nn.Module) -> dict[str, Any]:
    """The module's fields as JSON values."""
    fields = [field.name for field in dataclasses.fields(module) if field.name not in ("parent", "name")]
    return {name: _json_value(getattr(module, name)) for name in fields}


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, nn.Module):
        return {"network": type(value).__name__, **module_settings(value)}
    if hasattr(value, "__qualname__"):  # Functions and classes; their repr would name an address.
        return f"{value.__module__}.{value.__qualname__}"
    return type(value).__name__ if "0x" in repr(value) else repr(value)
