"""Whether 100 000 inputs hold: the property-based tests with many examples, in one run whose result is kept.

    python benchmarks/properties.py --out benchmarks/results/properties_cpu2_epyc.json

`tests/faults/test_properties.py` says what is promised of each input. With the defaults of `make test` each property
sees 100 inputs; here it sees `--examples`, and those that take a tenth of a second each a twentieth of that number.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import tyro

from volvox.report.files import write_file
from volvox.runs.provenance import provenance

ROOT = Path(__file__).parents[1]
TESTS = "tests/faults/test_properties.py"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """A run.

    Attributes:
      examples: Inputs of each property.
      out: File of the result.
    """

    examples: int = 10_000
    out: Path = Path("properties.json")


def main() -> int:
    options = tyro.cli(Options, description=__doc__)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", TESTS, "--hypothesis-show-statistics", "-p", "no:cacheprovider"]
    environment, began = {**os.environ, "VOLVOX_EXAMPLES": str(options.examples)}, time.perf_counter()
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    print(run.stdout[-3_000:])
    found = re.findall(r"::(\w+)(?:\[.*\])?:\n(.*?)(?=\n\n|\Z)", run.stdout, re.S)
    inputs = {name: sum(map(int, re.findall(r"(\d+) passing", text))) for name, text in found}
    result = {
        **provenance(),
        "held": run.returncode == 0,
        "inputs": sum(inputs.values()),
        "inputs_of_properties": inputs,
        "seconds": round(time.perf_counter() - began),
    }
    write_file(options.out, json.dumps(result, indent=1) + "\n")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
