"""Explore, then commit, by Lasso fitted Q-iteration in sparse linear Markov decision processes.

Hao, Lattimore, Szepesvári & Wang 2020 (arXiv 2011.04018). A policy that collects well-conditioned data plays N₁
episodes; fitted Q-iteration on these, with the Lasso for a regression, gives the policy that plays all others. With N₁
of order (s N)^(2/3), the regret over N episodes is of order (s N)^(2/3) too. The number d of features enters through
its logarithm alone, so that d may be larger than N.

    mdp = vx.envs.linear_mdps.costly_exploration(dimension=2_000, sparsity=2, signal=0.2)
    settings = vx.learners.LassoFQI(exploration_episodes=240)
    found = vx.learners.explore_then_commit(settings, mdp, jax.random.key(0), num_episodes=1_000)
    found.regret
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from volvox._checks import integer, integers, numbers
from volvox.envs.linear_mdps import Episodes, LinearMDP, expected_return, explore
from volvox.ops.coordinate_descent import lasso
from volvox.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class LassoFQI:
    """Settings of Lasso fitted Q-iteration.

    Attributes:
      exploration_episodes: N₁, rounded up to a multiple of the horizon.
      penalty: The Lasso's weight of the L1 norm is `penalty * sqrt(log(2 d) / n)` for n transitions. The horizon is
        always enough for rewards in [0, 1]; the standard deviation of the targets' noise suffices, and finds more.
      tolerance: Largest duality gap of the Lasso, relative to the objective at weights 0.
      max_passes: Largest number of passes of coordinate descent.

    Raises:
      ValueError: A setting is out of range.
    """

    exploration_episodes: int
    penalty: float = 0.3
    tolerance: float = 1e-4
    max_passes: int = 200

    def __post_init__(self):
        integers(self, "exploration_episodes", "max_passes", low=1)
        numbers(self, "penalty", "tolerance", above=0)


class Found(NamedTuple):
    """Result of exploring and committing.

    Attributes:
      weights: float32 `[H, d]`: Weights of the Q-function at each timestep of an episode.
      exploration_regret: float32: Regret of the N₁ episodes of exploration, by the rewards they had.
      commitment_regret: float32: Expected regret of the others, given the weights.
    """

    weights: Array
    exploration_regret: Array
    commitment_regret: Array

    @property
    def regret(self) -> Array:
        """Regret of all episodes, float32."""
        return self.exploration_regret + self.commitment_regret


def fitted_q_iteration(settings: LassoFQI, mdp: LinearMDP, episodes: Episodes) -> Array:
    """Weights `[H, d]` of Q-functions, from the last step of an episode to the first.

    Each step h has its own fold of the episodes, so that the targets `r + max_a φ(x', a)ᵀ w_(h+1)` do not depend on the
    noise of the transitions that are fitted to them; their values are clipped to [0, H]. As rewards and transitions are
    the same in each step, all H timesteps of a fold's episodes are used.
    """
    states = jnp.arange(mdp.initial.size)
    folds = jax.tree.map(lambda x: x.reshape(mdp.horizon, -1, *x.shape[2:]), episodes)
    _, n, d = folds.feature.shape
    penalty = settings.penalty * jnp.sqrt(jnp.log(2 * d) / n)

    def backwards(values: Array, fold: Episodes) -> tuple[Array, Array]:
        targets = fold.reward + values[fold.next_state]
        solver = {"tolerance": settings.tolerance, "max_passes": settings.max_passes}
        weights = lasso(fold.feature, targets, penalty, **solver).weights
        best = jax.vmap(lambda state: mdp.feature(state, mdp.greedy(weights, state)) @ weights)(states)
        return jnp.clip(best, 0.0, mdp.horizon), weights

    return jax.lax.scan(backwards, jnp.zeros(states.size), folds, reverse=True)[1]


def explore_then_commit(settings: LassoFQI, mdp: LinearMDP, key: Array, num_episodes: int) -> Found:
    """Explores, fits, and commits to the greedy policy; under `jax.jit` it is one program.

    Args:
      settings: Settings of the algorithm.
      mdp: The decision process, with the policy that explores.
      key: Fixes the episodes of exploration.
      num_episodes: N, those of exploration included.

    Returns:
      `Found`. The committed policy is not played: its expected return is computed from the true model.

    Raises:
      ValueError: There are fewer episodes than those of exploration.
    """
    exploration = -(-settings.exploration_episodes // mdp.horizon) * mdp.horizon
    if integer("num_episodes", num_episodes, low=1) < exploration:
        raise ValueError(f"num_episodes={num_episodes}: exploration alone takes {exploration}; give more episodes.")
    episodes = explore(mdp, key, exploration)
    weights = fitted_q_iteration(settings, mdp, episodes)
    best = expected_return(mdp, lambda h, state: mdp.optimal(state))
    committed = expected_return(mdp, lambda h, state: mdp.greedy(weights[h], state))
    return Found(
        weights=weights,
        exploration_regret=exploration * best - episodes.reward.sum(),
        commitment_regret=(num_episodes - exploration) * (best - committed),
    )
