"""Runs of a few generations give the recorded numbers.

The recorded runs were made on one machine; other processors round differently, hence the tolerance. With
`VOLVOX_EXACT=1` in the environment the numbers must be the same bits.
"""

import json
import os
from pathlib import Path

import jax
import numpy as np
import probes
import pytest

import volvox as vx
from volvox import ES, GA, Novelty, Validation, networks, population, rollout
from volvox.envs import hard_maze

GOLDEN = Path(__file__).parent.parent / "golden"
EXACT = os.environ.get("VOLVOX_EXACT") == "1"
SMALL = {"population_size": 16, "num_parents": 4, "mutation_std": 0.3}
BEHAVIOR = rollout.Last("position", 2)


def evolve(strategy, make=probes.corridor, num_validation_episodes=2, **options):
    validation = Validation(num_elite_candidates=3, num_validation_episodes=num_validation_episodes)
    return vx.evolve(strategy, networks.MLP(2, (8,)), make(num_envs=8, groups=2), validation=validation, **options)


def ga(**options):
    return evolve(GA(**SMALL), **options)


def novelty_ga():
    objective = Novelty(behavior=BEHAVIOR, num_neighbors=3, archive_size=32, num_archived=2)
    return evolve(GA(**SMALL | {"population_size": 12}, objective=objective), hard_maze, max_episode_steps=50)


def nsra_es():
    objective = Novelty.nsra_es(
        behavior=BEHAVIOR, num_neighbors=3, archive_size=16, patience=1, reward_weight_step=0.25
    )
    strategy = ES(population_size=8, noise_std=0.3, learning_rate=0.1, num_bases=3, objective=objective)
    return evolve(strategy, hard_maze, num_validation_episodes=1)


CASES = {  # seed, generations, algorithm
    "ga_table": (0, 4, ga),
    "ga_low_rank": (1, 4, lambda: ga(noise=population.LowRank())),
    "ga_generator": (2, 4, lambda: ga(noise=population.Generator())),
    "ga_adaptive_cutoff": (3, 5, lambda: ga(max_episode_steps="adaptive:4,0.1,1.5,16")),
    "random_search": (6, 3, lambda: evolve(GA.random_search(population_size=16), probes.target)),
    "novelty_ga": (7, 4, novelty_ga),
    "es_corridor": (10, 4, lambda: evolve(ES(population_size=16, noise_std=0.3, learning_rate=0.05))),
    "nsra_es": (15, 4, nsra_es),
}


def named(prefix, tree):
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {f"{prefix}/{jax.tree_util.keystr(path, simple=True, separator='/')}": np.asarray(x) for path, x in leaves}


def recorded(seed, generations, make):
    """The same arrays by name as in the recorded runs."""
    algorithm = make()
    state, rows = algorithm.init(jax.random.key(seed)), []
    for _ in range(generations):
        state, metrics = algorithm.step(state)
        rows.append(metrics)
    log, bases = algorithm.log(state), state.bases
    if state.lineage is None:  # the recorded runs have the elite behind the strategy's bases
        bases = jax.tree.map(lambda *x: np.concatenate(x), state.strategy.bases, bases)
    out = named("policy", algorithm.variables(state)) | named("bases", bases)
    out |= {f"log/{name}": log[name] for name in ("seed", "fitness")}
    if algorithm.genome is not None:
        out |= {"genome": json.dumps(algorithm.genome(state))} | named("lineage", state.lineage._asdict())
    if state.strategy.novelty:
        out["archive"] = state.strategy.novelty.archive.behaviors
    algorithm.close()
    return out, rows


MAZE = ("novelty_ga", "nsra_es")  # rounding grows fast there


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.optimized) if name in MAZE else name for name in CASES]
)
def test_golden(name):
    out, rows = recorded(*CASES[name])
    with np.load(GOLDEN / f"{name}.npz") as file:
        golden = dict(file)
    names, metrics = golden.pop("metric_names"), golden.pop("metrics")
    assert set(out) == set(golden)
    out["metrics"], golden["metrics"] = [[row.get(n, np.nan) for n in names] for row in rows], metrics
    for key, expected in golden.items():
        got = np.asarray(out[key], expected.dtype)
        if EXACT or expected.dtype.kind != "f":
            np.testing.assert_array_equal(got, expected, err_msg=key)
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, err_msg=key)
