"""Sweeps find good settings; trials are runs that diverge, are pruned, interrupted and killed."""

import signal
import sys

import numpy as np
import pytest

import volvox as vx
from volvox.cli import main
from volvox.report.files import read_config, read_metrics
from volvox.types import Interrupted

from .conftest import random_walk

optuna = pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'volvox-rl[sweep]'")

SPACE = {"x": vx.space.uniform(-1, 1), "n": vx.space.integers(1, 3)}
RATES = {"learning_rate": vx.space.log(1e-4, 1e-1), "entropy_coefficient": vx.space.uniform(0, 0.1)}
CARTPOLE = vx.envs.cartpole(num_envs=4)
OPTIONS = {"metric": "score", "steps": 3, "progress": False}


PBT = vx.PBT(every=64, explore={"discount": vx.space.uniform(0.9, 0.99)})


def quadratic(settings, hook=lambda step: None):
    """Three steps with the scores f/3, f/2 and f, where f has its maximum 0 at x = 0.5, n = 2."""
    best = -((settings["x"] - 0.5) ** 2) - (settings["n"] - 2) ** 2
    algorithm = random_walk(hook=hook)

    def step(state, **options):
        state, metrics = algorithm.step(state, **options)
        return state, metrics | {"score": best * 2 ** (3 - state["step"])}

    return algorithm._replace(step=step, config=algorithm.config | settings)


def ppo(settings, **options):
    settings = {"segment_length": 8, "num_minibatches": 2, "rounds_per_iteration": 2, **settings}
    return vx.learn(vx.PPO(**settings), vx.networks.CategoricalMLP(2, (4,)), CARTPOLE, **options)


def test_without_optuna_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"volvox-rl\[sweep\]"):
        vx.sweep(quadratic, SPACE, num_trials=1, run_dir=tmp_path, **OPTIONS)


def test_the_best_trial_is_first_and_every_trial_is_a_run(tmp_path):
    sweep = vx.sweep(quadratic, SPACE, num_trials=4, pruner=None, run_dir=tmp_path / "a", **OPTIONS)
    assert [trial["state"] for trial in sweep.trials] == ["complete"] * 4
    assert sweep.exit_code == 0
    scores = [trial["score"] for trial in sweep.trials]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > -0.3
    assert sweep.study.best_trial.number == sweep.trials[0]["trial"]
    assert len({str(read_config(trial["run"])["key"]) for trial in sweep.trials}) == 4  # seeds
    for trial in sweep.trials:
        x, n = trial["settings"]["x"], trial["settings"]["n"]
        assert trial["score"] == pytest.approx(-((x - 0.5) ** 2) - (n - 2) ** 2)
        assert trial["scores"] == [trial["score"]]
        run = vx.load(trial["run"], algorithm=quadratic(trial["settings"]))
        assert len(run.metrics) == 3
    assert set(sweep.importances()) == {"x", "n"}
    assert f"| {sweep.trials[0]['trial']} " in str(vx.Sweep(tmp_path / "a")).splitlines()[2]
    assert len(sweep.plot(tmp_path / "sweep.png").axes) == 3
    assert len(vx.compare({str(t["trial"]): t["run"] for t in sweep.trials}, metric="score").rows) == 4


@pytest.mark.slow
def test_bad_trials_are_pruned_but_not_by_their_first_value(tmp_path):
    sweep = vx.sweep(quadratic, SPACE, num_trials=6, run_dir=tmp_path, **OPTIONS)
    pruned = [trial for trial in sweep.trials if trial["state"] == "pruned"]
    assert pruned
    assert all(len(read_metrics(trial["run"] / "metrics.jsonl")) == 2 for trial in pruned)
    assert sweep.trials[0]["state"] == "complete"


