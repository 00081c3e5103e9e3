"""A row of metrics from what the loop gathered."""

from typing import Any

import jax

from volvox.actor_critic.learner import LearnerState
from volvox.data.episode_statistics import Episodes, scores
from volvox.sparsity import compression, is_sparse, masks_of


def summary(learner: LearnerState, episodes: Episodes, *, frames: int, updates: int) -> dict[str, Any]:
    """Scores of the latest episodes, and means over the transitions and updates of a step.

    Args:
      learner: after the step; its sums began with it.
      episodes: all so far.
      frames: so far.
      updates: of the step.

    Returns:
      See `a3c`; no scores before the first episode has ended.
    """
    sums, episodes = jax.device_get((learner.sums, episodes))
    transitions = max(float(sums.transitions), 1.0)
    figures: dict[str, Any] = {"update": int(learner.update), "frames": frames, "episodes": int(episodes.total)}
    masks = masks_of(learner.optimizer) if is_sparse(learner.optimizer) else None
    if (share := compression(learner.params, masks)) is not None:
        figures["compression"] = share
    return (
        figures
        | scores(episodes)
        | {
            "policy_loss": float(sums.policy_loss) / transitions,
            "value_loss": float(sums.value_loss) / transitions,
            "entropy": float(sums.entropy) / transitions,
            "gradient_norm": float(learner.gradient_norm) / updates,
            "lag_mean": float(sums.lag) / transitions,
            "lag_max": int(sums.lag_max),
        }
    )
