"""The same run in one process and on actors: survivors, scores and parameters, bit for bit."""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import volvox as vx
from volvox import distributed
from volvox.distributed import player

pytestmark = [pytest.mark.optimized, pytest.mark.filterwarnings("ignore")]

SMALL = {"population_size": 24, "num_validation_episodes": 2}
GA = vx.GA(num_parents=3, mutation_std=0.3, num_elite_candidates=2, num_test_episodes=3, **SMALL)
NOVELTY = vx.Novelty(behavior=vx.loop.Last("elapsed_steps", 1), num_neighbors=3, archive_size=8, num_archived=2)
CASES = {
    "GA": (GA, vx.population.Table(size=5_000)),
    "GA, low rank": (GA, vx.population.LowRank(source=vx.population.Table(size=5_000))),
    "ES": (vx.ES(noise_std=0.3, **SMALL), vx.population.Table(size=5_000)),
    "novelty": (dataclasses.replace(GA, objective=NOVELTY), vx.population.Generator()),
    "random search": (vx.GA.random_search(num_elite_candidates=2, **SMALL), vx.population.Table(size=5_000)),
}


def algorithm_of(case, workers):
    env = vx.envs.probe.countdown(num_envs=4, groups=2, low=1, high=9)
    strategy, noise = CASES[case]
    return vx.evolve(strategy, vx.networks.MLP(2, (4,)), env, noise=noise, workers=workers)


def played(case, workers, monitor=None):
    """Three generations."""
    algorithm = algorithm_of(case, workers)
    try:
        state, rows = algorithm.init(jax.random.key(3)), []
        for _ in range(3):
            state, metrics = algorithm.step(state, monitor=monitor)
            rows.append({name: metrics[name] for name in ("training_mean", "validation_mean", "frames")})
        strategy = state.strategy
        return jax.tree.map(np.asarray, (strategy.bases, strategy.score, state.lineage, algorithm.log(state), rows))
    finally:
        algorithm.close()


def equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture
def players(monkeypatch):
    """All players that are made."""
    made, init = [], player.RayPlayer.__init__

    def noted(self, *args, **options):
        init(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(player.RayPlayer, "__init__", noted)
    return made


def test_two_actors_are_one_process(machines):
    machines.set(2)
    equal(played("GA", distributed.ray(address=machines.address)), played("GA", None))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_actors_are_one_process(machines, players, case):
    """One, three, and three of which one is killed in the middle of the second generation."""
    workers, local = distributed.ray(address=machines.address), played(case, None)
    machines.set(1)
    equal(played(case, workers), local)
    machines.set(3)
    equal(played(case, workers), local)
    killed = []

    def kill(figures):
        if not killed and figures.get("generation", 0) == 0 and players[-1]._actors._remotes:
            killed.append(players[-1]._actors._remotes[0].about["process"])
            os.kill(killed[0], signal.SIGKILL)

    equal(played(case, workers, kill), local)
    assert killed


@pytest.mark.slow
def test_a_killed_script_is_resumed(machines, tmp_path):
    """Killed without warning after some generations, and gone on with: the run of one process without a break."""
    machines.set(2)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, volvox as vx\n"
        "env = vx.envs.probe.countdown(num_envs=4, groups=2, low=1, high=9)\n"
        "workers = vx.distributed.ray(address=sys.argv[1])\n"
        "strategy = vx.GA(num_parents=3, mutation_std=0.3, population_size=24, num_validation_episodes=2)\n"
        "algorithm = vx.evolve(strategy, vx.networks.MLP(2, (4,)), env, workers=workers)\n"
        "vx.train(algorithm, steps=int(sys.argv[3]), run_dir=sys.argv[2], resume=True, progress=False)\n"
        "algorithm.close()\n"
    )
    call = [sys.executable, str(script), machines.address, str(tmp_path / "run")]
    running, metrics = subprocess.Popen([*call, "1000000"]), tmp_path / "run" / "metrics.jsonl"
    until = time.monotonic() + 120
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        assert time.monotonic() < until
        time.sleep(0.1)
    running.kill()
    running.wait()
    done = len(metrics.read_text().splitlines())
    subprocess.run([*call, str(done + 3)], check=True, timeout=180)
    run = vx.load(tmp_path / "run")
    env = vx.envs.probe.countdown(num_envs=4, groups=2, low=1, high=9)
    strategy = vx.GA(num_parents=3, mutation_std=0.3, population_size=24, num_validation_episodes=2)
    whole = vx.train(vx.evolve(strategy, vx.networks.MLP(2, (4,)), env), steps=done + 3, progress=False)
    equal(run.state.strategy, whole.state.strategy)
