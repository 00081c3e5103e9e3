"""Transitions: what the latest action of each environment of a group led to, for learners of one step.

latest = transitions.init(env.spec, num_envs)
latest = transitions.add(latest, timestep, action)  # in every beat, with the action that was chosen at the timestep
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from volvox.types import Array, EnvSpec, TimeStep, zeros


class Transition(NamedTuple):
    """What the latest action of each of `B` environments led to.

    Attributes:
      observation: `[B, ...]`: Where the action was chosen. It is a dict or a tuple of arrays if observations are that.
      action: `[B, ...]`: The action.
      reward: float32 `[B]`: Its reward.
      terminated: bool `[B]`: It ended the episode by the rules of the environment: nothing follows.
      truncated: bool `[B]`: A time limit cut the episode after it: what would follow is not seen.
      next_observation: `[B, ...]`: What it led to.
      next_action: `[B, ...]`: The action that was chosen there.
      valid: bool `[B]`: False where the action was discarded, because the observation was an episode's last, and before
        the first action of all. Nothing may then be learned from the transition.
    """

    observation: Any
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_observation: Any
    next_action: Array
    valid: Array


def init(spec: EnvSpec, num_envs: int) -> Transition:
    """Returns transitions before the first action, none of which is valid."""
    # No array is there twice, so that all can be donated.
    observation, action, following, next_action = zeros((spec.observation, spec.action) * 2, num_envs)
    terminated, truncated, valid = (jnp.zeros(num_envs, bool) for _ in range(3))
    rewards = jnp.zeros(num_envs)
    return Transition(observation, action, rewards, terminated, truncated, following, next_action, valid)


def add(before: Transition, timestep: TimeStep, action: Array) -> Transition:
    """Returns the transitions that a timestep completes.

    Args:
      before: The transitions of the timestep before.
      timestep: What the environments report.
      action: `[B, ...]`: What was chosen at this timestep.
    """
    return Transition(
        observation=before.next_observation,
        action=before.next_action,
        reward=timestep.reward,
        terminated=timestep.terminated,
        truncated=timestep.truncated,
        next_observation=timestep.observation,
        next_action=action,
        valid=~timestep.first,
    )
