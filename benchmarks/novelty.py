"""Time to compute novelty: the mean distance of a population's behaviours to their nearest in a full archive.

    python benchmarks/novelty.py --json

Beside it, in turns, the same written plainly: all distances, and `jax.lax.top_k` of them.
"""

import dataclasses
import statistics
from typing import Annotated

import jax
import jax.numpy as jnp
import tyro
from parts import in_turns, machine, show

from volvox.evolution.novelty import novelty

Flag = tyro.conf.arg


@dataclasses.dataclass(frozen=True)
class Options:
    """Behaviours against an archive."""

    behaviors: int = 1_000
    size: Annotated[int, Flag(help="numbers in a behaviour")] = 128
    archive: Annotated[int, Flag(help="behaviours in the archive")] = 10_000
    neighbors: int = 10
    repeats: int = 15
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    keys = jax.random.split(jax.random.key(0))
    behaviors = jax.random.normal(keys[0], (options.behaviors, options.size))
    archive = jax.random.normal(keys[1], (options.archive, options.size))
    held = jnp.ones(options.archive, bool)

    @jax.jit
    def plain(behaviors, archive):
        squared = (behaviors**2).sum(1)[:, None] + (archive**2).sum(1) - 2 * behaviors @ archive.T
        return jnp.sqrt(-jax.lax.top_k(-squared, options.neighbors)[0]).mean(1)

    ours = jax.jit(novelty, static_argnums=3)
    calls = {
        "volvox": lambda: ours(behaviors, archive, held, options.neighbors),
        "plain": lambda: plain(behaviors, archive),
    }
    difference = float(jnp.abs(calls["volvox"]() - calls["plain"]()).max())
    if not difference < 1e-3:
        raise SystemExit(f"the two differ by {difference}; no speed is reported")
    times = in_turns(calls, options.repeats)
    median = {name: statistics.median(values) for name, values in times.items()}
    figures = {
        **{f"{name}_ms": value for name, value in median.items()},
        "volvox_ms_range": [min(times["volvox"]), max(times["volvox"])],
        "speedup": median["plain"] / median["volvox"],
        "max_difference": difference,
    }
    show(figures | {"settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
