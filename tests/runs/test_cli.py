"""Commands print what they found, end with an exit code, and show errors in one line."""

import subprocess
import sys

import pytest

from volvox.cli import main

from .conftest import random_walk, train


def call(capsys, *words):
    code = main([str(word) for word in words])
    return code, capsys.readouterr().out


def test_a_run_and_its_exported_policy_are_played(evolved, capsys, tmp_path):
    file = tmp_path / "policy.stablehlo"
    assert call(capsys, "export", evolved.run_dir, file)[0] == 0
    for path in (evolved.run_dir, file):
        code, out = call(capsys, "play", path, "--episodes", "3")
        assert code == 0
        assert str(evolved.evaluate(3)) in out
    assert "CartPole" in call(capsys, "info", file)[1]


def test_plot_report_and_info(evolved, capsys):
    for command, name in (("plot", "learning_curve.png"), ("report", "report.html")):
        (evolved.run_dir / name).unlink(missing_ok=True)
        code, out = call(capsys, command, evolved.run_dir)
        assert (code, out.strip()) == (0, str(evolved.run_dir / name))
        assert (evolved.run_dir / name).stat().st_size > 1000
    code, out = call(capsys, "info", evolved.run_dir)
    assert code == 0
    assert "steps: 2" in out
    assert "strategy.population_size: 8" in out


def test_compare(capsys, tmp_path):
    for seed in range(2):
        for method in ("a", "b"):
            train(random_walk(), tmp_path / method / f"seed-{seed}", seed=seed, steps=2)
    words = ("compare", f"x={tmp_path / 'a'}", f"y={tmp_path / 'b'}", "--metric", "training_best")
    code, out = call(capsys, *words, "--out", tmp_path / "comparison.png")
    assert code == 0
    assert "| x " in out
    assert (tmp_path / "comparison.png").exists()


@pytest.mark.parametrize(
    "words", [("play", "/nowhere"), ("compare",), ("plot", "policy.stablehlo"), ("play", "zoo:a", "--which", "last")]
)
def test_errors_are_one_line(words, capsys):
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_errors_from_inside_keep_their_traceback(evolved, monkeypatch):
    def fail(*args, **options):
        error = ValueError("broken")
        error.add_note("inside an environment")
        raise error

    monkeypatch.setattr("volvox.cli.load", fail)
    with pytest.raises(ValueError, match="broken"):
        main(["watch", str(evolved.run_dir)])


def test_interrupts_and_closed_pipes_have_their_exit_codes(evolved, monkeypatch, capsys):
    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("volvox.cli.read_config", interrupt)
        assert main(["info", str(evolved.run_dir)]) == 130
    program = f"import sys; from volvox.cli import main; sys.exit(main(['info', {str(evolved.run_dir)!r}]))"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait() == 141


def test_profile(evolved, capsys, monkeypatch):
    monkeypatch.setattr("volvox.cli.profile_algorithm", lambda algorithm, seconds: f"{algorithm.step_name} {seconds}")
    assert call(capsys, "profile", evolved.run_dir, "--seconds", "3") == (0, "generation 3.0\n")


def test_the_doctor_finds_what_is_broken(capsys, monkeypatch):
    assert call(capsys, "doctor")[0] == 0

    def broken(*args, **options):
        raise ImportError("no envpool")

    monkeypatch.setattr("volvox.envs.atari", broken)
    assert main(["doctor"]) == 2
    assert "no envpool" in capsys.readouterr().err
