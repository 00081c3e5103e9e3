"""The table of all runs: what it says of made-up results, and that the committed page is what the script prints."""

import json
import math
import re
import shlex

import numpy as np
import pytest
import scipy

from volvox.report.runs import listed


@pytest.fixture
def module(load):
    return load("results_table")


def test_the_committed_page_is_what_the_script_prints(module):
    assert module.README.read_text() == module.page(), "run experiments/results_table.py"


def test_scores_are_interquartile_means_with_intervals(module):
    assert module.scored([1.0, 2.0, 3.0]) == "2 [1, 3]"
    assert module.scored([1.0] * 3, [100.0] * 3) == "50.5 [50.5, 50.5]"  # seeds are resampled within their task
    assert module.scored([12.0]) == "12 (one seed: no interval)"
    assert module.scored([12.0, 14.0]) == "13 (2 seeds: no interval)"
    assert module.scored([None, None]) == "diverged"
    lost = module.scored([1.0, None, 2.0, 3.0], [None])
    assert lost == "2 [1, 3]; 2 of 5 seeds diverged and are left out"
    assert module.middle([1.0, 2.0, 3.0, 100.0]) == "2.5"  # as the score is
    assert module.middle([]) == ""


def cells(page, section):
    lines = page.split(f"## {section}")[1].split("##")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_the_table_of_made_up_results(module, tmp_path):
    """Two seeds of a game and one of another, a run of several seeds that lost one, and a run that is missing."""
    about = {"budget": "9 frames", "hardware": "a CPU", "commit": "abc", "date": "2026-11-22", "seconds": 60}
    atari = {"score": "score.json:elite:mean"}
    for task, seed, mean in (("A-v5", 0, 1.0), ("A-v5", 1, 3.0), ("B-v5", 0, 2_000.0)):
        folder = tmp_path / "results" / task / str(seed)
        folder.mkdir(parents=True)
        elite = {"mean": mean, "protocol": "sticky", "about": "sticky, 9 episodes", "human_normalized": mean / 10}
        score = {"elite": elite} | ({"elite, exact": {"mean": 1_500.0}} if task == "B-v5" else {})
        (folder / "score.json").write_text(json.dumps(score))
        run = {
            "method": "GA",
            "task": task,
            "seeds": str(seed),
            "command": f"ga.py --task {task} --seed {seed} --resume",
        }
        (folder / "run.json").write_text(json.dumps({**about, **atari, **run}))
    folder = tmp_path / "results" / "other"
    folder.mkdir()
    curves = {"curves": [[0.0, 1.0], [0.0, 3.0]], "slope": {"value": 0.5, "interval": [0.25, 0.75]}}
    (folder / "all.json").write_text(json.dumps({"returns": {"1": [5.0, None, 5.0]}, **curves}))
    lag = {"method": "Lag", "task": "C", "seeds": "0-2", "protocol": "training", "command": "lag.py", "seconds": None}
    curve = {**about, **lag, "task": "D", "score": "all.json:curves:-1", "note": "in-sample"}
    slope = {**about, **lag, "task": "E", "score": "all.json:slope:value", "interval": "all.json:slope:interval"}
    (folder / "run.json").write_text(json.dumps([{**about, **lag, "score": "all.json:returns:1"}, curve, slope]))
    wanted, published = tmp_path / "wanted.csv", tmp_path / "published.csv"
    lines = ["method,task,seeds,budget,protocol,score,command", "Lag,C,0-2,9 frames,training,all.json:returns:1,lag.py"]
    wanted.write_text("\n".join([*lines, "GA,B-v5,1,9 frames,,score.json:elite:mean,ga.py --task B-v5 --seed 1"]))
    published.write_text('method,task,value,protocol,source\nGA,B,7,"human starts, once",a paper\n')

    page = module.page(tmp_path / "results", wanted, published)
    head, _, first, second, third, curve, slope, last = cells(page, "What was run")
    assert head == list(module.COLUMNS)

    def row(method, task, protocol, seeds, score, *columns, note=""):
        *columns, command = columns
        start = [method, task, protocol, "9 frames", seeds, score]
        return [*start, *columns, command, "a CPU", "abc", "2026-11-22", note]

    few = "2 (2 seeds: no interval)"
    ga = row("GA", "A-v5", "sticky, 9 episodes", "2", few, "0.2", "", "", "2 min", "`ga.py --task A-v5`")
    assert first == ga
    one, paper = "2 000 (one seed: no interval)", "7 (human starts, once; a paper)"
    expected = ("GA", "B-v5", "sticky, 9 episodes", "1", one, "200", "1 500", paper, "1 min", "`ga.py --task B-v5`")
    assert second == row(*expected)
    rest = ("", "", "", "not noted", "`lag.py`")
    lost = "5 (2 seeds: no interval); 1 of 3 seeds diverged and are left out"
    assert third == row("Lag", "C", "training", "3", lost, *rest)
    assert curve == row("Lag", "D", "training", "2", few, *rest, note="in-sample")
    assert slope == row("Lag", "E", "training", "3", "0.5 [0.25, 0.75]", *rest)
    task, score = "A-v5, B-v5, human-normalised", "100 (one seed: no interval)"  # (0.1 + 200) / 2: games count alike
    many = ("GA", task, "sticky, 9 episodes", "the first 1 of each", score)
    assert last == row(*many, "", "", "", "2 min", "those of the games")
    with pytest.raises(ValueError, match="seeds '0' with an interval; give the first and last"):
        module.of_all_seeds({"folder": folder, "seeds": "0", "interval": ""})
    # Misspelt, a number in place of an object, an object in place of a number, a list without that many, no list.
    (folder / "odd.json").write_text('{"elite": 1.5, "curves": [[]], "empty": [], "mean": {"of": 1}}')
    odd = ("odd.json:elite:mean", "odd.json:mean", "odd.json:curves:-1", "odd.json:empty:-1", "odd.json:curves:mean")
    for place in ("all.json:slope:valeu", "all.json:slop:value", *odd):
        with pytest.raises(KeyError):
            module.seeds_of({"folder": folder}, place)
    elsewhere = {"folder": folder, "score": "all.json:returns:1", "exact": "../A-v5/1/score.json:elite:mean"}
    assert module.exact(elsewhere) == [3.0]
    assert module.protocol_of({"folder": folder, "score": "all.json:curves:-1"}) == "not noted"
    (folder / "score.json").write_text('{"policy": {"mean": 1, "about": "9 episodes"}, "of": {"which": "best"}}')
    assert module.protocol_of({"folder": folder, "score": "score.json:policy:mean"}) == "9 episodes, best policy"
    drawn = {"policy, sampled": {"mean": 1, "about": "9 episodes"}, "of": {"which": "last"}}
    (folder / "score.json").write_text(json.dumps(drawn))
    place = "score.json:policy, sampled:mean"
    assert module.protocol_of({"folder": folder, "score": place}) == "9 episodes, sampled actions, last policy"
    *_, missing = cells(page, "Not run")
    assert missing == ["GA", "B-v5", "1", "9 frames", "`ga.py --task B-v5 --seed 1`"]


