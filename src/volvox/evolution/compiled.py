"""Phases with `ask` and `tell` compiled; arrays that they only pass on are not copied."""

from collections.abc import Callable
from typing import Any

import chex
import flax.struct
import jax

from volvox._resources import size_of
from volvox.evolution.strategy import Phase, Strategy
from volvox.population.decoding import Encoding
from volvox.types import ArrayTree


@flax.struct.dataclass
class _Result:
    """The results of a function, without those that are its arguments unchanged.

    Attributes:
      changed: Leaves; None where a leaf is one of the arguments'.
      source: For each leaf its index among the arguments' leaves; None where it is none of them.
      treedef: The structure of the result.
    """

    changed: list[Any]
    source: tuple[int | None, ...] = flax.struct.field(pytree_node=False)
    treedef: Any = flax.struct.field(pytree_node=False)


class Forwarding:
    """A compiled function that returns the arrays it was given where it passes them on.

    What `jax.jit` makes copies them, and the bases of a population take up to hundreds of megabytes.
    """

    def __init__(self, function: Callable[..., Any]):
        """Compiles a pure function of pytrees of arrays."""

        def less(*args: ArrayTree) -> _Result:
            given = {id(leaf): i for i, leaf in enumerate(jax.tree.leaves(args))}
            leaves, treedef = jax.tree.flatten(function(*args))
            source = tuple(given.get(id(leaf)) for leaf in leaves)
            return _Result([x if i is None else None for x, i in zip(leaves, source, strict=True)], source, treedef)

        self._less = jax.jit(less)

    def __call__(self, *args: ArrayTree) -> Any:
        """Calls the function."""
        given, result = jax.tree.leaves(args), self._less(*args)
        leaves = [x if i is None else given[i] for x, i in zip(result.changed, result.source, strict=True)]
        return result.treedef.unflatten(leaves)

    def made(self, *args: ArrayTree) -> Any:
        """Returns the shapes of what the function makes, with None for what it passes on; computes nothing."""
        result = jax.eval_shape(self._less, *args)
        return result.treedef.unflatten(result.changed)


def compiled_phases(strategy: Strategy) -> tuple[Phase, ...]:
    """The phases of a strategy with `ask` and `tell` compiled, but for those that Python must run.

    What `ask` and `tell` pass on unchanged, such as the bases, is not copied.
    """
    return tuple(_compiled(phase) for phase in strategy.phases)


def _compiled(phase: Phase) -> Phase:
    def ask(key, state, encoding):
        population, state = phase.ask(key, state, encoding)
        chex.assert_shape(jax.tree.leaves(population._replace(bases=())), (phase.num_members,))
        return population, state

    def tell(key, state, population, evaluation, encoding):
        chex.assert_shape(evaluation[:3], (phase.num_members, phase.num_episodes))
        state, metrics = phase.tell(key, state, population, evaluation, encoding)
        chex.assert_shape(list(metrics.values()), ())
        return state, metrics

    wrap = Forwarding if phase.traceable else lambda function: function
    return phase._replace(ask=wrap(ask), tell=wrap(tell))


def explicit_bases(phases: tuple[Phase, ...], state: Any, encoding: Encoding) -> ArrayTree:
    """Returns shapes of the bases of the largest population that is asked for, but for what is a part of the state."""
    asked = []
    for phase in phases:
        if isinstance(phase.ask, Forwarding):
            asked.append(phase.ask.made(jax.random.key(0), state, encoding)[0].bases)
        else:
            like = jax.tree.map(
                lambda x, n=phase.num_members: jax.ShapeDtypeStruct((n, *x.shape), x.dtype), encoding.like
            )
            asked.append(like)
    return max(asked, key=size_of)
