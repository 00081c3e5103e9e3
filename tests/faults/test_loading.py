"""What resuming refuses, loading refuses too; files of another shape are named; what differs is compared."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import volvox as vx
from volvox import _config, _manifest, checkpoint, cli
from volvox._config import check_settings
from volvox._formats import upgraded
from volvox._settings import describe
from volvox.actor import converted
from volvox.checkpoint import DamagedCheckpointError

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


@pytest.fixture
def run_dir(tmp_path, make, quietly):
    quietly(make("hill"), steps=2, run_dir=tmp_path / "a")
    return tmp_path / "a"


@pytest.fixture
def loaded(run_dir, make):
    """(**changes of the algorithm) -> the run, loaded."""
    return lambda **changes: vx.load(run_dir, algorithm=make("hill")._replace(**changes))


def edited(path, change):
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


# ---- what was tuned ----


def test_a_tuned_run_is_loaded_and_resumed_without_what_was_tuned(tmp_path, make, quietly):
    about = {"tuned": {"threads": 2}, "given": {"threads": None}}
    quietly(make("hill"), steps=1, run_dir=tmp_path / "a", about=about)
    assert json.loads((tmp_path / "a" / "config.json").read_text())["about"] == about
    run = vx.load(tmp_path / "a", algorithm=make("hill"))
    assert len(run.resume(steps=2, progress=False, loggers=()).metrics) == 2
    assert json.loads((tmp_path / "a" / "config.json").read_text())["about"] == about


def test_a_tuned_run_of_format_2_is_loaded_too(tmp_path, make, quietly):
    tuned = make("hill")._replace(config={**make("hill").config, "tuned": {"threads": 2}, "given": {"threads": None}})
    quietly(tuned, steps=1, run_dir=tmp_path / "a")
    edited(tmp_path / "a" / "config.json", lambda config: config.update(format=2))
    run = vx.load(tmp_path / "a", algorithm=make("hill"))
    assert len(run.resume(steps=2, progress=False, loggers=()).metrics) == 2


# ---- what is compared ----


def config(network=None, env=None, **others):
    algorithm = {"network": network or {}, "env": env or {}, **others}
    return {"format": 3, "versions": {"jax": "1"}, "algorithm": algorithm, "key": {}}


def test_settings_are_left_out_by_their_whole_place(tmp_path):
    for name in ("format", "versions", "made_by", "num_envs", "groups"):
        old, new = (config(env={"settings": {name: value}}) for value in ("rgb", "gray"))
        with pytest.raises(ValueError, match=rf"algorithm\.env\.settings\.{name}: saved \"rgb\", now \"gray\""):
            check_settings(tmp_path, old, new, copies=False)
        old, new = (config(network={name: value}) for value in (1, 2))
        with pytest.raises(ValueError, match=rf"algorithm\.network\.{name}: saved 1, now 2"):
            check_settings(tmp_path, old, new, copies=False, network=False)
    old, new = (config(env={"num_envs": value, "groups": value, "made_by": {"num_envs": value}}) for value in (1, 2))
    check_settings(tmp_path, old, new, copies=False)
    with pytest.raises(ValueError, match=r"algorithm\.env\.groups"):
        check_settings(tmp_path, old, new)


def test_a_setting_that_an_earlier_version_did_not_have_is_named_and_accepted(tmp_path):
    now, then = config(strategy={"size": 3, "rate": None}), config(strategy={"size": 3})
    with pytest.raises(ValueError, match=r"algorithm\.strategy\.rate: saved null, now 0\.5"):
        check_settings(tmp_path, then, config(strategy={"size": 3, "rate": 0.5}))  # of the same version
    then["versions"] = {"volvox": "0.0.1"}
    for added in (0.5, {"type": "optax:adam", "size": 1}):
        with pytest.warns(UserWarning, match=r"did not have these settings yet: algorithm\.strategy\.rate.* = "):
            check_settings(tmp_path, then, config(strategy={"size": 3, "rate": added}))
        with pytest.raises(ValueError, match=r"algorithm\.strategy\.rate.*: saved null, now"):
            check_settings(tmp_path, {**now, "versions": then["versions"]}, config(strategy={"size": 3, "rate": added}))
    then["algorithm"]["strategy"]["old"] = 1
    with pytest.raises(ValueError, match=r"algorithm\.strategy\.old: saved 1, now null"):
        check_settings(tmp_path, then, config(strategy={"size": 3}))


@dataclasses.dataclass(frozen=True)
class Own:
    size: int
    rate: float = 0.5
    optimizer: Any = optax.adam
    most: float = float("inf")


def test_fields_with_their_defaults_that_an_earlier_class_did_not_have_are_named_and_accepted(tmp_path):
    now = json.loads(json.dumps(describe(Own(size=3))))
    then = {"type": now["type"], "size": 3}
    told = r"by an earlier form of a class, which did not have .*: algorithm\.strategy\.rate = 0\.5, .*optax:adam"
    with pytest.warns(UserWarning, match=told):
        check_settings(tmp_path, config(strategy=then), config(strategy=now))
    with pytest.raises(ValueError, match=r"algorithm\.strategy\.rate: saved 0\.5, now null"):
        check_settings(tmp_path, config(strategy=now), config(strategy=then))
    for other in (Own(size=3, rate=0.9), Own(size=3, optimizer=optax.sgd), Own(size=3, most=2.0)):
        with (
            pytest.warns(UserWarning, match="did not have"),
            pytest.raises(ValueError, match=r"saved null, now (0\.9|\"optax:sgd\"|2\.0)"),
        ):
            check_settings(tmp_path, config(strategy=then), config(strategy=json.loads(json.dumps(describe(other)))))
    for kinds in (("mine:Own", "mine:Other"), ("windy", "windy")):  # another class; no class at all
        given = (config(strategy=fields | {"type": kind}) for fields, kind in zip((then, now), kinds, strict=True))
        with pytest.raises(ValueError, match=r"algorithm\.strategy\.rate: saved null, now 0\.5"):
            check_settings(tmp_path, *given)


def test_a_field_added_to_a_class_of_volvox_is_accepted_without_a_warning(tmp_path):
    now = json.loads(json.dumps(describe(vx.evolution.GA(population_size=4, num_parents=2))))
    then = {name: value for name, value in now.items() if name != "pool_validations"}
    check_settings(tmp_path, config(strategy=then), config(strategy=now))
    with pytest.raises(ValueError, match=r"algorithm\.strategy\.pool_validations: saved null, now true"):
        check_settings(tmp_path, config(strategy=then), config(strategy=now | {"pool_validations": True}))


def test_a_run_of_an_earlier_version_with_fewer_settings_is_loaded_and_resumed(tmp_path, make, quietly, monkeypatch):
    algorithm, versions = make("hill"), _config.versions()
    fewer = {"algorithm": "hill"}
    monkeypatch.setattr(_config, "versions", lambda: versions | {"volvox": "0.0.1"})
    quietly(algorithm._replace(config=fewer), steps=1, run_dir=tmp_path / "a")
    monkeypatch.undo()
    with pytest.warns(UserWarning, match=r"did not have these settings yet: algorithm\.size = 3"):
        run = vx.load(tmp_path / "a", algorithm=algorithm)
    with pytest.warns(UserWarning, match=r"did not have these settings yet"):
        assert len(run.resume(steps=2, progress=False, loggers=()).metrics) == 2


def test_a_module_s_name_matters_but_not_that_of_a_script(tmp_path):
    named = [config(strategy={"type": path, "size": 3}) for path in ("__main__:Own", "train:Own", "other:Own")]
    check_settings(tmp_path, named[0], named[1])
    check_settings(tmp_path, named[1], named[0])
    with pytest.raises(ValueError, match=r"algorithm\.strategy\.type"):
        check_settings(tmp_path, named[1], named[2])


def test_a_network_that_is_given_may_have_another_path_but_no_other_fields(tmp_path):
    old = config(network={"type": "a:Net", "inner": {"function": "a:f", "code": "1"}, "size": 3})
    new = config(network={"type": "b:Other", "inner": {"function": "b:g", "code": "2"}, "size": 3})
    check_settings(tmp_path, old, new, network=False)
    with pytest.raises(ValueError, match=r"algorithm\.network\.type"):
        check_settings(tmp_path, old, new)
    new["algorithm"]["network"]["size"] = 4
    with pytest.raises(ValueError, match=r"algorithm\.network\.size: saved 3, now 4"):
        check_settings(tmp_path, old, new, network=False)


def test_functions_that_cannot_be_compared_after_an_upgrade_are_named(tmp_path):
    old, new = (config(optimizer={"type": "optax:x", "code": code}) for code in ("1", "2"))
    with pytest.raises(ValueError, match=r"algorithm\.optimizer\.code: saved \"1\", now \"2\""):
        check_settings(tmp_path, old, new)
    new["versions"] = {"jax": "2"}
    with pytest.warns(UserWarning, match=r"cannot be told whether these functions changed: algorithm\.optimizer\.code"):
        check_settings(tmp_path, old, new)
    new["algorithm"]["optimizer"]["code"] = "1"
    check_settings(tmp_path, old, new)


def test_settings_of_format_1_are_compared_as_far_as_they_go(tmp_path):
    run_dir = RESULTS / "atari_ga" / "frostbite" / "ga"
    with pytest.raises(ValueError, match=r"algorithm\.env\.\S+: saved \"Frostbite"):
        vx.load(run_dir, env=vx.envs.atari("Seaquest"))
    saved = upgraded(json.loads((run_dir / "config.json").read_text()))
    now = {**saved, "algorithm": {**saved["algorithm"], "new": 3}}
    check_settings(tmp_path, saved, now, whole=False)
    with pytest.raises(ValueError, match=r"algorithm\.new"):
        check_settings(tmp_path, saved, now)


SCRIPT = """
    import flax.linen as nn
    import volvox as vx

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(nn.tanh(nn.Dense(4)(x)))

    if __name__ == "__main__":
        env = probes.corridor(length=5, num_envs=8, groups=2)
        strategy = vx.GA(population_size=8, num_parents=2, num_elite_candidates=2, num_validation_episodes=2)
        algorithm = vx.evolve(strategy, Net(), env, noise=vx.population.Table(size=20_000))
        vx.train(algorithm, steps=1, run_dir="a", progress=False, loggers=())
