"""Processes and devices that learn together: they learn what one does, agree on everything, and end if one dies."""

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
import probes
import pytest

import volvox as vx
from volvox import checkpoint

sys.path.insert(0, str(Path(__file__).parent))
import process

PROGRAM = Path(__file__).parent / "process.py"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def started(count, out, **settings):
    """Processes of one run; those that are left are ended."""
    address, run = f"127.0.0.1:{free_port()}", []
    source = str(Path(vx.__file__).parent.parent)
    for i in range(count):
        given = settings | {"join": [address, count, i], "out": f"{out}-{i}"}
        log = Path(f"{out}-{i}.log").open("w")  # noqa: SIM115  # the process has it
        environment = os.environ | {"PYTHONPATH": source}
        words = [sys.executable, str(PROGRAM), json.dumps(given)]
        run.append(subprocess.Popen(words, stdout=log, stderr=log, env=environment))
        log.close()
    try:
        yield run
    finally:
        for one in run:
            with contextlib.suppress(ProcessLookupError):
                one.send_signal(signal.SIGKILL)
            one.wait()


def ended(run, out, seconds=120.0):
    """Their exit codes, and what they printed."""
    for one in run:
        one.wait(seconds)
    return [one.returncode for one in run], [Path(f"{out}-{i}.log").read_text() for i in range(len(run))]


def learned(tmp_path, cases, count=2):
    """What each process learns, by case."""
    with started(count, tmp_path / "p", cases=cases) as run:
        codes, printed = ended(run, tmp_path / "p")
    assert codes == [0] * count, printed
    found = []
    for kind, _, groups, _ in cases:
        files = [np.load(tmp_path / f"p-{i}-{kind}-{groups}.npz") for i in range(count)]
        found.append([(file["variables"], json.loads(str(file["row"]))) for file in files])
    return found