def test_seeds_that_diverged_are_counted_with_the_others(module, tmp_path):
    """They have no score, and so no protocol of their own."""
    about = {
        "method": "GA",
        "task": "A-v5",
        "budget": "9 frames",
        "hardware": "a CPU",
        "commit": "abc",
        "date": "today",
    }
    for seed, mean in ((0, None), (1, 5.0)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        score = {"mean": mean} if mean is None else {"mean": mean, "about": "sticky, 9 episodes"}
        (folder / "score.json").write_text(json.dumps({"elite": score}))
        run = {**about, "seeds": str(seed), "command": f"ga.py --seed {seed}", "seconds": 60}
        (folder / "run.json").write_text(json.dumps({**run, "score": "score.json:elite:mean"}))
    wanted = tmp_path / "wanted.csv"
    wanted.write_text("method,task,seeds,budget,protocol,score,command\n")
    _, _, row = cells(module.page(tmp_path, wanted, wanted), "What was run")
    score = "5 (one seed: no interval); 1 of 2 seeds diverged and are left out"
    assert row[:6] == ["GA", "A-v5", "sticky, 9 episodes", "9 frames", "2", score]


def test_the_scores_of_thirteen_games_are_those_of_the_committed_runs(module):
    """The table of docs/results.md with its intervals."""
    text = (module.HERE.parent / "docs" / "results.md").read_text().split("## Thirteen games")[1].split("\n## ")[0]
    _, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"
    )
    assert len(rows) == 13
    places = {
        "ga": ("ga-low-rank-noise", "elite"),
        "rs": ("random-search", "elite"),
        "a3c": ("a3c", "policy, sampled"),
        "random": ("random-search", "random"),
    }
    low, high = {name: {} for name in places}, {name: {} for name in places}
    for game, *written in rows:
        for said, (name, (method, which)) in zip(written, places.items(), strict=True):
            folder = module.RESULTS / method / f"{game.lower()}-v5-2.5-million-frames" / "seed-0"
            score = json.loads((folder / "score.json").read_text())[which]
            numbers = [score["mean"], *score["interval_95"]]
            assert [int(x.replace(" ", "")) for x in re.findall(r"-?\d+(?: \d{3})*", said)] == list(map(round, numbers))
            low[name][game], high[name][game] = score["interval_95"]

    def above(one, *others):
        return listed(game for game in low[one] if all(low[one][game] > high[other][game] for other in others))

    def below(one, *others):
        return listed(game for game in low[one] if all(high[one][game] < low[other][game] for other in others))

    text = " ".join(text.split())
    more, less = above("ga", "rs"), below("ga", "rs")
    assert f"On {more} the genetic algorithm has more than random search, and on {less} less." in text
    more, less = above("a3c", "ga", "rs"), below("a3c", "ga", "rs")
    assert f"A3C has more than both on {more}, and less than both on {less}." in text
    assert f"It scores more than random play in six games: {above('a3c', 'random')}." in text
    entropy = {}  # of policies, over that of uniform actions
    for game in low["a3c"]:
        folder = module.RESULTS / "a3c" / f"{game.lower()}-v5-2.5-million-frames" / "seed-0"
        network = json.loads((folder / "config.json").read_text())["algorithm"]["network"]
        row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
        entropy[game] = row["entropy"] / math.log(network["num_outputs"])
    uniform = listed(game for game, share in entropy.items() if share > 0.99)
    assert f"On {uniform} it has learned nothing yet: the entropy of its policy is within 1% of that of" in text
    lines = module.side_by_side(module.finished(module.RESULTS))
    head, *over = [line for line in lines if line.startswith(("| game |", "| human-normalised"))]
    columns = [cell.strip() for cell in head.split("|")]
    ours = [columns.index(name) for name in ("GA (low-rank noise)", "random search", "A3C")]
    whole, left_out = ([line.split("|")[place].strip() for place in ours] for line in over)
    assert "is {} for the genetic algorithm, {} for random search and {} for A3C".format(*whole) in text
    assert "without Skiing {}, {} and {}.".format(*left_out) in text