"""


@pytest.mark.slow
def test_a_network_of_a_script_is_given_by_who_imports_the_script(tmp_path, monkeypatch):
    (tmp_path / "train_net.py").write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run([sys.executable, "train_net.py"], cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "a" / "config.json").read_text())["algorithm"]["network"]["type"] == "__main__:Net"
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="__main__:Net cannot be imported"):
        vx.load(tmp_path / "a")
    from train_net import Net  # pyright: ignore[reportMissingImports]

    run = vx.load(tmp_path / "a", network=Net())
    assert run.state is not None
    moved = type("Moved", (Net,), {"__module__": "elsewhere"})
    vx.load(tmp_path / "a", network=moved())
    with pytest.raises(ValueError, match=r"algorithm\.network\.num_outputs"):
        vx.load(tmp_path / "a", network=vx.networks.MLP(2, (4,)))
    del sys.modules["train_net"]


# ---- what resuming checks ----


def test_a_checkpoint_of_another_seed_is_not_loaded(tmp_path, make, quietly, run_dir, loaded):
    quietly(make("hill"), seed=5, steps=3, run_dir=tmp_path / "b")
    shutil.copytree(tmp_path / "b" / "checkpoints" / "00000003", run_dir / "checkpoints" / "00000003")
    with pytest.raises(ValueError, match=r"00000003 belongs to another run"):
        loaded()


def test_a_changed_digit_of_the_metrics_is_not_loaded(run_dir, loaded):
    file = run_dir / "metrics.jsonl"
    first, last = file.read_text().splitlines()
    row = json.loads(last)
    file.write_text(first + "\n" + json.dumps({**row, "training_best": row["training_best"] + 1}) + "\n")
    with pytest.warns(UserWarning, match=r"metrics\.jsonl is damaged.*going back to step 1"):
        assert len(loaded().metrics) == 1


def test_a_tree_that_is_no_state_is_not_loaded(loaded):
    for kind in (IndexError, AttributeError, TypeError):

        def restore(tree, kind=kind):
            raise kind("no state")

        with pytest.raises(DamagedCheckpointError, match="holds no state of this algorithm"):
            loaded(restore=restore)


def test_the_checkpoint_before_one_that_is_no_state_is_taken(loaded):
    def restore(tree):
        return tree["missing"] if tree["step"] == 2 else tree

    with pytest.warns(
        UserWarning, match=r"holds no state of this algorithm \(KeyError: 'missing'\); going back to step 1"
    ):
        assert len(loaded(restore=restore).metrics) == 1


def test_memory_that_runs_out_while_a_state_is_made_is_not_taken_for_damage(loaded):
    def restore(tree):
        raise MemoryError("full")

    with pytest.raises(MemoryError, match="full"):
        loaded(restore=restore)


def test_a_checkpoint_that_the_run_removes_meanwhile_is_not_missed(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, {"a": 1}, keep=1)
    verified, calls = _manifest.verified, []

    def racing(folder, step):
        calls.append(step)
        if len(calls) < 3:  # the writer is faster
            checkpoint.save(tmp_path, step + 1, {"a": step + 1}, keep=1)
        return verified(folder, step)

    monkeypatch.setattr(_manifest, "verified", racing)
    assert checkpoint.restore_latest(tmp_path) == (3, {"a": 3})
    assert calls == [1, 2, 3]


# ---- shapes of files ----

ALGORITHMS = [
    {},
    {"algorithm": "learn"},
    {"algorithm": "evolve"},
    {"algorithm": "evolve", "env": 3, "network": {}, "strategy": {}, "noise": {}},
    {"algorithm": "learn", "env": {}, "network": {}, "settings": {}},
    {"algorithm": "learn", "env": {"made_by": {}}, "network": {}, "settings": {}},
    {"algorithm": "learn", "env": {"made_by": {"type": "volvox:GA"}}, "network": {}, "settings": {}},
    {"algorithm": "a3c"},
    {"strategy": {"kind": "ga"}},
    {"strategy": {"kind": 3}, "noise": 3, "network": 4, "env": []},
    {"strategy": 3},
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=range(len(ALGORITHMS)))
def test_settings_of_another_shape_are_named(run_dir, algorithm):
    for number in (2, 3, None):
        edited(run_dir / "config.json", lambda config: config.update(algorithm=algorithm))
        edited(
            run_dir / "config.json", lambda config, n=number: config.pop("format", 0) and n and config.update(format=n)
        )
        with pytest.raises(ValueError, match=r"config\.json"):
            vx.load(run_dir)


@pytest.mark.parametrize(
    "key", [{}, {"impl": "x", "data": [1]}, {"impl": "threefry2x32", "data": "x"}, {"data": [0, 0]}]
)
def test_a_key_of_another_shape_is_named(run_dir, loaded, key):
    edited(run_dir / "config.json", lambda config: config.update(key=key))
    with pytest.raises(ValueError, match=r"config\.json is not the configuration of a run: its 'key'"):
        loaded()


@pytest.mark.parametrize("name", ["versions", "provenance", "about", "algorithm.env", "algorithm.network"])
def test_parts_of_another_shape_are_named(run_dir, loaded, capsys, name):
    def change(config):
        place = config["algorithm"] if "." in name else config
        config["algorithm"]["algorithm"] = "learn"  # who made the algorithm of another kind may say what he likes
        place[name.rpartition(".")[2]] = ["text"]

    run = loaded()
    edited(run_dir / "config.json", change)
    commands = [("info", str(run_dir)), ("compare", str(run_dir)), ("report", str(run_dir)), ("play", str(run_dir))]
    for use in (loaded, run.command, run.report):
        with pytest.raises(ValueError, match=rf"config\.json is not the configuration of a run: {name} is no object"):
            use()
    for command in commands:
        assert cli.main(command) == 2
        assert f"{name} is no object" in capsys.readouterr().err


def test_a_command_line_of_another_kind_is_named(run_dir, loaded):
    edited(run_dir / "config.json", lambda config: config["provenance"].update(command=3))
    with pytest.raises(ValueError, match="keeps no command line"):
        loaded().command()


def test_a_configuration_that_is_removed_in_mid_run_is_written_again(tmp_path, make, quietly):
    def remove(run):
        (tmp_path / "a" / "config.json").unlink()

    quietly(make("hill"), steps=2, run_dir=tmp_path / "a", on_step=remove, checkpoint_every=1)
    assert len(quietly(make("hill"), steps=3, run_dir=tmp_path / "a", resume=True).metrics) == 3


def test_settings_nested_without_end_are_named(run_dir, loaded):
    nested = []
    for _ in range(300):
        nested = [nested]
    edited(run_dir / "config.json", lambda config: config["algorithm"].update(deep=nested))
    with pytest.raises(ValueError, match=r"config\.json is not the configuration of a run: .*nested too deeply"):
        loaded()


def scalar(genome):
    return np.float32(genome[0])


@pytest.mark.parametrize("text", ["", "{", "[]", "[1, [2]]", "[" * 100_000, "\0"], ids=range(6))
def test_a_damaged_elite_is_named(run_dir, loaded, text):
    shutil.rmtree(run_dir / "checkpoints")
    assert loaded(from_genome=scalar).variables() == 2
    (run_dir / "elite.json").write_text(text)
    with pytest.raises(ValueError, match=r"elite\.json"):
        loaded(from_genome=scalar)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def test_pipes_are_not_waited_for(run_dir, make, quietly, loaded):
    shutil.rmtree(run_dir / "checkpoints")
    pipe(run_dir / "fingerprint.json")
    with pytest.raises(ValueError, match=r"fingerprint\.json is damaged: remove it"):
        loaded(from_genome=scalar)
    (run_dir / "fingerprint.json").unlink()
    loaded(from_genome=scalar)
    pipe(run_dir / "elite.json")
    with pytest.raises(ValueError, match=r"elite\.json is no file"):
        loaded(from_genome=lambda genome: genome)
    pipe(run_dir / ".lock")
    with pytest.raises(ValueError, match=r"\.lock is no file: remove it"):
        quietly(make("hill"), steps=3, run_dir=run_dir, resume=True)


def test_a_lock_that_is_a_link_is_not_followed(tmp_path, run_dir, make, quietly):
    (tmp_path / "notes.txt").write_text("notes")
    (run_dir / ".lock").unlink()
    (run_dir / ".lock").symlink_to(tmp_path / "notes.txt")
    with pytest.raises(ValueError, match=r"\.lock is no file: remove it"):
        quietly(make("hill"), steps=3, run_dir=run_dir, resume=True)
    assert (tmp_path / "notes.txt").read_text() == "notes"


FINGERPRINTS = ["", "{", "[]", "3", "{}", '{"step": 2}', '{"step": 2, "outputs": "x"}', '{"step": "2", "outputs": [1]}']


@pytest.mark.parametrize("text", FINGERPRINTS, ids=range(len(FINGERPRINTS)))
def test_a_fingerprint_of_another_shape_is_named(run_dir, loaded, text):
    (run_dir / "fingerprint.json").write_text(text)
    loaded()  # the checkpoint has the outputs, too
    shutil.rmtree(run_dir / "checkpoints")
    with pytest.raises(ValueError, match=r"fingerprint\.json is damaged: remove it"):
        loaded(from_genome=scalar)


def test_a_wrong_network_is_noticed_without_the_fingerprint(run_dir, loaded, make, quietly):
    (run_dir / "fingerprint.json").unlink()
    policy = make("hill").policy
    wrong = policy._replace(apply=lambda *given: jax.tree.map(lambda x: 2 * x + 1, policy.apply(*given)))
    with pytest.raises(ValueError, match=r"with the same parameters this network answers"):
        loaded(policy=wrong)
    with pytest.raises(ValueError, match=r"with the same parameters this network answers"):
        quietly(make("hill")._replace(policy=wrong), steps=3, run_dir=run_dir, resume=True)


def test_outputs_that_are_no_numbers_are_damage(run_dir, loaded):
    folder = run_dir / "checkpoints" / "00000002"
    saved = _manifest.read(folder)
    _manifest.write(folder, step=2, num_bytes=saved["bytes"], about=saved["about"] | {"outputs": ["x"]})
    with pytest.warns(UserWarning, match="the outputs in its manifest are no numbers; going back to step 1"):
        loaded()


def test_a_flipped_byte_of_a_fingerprint_is_noticed(run_dir, loaded):
    shutil.rmtree(run_dir / "checkpoints")
    file = run_dir / "fingerprint.json"
    text = file.read_bytes()
    for place in range(0, len(text) - 2, 5):
        damaged = bytearray(text)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"fingerprint\.json is damaged|utf-8"):
            loaded(from_genome=scalar)
    file.write_bytes(text)
    loaded(from_genome=scalar)


def test_answers_that_are_not_finite_do_not_end_the_comparison(tmp_path, monkeypatch):
    algorithm = types.SimpleNamespace(policy=None, env=types.SimpleNamespace(spec=None))

    def answers(old, new):
        (tmp_path / "fingerprint.json").write_text(_config.fingerprint(1, old))
        monkeypatch.setattr(_config, "outputs_of", lambda policy, spec: lambda variables: new)
        _config.check_fingerprint(tmp_path, 1, algorithm, None)

    low, none = -float("inf"), float("nan")
    answers([1.0, low, none], [1.0, low, none])
    for new in ([2.0, low, none], [1.0, 3.0, none], [1.0, low, 3.0]):
        with pytest.raises(ValueError, match="give the network"):
            answers([1.0, low, none], new)


# ---- what is written, and how ----


def test_an_algorithm_that_cannot_begin_leaves_no_run(tmp_path, make, quietly):
    def init(key):
        raise RuntimeError("no ROM")

    with pytest.raises(RuntimeError, match="no ROM"):
        quietly(make("hill")._replace(init=init), steps=1, run_dir=tmp_path / "a")
    assert os.listdir(tmp_path / "a") == [".lock"]
    assert len(quietly(make("hill"), steps=1, run_dir=tmp_path / "a").metrics) == 1


@pytest.mark.parametrize("resume", [True, False])
def test_a_start_that_is_killed_before_its_metrics_begins_anew(tmp_path, make, quietly, resume):
    """After `config.json`, so that the directory holds a run, which has no step."""
    quietly(make("hill"), seed=3, steps=1, run_dir=tmp_path / "a", keep_checkpoints=2)
    for entry in (tmp_path / "a").iterdir():
        if entry.name not in ("checkpoints", "config.json"):
            entry.unlink()
    shutil.rmtree(tmp_path / "a" / "checkpoints" / "00000001")
    run = quietly(make("hill"), seed=3, steps=1, run_dir=tmp_path / "a", resume=resume)
    assert len(run.metrics) == 1


def test_a_start_that_is_killed_before_its_config_begins_anew(tmp_path, make, quietly):
    quietly(make("hill"), seed=3, steps=1, run_dir=tmp_path / "a", keep_checkpoints=2)
    for entry in (tmp_path / "a").iterdir():
        if entry.name != "checkpoints":
            entry.unlink()
    shutil.rmtree(tmp_path / "a" / "checkpoints" / "00000001")
    for resume in (True, False):
        run = quietly(make("hill"), seed=4, steps=1, run_dir=tmp_path / "a", resume=resume)
        assert len(run.metrics) == 1
        shutil.rmtree(tmp_path / "a" / "checkpoints" / "00000001")
        for entry in (tmp_path / "a").iterdir():
            if entry.name != "checkpoints":
                entry.unlink()


def test_a_file_and_its_folder_are_on_disk(tmp_path, monkeypatch):
    synced = []
    sync = os.fsync

    def noted(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    checkpoint.write_file(tmp_path / "file", "text")
    assert synced[-1] == str(tmp_path)
    checkpoint.save(tmp_path / "checkpoints", 1, {"a": 1})
    after, places = synced[2:], {os.path.relpath(path, tmp_path) for path in synced[2:]}
    assert str(tmp_path) in after
    assert "checkpoints" in places
    assert any("manifest" in path for path in places)


def test_what_a_kill_left_is_removed(run_dir, make, quietly):
    for name in (".metrics.jsonl-12-34", ".config.json-1-2"):
        (run_dir / name).write_text("half")
    (run_dir / ".notes-1-2").write_text("mine")
    quietly(make("hill"), steps=3, run_dir=run_dir, resume=True)
    assert sorted(name for name in os.listdir(run_dir) if name.startswith(".")) == [".lock", ".notes-1-2"]


def test_an_error_that_is_not_of_the_system_is_raised_as_it_is(tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise TypeError("save() got an unexpected argument")

    monkeypatch.setattr(_manifest, "write", fails)
    with pytest.raises(TypeError, match="unexpected argument"):
        checkpoint.save(tmp_path, 1, {"a": 1})
    assert checkpoint.steps(tmp_path) == []


def test_a_file_that_is_none_is_damage_though_its_sum_is_empty(tmp_path):
    folder = checkpoint.save(tmp_path, 1, {"a": 1})
    (folder / "tree" / "_METADATA").unlink()
    os.mkfifo(folder / "tree" / "_METADATA")
    said = json.loads((folder / "manifest.json").read_text())
    _manifest.write(folder, step=1, num_bytes=said["bytes"], about={})
    assert json.loads((folder / "manifest.json").read_text())["files"]["tree/_METADATA"] == ""
    with pytest.raises(DamagedCheckpointError, match="_METADATA"):
        checkpoint.restore(tmp_path, 1)


def test_an_empty_array_that_is_not_empty_is_damage(tmp_path):
    checkpoint.save(tmp_path, 1, {"a": "\0empty float32 [100000000000]"})
    with pytest.raises(DamagedCheckpointError, match="is no empty array"):
        checkpoint.restore(tmp_path, 1)


def test_a_wall_that_moved_is_noticed():
    def env(wall):
        return vx.envs.from_functions(
            lambda key: jnp.zeros(2),
            lambda state, action, key: (jax.lax.cond(action > 0, lambda: state + wall, lambda: state), 0.0, False),
            lambda state: state,
            name="walls",
            num_envs=2,
            num_actions=2,
            max_episode_steps=3,
        )

    codes = [env(np.array(wall, np.float32)).config["settings"]["code"] for wall in ([0, 1], [0, 1], [1, 0])]
    assert codes[0] == codes[1] != codes[2]


# ---- observations ----


@pytest.mark.parametrize(
    ("given", "dtype", "wanted"),
    [
        ([[1, 2], [3, 4]], np.float32, (2, 2)),
        ([1, 2], np.float32, (1, 2)),
        (np.zeros((0, 2)), np.float32, (0, 2)),
        (np.array([255, 0], np.int64), np.uint8, (1, 2)),
        (np.array([300, 0], np.uint16), np.uint8, "do not fit"),
        (np.array([-1, 0], np.int8), np.uint8, "do not fit"),
        (np.array([0.5, 0]), np.uint8, "got float64: do not scale"),
        (np.array(["a", "b"]), np.float32, "got <U1"),
        (np.array([1j, 2]), np.float32, "got complex128"),
        (np.zeros((2, 2, 2)), np.float32, "have shape"),
    ],
)
def test_observations_are_converted_by_one_rule(given, dtype, wanted):
    like = jax.ShapeDtypeStruct((2,), dtype)
    if isinstance(wanted, str):
        with pytest.raises(ValueError, match=wanted):
            converted(given, like, "Made up")
        return
    batch, leading = converted(given, like, "Made up")
    assert (batch.shape, batch.dtype) == (wanted, dtype)
    assert bool(leading) == (np.ndim(given) == 2)
