"""How long a user waits for the first row of metrics of PPO on CartPole, in configurations that differ in numbers.

    python benchmarks/first_row.py --json --configurations 64

A process trains the configurations in turn with no compiled programs (cold), and a second process does the same with
those of the first (warm).
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile

import tyro
from parts import machine, show

SCRIPT = """
import json, sys, time
import volvox as vx
seconds = []
for i in range(int(sys.argv[1])):
    began = time.perf_counter()
    numbers = {"learning_rate": 1e-3 * 0.97**i, "entropy_coefficient": 0.01 * 0.97**i, "clip": 0.2 * 0.99**i}
    settings = vx.PPO(**numbers, num_epochs=4, num_minibatches=4, lag=1, rounds_per_iteration=1)
    env = vx.envs.cartpole(num_envs=8, groups=2)
    run = vx.train(vx.learn(settings, vx.networks.CategoricalMLP(2), env), steps=1, progress=False)
    seconds.append(time.perf_counter() - began)
print(json.dumps(seconds))
"""


@dataclasses.dataclass(frozen=True)
class Options:
    """How to measure.

    Attributes:
      configurations: Number of configurations.
      json: Print one JSON object.
    """

    configurations: int = 64
    json: bool = False


def first_rows(configurations: int) -> dict[str, float]:
    """Seconds to the first row of the first, the second and all configurations, in a cold and in a warm process."""
    figures = {}
    with tempfile.TemporaryDirectory() as cache:
        cached = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        command = [sys.executable, "-c", SCRIPT, str(configurations)]
        for kind in ("cold", "warm"):
            done = subprocess.run(command, env={**os.environ, **cached}, capture_output=True, text=True, check=True)
            seconds = json.loads(done.stdout.splitlines()[-1])
            names = {"first": seconds[0], "second": seconds[1], "all": sum(seconds)}
            figures |= {f"{name}_{kind}_seconds": value for name, value in names.items()}
    return figures


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    show({**first_rows(options.configurations), "settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