def test_the_scores_of_both_kinds_of_noise_are_those_of_the_committed_runs(module):
    """On Frostbite after 2.5 million frames, with three seeds of each."""
    text = " ".join((module.HERE.parent / "docs" / "results.md").read_text().split())
    means = []
    for method in ("ga-full-noise", "ga-low-rank-noise"):
        files = sorted((module.RESULTS / method / "frostbite-v5-2.5-million-frames").glob("seed-*/score.json"))
        means.append([json.loads(path.read_text())["elite"]["mean"] for path in files])
    full, low_rank = (listed(map(round, each)) for each in means)
    assert f"full noise has {full} on Frostbite, and low-rank noise {low_rank} (sticky actions;" in text
    found = scipy.stats.ttest_ind(*means[::-1], equal_var=False)
    low, high = found.confidence_interval()
    full, low_rank = map(np.mean, means)
    said = f"The means, {full:.0f} and {low_rank:.0f}, differ by {low_rank - full:.0f} [{low:.0f}, +{high:.0f}]"
    assert f"{said} (Welch, p = {found.pvalue:.2f})" in text


def test_games_side_by_side(module, tmp_path):
    """Two methods on all games, one with two seeds in one of them; and one on one game, which has no row over all."""
    played = [("GA", game, 0, 40.0) for game in ("A-v5", "B-v5", "C-v5", "Skiing-v5")] + [("GA", "A-v5", 1, 60.0)]
    played += [
        ("A3C", game, 0, mean) for game, mean in (("A-v5", 10.0), ("B-v5", 20.0), ("C-v5", 30.0), ("Skiing-v5", -60.0))
    ]
    played += [("GA (full noise)", "A-v5", 0, 70.0)]
    for method, task, seed, mean in played:
        folder = tmp_path / method / task / str(seed)
        folder.mkdir(parents=True)
        elite = {"mean": mean, "human_normalized": mean / 100, "about": "sticky"}
        (folder / "score.json").write_text(json.dumps({"elite": elite, "random": {"mean": 7.0}}))
        (folder / "metrics.jsonl").write_text('{"frames": 2500000}\n{"frames": 2780000}\n')
        run = {"method": method, "task": task, "seeds": str(seed), "budget": "2.5 million frames"}
        about = {"command": f"{method} {task}", "hardware": "a CPU", "commit": "abc", "date": "today", "seconds": 60}
        (folder / "run.json").write_text(json.dumps({**run, **about, "score": "score.json:elite:mean"}))
    runs = module.finished(tmp_path)
    lines = [line for line in module.side_by_side(runs) if line.startswith("|")]
    assert [[text.strip() for text in line.strip("|").split("|")] for line in lines] == [
        ["game", "random play", "GA", "A3C", "GA (full noise)"],
        ["---"] * 5,
        ["A-v5", "7", "50 (50.0%, 2 seeds) *2.78*", "10 (10.0%) *2.78*", "70 (70.0%) *2.78*"],
        ["B-v5", "7", "40 (40.0%) *2.78*", "20 (20.0%) *2.78*", ""],
        ["C-v5", "7", "40 (40.0%) *2.78*", "30 (30.0%) *2.78*", ""],
        ["Skiing-v5", "7", "40 (40.0%) *2.78*", "-60 (-60.0%) *2.78*", ""],
        ["human-normalised, all 4 games", "", "40.0%", "15.0%", ""],
        ["human-normalised, without Skiing", "", "40.0%", "20.0%", ""],
    ]
    assert module.side_by_side(runs, "9 million frames") == []
    # Their rows over games are those above, and there are no others.
    wanted = tmp_path / "wanted.csv"
    wanted.write_text("method,task,seeds,budget,protocol,score,command\n")
    assert len(cells(module.page(tmp_path, wanted, wanted), "What was run")) == 2 + 9


