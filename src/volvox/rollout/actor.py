"""A policy as a function of NumPy arrays, for use outside of JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox.ops.batching import where_rows
from volvox.types import ArrayTree, EnvSpec, Policy


class Actor:
    """Plays a policy greedily: NumPy observations in, NumPy actions out, recurrent state inside.

        act = vx.load("runs/pong").actor()
        action = act(observation)  # the first call begins an episode
        act.reset()  # before the next episode

    Attributes:
      spec: What observations and actions look like.
    """

    def __init__(self, policy: Policy, variables: ArrayTree, spec: EnvSpec):
        self.spec = spec
        self._initial_state, self._variables = policy.initial_state, variables
        self._state: ArrayTree | None = None

        @jax.jit
        def act(variables: ArrayTree, observation: ArrayTree, first: jax.Array, state: ArrayTree):
            state = where_rows(first, policy.initial_state(first.shape[0]), state)
            output, state = policy.apply(variables, observation, state)
            return policy.mode(output), state

        self._act = act

    def __call__(self, observation: Any, first: np.ndarray | bool | None = None) -> np.ndarray:
        """Returns the likeliest actions.

        Args:
          observation: One observation `[*observation_shape]`, or a batch `[B, *observation_shape]`; a dict or a tuple
            of such arrays where the environment's are.
          first: Whether an episode begins with it, `[B]` or one for all; None: only in the first call after `reset`.
            It matters to recurrent policies only.

        Returns:
          The action: a NumPy scalar, or an array `[*action_shape]`; of a batch `[B, ...]`.

        Raises:
          ValueError: An observation of another shape or kind of numbers, or another batch size than in the call before:
            `reset` first.
        """
        batch, leading = converted(observation, self.spec.observation, self.spec.name)
        size = leading[0] if leading else 1
        if self._state is None:
            self._state, first = self._initial_state(size), True
        elif any(leaf.shape[0] != size for leaf in jax.tree.leaves(self._state)):
            raise ValueError(f"a batch of {size} observations follows one of another size: call reset() before")
        begins = jnp.broadcast_to(jnp.asarray(False if first is None else first, bool), (size,))
        action, self._state = self._act(self._variables, batch, begins, self._state)
        return np.asarray(action).reshape(leading + action.shape[1:])[()]

    def reset(self) -> None:
        """Forgets the recurrent state: episodes begin with the next call."""
        self._state = None


def converted(observation: Any, wanted: ArrayTree, name: str) -> tuple[ArrayTree, tuple[int, ...]]:
    """Gives observations a batch dimension and the environment's dtypes.

    Args:
      observation: One observation, or a batch: an array or lists; a dict or tuple of arrays where the environment's
        are.
      wanted: What an observation looks like, with `shape` and `dtype`: `EnvSpec.observation`.
      name: The environment.

    Returns:
      (observations `[B, ...]`, `(B,)`, or `()` if only one was given).

    Raises:
      ValueError: The shape is another, or the dtype would change what the numbers say: a fraction or a number out of
        range where observations are integers; anything but numbers.
    """
    likes, treedef = jax.tree.flatten(wanted)
    one = jax.tree_util.treedef_is_leaf(treedef)
    if not one and jax.tree.structure(observation) != treedef:
        raise ValueError(f"observations of {name} are {treedef}; got {jax.tree.structure(observation)}")
    given = [observation] if one else jax.tree.leaves(observation)
    arrays = [_cast(np.asarray(x), np.dtype(like.dtype), name) for x, like in zip(given, likes, strict=True)]
    shapes = [tuple(like.shape) for like in likes]
    leading = arrays[0].shape[: max(arrays[0].ndim - len(shapes[0]), 0)]
    if len(leading) > 1 or [x.shape for x in arrays] != [(*leading, *shape) for shape in shapes]:
        needed, got = (", ".join(str(list(x.shape)) for x in each) for each in (likes, arrays))
        raise ValueError(f"observations of {name} have shape {needed}, or [B, ...] as a batch; got {got}")
    size = leading[0] if leading else 1
    return treedef.unflatten(x.reshape(size, *shape) for x, shape in zip(arrays, shapes, strict=True)), leading


def _cast(observation: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    if observation.dtype.kind not in ("iub" if dtype.kind in "iub" else "iubf"):
        do = ": do not scale them" if observation.dtype.kind == "f" else ""
        raise ValueError(f"observations of {name} are {dtype}, got {observation.dtype}{do}")
    cast = observation.astype(dtype)
    if dtype.kind in "iub" and not np.array_equal(cast, observation):
        raise ValueError(f"observations of {name} are {dtype}; got numbers that do not fit into it")
    return cast
