"""Runs today's `vx.evolve` on the population evaluators of the coming interface; goes when evolution has them itself."""

from functools import partial

import jax
import numpy as np

import volvox as vx
from volvox.evolution.pools import Place, Pools, Request
from volvox.population import lineage as lineages
from volvox.rollout import behaviors


class LocalEvaluator:
    """`PopulationEvaluator` on top of `Pools`."""

    def __init__(self, genotype, noise, env, behavior, capacity, chunk_seconds):
        self._pools = Pools(genotype, noise, env, behavior, capacity, chunk_seconds)
        self.encoding = self._pools.encoding

    def evaluate(
        self, population, num_episodes, *, max_episode_steps, seed, pool_seed, test=False, part=None, monitor=None
    ):
        formed = self.encoding.rank is not None and bool(np.asarray(population.initial).any())
        place = Place(test, max_episode_steps, formed)
        request = Request(population, num_episodes, place, seed, pool_seed, part=part)
        return self._pools.play(request, monitor or (lambda figures: False))

    def close(self):
        self._pools.close()


class Workers:
    """`workers` of `vx.evolve` that evaluate by `settings.evaluator(...)`."""

    def __init__(self, settings, strategy, network, env, noise):
        genotype = vx.networks.genotype(network, env.spec)
        capacity = max(phase.num_members * phase.num_episodes for phase in strategy.phases)
        behavior = strategy.behavior if strategy.behavior.size else behaviors.Nothing()
        self.make_local = partial(LocalEvaluator, genotype, noise, env, behavior, capacity, 0.2)
        self.settings, self.lineage = settings, None

    def player(self, config, num_slots, chunk_seconds):
        self.evaluator = self.settings.evaluator(self.make_local, num_slots, chunk_seconds)
        self.figures, self.close = self.evaluator.figures, self.evaluator.close
        return self

    def play(self, request, watch):
        place, row, lineage = request.place, request.origin, None
        if row is not None:
            row = jax.tree.map(np.asarray, row)
            if self.lineage is None:
                self.lineage = lineages.zeros(0, row.seed.size)
            if not self.lineage.seed.size or any(
                not np.array_equal(x[-1], y) for x, y in zip(self.lineage, row, strict=True)
            ):
                self.lineage = lineages.extend(self.lineage, row)
            lineage = self.lineage
        settings = {"max_episode_steps": place.max_episode_steps, "test": place.test}
        settings |= {"seed": request.seed, "pool_seed": request.pool_seed, "lineage": lineage, "monitor": watch}
        return self.evaluator.evaluate(request.population, request.num_episodes, **settings)


def evolve(strategy, network, env, *, noise, workers):
    """Calls `vx.evolve` with Ray workers."""
    if workers is not None and not hasattr(evaluator, "PopulationEvaluator"):
        workers = Workers(workers, strategy, network, env, noise)
    return vx.evolve(strategy, network, env, noise=noise, workers=workers)


