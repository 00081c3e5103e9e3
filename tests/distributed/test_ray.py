"""Populations on Ray actors have the results of one process, for any number of actors, also if an actor dies."""

import os
import signal
from functools import partial

import evosax.algorithms
import jax
import jax.numpy as jnp
import numpy as np
import probes as probe
import pytest

import volvox as vx
from volvox.population import lineage as lineages
from volvox.population.decoding import Member, decode_many
from volvox.rollout.behaviors import Nothing
from volvox.rollout.evaluator import PopulationEvaluator
from volvox.types import Interrupted

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
from volvox.distributed import ray_evaluator  # noqa: E402
from volvox.distributed.ray_evaluator import PopulationActor, RayEvaluator  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

TABLE = vx.population.Table(size=5_000)
NETWORK = vx.networks.MLP(2, (4,))


def corridor():
    return probe.corridor(num_envs=4, groups=2, random_start=True)


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope="module")
def cluster():
    """A local cluster of two CPUs."""
    for attempts_left in reversed(range(5)):
        try:
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
            break
        except Exception:  # Ray gives its processes 30 seconds to start, which a loaded machine may exceed
            ray.shutdown()
            if not attempts_left:
                raise
    ray.cloudpickle.register_pickle_by_value(probe)  # actors need not import it
    yield
    ray.shutdown()


CASES = {
    "ga": vx.GA(population_size=24, num_parents=3, mutation_std=0.3),  # sends a lineage
    "es": vx.ES(population_size=24, noise_std=0.3),  # sends all bases once
    "explicit": vx.evolution.Evosax(evosax.algorithms.SNES, population_size=24),  # sends the bases of each chunk
}


def evolved(case, workers):
    """State, log and metrics after two generations."""
    validation = vx.Validation(num_elite_candidates=2, num_validation_episodes=2)
    algorithm = vx.evolve(CASES[case], NETWORK, corridor(), noise=TABLE, validation=validation, workers=workers)
    try:
        state, row, rows = algorithm.init(jax.random.key(3)), {}, []
        for _ in range(2):
            state, row = algorithm.step(state)
            rows.append({name: row[name] for name in ("training_mean", "validation_mean", "frames")})
        found = state.bases, state.score, state.lineage, algorithm.log(state), rows
        return jax.tree.map(np.asarray, found), row
    finally:
        algorithm.close()


@pytest.mark.slow
@pytest.mark.parametrize(("case", "num_actors"), [("ga", 2), ("es", "nodes"), ("explicit", 2)])
def test_actors_give_the_results_of_one_process(cluster, case, num_actors):
    found, row = evolved(case, vx.distributed.ray(num_actors=num_actors))
    assert_equal(found, evolved(case, None)[0])
    assert row["num_actors"] == (1 if num_actors == "nodes" else 2)  # the cluster is one machine
    assert row["actor_restarts"] == 0


SETTINGS = {"max_episode_steps": 20, "seed": 5, "pool_seed": 6}


def population(encoding):
    """A hundred first ancestors with one or two episodes each."""
    rows = np.arange(100, dtype=np.int32)
    fields = rows * 0, rows, np.full(100, 0.1, np.float32), rows >= 0, rows % 2 + 1, (rows / 7).astype(np.float32)
    return vx.Population(encoding.zeros(1), *map(jnp.asarray, fields))


@pytest.mark.slow
def test_a_killed_actor_costs_its_chunk_and_closing_ends_all(cluster, monkeypatch):
    monkeypatch.setattr(ray_evaluator, "CHUNK_SECONDS", 0.05)
    genotype = vx.networks.genotype(NETWORK, corridor().spec)
    given = genotype, TABLE, corridor(), Nothing(), 400
    make_local = partial(PopulationEvaluator, *given)
    local, evaluator, done = make_local(), RayEvaluator(vx.distributed.ray(num_actors=2), make_local, 4), []
    members = population(local.encoding)
    expected, _ = local.evaluate(members, 2, **SETTINGS)
    local.close()
    # Interrupted, and again from the beginning.
    with pytest.raises(Interrupted):
        evaluator.evaluate(members, 2, **SETTINGS, monitor=lambda figures: figures.get("done"))
    found, statistics = evaluator.evaluate(members, 2, **SETTINGS)
    assert_equal(found, expected)
    assert statistics.stepped >= expected.lengths.sum() + 150
    # Killed in the middle, and restarted by Ray.
    actors = list(evaluator._actors.values())
    victim = ray.get(actors[0].__ray_call__.remote(lambda self: os.getpid()))

    def kill_once(figures):
        if figures.get("done") and not done:
            done.append(os.kill(victim, signal.SIGKILL))

    for monitor in (kill_once, None):
        found, _ = evaluator.evaluate(members, 2, **SETTINGS, monitor=monitor)
        assert_equal(found, expected)
    assert done
    assert evaluator.figures()["actor_restarts"] == 1
    evaluator.close()
    for actor in actors:
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(actor.evaluate.remote(None, None, None, {}), timeout=300)
    assert evaluator.figures()["num_actors"] == 0


@pytest.mark.slow
def test_an_error_of_an_actor_reaches_the_caller(cluster):
    class Broken:
        def evaluate(self, *args, **settings):
            raise FloatingPointError("the emulator gave NaN")

    encoding = vx.population.encoding(vx.networks.genotype(NETWORK, corridor().spec), TABLE)
    evaluator = RayEvaluator(vx.distributed.ray(num_actors=1), Broken, 4)
    with pytest.raises(FloatingPointError):
        evaluator.evaluate(population(encoding), 2, **SETTINGS)
    evaluator.close()


@pytest.mark.optimized
def test_bases_are_rebuilt_from_their_lineage():
    """Bit for bit, from the start, from the bases of an earlier call, and after another lineage."""
    genotype = vx.networks.genotype(NETWORK, corridor().spec)
    actor = PopulationActor(lambda: PopulationEvaluator(genotype, TABLE, corridor(), Nothing(), 4), {})
    encoding = vx.population.encoding(genotype, TABLE)
    rng, history, lineage = np.random.default_rng(0), [encoding.zeros(4)], [lineages.zeros(0, 4)]
    for g in range(6):
        seeds, scales = rng.integers(0, 1000, 4).astype(np.int32), np.where(rng.random(4) < 0.3, 0, 0.1)
        row = Member(rng.integers(0, 4, 4).astype(np.int32), seeds, scales.astype(np.float32), np.full(4, not g))
        lineage.append(lineages.extend(lineage[-1], row))
        history.append(decode_many(encoding, history[-1], jax.tree.map(jnp.asarray, row)))
    for known in (6, 0, 1, 4, 6):
        assert_equal(actor.rebuilt_bases(lineage[known]), history[known])
    changed = lineage[5]._replace(seed=lineage[5].seed + 1)
    actor.rebuilt_bases(changed)
    assert_equal(actor.rebuilt_bases(lineage[6]), history[6])


def test_one_actor_needs_no_ray():
    assert vx.distributed.ray(num_actors=1).evaluator(lambda: "local", 4) == "local"
    with pytest.raises(ValueError, match="nodes"):
        vx.distributed.ray(num_actors="all")
