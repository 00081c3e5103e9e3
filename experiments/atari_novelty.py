"""Novelty search on an Atari game (Conti et al. 2018, arXiv 1712.06560): parents play unlike the others.

    python experiments/atari_novelty.py nsr-es --game Frostbite --run-dir runs/frostbite_novelty
    python experiments/atari_novelty.py ga --game Frostbite --run-dir runs/frostbite_ns

Episodes are compared by the emulator's memory, 128 bytes, sampled through the episode. With `--log`, each generation's
behaviours are kept, and `volvox.report.population.cloud` draws them.
"""

import dataclasses
import sys

from flags import Atari, Population, Run
from launch import launch

import volvox as vx


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Novelty search on an Atari game."""

    strategy: vx.ES | vx.GA
    env: Atari = Atari()
    population: Population = Population(network="vbn")
    run: Run = Run(run_dir="runs/atari_novelty", minutes=60)


_KINDS = {
    "ns-es": ("NS-ES: novelty alone", vx.Novelty.ns_es),
    "nsr-es": ("NSR-ES: novelty and returns evenly", vx.Novelty.nsr_es),
    "nsra-es": ("NSRA-ES: more novelty where returns stagnate", vx.Novelty.nsra_es),
}
_PAPER = Population(network="vbn", max_episode_steps="5000", test_max_episode_steps=100_000)


def _presets() -> dict[str, tuple[str, Settings]]:
    """Each strategy as two cores can run it in an hour, and with the published population."""
    behavior = vx.loop.Trajectory(extra="ram", sample_size=128, every=50, length=12)
    found = {}
    for name, (about, kind) in _KINDS.items():
        strategy = vx.ES(population_size=128, num_bases=3, num_validation_episodes=8, objective=kind(behavior=behavior))
        paper = dataclasses.replace(strategy, population_size=5_000, num_validation_episodes=30, num_test_episodes=200)
        found[name] = (f"{about}; an hour on two cores.", Settings(strategy=strategy))
        about = f"{about}; the population of Conti et al. 2018."
        run, env = Run(run_dir="runs/atari_novelty"), Atari(num_envs=128)
        found[f"{name}-paper"] = (about, Settings(strategy=paper, population=_PAPER, env=env, run=run))
    return found


PRESETS = _presets()


def make_algorithm(settings: Settings) -> tuple[vx.Algorithm, int]:
    """The algorithm, and its generations; every bad setting is refused here."""
    return settings.population.evolve(settings.strategy, settings.env.make())


if __name__ == "__main__":
    sys.exit(launch(make_algorithm, PRESETS, __doc__))