def same_row(row, other):
    """Whether two rows agree, but for what is measured by a clock."""
    for name, value in row.items():
        if not any(word in name for word in ("per_second", "share_", "speed_over", "seconds")):
            np.testing.assert_allclose(other[name], value, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_two_processes_learn_what_one_does_with_all_environments(tmp_path):
    cases = [("a3c", 4, 1, 3), ("a3c", 4, 2, 3), ("ppo", 4, 1, 2)]
    for (kind, num_envs, groups, steps), found in zip(cases, learned(tmp_path, cases), strict=True):
        # A3C whatever the number of groups, and PPO with one, since its normalisation goes group by group.
        variables, row = process.learned(kind, 2 * num_envs, 1, steps)
        for there, reported in found:
            np.testing.assert_allclose(there, variables, rtol=1e-5, atol=1e-6, err_msg=f"{kind} {groups}")
            same_row(row, reported)


@pytest.mark.slow
def test_two_processes_of_td3_have_one_policy(tmp_path):
    ((first, second),) = learned(tmp_path, [("td3", 4, 2, 3)])
    np.testing.assert_array_equal(first[0], second[0])
    assert first[1]["timesteps"] == second[1]["timesteps"] >= 192
    assert first[1]["update"] == first[1]["timesteps"] - 32  # as many as in one process


def on_two_devices(code, tmp_path):
    """What a program prints that has two devices, as JSON."""
    program = tmp_path / "program.py"
    program.write_text(f"import sys\nsys.path.insert(0, {str(PROGRAM.parent)!r})\n{code}")
    flags = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": str(Path(vx.__file__).parent.parent),
    }
    done = subprocess.run(
        [sys.executable, program], env=os.environ | flags, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_two_devices_of_one_process_learn_what_one_does(tmp_path):
    code = """
import json, jax, process
variables, row = process.learned("a3c", 4, 2, 2, devices=jax.devices())
print(json.dumps([variables.tolist(), row]))
"""
    variables, row = process.learned("a3c", 8, 1, 2)
    found, reported = on_two_devices(code, tmp_path)
    np.testing.assert_allclose(found, variables, rtol=1e-5, atol=1e-6)
    same_row(row, reported)


@pytest.mark.slow
def test_two_devices_learn_by_ppo_and_td3(tmp_path):
    """PPO as one device does. TD3 has a replay on each device, so that only counts are equal."""
    code = """
import json, jax, process
found = {kind: process.learned(kind, 4, 1, 3, devices=jax.devices()) for kind in ("ppo", "td3")}
print(json.dumps({kind: [variables.tolist(), row] for kind, (variables, row) in found.items()}))
"""
    found = on_two_devices(code, tmp_path)
    variables, row = process.learned("ppo", 8, 1, 3)
    np.testing.assert_allclose(found["ppo"][0], variables, rtol=1e-5, atol=1e-6)
    same_row(row, found["ppo"][1])
    _, row = process.learned("td3", 8, 1, 3)
    counts = ("timesteps", "update", "frames")
    assert [found["td3"][1][name] for name in counts] == [row[name] for name in counts]
    assert np.isfinite(found["td3"][0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ppo", "td3"])
def test_one_device_goes_on_where_two_stopped(tmp_path, kind):
    code = f"""
import json, jax, process, volvox as vx
made = process.algorithm({kind!r}, 4, 2, devices=jax.devices())
run = vx.train(made, steps=2, run_dir={str(tmp_path / "run")!r}, progress=False, loggers=())
print(json.dumps(run.metrics[-1]))
"""
    row = on_two_devices(code, tmp_path)
    made = process.algorithm(kind, 4, 2)
    more = vx.train(made, steps=4, run_dir=tmp_path / "run", resume=True, progress=False, loggers=())
    made.close()
    assert [one["iteration"] for one in more.metrics] == [1, 2, 3, 4]
    assert more.metrics[1] == row
    assert more.metrics[2]["timesteps"] > row["timesteps"]


@pytest.mark.slow
def test_two_devices_step_pools_of_their_own(tmp_path):
    code = """
import json, jax, numpy as np, volvox as vx
env = vx.envs.envpool("CartPole-v1", num_envs=4, groups=2, threads=1)
network = vx.networks.ActorCritic(2, vx.networks.MLP(8, (8,)))
algorithm = vx.learn(vx.A3C(segment_length=5, updates_per_iteration=5), network, env, devices=jax.devices())
state = algorithm.init(0)
for _ in range(3):
    state, row = algorithm.step(state)

print(json.dumps(row))
algorithm.close()
"""
    row = on_two_devices(code, tmp_path)
    assert row["update"] == 15
    assert row["frames"] > 2 * 4 * 5 * 10


def test_a_sum_needs_one_exchange_for_each_dtype():
    axis = vx.types.Axis("axis", 3)
    tree = {"a": np.ones((3, 2), np.float32), "b": np.arange(3), "c": np.arange(6.0, dtype=np.float32).reshape(3, 2, 1)}
    total = jax.vmap(axis.sum, axis_name="axis")(tree)
    for name, x in tree.items():
        np.testing.assert_array_equal(total[name][1], x.sum(axis=0))
    text = str(jax.make_jaxpr(jax.vmap(axis.sum, axis_name="axis"))(tree))
    assert text.count("reduce_sum") + text.count("psum") == 2
    assert vx.types.Axis().sum(tree) is tree
    np.testing.assert_allclose(jax.vmap(axis.mean, axis_name="axis")(tree)["a"], 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("10.0.0.1", 2, 0), "host:port"),
        (("10.0.0.1:port", 2, 0), "host:port"),
        (("no-such-machine.invalid:1234", 2, 0), "no machine"),
        (("127.0.0.1:1234", 2, 2), "process_id"),
        (("127.0.0.1:1234", None, 0), "num_processes"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        vx.distributed.initialize(*arguments)


def test_one_process_needs_nothing():
    vx.distributed.initialize()
    vx.distributed.initialize(num_processes=1)
    assert jax.process_count() == 1


def test_a_learner_that_cannot_be_divided_is_refused(tmp_path):
    code = """
import json, jax, volvox as vx
import probes
try:
    env, network = probes.corridor(num_envs=2), vx.networks.CategoricalMLP(2, (4,))
    vx.learn(vx.learners.PrimalDual(), network, env, devices=jax.devices())
except ValueError as error:
    print(json.dumps(str(error)))
"""
    assert "leave out devices=[CpuDevice(id=0), CpuDevice(id=1)], or take A3C, PPO or TD3" in on_two_devices(
        code, tmp_path
    )


def wait_for_step(tmp_path, number, run):
    """Waits until each process has made so many steps."""
    until = time.monotonic() + 400
    files = [tmp_path / f"p-{i}-step" for i in range(len(run))]
    while time.monotonic() < until:
        if all(file.exists() and int(file.read_text() or 0) >= number for file in files):
            return
        assert all(one.poll() is None for one in run), [Path(tmp_path / f"p-{i}.log").read_text() for i in (0, 1)]
        time.sleep(0.05)
    raise AssertionError("no step was made")


@pytest.mark.slow
def test_an_interrupt_of_one_process_ends_both_and_another_number_goes_on(tmp_path):
    settings = {"algorithm": ["a3c", 4, 2], "steps": 10_000, "run_dir": str(tmp_path / "run")}
    with started(2, tmp_path / "p", **settings) as run:
        wait_for_step(tmp_path, 2, run)
        run[1].send_signal(signal.SIGINT)
        codes, printed = ended(run, tmp_path / "p", 60)
    assert codes == [130, 130], printed
    (done,) = checkpoint.steps(tmp_path / "run" / "checkpoints")[-1:]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(1, done + 1))
    # One process goes on.
    made = process.algorithm("a3c", 4, 2)
    more = vx.train(made, steps=done + 1, run_dir=tmp_path / "run", resume=True, progress=False, loggers=())
    made.close()
    assert len(more.metrics) == done + 1
    assert more.metrics[-1]["episodes"] >= rows[-1]["episodes"]
    assert more.metrics[-1]["update"] == rows[-1]["update"] + 5


@pytest.mark.slow
@pytest.mark.parametrize(("number", "every"), [(signal.SIGKILL, 10_000), (signal.SIGSTOP, 1)])
def test_a_process_that_dies_or_hangs_ends_the_other_with_a_checkpoint(tmp_path, number, every):
    """One that dies leaves time to save, whenever the last checkpoint was; one that hangs does not."""
    settings = {"algorithm": ["a3c", 4, 2], "steps": 10_000, "run_dir": str(tmp_path / "run"), "patience": 5.0}
    settings["checkpoint_every"] = every
    with started(2, tmp_path / "p", **settings) as run:
        wait_for_step(tmp_path, 2, run)
        run[1].send_signal(number)
        began = time.monotonic()
        run[0].wait(60)
        assert time.monotonic() - began < 30
    printed = (tmp_path / "p-0.log").read_text()
    assert run[0].returncode == 1, printed
    assert "the processes cannot go on together" in printed
    made = process.algorithm("a3c", 4, 2)
    done = checkpoint.steps(tmp_path / "run" / "checkpoints")[-1]
    assert done >= 2
    more = vx.train(made, steps=done + 1, run_dir=tmp_path / "run", resume=True, progress=False, loggers=())
    made.close()
    assert len(more.metrics) == done + 1


def test_keys_go_by_the_number_of_an_environment():
    key, whole = jax.random.key(3), probes.corridor(num_envs=8)
    halves = probes.corridor(num_envs=4, groups=2)._replace(axis=vx.types.Axis("devices", 2))
    devices = jax.vmap(lambda _: jnp.concatenate([halves.keys(key, 5, g) for g in (0, 1)]), axis_name="devices")
    found, wanted = devices(jnp.arange(2)).reshape(-1), whole.keys(key, 5, 0)
    np.testing.assert_array_equal(*map(jax.random.key_data, (found, wanted)))
    assert len(np.unique(jax.random.key_data(wanted), axis=0)) == 8
    assert halves.all_envs == 8


def test_environments_are_those_of_their_numbers():
    (whole,) = probes.matched_reward(num_envs=8).make(seed=7)
    parts = probes.matched_reward(num_envs=4, groups=2)
    groups = (*parts.make(seed=7), *parts.make(seed=7, first_group=2))
    shown = [group.recv(group.init())[1].observation for group in groups]
    np.testing.assert_array_equal(np.concatenate(shown), whole.recv(whole.init())[1].observation)
    restarted = groups[3].recv(groups[3].restart(groups[3].recv(groups[3].init())[0], 7))[1]
    np.testing.assert_array_equal(restarted.observation, shown[3])
