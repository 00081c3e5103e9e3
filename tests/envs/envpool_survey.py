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

import jax
import numpy as np

from volvox import envs
from volvox.envs.envpool_tasks import load_envpool
from volvox.testing import actions_for, drive

TABLE = Path(__file__).parents[2] / "docs" / "reference" / "envpool_families.csv"
BATCH, SECONDS = 100, 600  # tasks of a process, and how long it may take


def families():
    """Names of tasks by family, such as `mujoco.dmc`."""
    found = collections.defaultdict(list)
    for task, (path, _, _) in load_envpool().registration.registry.specs.items():
        found[path.removeprefix("envpool.")].append(task)
    return dict(sorted(found.items()))


def tried(task, forms):
    """What a task's actions and observations are like, after it was stepped; the reason, if it does not work."""
    try:
        env = envs.envpool(task, num_envs=2, threads=1)
        spec, actions, played = env.spec, actions_for(env, 4), []
        for host in forms:
            (group,) = env.make(0, host=host)
            played.append(drive(group, actions))
            group.close()
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y, strict=True), played[0], played[-1])
        found = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), played[0].observation)
        assert found == spec.observation, f"observations are {found}"
        assert np.isfinite(played[0].reward).all(), "rewards are not finite"
    except Exception as error:
        return {"works": False, "why": " ".join(str(error).replace(f"task {task!r}", "task").split())[:120]}
    kind = "continuous" if spec.continuous else "discrete" if spec.num_choices is None else "several discrete"
    seen = spec.observation_shape
    shape = "dict" if isinstance(seen, dict) else "image" if len(seen) == 3 else "vector" if seen else "number"
    return {"works": True, "actions": kind, "observations": shape}


def survey(tasks, *flags):
    """Tries tasks in processes of their own; a task at which one ends does not work."""
    left, results = list(tasks), {}
    while left:
        command = [sys.executable, str(Path(__file__).resolve()), *flags, "--tasks", *left[:BATCH]]
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
    parser.add_argument("--both-forms", action="store_true", help="compare the compiled form with the other")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for task in options.tasks:
        print(json.dumps([task, tried(task, (True, False) if options.both_forms else (True,))]), flush=True)
    if not options.tasks:
        main(options.families)
