"""Rows of metrics of learners, and the check that their numbers are finite."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from volvox.data import metrics
from volvox.learners.compression import compression_row
from volvox.learners.state import LearnState
from volvox.types import ArrayTree, Env

if TYPE_CHECKING:
    from volvox.learners.learner import Learner, Schedule


def row(state: LearnState, schedule: "Schedule", env: Env) -> dict[str, Any]:
    """Returns the row of an iteration, without rates; raises FloatingPointError if returns are not finite."""
    acting, learning, num_learners = state.acting, state.learning, schedule.num_learners or 1
    row = {"update": int(learning.update), "frames": state.timesteps * env.spec.frame_skip}
    row |= {"timesteps": state.timesteps // num_learners, "episodes": int(acting.episodes.total.sum())}
    scores = metrics.scores(acting.episodes, num_envs=env.all_envs // num_learners)
    require_finite({"the returns of episodes": scores}, env.spec.name)
    row |= scores | compression_row(learning, schedule.num_learners)
    if schedule.learning_rate is not None:
        row["learning_rate"] = float(schedule.learning_rate(learning))
    return row | metrics.compute(learning.metrics)


def check_finite(learner: "Learner", learning: Any, env_name: str) -> None:
    """Raises FloatingPointError unless metrics and policies are finite."""
    policies = {f"the policy of learner {i}": tree for i, tree in enumerate(learner.variables(learning))}
    require_finite(learning.metrics | policies, env_name)


def require_finite(trees: dict[str, ArrayTree], env_name: str) -> None:
    """Raises FloatingPointError, which names the trees that are not finite."""
    wrong = [name for name, tree in trees.items() if not all(np.isfinite(x).all() for x in jax.tree.leaves(tree))]
    if wrong:
        raise FloatingPointError(
            f"not finite: {', '.join(wrong)}; this iteration is dropped. First make sure that all rewards and "
            f"observations of {env_name} are finite. If they are, lower the learning rate, or clip the gradient; in a "
            "loss of your own, look for a mean over nothing."
        )
