"""A policy as a function of NumPy arrays, for use outside of JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox.envs.groups import convert_observation, environment_action
from volvox.ops.batching import where_rows
from volvox.types import ArrayTree, EnvSpec, Policy


class Actor:
    """Plays a policy greedily: NumPy observations in, NumPy actions out, recurrent state inside.

        act = vx.load("runs/pong").actor()
        action = act(observation)  # the first call begins an episode
        act.reset()  # before the next episode

    Attributes:
      spec: The environment's spec.
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
          observation: One observation as the environment gives it, or a batch `[B, ...]`; a dict or a tuple of arrays
            if the environment's are. See `volvox.envs.groups.convert_observation`.
          first: Whether an episode begins with it, `[B]` or one for all; None: only in the first call after `reset`.
            Only recurrent policies use it.

        Returns:
          An action of the environment's action space: a NumPy scalar or an array; for a batch `[B, ...]`.

        Raises:
          ValueError: An observation has another shape or kind of numbers, numbers do not fit into its dtype, or the
            batch size differs from that of the call before: call `reset` first.
        """
        batch, leading = batched_observation(observation, self.spec.observation, self.spec.name)
        size = leading[0] if leading else 1
        if self._state is None:
            self._state, first = self._initial_state(size), True
        elif any(leaf.shape[0] != size for leaf in jax.tree.leaves(self._state)):
            raise ValueError(f"a batch of {size} observations follows one of another size: call reset() before")
        begins = jnp.broadcast_to(jnp.asarray(False if first is None else first, bool), (size,))
        action, self._state = self._act(self._variables, batch, begins, self._state)
        action = environment_action(self.spec, np.asarray(action))
        action = action.reshape(leading + action.shape[1:])
        return action if self.spec.continuous else action[()]

    def reset(self) -> None:
        """Forgets the recurrent state: episodes begin with the next call."""
        self._state = None


def batched_observation(observation: Any, like: ArrayTree, name: str) -> tuple[ArrayTree, tuple[int, ...]]:
    """Converts one observation, or a batch, by `convert_observation`, and adds the batch dimension.

    Args:
      observation: Arrays or lists.
      like: Shape and dtype of one observation: `EnvSpec.observation`.
      name: The environment, for messages.

    Returns:
      (observations `[B, ...]`, `(B,)`, or `()` if only one was given).

    Raises:
      ValueError: See `convert_observation`; or arrays have different batch dimensions.
    """
    observation = convert_observation(observation, like, name)
    pairs = zip(jax.tree.leaves(observation), jax.tree.leaves(like), strict=True)
    leading = {x.shape[: x.ndim - len(one.shape)] for x, one in pairs}
    if len(leading) != 1 or len(shape := leading.pop()) > 1:
        raise ValueError(f"observations of {name} must have one batch dimension or none, the same for all arrays")
    return observation if shape else jax.tree.map(lambda x: x[None], observation), shape
