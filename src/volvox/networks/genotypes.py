"""Genotypes of flax modules, or of any network given as functions: what evolves.

net = genotype(MLP(spec.num_outputs), spec)
variables = net.prepare(net.policy.init(jax.random.key(0)))
logits, state = net.policy.apply(variables, observation, net.policy.initial_state(len(observation)))
action = net.policy.mode(logits)

`check_module`, `init_params` and `apply_module` are what every function here does with a flax module.
"""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from volvox._arguments import said
from volvox._checks import typed_key
from volvox._settings import describe
from volvox.networks.distributions import Deterministic, clipped, distribution
from volvox.networks.interception import low_rank_kernels, use_kernels
from volvox.ops.flat import is_kernel, leaf_path, num_parameters
from volvox.types import Array, ArrayTree, Config, EnvSpec, Genotype, Policy, zeros

InitialStd = Callable[[tuple[str, ...]], float]
"""Path of a kernel, such as `("Dense_0", "kernel")`, -> standard deviation times the root of its fan-in."""
Prepare = Callable[[ArrayTree], ArrayTree]
"""params -> variables, computed once per network."""
GIVEN = "functions given"
"""In a policy's config, what was given beside a module; no field of a module has such a name."""
BATCH = 7
"""Size of the batches with which networks are checked; shown as B in messages."""


class Sized(nn.Module):
    """A network whose fields are checked where it is made: the number of outputs, and the torso if there is one."""

    def __post_init__(self):
        """Raises TypeError for anything but an integer, and for a torso that is no network."""
        kind, fields = type(self).__name__, vars(self)
        for name in {"num_outputs", "num_actions", "num_components"} & fields.keys():
            if not isinstance(given := fields[name], int | np.integer) or isinstance(given, bool):
                raise TypeError(f"{name} of {kind} takes an integer, such as env.spec.num_outputs; got {said(given)}")
        if isinstance(torso := fields.get("torso", self), type) or not callable(torso):
            raise TypeError(f"torso of {kind} takes a network, such as vx.networks.SmallTorso(); got {said(torso)}")
        super().__post_init__()


