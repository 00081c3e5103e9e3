"""What a run needs is compared with what there is, before anything long begins; and what `import volvox` loads."""

import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import probes
import pytest

import volvox as vx
from volvox import _resources
from volvox._resources import check_disk, check_memory, check_writable, shown, size_of


def free(monkeypatch, size):
    monkeypatch.setattr(_resources, "available_memory", lambda: size)


def test_sizes():
    tree = {"a": jnp.zeros((3, 4)), "b": jax.ShapeDtypeStruct((10**6, 10**6), jnp.int8), "c": 5, "d": "text"}
    assert size_of(tree) == 48 + 10**12
    assert size_of(jax.random.key(0)) == 8
    texts = [shown(size) for size in (0, 999, 1_000_000, 16_200_000_000, 2.5e12, 1.6e16)]
    assert texts == ["0 bytes", "999 bytes", "1 MB", "16.2 GB", "2.5 TB", "16,000 TB"]


def test_memory_that_is_free():
    size = _resources.available_memory()
    assert size is not None
    assert 10**7 < size <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_control_group_limits_memory(tmp_path):
    files = {"memory.max": "5000", "memory.current": "4000", "memory.stat": "anon 1\ninactive_file 300\nactive_file 40"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert _resources._in_group(tmp_path) == 5000 - 4000 + 340
    (tmp_path / "memory.max").write_text("max\n")
    assert _resources._in_group(tmp_path) is None
    (tmp_path / "memory.max").unlink()
    assert _resources._in_group(tmp_path) is None
    (tmp_path / "memory.limit_in_bytes").write_text("7000\n")
    (tmp_path / "memory.usage_in_bytes").write_text("5000\n")
    assert _resources._in_group(tmp_path) == 7000 - 5000 + 340


@pytest.mark.parametrize(
    ("membership", "groups"),
    [
        ("0::/user/session", ["user/session", "user", ""]),
        ("0::/elsewhere", [""]),  # of a container, whose own group is the root that it sees
        ("3:cpu,cpuacct:/user\n2:memory:/user\n", ["memory/user", "memory"]),
        ("1:name=systemd:/user\n", []),
    ],
)
def test_the_control_groups_of_this_process(tmp_path, monkeypatch, membership, groups):
    (tmp_path / "user" / "session").mkdir(parents=True)
    (tmp_path / "memory" / "user").mkdir(parents=True)
    (tmp_path / "membership").write_text(membership)
    places = {"/sys/fs/cgroup": tmp_path, "/proc/self/cgroup": tmp_path / "membership"}
    monkeypatch.setattr(_resources, "Path", places.__getitem__)
    assert _resources.control_groups("memory") == [tmp_path / group for group in groups]


def test_an_accelerator_has_memory_of_its_own(monkeypatch):
    stats = {"bytes_limit": 100, "bytes_in_use": 30}
    device = types.SimpleNamespace(platform="gpu", memory_stats=lambda: stats)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert _resources.available_memory() == 70


def test_what_does_not_fit_is_refused_with_the_figures(monkeypatch):
    free(monkeypatch, 3_000_000_000)
    check_memory({"slots": 2_000_000_000, "table": 1_000_000_000}, "take less")
    message = r"needs at least 3.5 GB of memory \(slots 2 GB, table 1.5 GB\), and 3 GB are free; take less"
    with pytest.raises(ValueError, match=message):
        check_memory({"slots": 2_000_000_000, "none": 0, "table": 1_500_000_000}, "take less")
    free(monkeypatch, None)
    check_memory({"slots": 10**20}, "take less")


def test_a_population_that_does_not_fit_is_refused_at_once(monkeypatch):
    env = probes.corridor(num_envs=1_000, groups=2)
    net = vx.networks.MLP(2, (100,))  # 402 parameters
    free(monkeypatch, 1_600_000)
    with pytest.raises(ValueError, match=r"1,000 slots 1.61 MB, parents or bases .*, noise table 4.19 MB.*fewer env"):
        vx.evolve(vx.GA(), net, env)
    with pytest.raises(ValueError, match=r"1,000 slots 1.61 MB, parents or bases [\d,]* bytes\)"):
        vx.evolve(vx.GA(), net, env, noise=vx.population.Generator())
    free(monkeypatch, 6_000_000)
    vx.evolve(vx.GA(), net, env)


def test_a_replay_that_does_not_fit_is_refused_at_once(monkeypatch):
    env = probes.target(size=2, num_envs=4, groups=2)
    networks = vx.networks.ActorAndCritic(vx.networks.MLP(2, (8,)), vx.networks.QNetwork((8,)))
    free(monkeypatch, 20_000_000)
    with pytest.raises(ValueError, match=r"replay and what else acting keeps .*MB.*replay_size"):
        vx.learn(vx.TD3(replay_size=1_000_000), networks, env)
    vx.learn(vx.TD3(replay_size=100_000), networks, env)


def test_a_disk_that_is_too_small_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_resources.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=2_000_000))
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sparse").touch()
    os.truncate(tmp_path / "first" / "sparse", 10**9)  # takes no disk
    check_disk(tmp_path, tmp_path / "first", 4, 500_000)
    with pytest.raises(ValueError, match=r"takes up to 600,000 bytes of disk, 4 of them are .* and 2 MB are free for"):
        check_disk(tmp_path, tmp_path / "first", 4, 600_000)  # compressed to nothing, as zeros are
    (tmp_path / "first" / "array").write_bytes(b"x" * 3_000_000)
    check_disk(tmp_path, tmp_path / "first", 1, 0)
    with pytest.raises(ValueError, match=r"takes up to 3 MB of disk, 2 of them are .* and 5 MB are free for .*keep_ch"):
        check_disk(tmp_path, tmp_path / "first", 2, 0)


