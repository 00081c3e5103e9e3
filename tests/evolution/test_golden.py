"""Runs of a few generations give the recorded numbers.

The recorded runs were made on one machine; other processors round differently, hence the tolerance. With
`VOLVOX_EXACT=1` in the environment the numbers must be the same bits, but for schedules, which optax rounds otherwise.
"""

import functools
import json
import os
from pathlib import Path

import jax
import numpy as np
import optax
import probes
import pytest

import volvox as vx
from volvox import ES, GA, Novelty, Validation, networks, population, rollout
from volvox.envs import hard_maze

GOLDEN = Path(__file__).parent.parent / "golden"
EXACT = os.environ.get("VOLVOX_EXACT") == "1"
SCHEDULED = ("ga_target_test_episodes", "es_test_episodes")
SMALL = {"population_size": 16, "num_parents": 4, "mutation_std": 0.3}
SMALL_ES = {"population_size": 16, "noise_std": 0.3, "learning_rate": 0.05}
VALIDATION = {"num_elite_candidates": 3, "num_validation_episodes": 2}


def ga(**changes):
    return GA(**SMALL | changes)


def es(**changes):
    return ES(**SMALL_ES | changes)


def evolve(strategy, env="corridor", hidden=(8,), validation=None, **options):
    make = {"corridor": probes.corridor, "target": probes.target, "maze": hard_maze}[env]
    validation = Validation(**VALIDATION | (validation or {}))
    return vx.evolve(strategy, networks.MLP(2, hidden), make(num_envs=8, groups=2), validation=validation, **options)


def novelty_ga(num_validation_episodes, **options):
    objective = Novelty(behavior=rollout.Last("position", 2), num_neighbors=3, archive_size=32, num_archived=2)
    validation = {"num_validation_episodes": num_validation_episodes}
    return evolve(ga(population_size=12, objective=objective), "maze", validation=validation, **options)


def novelty_es(kind, **changes):
    objective = kind(behavior=rollout.Last("position", 2), num_neighbors=3, archive_size=16, **changes)
    strategy = es(population_size=8, num_bases=3, learning_rate=0.1, objective=objective)
    return evolve(strategy, "maze", validation={"num_validation_episodes": 1})


def ga_target_low_rank_2():
    noise = population.LowRank(rank=2, source=population.Generator(seed=7))
    return evolve(ga(), "target", (8, 8), noise=noise)


def ga_target_test_episodes():
    strategy = ga(num_episodes=2, mutation_std="linear:0.4,0.1,3")
    return evolve(strategy, "target", validation={"num_test_episodes": 3}, test_max_episode_steps=6)


def random_search():
    return evolve(GA.random_search(population_size=16), "target")


def es_test_episodes():
    strategy = es(
        num_episodes=2,
        noise_std="exponential:0.3,0.1,3",
        learning_rate="linear:0.1,0.01,3",
        optimizer=functools.partial(optax.sgd, momentum=0.9),
        l2_coefficient=0.01,
        fitness_shaping="raw",
    )
    return evolve(strategy, "target", validation={"num_test_episodes": 3})


CASES = {  # seed, generations, algorithm
    "ga_table": (0, 4, lambda: evolve(ga())),
    "ga_low_rank": (1, 4, lambda: evolve(ga(), noise=population.LowRank())),
    "ga_generator": (2, 4, lambda: evolve(ga(), noise=population.Generator())),
    "ga_adaptive_cutoff": (3, 5, lambda: evolve(ga(), max_episode_steps="adaptive:4,0.1,1.5,16")),
    "ga_target_test_episodes": (4, 4, ga_target_test_episodes),
    "ga_target_low_rank_2": (5, 4, ga_target_low_rank_2),
    "random_search": (6, 3, random_search),
    "novelty_ga": (7, 4, lambda: novelty_ga(2, max_episode_steps=50)),
    "novelty_ga_whole_episodes": (8, 3, lambda: novelty_ga(1)),
    "es_corridor": (10, 4, lambda: evolve(es())),
    "es_z_scores_low_rank": (11, 4, lambda: evolve(es(fitness_shaping="z_scores"), noise=population.LowRank())),
    "es_test_episodes": (12, 4, es_test_episodes),
    "ns_es": (13, 4, lambda: novelty_es(Novelty.ns_es)),
    "nsr_es": (14, 4, lambda: novelty_es(Novelty.nsr_es)),
    "nsra_es": (15, 4, lambda: novelty_es(Novelty.nsra_es, patience=1, reward_weight_step=0.25)),
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


MAZE = ("novelty_ga", "novelty_ga_whole_episodes", "ns_es", "nsr_es", "nsra_es")  # rounding grows fast there
MARKS = dict.fromkeys(MAZE, pytest.mark.optimized)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in CASES])
def test_golden(name):
    out, rows = recorded(*CASES[name])
    with np.load(GOLDEN / f"{name}.npz") as file:
        golden = dict(file)
    names, metrics = golden.pop("metric_names"), golden.pop("metrics")
    assert set(out) == set(golden)
    out["metrics"], golden["metrics"] = [[row.get(n, np.nan) for n in names] for row in rows], metrics
    for key, expected in golden.items():
        got = np.asarray(out[key], expected.dtype)
        if (EXACT and name not in SCHEDULED) or expected.dtype.kind != "f":
            np.testing.assert_array_equal(got, expected, err_msg=key)
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, err_msg=key)