def test_the_list_of_runs_wanted(module, load):
    """Each line is a run of its own, of a script that there is, with a score where the script writes it."""
    study, lines = load("study"), module.wanted()
    assert len({study.place(line) for line in lines}) == len(lines)
    for line in lines:
        assert set(line) == {"method", "task", "seeds", "budget", "protocol", "score", "command", "note"}
        assert None not in line.values()
        script = line["command"].split()[0]
        assert (module.HERE / script).exists()
        if (kept := module.RESULTS / study.place(line) / "run.json").exists():
            assert json.loads(kept.read_text())["command"] == line["command"]
        if line["score"].startswith("score.json"):  # what has a lineage is called elite, see `scores.py`
            assert line["score"].split(":")[1].split(",")[0] == ("elite" if script == "atari_ga.py" else "policy")
    games = (
        "Amidar Assault Asterix Asteroids Atlantis Enduro Frostbite Gravitar Kangaroo Seaquest Skiing Venture Zaxxon"
    )
    for method in ("GA (low-rank noise)", "random search", "A3C"):
        found = [line for line in lines if line["method"] == method and line["budget"] == "2.5 million frames"]
        assert [line["task"] for line in found if line["seeds"] == "0"] == [f"{game}-v5" for game in games.split()]


def test_the_commands_wanted_are_flags_of_their_scripts(module, load, read):
    scripts = {}
    for line in module.wanted():
        script, *words = shlex.split(line["command"])
        if script == "group_sparse.py":
            settings = load("group_sparse").settings_of(words)
            assert f"0-{settings.td3.num_learners - 1}" == line["seeds"]
            continue
        name = script.removesuffix(".py")
        settings = read(scripts.get(name) or scripts.setdefault(name, load(name)), words)
        assert str(settings.run.seed) == line["seeds"]
        if amount := re.fullmatch(r"([\d.]+) million frames", line["budget"]):
            assert settings.run.frames == 1_000_000 * float(amount[1])
            assert getattr(settings.run, "minutes", None) is None