def genotype(
    module: nn.Module, spec: EnvSpec, *, prepare: Prepare | None = None, initial_std: InitialStd | None = None
) -> Genotype:
    """Makes a genotype of an unmodified flax module.

    The module is called as `module.apply({"params": params}, observation)`, `[B, *observation_shape]` -> `[B, A]`. Its
    plain `nn.Dense` and `nn.Conv` layers run in `volvox.ops`, which makes `jax.vmap(policy.apply)` over the parameters
    of many networks fast.

    Args:
      module: Any flax module that has parameters only (no batch statistics, no dropout, no recurrent state).
      spec: The environment it is to act in; needs `A == num_actions`, `A == sum(num_choices)`, or `A` = the size of one
        continuous action.
      prepare: params -> variables, computed once per network; what it returns is passed to the module as params.
      initial_std: Spread of the first generation's kernels, see `genotype_from_functions`; None asks the module's own
        method `initial_std(path)` if it has one, and is 1 otherwise.

    Returns:
      The genotype. Its policy's config names the module's class, its fields, its number of parameters, and the
      functions given.

    Raises:
      TypeError: `module` is no flax module.
      ValueError: it cannot take the observations, keeps other variables than parameters, or its output does not fit
        the environment's actions.
    """
    variables = check_module(module, spec, (observations(spec),))

    # Members of low rank would not share what `prepare` makes of a kernel.
    init, apply, params = partial(init_params, module, spec), partial(apply_module, module), variables.get("params", {})
    low_rank = low_rank_kernels(apply, params, observations(spec)) if prepare is None else ()
    name, std = type(module).__name__, initial_std or own_initial_std(module)
    if _shapes(jax.eval_shape(init, jax.random.key(0))) != _shapes(params):
        raise ValueError(f"{name}: the shapes of its parameters depend on the batch size B; keep the first axis.")
    config = {**describe(module), **_given(prepare=prepare, initial_std=initial_std)}
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
    config: Config | None = None,
) -> Genotype:
    """Makes a genotype of a network that is given as functions.

        net = genotype_from_functions(lambda key: {"kernel": jnp.zeros((3, 2))}, lambda p, x: x @ p["kernel"], env.spec)
        net = genotype_from_functions(init, apply, env.spec, name="linear", initial_std=lambda path: 0.1)

    The first generation's parameters are a map of standard normal noise, leaf by leaf and element by element: a kernel
    (at least two dimensions, not called `bias` or `scale`) is noise times `initial_std(path) / sqrt(fan_in)`, fan-in
    being the product of all its dimensions but the last; every other leaf is what `init` gives it, without noise.

    Args:
      init: key -> params.
      apply: (variables, observation `[B, *observation_shape]`) -> output `[B, A]`: logits, or one continuous action.
      spec: The environment it is to act in; needs `A == num_actions`, `A == sum(num_choices)`, or `A` = the size of one
        continuous action.
      name: The network's name in messages; None takes the name of `apply`.
      prepare: params -> variables, computed once per network; None is the identity.
      initial_std: See above; None is 1 everywhere.
      low_rank: Paths of the kernels for which `prepare` and `apply` take a `volvox.ops.low_rank.LowRankKernel` as well.
      config: JSON values, the network's settings; None names the functions.

    Returns:
      The genotype; its policy has no recurrent state, and discrete actions can be sampled.

    Raises:
      ValueError: the output does not fit the environment's actions.
    """
    own: Config = {**describe(apply), **_given(prepare=prepare, initial_std=initial_std)}
    settings = own if config is None else config
    prepare = prepare or (lambda params: params)
    name = str(name or getattr(apply, "__name__", type(apply).__name__))
    if spec.continuous:
        actions = Deterministic(spec.action_shape or (), name)
        meaning = f"one for each entry of an action of shape {spec.action_shape}"
    else:
        actions, choices = distribution(spec), spec.num_choices
        meaning = f"one for each of the {spec.num_actions} actions"
        meaning = f"one for each choice of the components, {list(choices)}" if choices else meaning
    meaning += f". Make the last layer {actions.size} wide and keep the batch axis first"
    params = jax.eval_shape(init, jax.random.key(0))
    found = jax.eval_shape(apply, jax.eval_shape(prepare, params), observations(spec))
    if not hasattr(found, "shape"):
        meaning = "alone: networks that give more, such as actor-critics, are trained by volvox.learn and do not evolve"
    _check_output(name, spec, (observations(spec),), found, batch_of(actions.size), meaning)
    policy = Policy(
        init=init,
        initial_state=lambda batch_size: (),
        apply=lambda variables, observation, state: (apply(variables, observation), state),
        sample=actions.sample,
        mode=lambda output: clipped(actions.mode(output), spec),
        config={**settings, "num_parameters": num_parameters(params)},
    )
    return Genotype(policy, prepare, _first_generation(init, initial_std or (lambda path: 1.0)), frozenset(low_rank))


def _given(**functions: Callable[..., Any] | None) -> Config:
    """Descriptions of the functions that were given."""
    given = {name: describe(function) for name, function in functions.items() if function is not None}
    return {GIVEN: given} if given else {}


def own_initial_std(module: nn.Module) -> InitialStd | None:
    """The module's own method `initial_std(path)`, if it has one; see `genotype_from_functions`."""
    method: Any = getattr(module, "initial_std", None)
    return method if callable(method) else None  # pyright: ignore[reportReturnType]