def test_a_trial_that_diverges_fails_and_the_sweep_goes_on(tmp_path):
    def make(settings):
        def hook(step):
            if settings["n"] == 3:
                raise FloatingPointError("not finite")

        return quadratic(settings, hook)

    sweep = vx.sweep(make, SPACE, num_trials=3, run_dir=tmp_path, pruner=None, **OPTIONS)
    for trial in sweep.trials:
        assert trial["state"] == ("fail" if trial["settings"]["n"] == 3 else "complete")
        marker = tmp_path / "trials" / f"{trial['trial']:04d}" / "diverged"
        assert marker.exists() == (trial["state"] == "fail")
    assert {trial["state"] for trial in sweep.trials} == {"complete", "fail"}
    assert "diverged" in str(sweep)


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Four trials of two learners each, two trials in one program."""
    path = tmp_path_factory.mktemp("sweeps") / "a"
    options = {"evaluate_every": 64, "num_evaluation_episodes": 2}
    make = lambda settings: ppo(settings, num_learners=2, **options)  # noqa: E731
    return vx.sweep(make, RATES, num_trials=4, num_learners=2, max_frames=128, run_dir=path, progress=False)


def test_trials_of_one_program_are_its_learners(together):
    assert sorted(trial["run"].name for trial in together.trials) == ["0000", "0000", "0002", "0002"]
    for trial in together.trials:
        settings = read_config(trial["run"])["algorithm"]["settings"]
        assert [settings[i]["learning_rate"] for i in trial["learners"]] == [trial["settings"]["learning_rate"]] * 2
        row = read_metrics(trial["run"] / "metrics.jsonl")[-1]
        assert trial["scores"] == [row["evaluation_mean_each"][i] for i in trial["learners"]]
        assert row["frames"] >= 2 * 128  # of both trials
        assert trial["score"] == pytest.approx(np.mean(trial["scores"]))
    assert vx.load(together.trials[0]["run"]).learner(3).evaluate(num_episodes=2).returns.shape == (2,)


@pytest.mark.slow
def test_the_best_settings_are_trained_again_with_another_seed(together, capsys):
    best, *_ = again = together.again(2)
    assert len(again) == 2
    assert best["scores"] == together.trials[0]["scores"]
    config = read_config(together.run_dir / "again" / f"{best['trial']:04d}")
    rates = [settings["learning_rate"] for settings in config["algorithm"]["settings"]]
    assert rates == [best["settings"]["learning_rate"]] * 2
    assert config["key"] != read_config(best["run"])["key"]
    assert main(["sweep-report", str(together.run_dir), "--again", "1"]) == 0
    assert f"{best['score_again']:,.4g} with another seed" in capsys.readouterr().out
    assert (together.run_dir / "sweep.png").exists()


@pytest.mark.slow
def test_trials_of_one_program_go_on_without_one_that_diverges(tmp_path):
    rates = [1e-3, 1e38, 1e-2]

    def draw(trial):
        return {"learning_rate": rates[trial.suggest_int("i", trial.number, trial.number)]}

    options = {"metric": "training_mean", "num_learners": 3, "steps": 6, "progress": False}
    sweep = vx.sweep(lambda s: ppo(s, num_learners=2), draw, num_trials=3, run_dir=tmp_path, **options)
    assert {trial["trial"]: trial["state"] for trial in sweep.trials} == {0: "complete", 1: "fail", 2: "complete"}
    assert {trial["trial"]: trial.get("learners") for trial in sweep.trials} == {0: range(2), 1: None, 2: range(2, 4)}
    assert sorted(path.name for path in (tmp_path / "trials").iterdir()) == ["0000", "0000-restarted"]
    assert len({trial["run"].name for trial in sweep.trials if trial["state"] == "complete"}) == 1


def interrupted_in_the_fifth_step():
    """Returns `make`, and the steps of all trials so far."""
    steps = []

    def hook(step):
        steps.append(step)
        if len(steps) == 5:  # the second step of the second training
            signal.raise_signal(signal.SIGINT)
            raise Interrupted

    return lambda settings: quadratic(settings, hook), steps


def test_an_interrupted_sweep_goes_on(tmp_path):
    make, steps = interrupted_in_the_fifth_step()
    options = OPTIONS | {"num_trials": 4, "run_dir": tmp_path, "pruner": None}
    sweep = vx.sweep(make, SPACE, **options)
    assert sweep.exit_code == 130
    assert [trial["state"] for trial in sweep.trials] == ["complete", "running"]
    with pytest.raises(FileExistsError, match="resume"):
        vx.sweep(make, SPACE, **options)
    with pytest.raises(ValueError, match="steps"):
        vx.sweep(make, SPACE, **options | {"steps": 4}, resume=True)
    sweep = vx.sweep(make, SPACE, **options, resume=True)
    assert steps == [1, 2, 3, 1, 2, 2, 3, 1, 2, 3, 1, 2, 3]
    assert [trial["state"] for trial in sweep.trials] == ["complete"] * 4
    assert sorted(trial["trial"] for trial in sweep.trials) == [0, 1, 2, 3]


@pytest.mark.parametrize("killed", ["before the trial failed", "while a trial was drawn"])
def test_a_kill_between_two_records_loses_no_trial(killed, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*args, **options):
        raise Killed

    diverges = [True]

    def make(settings):
        def hook(step):
            if diverges:
                raise FloatingPointError("not finite")

        return quadratic(settings, hook)

    options = OPTIONS | {"num_trials": 2, "run_dir": tmp_path, "pruner": None}
    record = (optuna.Study, "tell") if killed == "before the trial failed" else (optuna.Trial, "set_user_attr")
    with monkeypatch.context() as patch:
        patch.setattr(*record, kill)
        with pytest.raises(Killed):
            vx.sweep(make, SPACE, **options)
    diverges.clear()
    sweep = vx.sweep(make, SPACE, **options, resume=True)
    assert [trial["state"] for trial in sweep.trials] == ["complete"] * 2


def test_settings_that_are_trained_again_have_scores_of_whole_runs(tmp_path, monkeypatch):
    make, _ = interrupted_in_the_fifth_step()
    sweep = vx.sweep(make, SPACE, num_trials=1, run_dir=tmp_path, pruner=None, **OPTIONS)
    (trial,) = sweep.trials
    loaded = lambda run, custom: vx.load(run, algorithm=make(trial["settings"]))  # noqa: E731
    monkeypatch.setattr("volvox.runs.sweep.load", loaded)
    with pytest.raises(KeyboardInterrupt):
        sweep.again(1)
    (again,) = sweep.again(1)
    assert again["scores_again"] == pytest.approx(trial["scores"])

    def diverge(*args):
        raise FloatingPointError("not finite")

    monkeypatch.setattr("volvox.runs.sweep._train", diverge)
    assert [found["score_again"] for found in sweep.again(1)] == [None]
    monkeypatch.setattr("volvox.runs.sweep._train", None)  # it is not trained until it converges
    assert [found["score_again"] for found in sweep.again(1)] == [None]


def test_sweeps_of_two_directories_share_a_study(tmp_path):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    for folder, num_trials, names in (("one", 2, ["0000", "0001"]), ("two", 4, ["0002", "0003"])):
        options = OPTIONS | {"run_dir": tmp_path / folder / "a", "storage": storage, "resume": True, "pruner": None}
        sweep = vx.sweep(quadratic, SPACE, num_trials=num_trials, **options)
        assert [trial["state"] for trial in sweep.trials] == ["complete"] * num_trials
        assert [path.name for path in sorted((sweep.run_dir / "trials").iterdir())] == names


LATE = {"metric": "evaluation_mean", "steps": None, "max_timesteps": 1_000}
TOGETHER = {"make": ppo, "space": RATES, "num_learners": 2, "metric": "training_mean"}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"make": lambda s: ppo({"learing_rate": 0.1})}, TypeError, "learing_rate"),
        ({"make": ppo, "space": RATES, "metric": "evaluation_mean"}, ValueError, "evaluate_every"),
        ({"make": lambda s: ppo(s, evaluate_every=10**6), "space": RATES, **LATE}, ValueError, "=1000, not 1000000"),
        ({"make": lambda s: None}, TypeError, "the result of make"),
        ({"pruner": "median"}, TypeError, "pruner"),
        ({"sampler": "tpe"}, TypeError, "sampler"),
        ({"metric": "skore"}, ValueError, "skore"),
        ({"storage": "sqlite:////nowhere/study.db"}, ValueError, "storage"),
        ({"num_learners": 2}, ValueError, "vx.learn"),
        ({"timesteps": 5}, TypeError, "max_timesteps"),
        ({"steps": None}, ValueError, "nothing would end a trial"),
        (TOGETHER | {"space": {"num_epochs": vx.space.integers(1, 2)}}, ValueError, "num_epochs"),
        ({"make": lambda s: ppo(s, num_learners=2, pbt=PBT), "space": PBT.explore}, ValueError, "explore of pbt"),
    ],
)
def test_bad_arguments_are_refused(changes, error, message, tmp_path):
    options = {"make": quadratic, "space": SPACE, "num_trials": 4, "run_dir": tmp_path / "a", **OPTIONS, **changes}
    with pytest.raises(error, match=message):
        vx.sweep(**options)


@pytest.mark.parametrize("call", [lambda: vx.space.log(0, 1), lambda: vx.space.uniform(1, 1), vx.space.choice])
def test_empty_ranges_are_refused(call):
    with pytest.raises(ValueError, match="give"):
        call()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_workers_run_the_trials(tmp_path):
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'volvox-rl[ray]'")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    try:
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        ray.cloudpickle.register_pickle_by_value(sys.modules[random_walk.__module__])
        workers = vx.distributed.ray(num_actors=2)
        sweep = vx.sweep(quadratic, SPACE, num_trials=3, run_dir=tmp_path, workers=workers, **OPTIONS)
    finally:
        ray.shutdown()
    assert sorted(trial["trial"] for trial in sweep.trials) == list(range(3))
    assert {trial["state"] for trial in sweep.trials} <= {"complete", "pruned"}
