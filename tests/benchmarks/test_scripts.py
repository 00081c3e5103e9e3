"""Benchmarks run at tiny sizes, except those that take minutes at any size."""

import json
import math
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = {
    "actor_critic": "--num-envs 4 --seconds 0.1",
    "circulant": "--width 64 --blocks 8 --batches 1 --population 2 --repeats 2",
    "first_row": "--configurations 2",
    "gradients": "--batch 8 --micro-batch 4 --repeats 2",
    "gymnasium_loop": "--timesteps 2000 --variants stepping workers0",
    "jax_envs": "--suite cartpole --num-envs 8 --segment-length 8 --seconds 0.1 --turns 1",
    "many_learners": "--parts ppo td3 --ppo-learners 2 --td3-learners 2 --td3-width 32 --rounds 1 --timesteps 9 "
    "--turns 1",
    "maze": "--population-size 40 --num-envs 20 --generations 1",
    "population_forward": "--num-networks 2 --size small --repeats 2",
    "population_rollout": "--population 8 --num-envs 4 --cutoff 20 --network small --noise low-rank --no-memory "
    "--seconds 0.1",
    "ppo": "--seconds 0.1 --turns 1 --preset mujoco --task HalfCheetah-v4 --num-envs 1 --groups 1",
    "strategies": "--members 8 --params 1000 --generations 1 --side volvox",
    "sweep": "--parts pbt --learners 4 --pbt-timesteps 4096 --seeds 1",
    "timeline": "--num-envs 4 --seconds 0.5",
}


def figures(tree):
    """All numbers in a tree of JSON values."""
    if isinstance(tree, dict | list):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from figures(value)
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield tree


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_prints_figures(name, run_script):
    out, _ = run_script(BENCHMARKS / f"{name}.py", *SCRIPTS[name].split(), "--json")
    found = json.loads(out.splitlines()[-1])
    measured = list(figures({key: value for key, value in found.items() if key not in ("settings", "made", "cpus")}))
    assert measured
    assert all(map(math.isfinite, measured))


@pytest.mark.slow
def test_the_benchmark_of_a_gpu_runs_its_parts(run_script, tmp_path):
    words = ("--dry-run", "--only", "kernels", "--out", tmp_path / "gpu.json")
    run_script(BENCHMARKS / "gpu.py", *words)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert all(map(math.isfinite, figures(found["parts"]["kernels"])))
