"""What every strategy promises."""

import chex
import jax
import numpy as np
import optax
import probes
import pytest

from volvox import checkpoint, evolution, networks, population, rollout, testing

ENV = probes.target(size=2, num_envs=8, groups=2, max_episode_steps=3)
NET = networks.genotype(networks.MLP(2, hidden=()), ENV.spec)
TABLE = population.Table(size=5_000)
NOISES = {"free": TABLE, "low_rank": population.LowRank(source=TABLE)}
BEHAVIOR = rollout.Last("elapsed_steps", 1)
N = 12
COMMON = {"population_size": N, "num_validation_episodes": 3, "num_test_episodes": 2}
GA = {"num_parents": 3, "mutation_std": 0.1, "num_elite_candidates": 2}
NOVELTY = {"behavior": BEHAVIOR, "num_neighbors": 2, "archive_size": 20}
Novelty = evolution.Novelty
STRATEGIES = {
    "ga": lambda: evolution.GA(**COMMON, **GA),
    "novelty_ga": lambda: evolution.GA(**COMMON, **GA, objective=Novelty(**NOVELTY, num_archived=2)),
    "random_search": lambda: evolution.GA.random_search(**COMMON, num_elite_candidates=2),
    "es": lambda: evolution.ES(**COMMON),
    "es-scheduled": lambda: evolution.ES(
        **COMMON, noise_std="exponential:0.1,0.01,4", learning_rate="linear:0.1,0.01,4", optimizer=optax.sgd
    ),
    "ns_es": lambda: evolution.ES(**COMMON, objective=Novelty.ns_es(**NOVELTY), num_bases=3),
    "nsr_es": lambda: evolution.ES(**COMMON, objective=Novelty.nsr_es(**NOVELTY), num_bases=3),
    "nsra_es": lambda: evolution.ES(**COMMON, objective=Novelty.nsra_es(**NOVELTY, patience=1), num_bases=3),
}


CASES = [(name, "free") for name in STRATEGIES]
CASES += [(name, "low_rank") for name in ("ga", "novelty_ga", "es", "nsra_es")]
RUNS = [("novelty_ga", "free"), ("nsra_es", "free"), ("ga", "low_rank")]
"""Those of which the state has all there is; test_algorithm.py resumes the others."""
IMPROVES = ("ga", "es", "es-scheduled")
"""Novelty promises no such thing, and random search needs luck."""


@pytest.mark.slow_except("es-low_rank")
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_suite_passes(case):
    name, noise = case
    runs = case in RUNS
    testing.check_strategy(STRATEGIES[name](), noise=NOISES[noise], improves=name in IMPROVES, runs=runs)


def test_random_search_has_no_use_for_low_rank_noise():
    with pytest.raises(ValueError, match="random search knows first ancestors only"):
        STRATEGIES["random_search"]().init(jax.random.key(0), population.encoding(NET, NOISES["low_rank"]))


@pytest.mark.slow_except("free")
@pytest.mark.parametrize("noise", [population.Table(size=20_000), population.LowRank()], ids=["free", "low_rank"])
def test_strategies_solve_the_probe(noise, tmp_path):
    """The best return of the probe is 0, of the network that answers with its observation."""
    env = probes.target(size=2, num_envs=16, groups=2, max_episode_steps=6)
    strategy = evolution.ES(
        population_size=48, noise_std=0.1, learning_rate=0.1, l2_coefficient=0.0, num_validation_episodes=6
    )
    algorithm = evolution.evolve(strategy, networks.MLP(2, hidden=()), env, noise=noise)
    state = algorithm.init(jax.random.key(0))
    for _ in range(40):
        state, metrics = algorithm.step(state)
    assert metrics["validation_mean"] > -0.05
    assert algorithm.genome is None
    params = algorithm.variables(state)["Dense_0"]["kernel"]
    assert abs(np.asarray(params) - np.eye(2)).max() < 0.3

    # Resumed from what is saved, the next generation is the same to the bit.
    checkpoint.save(tmp_path, 40, algorithm.save(state))
    restored = algorithm.restore(checkpoint.restore(tmp_path, 40))
    chex.assert_trees_all_equal(restored.strategy, state.strategy)
    _, expected = algorithm.step(state)
    _, again = algorithm.step(restored)
    for name in ("training_mean", "validation_mean", "gradient_norm"):
        assert expected[name] == again[name]
