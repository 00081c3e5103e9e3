"""Populations on Ray actors: the results of one process, whatever the number of actors and whoever dies."""

import dataclasses
import os
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import volvox as vx
from volvox.types import Interrupted

sys.path.insert(0, str(Path(__file__).parent))
import standin

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'volvox[ray]'")
from volvox.distributed.ray_evaluator import RayEvaluator, chunk_sizes, extend_bases, split

pytestmark = [pytest.mark.optimized, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def cluster():
    """A local cluster with two CPUs, which has minutes to start on a loaded machine."""
    os.environ |= {"RAY_raylet_start_wait_time_s": "300", "RAY_worker_register_timeout_seconds": "300"}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    ray.cloudpickle.register_pickle_by_value(standin)  # actors cannot import it
    yield
    ray.shutdown()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explicit:
    """Members are vectors around the best one."""

    population_size: int = 24

    def init(self, key, encoding):
        return jax.random.normal(key, (encoding.num_parameters,))

    def ask(self, key, state, encoding):
        vectors = state + 0.3 * jax.random.normal(key, (self.population_size, state.size))
        return vx.population.explicit(vx.population.from_vectors(encoding, vectors)), state

    def tell(self, key, state, population, evaluation, encoding):
        vectors = vx.population.to_vectors(population.bases)
        return vectors[evaluation.returns[:, 0].argmax()], {}


TABLE = vx.population.Table(size=5_000)
GA = vx.GA(
    population_size=24,
    num_parents=3,
    mutation_std=0.3,
    num_elite_candidates=2,
    num_validation_episodes=2,
    num_test_episodes=3,
)
CASES = {
    "ga": (GA, TABLE),
    "low-rank": (GA, vx.population.LowRank(source=TABLE)),
    "es": (vx.ES(population_size=24, noise_std=0.3, num_validation_episodes=2), TABLE),
    "explicit": (vx.evolution.from_ask_tell(Explicit(), num_validation_episodes=2), TABLE),
}


def countdown():
    return vx.envs.probe.countdown(num_envs=4, groups=2, low=1, high=9)


def evolved(case, workers, generations=3):
    """State and metrics after some generations."""
    strategy, noise = CASES[case]
    algorithm = standin.evolve(strategy, vx.networks.MLP(2, (4,)), countdown(), noise=noise, workers=workers)
    try:
        state, rows = algorithm.init(jax.random.key(3)), []
        for _ in range(generations):
            state, row = algorithm.step(state)
            rows.append({name: row[name] for name in ("training_mean", "validation_mean", "frames")})
        inner = state.strategy
        return jax.tree.map(np.asarray, (inner.bases, inner.score, state.lineage, algorithm.log(state), rows)), row
    finally:
        algorithm.close()


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("case", ["ga", "es", *(pytest.param(x, marks=pytest.mark.slow) for x in ("low-rank", "explicit"))])
def test_two_actors_give_the_results_of_one_process(cluster, case):
    found, row = evolved(case, vx.distributed.ray(num_actors=2))
    assert_equal(found, evolved(case, None)[0])
    assert row["num_actors"] == 2
    assert row["actor_restarts"] == 0
    assert row["bytes_sent"] > 0


@pytest.fixture
def evaluator(cluster):
    """An evaluator of four slots on one actor a CPU, and one of this process."""
    genotype = vx.networks.genotype(vx.networks.MLP(2, (4,)), countdown().spec)
    given = genotype, TABLE, countdown(), vx.rollout.Nothing(), 400, 0.05
    make_local = standin.partial(standin.LocalEvaluator, *given)
    made = RayEvaluator(vx.distributed.ray(num_actors=2), make_local, 4, 0.05), make_local()
    yield made
    for one in made:
        one.close()


SETTINGS = {"max_episode_steps": 20, "seed": 5, "pool_seed": 6}


def population(num_members=100, num_bases=1):
    """Members with one or two episodes each."""
    rows = np.arange(num_members, dtype=np.int32)
    shapes = vx.population.encoding(vx.networks.genotype(vx.networks.MLP(2, (4,)), countdown().spec), TABLE)
    fields = rows % num_bases, rows, np.full(num_members, 0.1, np.float32), rows < 50, rows % 2 + 1, -rows / 7.0
    return vx.Population(shapes.zeros(num_bases), *map(jnp.asarray, fields))


def pids(evaluator):
    return [ray.get(actor.__ray_call__.remote(lambda self: os.getpid())) for actor in evaluator._actors.values()]


def test_a_killed_actor_costs_only_its_chunk(evaluator):
    on_ray, local = evaluator
    expected, _ = local.evaluate(population(), 2, **SETTINGS)
    found, statistics = on_ray.evaluate(population(), 2, **SETTINGS)
    assert_equal(found, expected)
    assert statistics.episodes == 150
    victim, killed = pids(on_ray)[0], []

    def kill_once(figures):
        if figures.get("done") and not killed:
            killed.append(os.kill(victim, signal.SIGKILL))

    found, _ = on_ray.evaluate(population(), 2, **SETTINGS, monitor=kill_once)
    assert_equal(found, expected)
    assert killed
    found, _ = on_ray.evaluate(population(), 2, **SETTINGS)
    assert_equal(found, expected)
    assert on_ray.figures()["actor_restarts"] == 1


def test_an_interrupted_evaluation_can_be_repeated_and_closing_ends_the_actors(evaluator):
    on_ray, local = evaluator
    with pytest.raises(Interrupted):
        on_ray.evaluate(population(), 2, **SETTINGS, monitor=lambda figures: figures.get("done"))
    found, _ = on_ray.evaluate(population(), 2, **SETTINGS)
    assert_equal(found, local.evaluate(population(), 2, **SETTINGS)[0])
    actors = list(on_ray._actors.values())
    on_ray.close()
    for actor in actors:
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(actor.__ray_call__.options(max_task_retries=0).remote(lambda self: None), timeout=60)
    assert on_ray.figures()["num_actors"] == 0
