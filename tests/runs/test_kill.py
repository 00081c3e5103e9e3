"""A run that is killed at any moment loses at most the step in progress."""

import signal
import subprocess
import sys
import time

import numpy as np

import volvox as vx
from volvox.report.files import read_metrics
from volvox.runs import checkpoint

from .conftest import random_walk

PROGRAM = """
import sys
sys.path.insert(0, {root!r})
import volvox as vx
from tests.runs.conftest import random_walk
vx.train(random_walk(size=1000), steps=100_000, run_dir={run_dir!r}, resume=True, progress=False, loggers=())
"""


def test_a_run_is_killed_again_and_again(tmp_path, pytestconfig):
    rng, program = np.random.default_rng(0), PROGRAM.format(root=str(pytestconfig.rootpath), run_dir=str(tmp_path))
    done = 0
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", program])
        deadline = time.monotonic() + 120
        while len(read_metrics(tmp_path / "metrics.jsonl")) < done + 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
        rows, steps = read_metrics(tmp_path / "metrics.jsonl"), checkpoint.steps(tmp_path / "checkpoints")
        assert len(rows) - steps[-1] in (0, 1)
        assert steps[-1] > done
        done = steps[-1]
    run = vx.load(tmp_path, algorithm=random_walk(size=1000))
    assert [row["generation"] for row in run.metrics] == list(range(1, done + 1))
    straight = vx.train(random_walk(size=1000), steps=done, progress=False)
    np.testing.assert_array_equal(run.state["x"], straight.state["x"])
