"""Several processes or devices learn the same as one, and stop together."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import probes as probe
import pytest

import volvox as vx
from volvox.report.files import read_metrics

sys.path.insert(0, str(Path(__file__).parent))
import process

HERE = Path(__file__).parent
PROGRAM = "import json, sys, process; process.main(json.loads(sys.argv[1]))"
SOURCES = Path(vx.__file__).parent.parent, HERE.parent, HERE  # volvox, probes, process
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
PATIENCE = 600.0  # seconds, for loaded machines


@contextlib.contextmanager
def started(count, folder, **settings):
    """Starts the processes of one run, and kills them at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    run = []
    for i in range(count):
        given = json.dumps(settings | {"join": [address, count, i], "out": str(folder / f"p-{i}")})
        with (folder / f"p-{i}.log").open("w") as log:
            words = [sys.executable, "-c", PROGRAM, given]
            run.append(subprocess.Popen(words, stdout=log, stderr=log, env=ENVIRONMENT))
    try:
        yield run
    finally:
        for one in run:
            one.kill()
            one.wait()


def logs(folder):
    return [log.read_text() for log in sorted(folder.glob("p-*.log"))]


def on_two_devices(code, tmp_path):
    """The last line that a program with two devices prints, as JSON."""
    program = tmp_path / "program.py"
    program.write_text(code)
    flags = {"XLA_FLAGS": f"{ENVIRONMENT.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, program], env=ENVIRONMENT | flags, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def assert_same(found, expected):
    """Compares parameters and metrics, except those of a clock and of the order in which episodes end in a beat."""
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-6)
    for name, value in expected[1].items():
        if not any(word in name for word in ("per_second", "seconds", "recent_mean")):
            np.testing.assert_allclose(found[1][name], value, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_two_processes_learn_like_one_with_all_environments(tmp_path):
    cases = {
        "a3c": (("a3c", 4, 2, 3), {}),
        "td3": (("td3", 4, 2, 3), {}),
        "several": (("a3c", 4, 2, 2), {"num_learners": 2}),  # one for each process
    }
    with started(2, tmp_path, cases=cases) as run:
        assert [one.wait(PATIENCE) for one in run] == [0, 0], logs(tmp_path)
    found = {}
    for name in cases:
        files = [np.load(tmp_path / f"p-{i}-{name}.npz") for i in range(2)]
        found[name] = [(file["variables"], json.loads(str(file["row"]))) for file in files]
    for name, (case, options) in {"a3c": (("a3c", 8, 1, 3), {}), "several": cases["several"]}.items():
        expected = process.learned(*case, **options)
        assert_same(found[name][0], expected)
        assert_same(found[name][1], expected)
    # TD3 draws from one replay in each process.
    (first, row), (second, other) = found["td3"]
    np.testing.assert_array_equal(first, second)
    assert row["timesteps"] == other["timesteps"] >= 192
    assert row["update"] == row["timesteps"] - 32


@pytest.mark.slow
def test_two_devices_of_one_process_learn_like_one_device(tmp_path):
    code = """
import json, jax, process, volvox as vx
cases = [("ppo", 4, 1, {}), ("pqn", 4, 1, {}), ("td3", 4, 2, {"num_learners": 4})]
found = {}
for kind, num_envs, groups, options in cases:
    variables, row = process.learned(kind, num_envs, groups, 3, devices=jax.devices(), **options)
    found[kind] = [variables.tolist(), row]
found["rows"] = process.algorithm("td3", 4, 2, devices=jax.devices()).init(0).acting.collected.replays[0].action.shape
env = vx.envs.envpool("CartPole-v1", num_envs=4, groups=2, threads=1)
network, settings = vx.networks.ActorCritic(2, vx.networks.MLP(8, (8,))), vx.A3C(segment_length=5)
pbt = vx.PBT(every=500, explore={"learning_rate": vx.space.log(1e-4, 1e-2)})
for name, options in {"one": {}, "several": {"num_learners": 2, "pbt": pbt}}.items():
    algorithm = vx.learn(settings, network, env, devices=jax.devices(), **options)
    state, _ = algorithm.step(algorithm.init(0))
    _, found[name] = algorithm.step(state)
    algorithm.close()
print(json.dumps(found))
"""
    found = on_two_devices(code, tmp_path)
    for kind in ("ppo", "pqn"):
        assert_same(found[kind], process.learned(kind, 8, 1, 3))
    assert_same(found["td3"], process.learned("td3", 4, 2, 3, num_learners=4))  # whole learners on each device
    assert found["rows"][:2] == [32, 2]  # 256 timesteps on two devices, in two groups of two environments each
    updates = found["one"]["update"]
    assert found["one"]["frames"] > 1.5 * 4 * 5 * updates > 0  # each device steps its own pools; resets do not count
    assert found["several"]["pbt_parent_each"] in ([0, 0], [1, 1])


def wait_for_step(folder, number, run):
    """Waits until the processes have completed some steps."""
    until = time.monotonic() + PATIENCE
    while len(read_metrics(folder / "run" / "metrics.jsonl")) < number:
        assert all(one.poll() is None for one in run), logs(folder)
        assert time.monotonic() < until
        time.sleep(0.05)


def steps_after_resume(folder):
    """Iterations of a run that one process continues for one step."""
    rows = read_metrics(folder / "metrics.jsonl")
    algorithm = process.algorithm("a3c", 4, 2)
    more = vx.train(algorithm, steps=len(rows) + 1, run_dir=folder, resume=True, progress=False, loggers=())
    algorithm.close()
    assert more.metrics[-1]["update"] == rows[-1]["update"] + 5
    return [row["iteration"] for row in more.metrics]


@pytest.mark.slow
def test_an_interrupt_of_one_process_stops_both_and_the_run_can_be_resumed(tmp_path):
    settings = {"algorithm": ["a3c", 4, 2], "steps": 10_000, "run_dir": str(tmp_path / "run")}
    with started(2, tmp_path, **settings) as run:
        wait_for_step(tmp_path, 2, run)
        run[1].send_signal(signal.SIGINT)
        codes = [one.wait(PATIENCE) for one in run]
    assert codes == [130, 130], logs(tmp_path)
    iterations = steps_after_resume(tmp_path / "run")
    assert iterations == list(range(1, len(iterations) + 1))
    assert len(iterations) >= 3


def test_one_process_needs_nothing(monkeypatch):
    vx.distributed.initialize()
    vx.distributed.initialize(num_processes=1)
    monkeypatch.setenv("SLURM_NTASKS", "4")  # of a job, but not of a step
    vx.distributed.initialize()
    assert jax.process_count() == 1


@pytest.mark.parametrize(
    "variables",
    [
        {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"},
        {"SLURM_STEP_NODELIST": "a,b", "SLURM_NTASKS": "2"},
        {"OMPI_COMM_WORLD_SIZE": "2"},
        {"JOB_COMPLETION_INDEX": "1"},
    ],
    ids=["jax", "slurm", "open mpi", "kubernetes"],
)
def test_a_process_of_a_launcher_joins_the_others(variables, monkeypatch):
    joined = []
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given, **options: joined.append(given))
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    vx.distributed.initialize()
    assert joined == [(None, 2, 1) if "JAX_PROCESS_ID" in variables else (None, None, None)]


def test_a_sum_over_devices():
    axis = vx.types.Axis("axis", 3)
    tree = {"a": np.ones((3, 2), np.float32), "b": np.arange(3), "c": np.arange(6.0, dtype=np.float32).reshape(3, 2, 1)}
    total = jax.vmap(axis.sum, axis_name="axis")(tree)
    for name, x in tree.items():
        np.testing.assert_array_equal(total[name][1], x.sum(axis=0))
    assert vx.types.Axis().sum(tree) is tree


def test_random_keys_depend_on_the_index_among_all_environments():
    key, whole = jax.random.key(3), probe.corridor(num_envs=8)
    halves = probe.corridor(num_envs=4, groups=2)._replace(axis=vx.types.Axis("devices", 2))
    devices = jax.vmap(lambda _: jnp.concatenate([halves.keys(key, 5, g) for g in (0, 1)]), axis_name="devices")
    found, wanted = devices(jnp.arange(2)).reshape(-1), whole.keys(key, 5, 0)
    np.testing.assert_array_equal(*map(jax.random.key_data, (found, wanted)))
    assert len(np.unique(jax.random.key_data(wanted), axis=0)) == 8
    assert halves.all_envs == 8


def test_initial_states_depend_on_the_index_among_all_environments():
    (whole,) = probe.matched_reward(num_envs=8).make(seed=7)
    parts = probe.matched_reward(num_envs=4, groups=2)
    groups = (*parts.make(seed=7), *parts.make(seed=7, first_group=2))
    shown = [group.recv(group.init())[1].observation for group in groups]
    np.testing.assert_array_equal(np.concatenate(shown), whole.recv(whole.init())[1].observation)
    restarted = groups[3].recv(groups[3].restart(groups[3].recv(groups[3].init())[0], 7))[1]
    np.testing.assert_array_equal(restarted.observation, shown[3])
