"""The table of all runs, of made-up results."""

import json

import pytest

ABOUT = {"budget": "9 frames", "hardware": "a CPU", "commit": "abc", "date": "2026-11-22", "seconds": 60}


@pytest.fixture
def write(tmp_path):
    """Writes the files of a run."""

    def run(name, files, **values):
        folder = tmp_path / "results" / name
        folder.mkdir(parents=True)
        for file, content in files.items():
            (folder / file).write_text(json.dumps(content) + "\n")
        run = {**ABOUT, "method": "GA", "score": "score.json:elite:mean", **values}
        run = {"command": f"ga.py --task {run['task']} --seed {run['seeds']}", **run}
        (folder / "run.json").write_text(json.dumps(run))
        return folder

    return run


def rows_of(lines):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_the_committed_page_is_up_to_date(module):
    assert module.README.read_text() == module.page(), "run experiments/results_table.py"


def test_scores_are_interquartile_means_with_intervals(module):
    assert module.scored([1.0, 2.0, 3.0]) == "2 [1, 3]"
    assert module.scored([1.0] * 3, [100.0] * 3) == "50.5 [50.5, 50.5]"  # seeds are resampled within their task
    assert module.scored([12.0]) == "12 (one seed: no interval)"
    assert module.scored([None, None]) == "diverged"
    assert module.scored([1.0, None, 2.0, 3.0], [None]) == "2 [1, 3]; 2 of 5 seeds diverged and are left out"
    assert module.middle([1.0, 2.0, 3.0, 100.0]) == "2.5"


def test_rows_of_seeds_and_of_studies(module, write, tmp_path):
    for seed, mean in (("0", 1.0), ("1", 3.0), ("2", None)):
        elite = {"mean": mean, "about": "sticky, 9 episodes", "human_normalized": mean / 10} if mean else {"mean": None}
        files = {"score.json": {"elite": elite, "elite, exact": {"mean": 1_500.0}}}
        write(f"a/{seed}", files, task="A-v5", seeds=seed)
    study = {"curves": [[0.0, 1.0], [0.0, 3.0]], "slope": {"value": 0.5, "interval": [0.25, 0.75]}}
    places = {"score": "all.json:slope:value", "interval": "all.json:slope:interval"}
    write("b", {"all.json": study}, task="B", seeds="0-7", protocol="training", **places)
    sampled = {"method": "A3C", "protocol": "training", "score": "all.json:curves:-1"}
    write("c", {"all.json": study}, task="C", seeds="0-1", **sampled)
    wanted, published = tmp_path / "wanted.csv", tmp_path / "published.csv"
    lines = ["A-v5,2,ga.py --task A-v5 --seed 2", "A-v5,3,ga.py --task A-v5 --seed 3"]
    lines = [f"GA,{task},{seeds},9 frames,,,{command}" for task, seeds, command in (line.split(",") for line in lines)]
    wanted.write_text("\n".join(["method,task,seeds,budget,protocol,score,command", *lines]))
    lines = ["method,task,value,protocol,source", "GA,A,7,human starts,a paper", "A2C,C,9,9 frames,another"]
    published.write_text("\n".join(lines))
    page = module.page(tmp_path / "results", wanted, published)
    head, _, *rows = rows_of(page.split("## Runs")[1].split("##")[0].splitlines())
    third, first, second = (dict(zip(head, row, strict=True)) for row in rows)  # by method
    assert first["score"] == "2 (2 seeds: no interval); 1 of 3 seeds diverged and are left out"
    assert (first["protocol"], first["human-normalised"]) == ("sticky, 9 episodes", "0.2")
    assert (first["exact"], first["published"]) == ("1 500", "7 (human starts; a paper)")
    assert (first["wall-clock"], first["command"]) == ("3 min", "`ga.py --task A-v5`")
    assert (second["seeds"], second["score"]) == ("8", "0.5 [0.25, 0.75]")
    assert third["score"] == "2 (2 seeds: no interval)"
    assert third["published"] == "A2C 9 (9 frames; another)"
    _, _, missing = rows_of(page.split("## Not run")[1].splitlines())
    assert missing == ["GA", "A-v5", "3", "9 frames", "`ga.py --task A-v5 --seed 3`"]


def test_places_that_do_not_exist_are_refused(module, tmp_path):
    (tmp_path / "odd.json").write_text('{"elite": 1.5, "curves": [[]], "empty": [], "mean": {"of": 1}}')
    for place in ("elite:mean", "mean", "curves:-1", "empty:-1", "curves:mean", "misspelt"):
        with pytest.raises(KeyError):
            module.seeds_of({"folder": tmp_path}, f"odd.json:{place}")
