"""The study of primal-dual learning on CartPole: seeds that diverge, and interrupts, by made-up runs."""

import types

import pytest


@pytest.fixture
def study(load, monkeypatch, tmp_path):
    """Calls the script with runs that end as they are told to, by (rate, seed); returns its exit code and its runs."""
    module = load("cartpole_primal_dual")

    def of(ends, *flags):
        called = []

        def train(algorithm, *, seed, steps, run_dir, resume, **options):
            rate = algorithm.config["settings"]["learning_rate"]
            called.append((rate, seed, str(run_dir.relative_to(tmp_path)), resume))
            end = ends.get((rate, seed), 150.04)
            if end == "diverged":
                raise FloatingPointError("loss is nan")
            interrupted = end == "interrupted"
            row = {} if end is None else {"training_mean": end}
            return types.SimpleNamespace(interrupted=interrupted, exit_code=130 if interrupted else 0, metrics=[row])

        monkeypatch.setattr(module.vx, "train", train)
        words = ("actor-critic", "--name", "td", "--seeds", "2", "--rates", "1e-3", "1e-4", *flags)
        monkeypatch.setattr("sys.argv", ["cartpole_primal_dual.py", *words, "--run-dir", str(tmp_path)])
        return module.main(), called

    return of


def test_a_seed_that_diverges_does_not_stop_the_others(study, capsys):
    code, called = study({(1e-3, 0): "diverged", (1e-4, 1): None}, "--resume")
    assert code == 1
    assert called == [
        (rate, seed, f"td_rate_{name}/seed-{seed}", True)
        for rate, name in ((1e-3, "0.001"), (1e-4, "0.0001"))
        for seed in (0, 1)
    ]
    assert capsys.readouterr().out.splitlines() == [
        "td_rate_0.001 seed 0 diverged: loss is nan",
        "td_rate_0.001 seed 1: 150.0",
        "td_rate_0.0001 seed 0: 150.0",
        "td_rate_0.0001 seed 1: nan",  # no episode ended
    ]


def test_an_interrupt_stops_the_study(study):
    code, called = study({(1e-3, 1): "interrupted"})
    assert code == 130
    assert [(rate, seed, resume) for rate, seed, _, resume in called] == [(1e-3, 0, False), (1e-3, 1, False)]
