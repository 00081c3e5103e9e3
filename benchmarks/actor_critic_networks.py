"""Rates of the small and the large networks, the large one with first stride 4, 3, 2 and 1: the paper's comparison.

    python benchmarks/actor_critic_networks.py --json --picture networks.png

GA3C (Babaeizadeh et al. 2017, arXiv 1611.06256) on this machine: predictions (steps), trainings (updates) and frames a
second, all of the same loop. One process a network, one after the other.
"""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro
from matplotlib.figure import Figure
from parts import machine

Flag = tyro.conf.arg
NETWORKS = (("small", 4), ("large", 4), ("large", 3), ("large", 2), ("large", 1))
COLUMNS = (
    "steps_per_s",
    "trainings_per_s",
    "frames_per_s",
    "train_steps_per_s",
    "inference_steps_per_s",
    "fraction_of_bound",
)


@dataclasses.dataclass(frozen=True)
class Options:
    """The networks of the paper."""

    game: str = "Pong"
    num_envs: int = 64
    seconds: Annotated[float, Flag(help="length of each measurement")] = 15.0
    peers: Annotated[bool, Flag(help="also measure PyTorch (which must be installed) and plain JAX")] = False
    picture: Annotated[str | None, Flag(help="where to draw it, a PNG")] = None
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def measure(options: Options, size: str, stride: int) -> dict[str, Any]:
    """What `actor_critic.py` prints for one network."""
    flags = {
        "game": options.game,
        "num-envs": options.num_envs,
        "seconds": options.seconds,
        "size": size,
        "first-stride": stride,
    }
    script = Path(__file__).with_name("actor_critic.py")
    command = [
        sys.executable,
        str(script),
        "--json",
        *(str(x) for pair in flags.items() for x in (f"--{pair[0]}", pair[1])),
    ]
    command += ["--peers"] if options.peers else []
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(printed.strip().splitlines()[-1])


def draw(figures: dict[str, dict[str, Any]], path: str) -> None:
    """Steps a second as bars: volvox, and the peers if measured."""
    bars = {"volvox": "steps_per_s", "PyTorch": "torch_steps_per_s", "plain JAX": "plain_jax_steps_per_s"}
    bars = {label: name for label, name in bars.items() if all(name in row for row in figures.values())}
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for i, (label, name) in enumerate(bars.items()):
        places = [n + (i - (len(bars) - 1) / 2) * 0.8 / len(bars) for n in range(len(figures))]
        axes.bar(places, [row[name] for row in figures.values()], 0.8 / len(bars), label=label)
    axes.set_xticks(range(len(figures)), list(figures))
    axes.set_ylabel("environment steps per second, learned from")
    axes.legend()
    figure.savefig(path, dpi=100)


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    figures = {f"{size}, stride {stride}": measure(options, size, stride) for size, stride in NETWORKS}
    if options.picture is not None:
        draw(figures, options.picture)
    if options.json:
        print(json.dumps({"networks": figures, **machine()}))
        return
    print(f"{'network':18}" + "".join(f"{name:>24}" for name in COLUMNS))
    for name, row in figures.items():
        print(f"{name:18}" + "".join(f"{row[column]:>24.2f}" for column in COLUMNS))


if __name__ == "__main__":
    main()
