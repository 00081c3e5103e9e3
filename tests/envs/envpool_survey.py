"""Tries every task of envpool's wheel, and writes what works to docs/reference/envpool_families.csv.

    python tests/envs/envpool_survey.py            # some minutes; another process tries them, because C++ may abort

Each task is made with two environments, which Python steps four times. What does not work is written with the reason.
"""

import argparse
import collections
import csv
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

from volvox import envs
from volvox.envs.envpool_tasks import load_envpool

TABLE = Path(__file__).parents[2] / "docs" / "reference" / "envpool_families.csv"
BATCH, SECONDS = 100, 300  # tasks of a process, and how long it may take


def families():
    """Names of tasks by family, such as `mujoco.dmc`."""
    found = collections.defaultdict(list)
    for task, (path, _, _) in load_envpool().registration.registry.specs.items():
        found[path.removeprefix("envpool.")].append(task)
    return dict(sorted(found.items()))


def tried(task):
    """What a task's actions and observations are like, after it was stepped; the reason, if it does not work."""
    try:
        env = envs.envpool(task, num_envs=2, threads=1)
        (group,) = env.make(0, host=True)
        state, rng, spec = group.init(), np.random.default_rng(0), env.spec
        for _ in range(4):
            state, _ = group.recv(state)
            if spec.continuous:
                low, high = (np.nan_to_num(b, neginf=-1, posinf=1) for b in (spec.action_low, spec.action_high))
                action = rng.uniform(low, high, (2, *spec.action.shape)).astype(np.float32)
            else:
                action = rng.integers(spec.num_choices or spec.num_actions, size=(2, *spec.action.shape))
            state = group.send(state, action)
        group.recv(state)
        group.close()
    except Exception as error:
        return {"works": False, "why": " ".join(str(error).replace(f"task {task!r}", "task").split())[:120]}
    kind = "continuous" if spec.continuous else "discrete" if spec.num_choices is None else "several discrete"
    seen = spec.observation_shape
    shape = "dict" if isinstance(seen, dict) else "image" if len(seen) == 3 else "vector" if seen else "number"
    return {"works": True, "actions": kind, "observations": shape}


def survey(tasks):
    """Tries tasks in processes of their own; a task at which one ends does not work."""
    left, results = list(tasks), {}
    while left:
        command = [sys.executable, str(Path(__file__).resolve()), "--tasks", *left[:BATCH]]
        try:
            with tempfile.TemporaryDirectory() as folder:  # VizDoom writes to the working directory
                done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=folder)
            told, why = done.stdout, f"the process ended with status {done.returncode}"
        except subprocess.TimeoutExpired as error:
            told, why = (error.stdout or b"").decode(), f"no answer within {SECONDS} seconds"
        results |= dict(json.loads(line) for line in told.splitlines() if line.startswith("["))
        done = [task for task in left[:BATCH] if task in results]
        if len(done) < len(left[:BATCH]):
            stopped = next(task for task in left[:BATCH] if task not in results)
            results[stopped] = {"works": False, "why": why}
        left = [task for task in left if task not in results]
    return results


def main(only):
    table = {}
    if TABLE.exists():
        with TABLE.open() as file:
            table = {row["family"]: row for row in csv.DictReader(file)}
    for family, tasks in families().items():
        if only and family not in only:
            continue
        results = survey(tasks)
        works = [result for result in results.values() if result["works"]]
        reasons = collections.Counter(result["why"] for result in results.values() if not result["works"])
        first = next((task for task in tasks if results[task]["works"]), "")
        row = {"family": family, "tasks": len(tasks), "work": len(works), "example": first}
        for column in ("actions", "observations"):
            row[column] = ", ".join(sorted({result[column] for result in works}))
        row["not supported"] = "; ".join(f"{count}: {why}" for why, count in reasons.most_common(3))
        print(row, flush=True)
        table[family] = row
        with TABLE.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
            writer.writeheader()
            writer.writerows(table[name] for name in sorted(table))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=[], help="try these, and print what comes of it")
    parser.add_argument(
        "--families", nargs="*", default=[], help="only these; the others stay in the table as they are"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for task in options.tasks:
        print(json.dumps([task, tried(task)]), flush=True)
    if not options.tasks:
        main(options.families)
