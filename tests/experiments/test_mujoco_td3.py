"""TD3's script as a user runs it: real MuJoCo, in processes of its own."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import volvox as vx

TINY = [
    *("reference", "--task", "InvertedPendulum", "--num-envs", "4", "--hidden", "8", "--batch-size", "16"),
    *("--random-timesteps", "40", "--replay-size", "1000", "--timesteps-per-iteration", "60"),
]


@pytest.fixture(scope="module")
def mujoco(script):
    return script("mujoco_td3.py", TINY)


@pytest.mark.slow
def test_a_run_is_scored(tmp_path, mujoco, rows):
    run_dir = tmp_path / "run"
    evaluation = ("--evaluate-every", 60, "--num-evaluation-episodes", 2)
    code, _, err = mujoco.run("--run-dir", run_dir, "--timesteps", 120, "--score-episodes", 3, *evaluation)
    assert code == 0, err
    table = rows(run_dir)
    assert [row["iteration"] for row in table] == [1, 2]
    assert 0 < table[0]["update"] < table[1]["update"]
    scores = json.loads((run_dir / "score.json").read_text())
    assert set(scores) == {"policy", "policy, last", "random", "of"}
    of = scores.pop("of")
    assert (of["steps"], of["episodes"], of["which"]) == (2, 3, "best")
    assert all(len(score["returns"]) == 3 and score["mean"] > 0 for score in scores.values())


def test_the_best_policy_is_scored_and_the_last_beside_it(load, monkeypatch):
    """Of a run whose best policy is 5 and whose last is 3; playing returns the policy."""
    scores = load("scores")

    def play(env, policy, variables, *, num_episodes=None, seed=None, **options):
        return vx.Score(*[np.full(num_episodes, float(variables))] * 2, float(variables), None, None, "fresh", "", None)

    monkeypatch.setattr(scores.vx, "play", play)
    monkeypatch.setattr(scores.vx, "play_randomly", lambda env, **options: play(env, None, 0, **options))
    run = SimpleNamespace(
        algorithm=SimpleNamespace(env=None, policy=None, genome=None),
        variables=lambda: 5,
        metrics=[{"evaluation_mean": 5.0}, {"evaluation_mean": 3.0}],
        evaluate=lambda episodes, *, which, seed: play(None, None, {"last": 3}[which], num_episodes=episodes),
    )
    found = scores.scores_of(run, 2, seed=0, sampled=False)
    assert {name: score.mean for name, score in found.items()} == {"policy": 5.0, "policy, last": 3.0, "random": 0.0}


def test_wide_networks_are_options(load, read):
    module = load("mujoco_td3")
    algorithm, _ = module.make_algorithm(read(module, [*TINY, "--densely-connected", "--representation"]))
    networks = algorithm.config["network"]
    assert networks["actor"]["densely_connected"]
    assert networks["critic"]["densely_connected"]
    assert networks["representation"]["type"] == "volvox.networks:NextObservationNetwork"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--timesteps", "0"), "timesteps=0"),
        (("--batch-size", "15"), "batch_size=15 must be a multiple"),
        (("--num-learners", "3"), "num_learners=3 do not share"),
    ],
)
def test_bad_settings_are_refused(load, read, flags, message):
    module = load("mujoco_td3")
    with pytest.raises(ValueError, match=re.escape(message)):
        module.make_algorithm(read(module, [*TINY, *flags]))


NETWORKS = ("two layers", "densely connected", "on features", "both")
KINDS = ("plain", "densely connected", "features", "both")
METHODS = ("", "dense-connections-", "features-", "dense-connections-and-features-")


def test_the_table_of_wide_networks_is_that_of_the_committed_runs():
    """Scores and minutes of the runs, and seconds by the benchmark's updates a second."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "results.md").read_text().split("**Dense connections and learned features**")[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "|" in line]
    rows = [row for row in rows if row[0] in ("256", "512", "1 024")]
    speeds = json.loads((root / "benchmarks" / "results" / "td3_networks_cpu2_epyc.json").read_text())["widths"]
    assert len(rows) == 9
    for units, networks, *scores, minutes, seconds in rows:
        units = units.replace(" ", "")
        (i,) = [i for i, name in enumerate(NETWORKS) if networks.startswith(name)]
        folder = root / "experiments" / "results" / f"td3-{METHODS[i]}{units}-units"
        places = sorted(path.parent for path in folder.rglob("run.json"))
        found = [json.loads((place / "score.json").read_text())["policy"]["mean"] for place in places]
        took = [json.loads((place / "run.json").read_text())["seconds"] / 60 for place in places]
        assert [score for score in scores if score] == [f"{mean:,.0f}".replace(",", " ") for mean in found]
        assert minutes == ", ".join(f"{each:.0f}" for each in took)
        wanted = f"{75_000 / speeds[units][KINDS[i]]['updates_per_s']:,.0f}".replace(",", " ")
        assert seconds == wanted
