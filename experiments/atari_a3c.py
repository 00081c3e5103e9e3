"""Learns to play an Atari game by actor-critic (GA3C, Babaeizadeh et al. 2017, arXiv 1611.06256).

The first word is a preset; flags change single settings of it, and --resume goes on:
    python experiments/atari_a3c.py modern --game Pong --run-dir runs/pong --resume --frames 40_000_000
"""

import dataclasses
import sys
from typing import Any, Literal

from flags import Atari, Learning, Run, annealed
from launch import launch

import volvox as vx


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Advantage actor-critic on an Atari game.

    Attributes:
      network: ga3c and ga3c-large as published; the others with a modern initialisation, lstm with 256 cells.
      first_stride: Stride of the first convolution, for ga3c and ga3c-large: 4, 3, 2 or 1.
    """

    learner: vx.A3C
    env: Atari = Atari(game="Pong")
    network: Literal["small", "nature", "lstm", "ga3c", "ga3c-large"] = "small"
    first_stride: int = 4
    learning: Learning = Learning()
    run: Run = Run(run_dir="runs/atari_a3c", frames=20_000_000, checkpoint_every=4)


PRESETS = {
    "modern": ("Longer segments, V-trace, averaged losses, clipped gradients, Adam.", Settings(learner=vx.A3C())),
    "ga3c": ("GA3C's constants and its small network.", Settings(learner=vx.A3C.ga3c(), network="ga3c")),
}


def make_network(settings: Settings, num_actions: int) -> Any:
    """The flax module of a name."""
    if settings.network.startswith("ga3c"):
        size = "large" if settings.network == "ga3c-large" else "small"
        return vx.networks.GA3C(num_actions, size=size, first_stride=settings.first_stride)
    if settings.first_stride != Settings.first_stride:
        raise ValueError(f"first_stride={settings.first_stride} has no effect with {settings.network}; leave it out.")
    torso = vx.networks.NatureTorso() if settings.network == "nature" else vx.networks.SmallTorso()
    kind = vx.networks.RecurrentActorCritic if settings.network == "lstm" else vx.networks.ActorCritic
    return kind(num_actions, torso)


def make_algorithm(settings: Settings) -> tuple[vx.Algorithm, None]:
    """The algorithm, which frames end; every bad setting is refused here."""
    env = settings.env.make()
    annealed(settings.learner, settings.run, env, settings.learning.num_learners)
    network = make_network(settings, env.spec.num_actions or 0)
    return vx.learn(settings.learner, network, env, **vars(settings.learning)), None


if __name__ == "__main__":
    sys.exit(launch(make_algorithm, PRESETS, __doc__, sampled=True))
