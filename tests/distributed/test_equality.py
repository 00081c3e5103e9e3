"""The same run in one process and on actors: survivors, scores and parameters, bit for bit."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import probes
import pytest

import volvox as vx
from volvox import distributed
from volvox.distributed import player

pytestmark = [pytest.mark.optimized, pytest.mark.filterwarnings("ignore")]

SMALL = {"population_size": 24, "num_validation_episodes": 2}
GA = vx.GA(num_parents=3, mutation_std=0.3, num_elite_candidates=2, num_test_episodes=3, **SMALL)
NOVELTY = vx.Novelty(behavior=vx.rollout.Last("elapsed_steps", 1), num_neighbors=3, archive_size=8, num_archived=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explicit:
    """Members are vectors around the best one; there are more than an actor has places for."""

    population_size: int = 24

    def init(self, key, encoding):
        return jax.random.normal(key, (encoding.num_parameters,))

    def ask(self, key, state, encoding):
        vectors = state + 0.3 * jax.random.normal(key, (self.population_size, state.size))
        return vx.population.explicit(vx.population.from_vectors(encoding, vectors)), state

    def tell(self, key, state, population, evaluation, encoding):
        vectors = vx.population.to_vectors(population.bases)
        return vectors[evaluation.returns[:, 0].argmax()], {}


CASES = {
    "GA": (GA, vx.population.Table(size=5_000)),
    "GA, low rank": (GA, vx.population.LowRank(source=vx.population.Table(size=5_000))),
    "ES": (vx.ES(noise_std=0.3, **SMALL), vx.population.Table(size=5_000)),
    "novelty": (dataclasses.replace(GA, objective=NOVELTY), vx.population.Generator()),
    "explicit": (vx.evolution.from_ask_tell(Explicit(), num_validation_episodes=2), vx.population.Table(size=5_000)),
}


def algorithm_of(case, workers):
    env = probes.countdown(num_envs=4, groups=2, low=1, high=9)
    strategy, noise = CASES[case]
    return vx.evolve(strategy, vx.networks.MLP(2, (4,)), env, noise=noise, workers=workers)


def played(case, workers, inside=None, generations=3):
    """Some generations; `inside` is called with the number of those that are complete when one is being played."""
    algorithm = algorithm_of(case, workers)
    try:
        state, rows = algorithm.init(jax.random.key(3)), []

        def monitor(figures):
            if inside is not None and "stepped" in figures:
                inside(len(rows))

        for _ in range(generations):
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


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_actors_are_one_process(machines, players, case):
    """One, and three of which one is killed in the second generation."""
    workers, local, killed = distributed.ray(address=machines.address), played(case, None), []
    machines.set(1)
    equal(played(case, workers), local)
    machines.set(3)

    def kill(complete):
        if complete == 1 and not killed:
            killed.append(players[-1]._actors._remotes[0].about["process"])
            os.kill(killed[0], signal.SIGKILL)

    equal(played(case, workers, kill), local)
    assert killed


@pytest.mark.slow
def test_machines_that_go_and_come_are_one_process(machines, players):
    """Of three machines one ends without grace in the second generation, and another joins in the third."""
    machines.set(2)
    node, done = machines.add(), []

    def change(complete):
        if complete == 1 and not done:
            done.append(machines.kill(node))
        if complete == 2 and len(done) == 1:
            done.append(machines.add())

    equal(played("GA", distributed.ray(address=machines.address), change), played("GA", None))
    assert len(done) == 2


@pytest.mark.slow
def test_a_killed_script_is_resumed(machines, tmp_path):
    """Stopped for a while, later killed without warning, and gone on with: the run of one process without a break."""
    machines.set(2)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, volvox as vx\n"
        "env = probes.countdown(num_envs=4, groups=2, low=1, high=9)\n"
        "workers = vx.distributed.ray(address=sys.argv[1], patience=3)\n"
        "strategy = vx.GA(num_parents=3, mutation_std=0.3, population_size=24, num_validation_episodes=2)\n"
        "algorithm = vx.evolve(strategy, vx.networks.MLP(2, (4,)), env, workers=workers)\n"
        "vx.train(algorithm, steps=int(sys.argv[3]), run_dir=sys.argv[2], resume=True, progress=False)\n"
        "algorithm.close()\n"
    )
    call = [sys.executable, str(script), machines.address, str(tmp_path / "run")]
    running, metrics = subprocess.Popen([*call, "1000000"]), tmp_path / "run" / "metrics.jsonl"

    def wait_for(count):
        until = time.monotonic() + 120
        while not metrics.exists() or len(metrics.read_text().splitlines()) < count:
            assert time.monotonic() < until
            time.sleep(0.1)
        return len(metrics.read_text().splitlines())

    wait_for(3)
    running.send_signal(signal.SIGSTOP)
    time.sleep(6)  # longer than the script's patience with its actors
    running.send_signal(signal.SIGCONT)
    wait_for(wait_for(0) + 3)
    running.kill()
    running.wait()
    done = len(metrics.read_text().splitlines())
    assert json.loads(metrics.read_text().splitlines()[-1])["actor_restarts"] == 0
    subprocess.run([*call, str(done + 3)], check=True, timeout=180)
    run = vx.load(tmp_path / "run")
    env = probes.countdown(num_envs=4, groups=2, low=1, high=9)
    strategy = vx.GA(num_parents=3, mutation_std=0.3, population_size=24, num_validation_episodes=2)
    whole = vx.train(vx.evolve(strategy, vx.networks.MLP(2, (4,)), env), steps=done + 3, progress=False)
    equal(run.state.strategy, whole.state.strategy)
