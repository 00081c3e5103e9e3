"""A row of metrics from what the loop gathered, and whether it is still of numbers."""

from functools import partial
from typing import Any

import jax
import numpy as np

from volvox.data.episode_statistics import Episodes, latest_mean, scores
from volvox.off_policy.learner import LearnerState
from volvox.sparsity import compression, is_sparse, masks_of
from volvox.types import ArrayTree, Env


def scores_of(episodes: Episodes) -> list[dict[str, float]]:
    """Of each learner."""
    return [scores(jax.tree.map(lambda x, s=s: x[s], episodes)) for s in range(len(episodes.total))]


def summary(
    learner: LearnerState, episodes: Episodes, steps: int, updates: int, policy_delay: int, env: Env
) -> dict[str, Any]:
    """A row of metrics, but for rates.

    Args:
      learner: after the iteration; its sums began with it.
      episodes: of each learner, leaves `[S, ...]`.
      steps: taken by all environments so far.
      updates: of the iteration.
      policy_delay: updates of the critics for one of the actor.
      env: the environments.

    Returns:
      See `td3`; no scores before an episode of each learner has ended.
    """
    sums, episodes = jax.device_get((learner.sums, episodes))
    num_learners = len(episodes.total)
    figures: dict[str, Any] = {
        "update": int(learner.update),
        "steps": steps // num_learners,
        "frames": steps * env.spec.frame_skip,
        "episodes": int(episodes.total.sum()),
    }
    each = scores_of(episodes)
    if all(each):
        figures |= {name: float(np.mean([one[name] for one in each])) for name in each[0]}
        figures["training_best"] = max(one["training_best"] for one in each)
        recent = np.asarray(jax.vmap(partial(latest_mean, num_envs=env.num_envs // num_learners))(episodes))
        figures["recent_mean"] = float(recent.mean())
        if num_learners > 1:
            figures |= {f"training_mean_{s}": one["training_mean"] for s, one in enumerate(each)}
            figures |= {f"recent_mean_{s}": float(value) for s, value in enumerate(recent)}
    if (share := _compression(learner)) is not None:
        figures["compression"] = share
    if updates:
        figures |= {
            "critic_loss": float(sums.critic_loss.mean()) / updates,
            "actor_loss": float(sums.actor_loss.mean()) / max(updates // policy_delay, 1),
            "value": float(sums.value.mean()) / updates,
        }
        if jax.tree.leaves(learner.representation):
            figures["representation_loss"] = float(sums.representation_loss.mean()) / updates
    return figures


def networks_of(learner: LearnerState) -> list[tuple[dict[str, ArrayTree], dict[str, ArrayTree] | None]]:
    """(parameters, masks) of each learner's actor, critics and representation; None for masks if there are none."""
    optimizers = {"actor": learner.actor_optimizer, "critics": learner.critics_optimizer}
    params = {"actor": learner.actor, "critics": learner.critics}
    if jax.tree.leaves(learner.representation):
        optimizers["representation"] = learner.representation_optimizer
        params["representation"] = learner.representation
    masks = {name: masks_of(x) for name, x in optimizers.items()} if is_sparse(optimizers) else None
    given = jax.device_get((params, masks))
    return [jax.tree.map(lambda x, s=s: x[s], given) for s in range(len(learner.sums.value))]


def _compression(learner: LearnerState) -> float | None:
    """Share of all networks' weights that need not be stored, mean of all learners; None if dense."""
    each = [compression(*networks) for networks in networks_of(learner)]
    return None if None in each else float(np.mean(np.array(each, float)))


def check_finite(memory: LearnerState) -> None:
    """Raises FloatingPointError where a loss or a parameter is no finite number, naming the learners and the parts."""
    parts = {
        "critics' loss": (memory.sums.critic_loss, memory.sums.value),
        "actor's loss": memory.sums.actor_loss,
        "representation's loss": memory.sums.representation_loss,
        "critics": memory.critics,
        "actor": memory.actor,
        "representation": memory.representation,
        "observations' moments": (memory.normalizer.mean, memory.normalizer.squares),
    }
    num_learners = len(memory.sums.value)
    wrong: dict[str, np.ndarray] = {}
    for name, part in parts.items():
        finite = np.ones(num_learners, bool)
        for leaf in jax.tree.leaves(part):
            finite &= np.isfinite(leaf).reshape(num_learners, -1).all(axis=1)
        if not finite.all():
            wrong[name] = ~finite
    if wrong:
        learners = np.flatnonzero(np.any(list(wrong.values()), axis=0)).tolist()
        raise FloatingPointError(
            f"no longer finite by update {int(memory.update)}: {', '.join(wrong)}, of learner"
            f"{'s' * (len(learners) > 1)} {', '.join(map(str, learners))} of {num_learners}; nothing of this step is "
            "kept. Lower the learning rate, unless the environment's observations or rewards are not finite."
        )