@pytest.mark.parametrize("place", ["file", "file/run", "/proc/volvox-run"])
def test_a_folder_that_cannot_be_written_is_refused(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"run_dir='.*' cannot be written"):
        check_writable(tmp_path / place)
    check_writable(tmp_path / "new" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_is_refused_before_its_first_step(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    algorithm = vx.evolve(vx.GA(population_size=16), vx.networks.MLP(2, ()), probes.corridor())
    algorithm = algorithm._replace(step=None)
    with pytest.raises(ValueError, match="cannot be written"):
        vx.train(algorithm, steps=1, run_dir=tmp_path / "file" / "run")
    monkeypatch.setattr(_resources.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=100))
    with pytest.raises(
        ValueError, match=r"of disk, 4 of them are kept or being written at once, and [\d,]* bytes are free"
    ):
        vx.train(algorithm, steps=1, run_dir=tmp_path / "run", progress=False)
    assert {path.name for path in (tmp_path / "run").rglob("*")} == {".lock", "checkpoints"}
    monkeypatch.undo()
    with pytest.raises(TypeError, match="NoneType"):  # the same command begins, and comes to its first step
        vx.train(algorithm, steps=1, run_dir=tmp_path / "run", progress=False)


HEAVY = ("envpool", "matplotlib", "orbax", "scipy", "tensorboardX", "tyro", "IPython", "torch")
LOADED = f"import sys, volvox; print([name for name in {HEAVY} if name in sys.modules])"
# A run on an environment of pure JAX where envpool is not to be had.
WITHOUT_ENVPOOL = """
import sys
sys.modules["envpool"] = None
import volvox as vx
env = probes.corridor(num_envs=4, groups=2)
strategy = vx.GA(population_size=4, num_parents=2, num_elite_candidates=2, num_validation_episodes=1)
algorithm = vx.evolve(strategy, vx.networks.MLP(2, ()), env)
print(len(vx.train(algorithm, steps=1, progress=False).metrics))
for make in (lambda: vx.envs.atari("Pong"), lambda: vx.envs.mujoco("Ant", num_envs=1), vx.envs.atari_games):
    try:
        make()
    except ImportError as error:
        print(error)
"""


def output(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_is_heavy_is_imported_when_it_is_used():
    assert output(LOADED) == ["[]"]


@pytest.mark.slow
def test_pure_jax_environments_need_no_envpool():
    first, *refusals = output(WITHOUT_ENVPOOL)
    assert first == "1"
    assert len(refusals) == 3
    for line in refusals:
        assert "envpool cannot be imported" in line
        assert "pure JAX work without it" in line
