"""The commands, on a run directory that is made up and a run that notes what is asked of it."""

import base64
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import probes
import pytest

import volvox as vx
from volvox import cli
from volvox.exporting import export

COMMANDS = ("play", "watch", "plot", "compare", "export", "info", "report", "doctor")


class Run:
    """Notes what is asked of it."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        def method(*args, **kwargs):
            inspect.signature(getattr(vx.Run, name)).bind(self, *args, **kwargs)  # raises for what a run has not
            self.asked.append((name, *args, kwargs))
            if name == "export":
                Path(args[0]).write_bytes(bytes(2_000_000))
            return f"the {name}"

        return method


@pytest.fixture
def loaded(monkeypatch):
    """The run that commands load, whatever the directory."""
    run = Run()
    monkeypatch.setattr(cli, "load", lambda path: run.asked.append(path) or run)
    return run


@pytest.fixture
def run_dir(tmp_path):
    def make(name, **metrics):
        (directory := tmp_path / name).mkdir()
        network = {"type": "volvox.networks:DeepGA", "num_parameters": 1008450}
        env = {"environment": "envpool", "task": "Pong-v5"}
        algorithm = {"env": env, "strategy": {"type": "volvox:GA"}, "network": network}
        config = {
            "algorithm": algorithm,
            "key": {"data": [0, len(name)], "impl": "threefry2x32"},
            "versions": {"jax": "0.10.2"},
        }
        (directory / "config.json").write_text(json.dumps(config))
        rows = [{"frames": 100 * i, "seconds": 1.0 * i} | {k: v * i for k, v in metrics.items()} for i in (1, 2)]
        (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return directory

    return make


def test_play(loaded, capsys):
    assert cli.main(["play", "runs/a", "--episodes", "30", "--protocol", "exact", "--seed", "7"]) == 0
    assert loaded.asked == [
        Path("runs/a"),
        ("evaluate", {"num_episodes": 30, "which": "best", "protocol": "exact", "seed": 7}),
    ]
    assert capsys.readouterr().out == "the evaluate\n"


def test_play_prints_both_protocols_of_an_atari_game(loaded, monkeypatch, capsys):
    """Unless one is named: the exact score plays each start once, whatever number of episodes is asked for."""

    def evaluate(num_episodes=None, *, protocol=None, **options):
        loaded.asked.append((num_episodes, protocol, options))
        returns = np.array([3.0, 5.0], np.float32)
        return vx.Score(returns, np.array([7, 7]), 4.0, None, None, protocol or "sticky", protocol or "sticky", None)

    monkeypatch.setattr(loaded, "evaluate", evaluate, raising=False)
    assert cli.main(["play", "runs/a", "--episodes", "9", "--which", "last"]) == 0
    options = {"which": "last", "seed": 1_000_003}
    assert loaded.asked[1:] == [(9, None, options), (None, "exact", options)]
    assert capsys.readouterr().out == "mean return 4.00 (sticky)\nmean return 4.00 (exact)\n"
    assert cli.main(["play", "runs/a", "--protocol", "sticky"]) == 0
    assert capsys.readouterr().out == "mean return 4.00 (sticky)\n"


def test_watch(loaded):
    assert cli.main(["watch", "runs/a", "--seed", "3"]) == 0
    assert loaded.asked == [Path("runs/a"), ("watch", None, {"seed": 3})]


def test_plot_and_report_need_no_code_of_the_run(loaded, run_dir, capsys, tmp_path):
    directory = run_dir("a", training_mean=5.0)
    (directory / "episode.mp4").write_bytes(b"a video")
    assert cli.main(["plot", str(directory)]) == 0
    assert cli.main(["plot", str(directory), "--out", str(tmp_path / "a.png")]) == 0
    assert cli.main(["report", str(directory)]) == 0
    assert loaded.asked == []
    paths = [directory / "learning_curve.png", tmp_path / "a.png", directory / "report.html"]
    assert capsys.readouterr().out.splitlines() == [str(path) for path in paths]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    vx.report.learning_curve(rows, tmp_path / "wanted.png", title="Pong-v5", random=-20.7, least=-21.0)
    assert paths[0].read_bytes() == (tmp_path / "wanted.png").read_bytes()
    page = paths[2].read_text()
    assert "<h1>Pong-v5</h1>" in page
    assert base64.b64encode(b"a video").decode() in page


def test_ctrl_c_is_no_traceback(monkeypatch, capsys):
    def load(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load", load)
    assert cli.main(["play", "runs/a"]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_export(loaded, capsys, tmp_path):
    path = tmp_path / "policy.stablehlo"
    assert cli.main(["export", "runs/a", str(path)]) == 0
    assert loaded.asked == [Path("runs/a"), ("export", path, {"which": "best"})]
    assert cli.main(["export", "runs/a", str(path), "--which", "last"]) == 0
    assert loaded.asked[-1] == ("export", path, {"which": "last"})
    assert capsys.readouterr().out == f"{path}: 2.0 MB\n" * 2


def test_compare(run_dir, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [
        f"ga={run_dir('a', training_mean=5.0)}",
        f"ga={run_dir('bb', training_mean=15.0)}",
        str(run_dir("c", loss=1.0)),
    ]
    before = sorted(tmp_path.iterdir())
    assert cli.main(["compare", *runs[:2]]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Pong-v5: training mean at 200 frames, the interquartile mean over runs")
    assert ["ga", "2", "20", "too", "few", "runs", "0:02"] in [line.split() for line in said.splitlines()]
    assert sorted(tmp_path.iterdir()) == before  # nothing is written unasked
    words = ["--metric", "seconds", "--x", "frames", "--out", "both.png", "--markdown"]
    assert cli.main(["compare", *runs, *words]) == 0
    said = capsys.readouterr().out
    assert "| ga | 2 | 2 | too few runs | 0:02 |" in said
    assert said.endswith("\nboth.png\n")
    assert (tmp_path / "both.png").stat().st_size > 1000


def test_info_of_a_run_begins_with_what_one_wants(run_dir, capsys):
    assert cli.main(["info", str(run_dir("a", training_mean=5.0, elite_score=7.0))]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:5] == [
        "result: elite score 14, training mean 10",
        "steps: 2, 200 frames, 0:02",
        "task: Pong-v5",
        "policy: GA with DeepGA of 1,008,450 parameters",
        "",
    ]
    assert said[5:7] == ["algorithm.env.environment: envpool", "algorithm.env.task: Pong-v5"]
    assert said[-1] == "versions.jax: 0.10.2"


def test_a_reader_that_stops_reading_is_no_error(run_dir):
    """As `volvox info RUN | head`."""
    read, write = os.pipe()
    os.close(read)
    program = "import sys; from volvox.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "info", str(run_dir("a"))]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.fixture
def export_of(tmp_path):
    """Exports a policy that goes to the right, in an environment that is described as given."""
    env = probes.corridor(length=3, max_episode_steps=5)
    to_the_right = vx.networks.genotype_from_functions(
        lambda key: jnp.array([0.0, 1.0]), lambda logits, seen: jnp.broadcast_to(logits, (seen.shape[0], 2)), env.spec
    )

    def made(described):
        config = {"env": described or dict(env.config)}
        return export(tmp_path / "p.stablehlo", to_the_right.policy, jnp.array([0.0, 1.0]), env.spec, config=config)

    return made


@pytest.fixture
def exported(export_of):
    return export_of(None)


def test_an_exported_policy_plays_without_its_network(exported, capsys):
    assert cli.main(["play", str(exported), "--episodes", "4"]) == 0
    assert capsys.readouterr().out == "mean return 1.00, 95% interval [1.00, 1.00] (4 episodes, cut at 5 timesteps)\n"


@pytest.mark.parametrize("words", [["watch"], ["plot"], ["report"], ["export", "q.onnx"]])
def test_what_an_exported_policy_cannot_do_is_said(exported, capsys, words):
    line = refused(capsys, words[0], exported, *words[1:])
    assert line == (
        f"error: {exported} is an exported policy; {words[0]} takes a run directory (play and info take both)."
    )


def test_an_exported_policy_of_an_unmarked_environment_is_refused(export_of, capsys):
    path = export_of({"environment": "mine"})
    assert "was made by a function that volvox.recorded does not mark" in refused(capsys, "play", path)


def test_an_exported_policy_has_no_last_one(exported, capsys):
    assert "which='last' chooses nothing" in refused(capsys, "play", exported, "--which", "last")


def test_info_of_an_exported_policy(exported, capsys):
    assert cli.main(["info", str(exported)]) == 0
    assert "spec.num_actions: 2" in capsys.readouterr().out.splitlines()


def refused(capsys, *arguments):
    """The one line of a refusal."""
    assert cli.main(list(map(str, arguments))) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


def test_what_is_refused_is_said_in_one_line(run_dir, capsys, tmp_path, monkeypatch):
    assert refused(capsys, "info", tmp_path / "none").startswith(f"error: {tmp_path / 'none'} holds no run")
    similar = run_dir("frostbite")
    assert refused(capsys, "info", similar.with_name("frosbite")).endswith(f"; did you mean {similar}?")
    for command in ("play", "compare", "plot", "export"):
        said = refused(capsys, command, tmp_path / "none", *(["p.onnx"] if command == "export" else []))
        assert said.startswith(
            f"error: {tmp_path / 'none'} holds no run: there is no {tmp_path / 'none' / 'config.json'}"
        )
    assert (
        refused(capsys, "compare") == "error: compare takes one or more run directories, such as ga=runs/ga es=runs/es."
    )
    (damaged := run_dir("damaged")).joinpath("config.json").write_text("{")
    assert f"{damaged / 'config.json'} is not JSON" in refused(capsys, "info", damaged)
    said = refused(capsys, "compare", run_dir("a"), run_dir("bb"))
    assert "there is no one of elite_score, " in said
    assert said.endswith("what all these runs have is frames and seconds")
    (run_dir("series") / "config.json").rename(run_dir("seed-0") / "config.json")
    (tmp_path / "seed-0").rename(tmp_path / "series" / "seed-0")
    assert refused(capsys, "info", tmp_path / "series").endswith("config.json; its runs are seed-0")

    def load(path):
        raise vx.DamagedCheckpointError("every checkpoint\n  is damaged")

    monkeypatch.setattr(cli, "load", load)
    assert refused(capsys, "play", tmp_path) == "error: every checkpoint is damaged"


@pytest.mark.parametrize("arguments", [["learn", "runs/a"], ["play"], ["play", "runs/a", "--episodes", "few"]])
def test_a_wrong_command_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--help"])
    assert exit_.value.code == 0
    said = capsys.readouterr().out
    assert all(command in said for command in COMMANDS)


def test_doctor_gives_its_exit_code(monkeypatch):
    monkeypatch.setattr(cli.doctor_, "doctor", lambda: 1)
    assert cli.main(["doctor"]) == 1


def test_the_entry_point():
    command = [sys.executable, "-c", "import sys; from volvox.cli import main; sys.exit(main(['info', '/nowhere']))"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == "error: /nowhere holds no run: there is no /nowhere/config.json"


def test_info_says_that_a_new_elite_has_no_score(run_dir, capsys):
    run = run_dir("a", elite_score=7.0, validation_mean=5.0)
    with (run / "metrics.jsonl").open("a") as file:
        new = {"elite_score": None, "elite_is_new": True, "validation_mean": 11.0, "frames": 300}
        file.write(json.dumps(new) + "\n")
    assert cli.main(["info", str(run)]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert said == "result: validation mean 11, the elite is new and not scored yet"
