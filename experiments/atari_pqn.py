"""Learns to play an Atari game by PQN (Gallici et al. 2024, arXiv 2407.04811).

The first word is a preset; flags change single settings of it, and --resume goes on:
    python experiments/atari_pqn.py cleanrl --game Breakout --run-dir runs/breakout
    python experiments/atari_pqn.py desktop --game Pong --run-dir runs/pong --score-episodes 30

A longer run of the preset paper needs a longer schedule of epsilon:
    python experiments/atari_pqn.py paper --frames 200_000_000 --epsilon linear:1,0.001,5_000_000
"""

import dataclasses
import sys
from typing import Any, Literal

import optax
from flags import Atari, Learning, Run, annealed
from launch import launch

import volvox as vx


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """PQN on an Atari game.

    Attributes:
      network: nature: DQN's convolutions; small: GA3C's small network; lstm: 256 cells on the small one. Layers are
        normalised over their channels.
    """

    learner: vx.PQN
    env: Atari = Atari(game="Pong", num_envs=128)
    network: Literal["nature", "small", "lstm"] = "nature"
    learning: Learning = Learning()
    run: Run = Run(run_dir="runs/atari_pqn", frames=40_000_000, checkpoint_every=4)


EPSILON = optax.linear_schedule(1.0, 0.01, 200_000)
SHORTER: Any = {"segment_length": 32, "num_epochs": 2, "num_minibatches": 4, "anneal_timesteps": 2_000_000}
DESKTOP = Settings(
    learner=dataclasses.replace(vx.PQN.cleanrl(), normalize_observations=True, epsilon=EPSILON, **SHORTER),
    env=Atari(game="Pong", num_envs=16),
    network="small",
    run=Run(run_dir="runs/atari_pqn", frames=8_000_000, checkpoint_every=4),
)
PRESETS = {
    "paper": ("The constants of the authors' code, with 128 environments.", Settings(learner=vx.PQN.atari())),
    "cleanrl": (
        "The constants of CleanRL's script, with 8 environments.",
        Settings(learner=vx.PQN.cleanrl(), env=Atari(game="Pong", num_envs=8)),
    ),
    "gpu": (
        "As paper, for one GPU and 16 cores: 1 billion frames; epsilon falls in the first tenth; lag 1.",
        Settings(
            learner=dataclasses.replace(vx.PQN.atari(), lag=1, epsilon=optax.linear_schedule(1.0, 0.001, 25_000_000)),
            run=Run(run_dir="runs/atari_pqn", frames=1_000_000_000, checkpoint_every=100),
        ),
    ),
    "desktop": ("For two cores: a small network, normalised images, short segments, 8 M frames.", DESKTOP),
}


def make_algorithm(settings: Settings) -> tuple[vx.Algorithm, None]:
    """The algorithm, which frames end; every bad setting is refused here."""
    env = settings.env.make()
    annealed(settings.learner, settings.run, env, settings.learning.num_learners)
    torso = vx.networks.NatureTorso if settings.network == "nature" else vx.networks.SmallTorso
    kind = vx.networks.RecurrentQValues if settings.network == "lstm" else vx.networks.QValues
    network = kind(env.spec.num_actions or 0, torso(layer_norm=True))
    return vx.learn(settings.learner, network, env, **vars(settings.learning)), None


if __name__ == "__main__":
    sys.exit(launch(make_algorithm, PRESETS, __doc__, sampled=True))
