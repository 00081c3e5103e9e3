"""Runs the missing rows of `wanted.csv` one after the other, at low priority, and keeps the small results.

    python experiments/study.py --root runs/study
    python experiments/study.py --root runs/study --only Frostbite "low-rank"

Each run has a directory `<root>/<method>/<task>-<budget>/seed-<seeds>`. A run is complete, and skipped, when there is a
`run.json` in its results. Ctrl-C, SIGTERM or a closed terminal saves the run in progress and stops; the same command
goes on with it.
Afterwards run `results_table.py`, and commit `results/` and README.md.
"""

import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tyro
from launch import exit_code
from launch import spent as spent_by
from results_table import HERE, RESULTS, WANTED, seeds_of, wanted
from scores import hardware_and_date

from volvox.report.files import DIVERGED, read_metrics, write_file
from volvox.runs.directory import revision

MAX_BYTES, MAX_ROWS = 1_000_000, 500
"""Of what is kept of a run: larger JSON files are left out, and rows of metrics thinned."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """A study.

    Attributes:
      root: Where the run directories are.
      results: Where the small results go.
      wanted: The list of runs.
      only: Words that a line of the list must contain, all of them, in any column; default: every line is run.
    """

    root: Path = Path("runs/study")
    results: Path = RESULTS
    wanted: Path = WANTED
    only: tuple[str, ...] = ()


class Child:
    """The run in progress, which SIGINT, SIGTERM and SIGHUP (a closed terminal) ask to save and stop.

    Attributes:
      signal: The first signal that asked to stop, or 0.
    """

    def __init__(self):
        self.signal = 0
        self._process: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                signal.signal(number, self._stop)

    def run(self, command: list[str]) -> int:
        """Runs a command and returns its exit code."""
        # In a session of its own, so that Ctrl-C reaches it once and through this process.
        self._process = subprocess.Popen(command, start_new_session=True)
        if self.signal:  # it came while the process was being started
            self._process.terminate()
        code = self._process.wait()
        self._process = None
        return code

    def _stop(self, number: int, frame: object) -> None:
        self.signal = self.signal or number
        if self._process is not None:
            self._process.terminate()


def place(line: dict[str, str]) -> Path:
    """Returns where a run is, below the root and below the results."""
    method, task = (re.sub(r"[^a-z0-9.]+", "-", line[name].lower()).strip("-") for name in ("method", "task"))
    size = re.sub(r"[^a-z0-9.]+", "-", line["budget"].lower())
    return Path(method, f"{task}-{size}", f"seed-{line['seeds']}")


def keep(run_dir: Path, folder: Path, description: dict[str, Any]) -> None:
    """Copies the small results of a finished run; `run.json`, which says that it is complete, comes last.

    Raises:
      FileNotFoundError, KeyError: There is no score where the description says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Of a script that makes several runs.
    below = [path.parent for path in run_dir.rglob("config.json") if path.parent != run_dir]
    for path in (*run_dir.glob("*.json"), *(directory / "config.json" for directory in below)):
        if path.stat().st_size <= MAX_BYTES:
            copy = folder / path.relative_to(run_dir)
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_file(copy, path.read_bytes())
    for directory in (run_dir, *below):
        if rows := read_metrics(directory / "metrics.jsonl"):
            every = -(-len(rows) // MAX_ROWS)
            text = "".join(json.dumps(row) + "\n" for row in rows[::-every][::-1])  # the last row included
            write_file(folder / directory.relative_to(run_dir) / "metrics.jsonl", text)
    seeds_of({"folder": folder}, description["score"])
    write_file(folder / "run.json", json.dumps(description, indent=1) + "\n")


def chosen(lines: list[dict[str, str]], words: tuple[str, ...]) -> list[dict[str, str]]:
    """Returns the lines that have all these words; ValueError if there is none."""
    found = [line for line in lines if all(any(word in value for value in line.values()) for word in words)]
    if not found:
        raise ValueError(f"--only {' '.join(map(repr, words))}: no line of the list has that; leave it out to run all.")
    return found


def commits(run_dir: Path, now: str | None) -> str:
    """Returns the commits that a run, or the runs below its directory, began with, and the one that ended it.

    Each is cut to seven characters, with "-dirty" where files were changed; "not noted" where there was no git.
    """
    configs = [json.loads(path.read_text()) for path in run_dir.rglob("config.json")]
    configs.sort(key=lambda config: config["provenance"]["date"])
    found = [*(config["provenance"]["revision"] for config in configs), now]
    short = [f"{name[:7]}{'-dirty' * name.endswith('-dirty')}" if name else "not noted" for name in found]
    return " to ".join(dict.fromkeys(short))


def spent(run_dir: Path, seconds: float) -> float:
    """Adds to the seconds that a run has taken, over all calls, and returns them; not less than its rows say."""
    path = run_dir / "seconds"
    run_dir.mkdir(parents=True, exist_ok=True)
    total = seconds + (float(path.read_text()) if path.exists() else 0.0)
    total = max(total, spent_by(read_metrics(run_dir / "metrics.jsonl")))  # a study that was killed has noted nothing
    write_file(path, f"{total:.1f}")
    return total


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    os.nice(19)
    child, failed = Child(), []
    for line in chosen(wanted(settings.wanted), settings.only):
        run_dir, folder = settings.root / place(line), settings.results / place(line)
        if (folder / "run.json").exists():
            if (done := json.loads((folder / "run.json").read_text())["command"]) != line["command"]:
                failed.append(f"{folder} holds a run of another command, {done}; change the budget, or remove it")
            continue
        print(f"study: {run_dir}: {line['command']}", flush=True)
        script, *flags = shlex.split(line["command"])
        began, now = time.monotonic(), revision()
        code = child.run([sys.executable, os.path.relpath(HERE / script), *flags, "--run-dir", str(run_dir)])
        seconds = spent(run_dir, time.monotonic() - began)
        if child.signal:
            print("study: stopped; the same command goes on", flush=True)
            return 128 + child.signal
        if code == 1 and (marker := next(run_dir.rglob(DIVERGED), None)) is not None:
            line = line | {"score": f"{DIVERGED}.json:score:mean"}
            text = json.dumps({"score": {"mean": None}, "said": marker.read_text()}, indent=1)
            write_file(run_dir / f"{DIVERGED}.json", text + "\n")
        elif code:
            failed.append(f"{run_dir}: exit code {code}")
            continue
        described = line | hardware_and_date() | {"commit": commits(run_dir, now), "seconds": seconds}
        if not line.get("note"):
            described.pop("note", None)
        try:
            keep(run_dir, folder, described)
        except (KeyError, FileNotFoundError) as error:
            failed.append(f"{run_dir}: there is no score at {line['score']} ({error})")
    for failure in failed:
        print(f"study: failed: {failure}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
