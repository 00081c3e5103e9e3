"""Checks of flax modules, shared by every function that takes one."""

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from volvox.types import ArrayTree, EnvSpec

_BATCH = 7  # shown as B in messages


def batch_of(shape: Sequence[int] = (), dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a batch `[B, *shape]`, for `check_module` and `check_output`."""
    return jax.ShapeDtypeStruct((_BATCH, *shape), dtype)


def batch_of_states(initial_state: Any) -> ArrayTree:
    """Shapes and dtypes of a batch of recurrent states, leaves `[B, ...]`; `initial_state`: batch size -> state."""
    return jax.eval_shape(lambda: initial_state(_BATCH))


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
      module: any flax.linen module.
      spec: the environment.
      inputs: what the module is called with, as made by `batch_of`; the first is a batch of observations.
      output: what it must give, likewise: only shapes count. None: it may give anything.
      role: what the module is, in messages.
      meaning: what the required output means, for the message about another one.
      collections: the collections of variables that the module may have.

    Returns:
      Shapes and dtypes of the module's variables, by collection.

    Raises:
      TypeError: `module` is no flax module.
      ValueError: it cannot take the inputs, keeps other variables, or gives another output.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"the {role} must be a flax.linen module, an instance and not its class; got {module!r}. Networks given as "
            "functions can be evolved: volvox.networks.genotype_from_functions."
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
        check_output(name, spec, inputs, found, output, meaning)
    return variables


def check_output(
    name: str, spec: EnvSpec, inputs: Sequence[ArrayTree], found: ArrayTree, required: ArrayTree, meaning: str = ""
) -> None:
    """Checks the shapes of a network's output.

    Args:
      name: of the network.
      spec: the environment.
      inputs: what the network was called with.
      found: what it gives, as `jax.eval_shape` says.
      required: what it must give, as made by `batch_of`.
      meaning: what the required output means.

    Raises:
      ValueError: the two differ.
    """
    if _shapes(found) != _shapes(required):
        raise ValueError(
            f"{name} gives {_shown(found)} for {_shown_inputs(inputs)}; {spec.name} requires {_shown(required)}"
            f"{meaning and ', '}{meaning}."
        )


def _shapes(tree: ArrayTree) -> Any:
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [getattr(leaf, "shape", None) for leaf in leaves]


def _shown_inputs(inputs: Sequence[ArrayTree]) -> str:
    return ", ".join(f"{x.dtype} {_shown(x)}" if hasattr(x, "dtype") else _shown(x) for x in inputs)


def _shown(tree: ArrayTree) -> str:
    """`[B, 3]`, or several such shapes in parentheses."""
    if isinstance(tree, tuple | list):
        return f"({', '.join(map(_shown, tree))})"
    shape = getattr(tree, "shape", None)
    if shape is None:
        return str(tree)
    return f"[{', '.join('B' if i == 0 and n == _BATCH else str(n) for i, n in enumerate(shape))}]"
