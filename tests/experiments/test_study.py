"""A study runs what is listed, keeps what is small, skips what is complete, and stops and goes on when asked."""

import json
import signal
import time

import pytest

RUN = """
import json, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
folder.mkdir(parents=True, exist_ok=True)
tries = folder / "tries"
tries.write_text(tries.read_text() + "." if tries.exists() else ".")
if "--wait" in sys.argv and len(tries.read_text()) == 1:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    (folder / "ready").write_text("")
    time.sleep(60)
if "--fail" in sys.argv:
    sys.exit(2)
if "--diverge" in sys.argv:
    (folder / "diverged").write_text("no longer finite")
    sys.exit(1)
name = "policy" if "--policy" in sys.argv else "elite"
(folder / "score.json").write_text(json.dumps({name: {"mean": 1.5}}))
for way in ("dense", "gst"):
    (folder / way / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / way / "config.json").write_text(json.dumps({"provenance": {"date": "2026", "revision": way}}))
    (folder / way / "metrics.jsonl").write_text(json.dumps({"update": 1}) + chr(10))
(folder / "large.json").write_text(" " * 1_000_001)
rows = [{"generation": i + 1, "seconds": 5.0 * i} for i in range(1_100)]
(folder / "metrics.jsonl").write_text("".join(json.dumps(row) + chr(10) for row in rows))
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """The call of a study of made-up commands, by their flags."""
    monkeypatch.setattr("os.nice", lambda step: None)  # this process goes on
    (tmp_path / "run.py").write_text(RUN)

    def of(*flags):
        lines = [
            f"GA (a: b),T-v5,{i},9 frames,,score.json:elite:mean,{tmp_path}/run.py {f},{'in-sample' * (f == '--note')}"
            for i, f in enumerate(flags)
        ]
        wanted = tmp_path / "wanted.csv"
        wanted.write_text("\n".join(["method,task,seeds,budget,protocol,score,command,note", *lines]) + "\n")
        places = ("--root", tmp_path / "runs", "--results", tmp_path / "results", "--wanted", wanted)
        return ("study.py", *places)

    return of


@pytest.mark.slow
def test_results_are_kept_once_and_failures_named(script, study, tmp_path):
    out, err = script(*study("--fail", "", "--policy"), code=1)
    assert out.count("study: ") == 3
    assert "seed-0: exit code 2" in err
    assert err.strip().endswith("seed-2: there is no score at score.json:elite:mean ('elite')")
    kept = tmp_path / "results" / "ga-a-b" / "t-v5-9-frames" / "seed-1"
    assert sorted(path.name for path in kept.iterdir()) == ["dense", "gst", "metrics.jsonl", "run.json", "score.json"]
    for way in ("dense", "gst"):  # configs and curves of a script that makes several runs
        assert sorted(path.name for path in (kept / way).iterdir()) == ["config.json", "metrics.jsonl"]
    run = json.loads((kept / "run.json").read_text())
    assert run["method"] == "GA (a: b)"
    assert run["seconds"] > 0
    assert {"hardware", "commit", "date", "command", "score"} <= set(run)
    assert "note" not in run
    generations = [json.loads(line)["generation"] for line in (kept / "metrics.jsonl").read_text().splitlines()]
    assert generations == list(range(2, 1_101, 3))  # thinned to 500 rows at most, the last one kept
    out, _ = script(*study("--note", ""))
    assert json.loads((kept.parent / "seed-0" / "run.json").read_text())["note"] == "in-sample"
    assert out.count("study: ") == 1  # only what had failed
    out, err = script(*study("", "--other"), code=1)
    assert "study: " not in out
    assert "seed-1 holds a run of another command, " in err


@pytest.mark.slow
def test_a_run_that_diverged_is_kept_as_one(script, study, load, tmp_path):
    """Trained again from other episodes until it does not, it would be a selection."""
    _, err = script(*study("--diverge", ""))
    assert not err
    kept = tmp_path / "results" / "ga-a-b" / "t-v5-9-frames" / "seed-0"
    description = json.loads((kept / "run.json").read_text())
    table = load("results_table")
    run = {**description, "folder": kept}
    assert table.seeds_of(run, run["score"]) == [None]
    assert table.row_of([run], [])["score"] == "diverged"
    assert table.human_normalized(run) == []
    seconds = json.loads((kept.parent / "seed-1" / "run.json").read_text())["seconds"]
    assert seconds == 5.0 * 1_099  # as its rows say, which is more than this call took


def test_lines_are_chosen_by_words_in_any_column(load):
    chosen = load("study").chosen
    lines = [{"method": "GA", "command": "a.py --game Pong"}, {"method": "A3C", "command": "b.py --game Pong"}]
    assert chosen(lines, ()) == lines
    assert chosen(lines, ("A3C", "Pong")) == lines[1:]
    with pytest.raises(ValueError, match="--only 'method': no line of the list has that; leave it out"):
        chosen(lines, ("method",))  # the name of a column is in none


def test_the_commits_of_a_run_are_those_it_began_and_ended_with(load, tmp_path):
    commits = load("study").commits

    def begun(place, revision, date):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        config = {"provenance": {"revision": revision, "date": date}}
        (tmp_path / place / "config.json").write_text(json.dumps(config))

    assert commits(tmp_path, "abcdef012345") == "abcdef0"
    begun(".", "abcdef012345", "2026-11-22")
    assert commits(tmp_path, "abcdef012345") == "abcdef0"
    assert commits(tmp_path, "123456789012-dirty") == "abcdef0 to 1234567-dirty"
    begun(".", "abcdef012345-dirty", "2026-11-22")
    assert commits(tmp_path, "abcdef012345") == "abcdef0-dirty to abcdef0"
    begun(".", None, "2026-11-22")
    assert commits(tmp_path, None) == "not noted"
    begun("b", "bbbbbbbbbbbb", "2026-11-24")  # runs in directories below
    begun("a", "aaaaaaaaaaaa", "2026-11-23")
    (tmp_path / "config.json").unlink()
    assert commits(tmp_path, "bbbbbbbbbbbb") == "aaaaaaa to bbbbbbb"


@pytest.mark.slow
def test_a_signal_stops_the_study_and_it_goes_on_later(script, start, study, tmp_path):
    process = start(*study("--wait", ""))
    run_dir = tmp_path / "runs" / "ga-a-b" / "t-v5-9-frames" / "seed-0"
    while not (run_dir / "ready").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "the same command goes on" in out
    assert not (tmp_path / "results").exists()  # nor was the next run begun
    out, _ = script(*study("--wait", ""))
    assert (run_dir / "tries").read_text() == ".."
    assert len(list((tmp_path / "results").rglob("run.json"))) == 2
