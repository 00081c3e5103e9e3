"""An evaluator with made-up returns, so that strategies are tested through `evolve` without playing."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.rollout.evaluator import RolloutStatistics
from volvox.types import Evaluation


class Scripted:
    """Workers whose evaluations are given in advance, one for each population that is played.

    Attributes:
      scores: Returns of the members `[N]` or `[N, E]` of each population, in order.
      asked: The populations.
      tested: Whether they played test episodes.
    """

    def __init__(self, *scores, behaviors=()):
        self.begin(*scores, behaviors=behaviors)

    def begin(self, *scores, behaviors=()):
        """Forgets what was played before."""
        self.scores, self.behaviors, self.asked, self.tested, self.lineages = list(scores), list(behaviors), [], [], []

    def evaluator(self, make_local, num_slots):
        self.encoding = make_local().encoding
        return self

    def evaluate(self, population, num_episodes, *, test, lineage, **_):
        self.asked.append(population)
        self.tested.append(test)
        self.lineages.append(lineage)
        n = population.seed.shape[0]
        valid = np.arange(num_episodes) < np.asarray(population.episodes)[:, None]
        scores = np.asarray(self.scores.pop(0), np.float32)
        returns = np.where(valid, scores if scores.ndim == 2 else scores[:, None], 0).astype(np.float32)
        lengths = np.where(valid, 7 + np.arange(n)[:, None], 0).astype(np.int32)  # member i takes 7 + i timesteps
        behaviors = np.zeros((n, num_episodes, 0), np.float32)
        if self.behaviors:
            behaviors = np.broadcast_to(
                np.asarray(self.behaviors.pop(0), np.float32)[:, None, None], (n, num_episodes, 1)
            )
        timesteps = int(lengths.sum())
        statistics = RolloutStatistics(stepped=timesteps, busy=timesteps, makespan=7, num_slots=1)
        return Evaluation(*map(jnp.asarray, (returns, lengths, valid, behaviors))), statistics

    def play(self, algorithm):
        """Plays a generation of an algorithm for each of the returns; returns (states, rows)."""
        states, rows = [algorithm.init(0)], []
        while self.scores:
            state, row = algorithm.step(states[-1])
            states.append(state)
            rows.append(row)
        return states, rows

    def figures(self):
        return {}

    def close(self):
        pass


@pytest.fixture(scope="session")
def scripted():
    return Scripted


@pytest.fixture(scope="session")
def compiled():
    """Compiles the functions of a strategy, as `evolve` does: one program instead of one for each operation."""

    def make(strategy):
        names = ("init", "ask", "tell", "candidates", "adopt", "forget_scores")
        return types.SimpleNamespace(**{x: jax.jit(getattr(strategy, x)) for x in names if hasattr(strategy, x)})

    return make