def _first_generation(init: Callable[[Array], ArrayTree], initial_std: InitialStd) -> Callable[[ArrayTree], ArrayTree]:
    """`Genotype.from_noise`; see `genotype_from_functions`."""
    paths, _ = jax.tree_util.tree_flatten_with_path(jax.eval_shape(init, jax.random.key(0)))
    stds = [
        initial_std(leaf_path(path)) / math.sqrt(math.prod(leaf.shape[:-1])) if is_kernel(path, leaf) else None
        for path, leaf in paths
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


def batch_of(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a batch `[B, *shape]`, for `check_module`."""
    return jax.ShapeDtypeStruct((BATCH, *shape), dtype)


def observations(spec: EnvSpec) -> Any:
    """Shape and dtype of a batch of an environment's observations; of several arrays a dict or a tuple."""
    return jax.tree.map(lambda x: batch_of(*x.shape, dtype=x.dtype), spec.observation)


def init_params(module: nn.Module, spec: EnvSpec, key: Array, *others: ArrayTree) -> ArrayTree:
    """Draws the parameters of a module that is called with an observation, and whatever `others` are."""
    return module.init(typed_key(key), zeros(spec.observation, 1), *others).get("params", {})


def apply_module(module: nn.Module, params: ArrayTree, *args: ArrayTree, **options: Any) -> Any:
    """`module.apply` of parameters, computed by `volvox.ops`."""
    with use_kernels():
        return module.apply({"params": params}, *args, **options)


def check_module(
    module: nn.Module,
    spec: EnvSpec,
    inputs: Sequence[ArrayTree],
    output: ArrayTree = None,
    *,
    role: str = "network",
    meaning: str = "",
    collections: Collection[str] = ("params",),
) -> ArrayTree:
    """Checks that a flax module fits an environment; nothing is computed.

    Args:
      module: Any flax.linen module.
      spec: The environment.
      inputs: What the module is called with, as made by `batch_of`; the first is a batch of observations.
      output: What it must give, likewise: only shapes count. None: it may give anything.
      role: What the module is, in messages.
      meaning: What the required output means, for the message about another one.
      collections: The collections of variables that the module may have.

    Returns:
      Shapes and dtypes of the module's variables, by collection.

    Raises:
      TypeError: `module` is no flax module.
      ValueError: it cannot take the inputs, keeps other variables, or gives another output.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"the {role} must be a flax.linen module, an instance and not its class; got {said(module)}. Networks "
            "given as functions can be evolved: volvox.networks.genotype_from_functions."
        )
    name = type(module).__name__
    try:
        found, variables = jax.eval_shape(module.init_with_output, jax.random.key(0), *inputs)
    except Exception as error:  # whatever the module's own code raises
        needed = "" if output is None else f"; as the {role} it must give {_shown(output)}"
        raise ValueError(
            f"{name} cannot take observations of {spec.name}, {_shown_inputs(inputs)}{needed}: {error}"
        ) from error
    others = sorted(set(variables) - set(collections))
    if others == ["reference"]:
        raise ValueError(
            f"{name} has VirtualBatchNorm layers: make a genotype of it by volvox.networks.reference_genotype, which "
            "takes their reference batch."
        )
    if others:
        raise ValueError(
            f"{name} keeps variables besides {' and '.join(sorted(collections))}: {', '.join(others)}. Choose layers "
            "without running statistics or caches, for example nn.LayerNorm in place of nn.BatchNorm."
        )
    if output is not None:
        _check_output(name, spec, inputs, found, output, meaning)
    return variables


def _check_output(
    name: str, spec: EnvSpec, inputs: Sequence[ArrayTree], found: ArrayTree, required: ArrayTree, meaning: str
) -> None:
    if _shapes(found) != _shapes(required):
        raise ValueError(
            f"{name} gives {_shown(found)} for {_shown_inputs(inputs)}; {spec.name} requires {_shown(required)}"
            f"{meaning and ', '}{meaning}."
        )


def _shapes(tree: ArrayTree) -> Any:
    return jax.tree.structure(tree), [leaf.shape for leaf in jax.tree.leaves(tree)]


def _shown_inputs(inputs: Sequence[ArrayTree]) -> str:
    return ", ".join(map(_shown_input, inputs))


def _shown_input(x: ArrayTree) -> str:
    if isinstance(x, dict):
        return f"{{{', '.join(f'{name}: {_shown_input(value)}' for name, value in x.items())}}}"
    return f"{x.dtype} {_shown(x)}" if hasattr(x, "dtype") else _shown(x)


def _shown(tree: ArrayTree) -> str:
    """`[B, 3]`, or several such shapes in parentheses."""
    if isinstance(tree, tuple | list):
        return f"({', '.join(map(_shown, tree))})"
    shape = getattr(tree, "shape", None)
    if shape is None:
        return str(tree)
    return f"[{', '.join('B' if i == 0 and n == BATCH else str(n) for i, n in enumerate(shape))}]"
