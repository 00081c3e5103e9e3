"""A run directory, or an exported policy, from somebody else runs no code of theirs."""

import dataclasses
import json
import shutil
import sys
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

import volvox as vx
from volvox import cli, exporting
from volvox._settings import CannotRebuildError, rebuild
from volvox.types import Policy

COMMITTED = Path(__file__).parents[1] / "golden" / "format_2"
ENV = vx.envs.cartpole(num_envs=4, groups=2)
CANARY = Path("canary.txt")
"""What the dangers below would make, in the working directory of the test."""


class Writes:
    def __init__(self, **fields):
        CANARY.write_text("class")


@dataclasses.dataclass
class WritesToo:
    path: str = "canary.txt"

    def __post_init__(self):
        CANARY.write_text("dataclass")


def writes(**arguments):
    CANARY.write_text("function")


@vx.recorded
class Marked:
    pass


class Inherits(Marked):
    def __init__(self):
        CANARY.write_text("subclass")


HERE, WRITE = __name__, "open('canary.txt', 'w')"
DANGERS = [
    ("numpy.testing:runstring", {"astr": WRITE, "dict": {}}),
    ("numpy.testing._private.utils:runstring", {"astr": WRITE, "dict": {}}),
    ("numpy:load", {"file": "pickled.npy", "allow_pickle": True}),
    ("numpy:save", {"file": "canary.txt", "arr": [1]}),
    ("numpy:fromfile", {"file": "pickled.npy"}),
    ("jax.numpy:load", {"file": "pickled.npy", "allow_pickle": True}),
    ("jax.numpy:save", {"file": "canary.txt", "arr": [1]}),
    ("jax.profiler:start_trace", {"log_dir": "canary.txt"}),
    ("jax.debug:callback", {"callback": {"function": f"{HERE}:writes"}}),
    ("jax:pure_callback", {"callback": {"function": f"{HERE}:writes"}, "result_shape_dtypes": 1}),
    ("jax._src.compiler:compile_or_get_cached", {}),
    ("jax.experimental.compilation_cache.compilation_cache:set_cache_dir", {"path": "canary.txt"}),
    ("flax.io:GFile", {"name": "canary.txt", "mode": "w"}),
    ("flax.io:makedirs", {"path": "canary.txt"}),
    ("flax.serialization:from_bytes", {"target": None, "encoded_bytes": ""}),
    ("flax.training.checkpoints:save_checkpoint", {"ckpt_dir": "canary.txt", "target": 1, "step": 1}),
    ("optax._src.utils:cast_tree", {"tree": 1, "dtype": "f"}),
    ("volvox.checkpoint:write_file", {"path": "canary.txt", "content": "x"}),
    ("volvox.checkpoint:save", {"directory": "canary.txt", "step": 1, "tree": 1}),
    ("volvox.checkpoint:os.mkdir", {"path": "canary.txt"}),
    ("volvox:train", {}),
    ("volvox.exporting:export", {}),
    ("volvox.cli:main", {"arguments": ["info"]}),
    ("os:system", {"command": "touch canary.txt"}),
    ("os:mkdir", {"path": "canary.txt"}),
    ("subprocess:run", {"args": ["touch", "canary.txt"]}),
    ("builtins:exec", {"source": WRITE}),
    ("builtins:eval", {"source": WRITE}),
    ("importlib:import_module", {"name": "evil"}),
    ("runpy:run_path", {"path_name": "evil.py"}),
    ("pickle:loads", {"data": "x"}),
    ("antigravity:webbrowser.open", {"url": "file:///"}),
    ("_pytest.config:main", {}),
    ("pytest:exit", {"reason": "called"}),
    ("pip.__main__:main", {}),
    ("matplotlib.pyplot:savefig", {"fname": "canary.txt"}),
    ("evil:run", {}),
    ("evil:Evil", {}),
    (f"{HERE}:writes", {}),
    (f"{HERE}:Writes", {}),
    (f"{HERE}:WritesToo", {}),
    (f"{HERE}:Inherits", {}),
    (f"{HERE}:Path.touch", {}),
]
each_danger = pytest.mark.parametrize(("path", "arguments"), DANGERS, ids=[path for path, _ in DANGERS])


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A folder with a module and a pickle of its own that would run code, from which Python also imports."""
    folder = tmp_path / "run"
    shutil.copytree(COMMITTED, folder)
    (folder / "evil.py").write_text("open('canary.txt', 'w')\nrun = Evil = print\n")
    np.save(folder / "pickled.npy", np.array([Path("canary.txt")], object), allow_pickle=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as python -c and notebooks have it
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    env = probes.corridor(num_envs=2)
    policy = Policy(
        init=lambda key: (),
        initial_state=lambda batch_size: (),
        apply=lambda variables, observation, state: (observation[:, 0] > 0, state),
        sample=lambda key, output: output,
        mode=lambda output: output.astype(jnp.int32),
        config={},
    )
    path = tmp_path_factory.mktemp("exported") / "policy.stablehlo"
    return exporting.export(path, policy, (), env.spec, config={"env": env.config})


def forms(path, arguments):
    """A danger as each kind of description, with arguments bound to it and without."""
    return [
        {"call": path, **arguments},
        {"call": path},
        {"call": path, "values": arguments},
        {"function": path, **arguments},
        {"function": path, "arguments": list(arguments.values())},
        {"function": path},
        {"type": path, **arguments},
        {"type": path},
    ]


@each_danger
def test_a_run_directory_calls_nothing(stranger, path, arguments):
    config = json.loads((stranger / "config.json").read_text())
    for form in forms(path, arguments):
        activation = {**config["algorithm"]["network"], "activation": form}
        places = [("env", {"made_by": form}, None), ("network", form, ENV), ("network", activation, ENV)]
        places += [(name, form, ENV) for name in ("strategy", "noise", "behavior")]
        for place, described, env in places:
            changed = {**config, "algorithm": {**config["algorithm"], place: described}}
            (stranger / "config.json").write_text(json.dumps(changed))
            with pytest.raises(ValueError, match=r"config\.json: .*algorithm\."):
                vx.load(stranger, env=env)
            assert not CANARY.exists()
    assert "evil" not in sys.modules


@pytest.mark.slow_except("jax:pure_callback", "pickle:loads", "evil:run")
@each_danger
def test_an_exported_policy_calls_nothing(stranger, exported, path, arguments, capsys):
    with zipfile.ZipFile(exported) as archive:
        header, program = json.loads(archive.read("header.json")), archive.read("program.bin")
    for form in forms(path, arguments)[:3]:
        for env in (form, {"made_by": form}):
            changed = {**header, "config": {**header["config"], "env": env}}
            with zipfile.ZipFile("policy.stablehlo", "w") as archive:
                archive.writestr("header.json", json.dumps(changed))
                archive.writestr("program.bin", program)
            assert vx.load("policy.stablehlo").header["config"]["env"] == env
            assert cli.main(["play", "policy.stablehlo", "--episodes", "1"]) == 2
            assert "error: env: " in capsys.readouterr().err
            assert not CANARY.exists()
    assert "evil" not in sys.modules


def test_what_the_users_own_path_leads_to_is_imported(stranger, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own_network.py").write_text(
        "import flax.linen as nn\nclass Net(nn.Module):\n    size: int = 3\n"
    )
    (stranger / "own_module.py").write_text("import flax.linen as nn\nclass Net(nn.Module):\n    size: int = 3\n")
    monkeypatch.syspath_prepend(tmp_path / "mine")
    assert rebuild({"type": "own_network:Net", "size": 4}).size == 4
    with pytest.raises(CannotRebuildError, match="modules of the working directory have to be imported before"):
        rebuild({"type": "own_module:Net", "size": 4})
    __import__("own_module")
    assert rebuild({"type": "own_module:Net", "size": 4}).size == 4
    for name in ("own_network", "own_module"):
        del sys.modules[name]


def test_an_honest_directory_of_format_2_loads_for_ever(stranger):
    with pytest.warns(UserWarning, match=r"it cannot be told .*: algorithm\.env\.settings\.code"):
        run = vx.load(stranger)
    assert [row["generation"] for row in run.metrics] == [1, 2]
    assert run.state is not None
    saved = json.loads((COMMITTED / "fingerprint.json").read_text())
    observation = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    output, _ = run.algorithm.policy.apply(run.variables(), observation, ())
    np.testing.assert_allclose(np.ravel(output), saved["outputs"], rtol=1e-3)
    shutil.rmtree(stranger / "checkpoints")
    with pytest.warns(UserWarning, match="cannot be told"):
        elite = vx.load(stranger)
    assert elite.state is None
    jax.tree.map(np.testing.assert_array_equal, elite.variables(), run.variables())
