"""Learns to play an Atari game by PPO (Schulman et al. 2017, arXiv 1707.06347).

The first word is a preset; flags change single settings of it, and --resume goes on:
    python experiments/atari_ppo.py cleanrl --game Breakout --run-dir runs/breakout
    python experiments/atari_ppo.py desktop --game Pong --run-dir runs/pong --score-episodes 30
"""

import dataclasses
import sys
from typing import Any, Literal

from flags import Atari, Learning, Run, annealed
from launch import launch

import volvox as vx


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """PPO on an Atari game.

    Attributes:
      network: nature: CleanRL's; small: GA3C's small network; lstm: 256 cells on the small one.
    """

    learner: vx.PPO
    env: Atari = Atari(game="Pong", num_envs=8)
    network: Literal["nature", "small", "lstm"] = "nature"
    learning: Learning = Learning()
    run: Run = Run(run_dir="runs/atari_ppo", frames=40_000_000, checkpoint_every=4)


SHORTER: Any = {"segment_length": 64, "num_epochs": 3, "learning_rate": 5e-4, "anneal_timesteps": 2_000_000}
DESKTOP = Settings(
    # From images as they are, the small network learns Pong far more slowly (docs/results/index.md).
    learner=dataclasses.replace(vx.PPO.atari(), normalize_observations=True, **SHORTER),
    env=Atari(game="Pong", num_envs=16),
    network="small",
    run=Run(run_dir="runs/atari_ppo", frames=8_000_000, checkpoint_every=4),
)
PRESETS = {
    "cleanrl": ("The constants and the network of CleanRL's script.", Settings(learner=vx.PPO.atari())),
    "desktop": ("For two cores: a small network, normalised images, 3 epochs, twice the rate, 8 M frames.", DESKTOP),
}


def make_algorithm(settings: Settings) -> tuple[vx.Algorithm, None]:
    """The algorithm, which frames end; every bad setting is refused here."""
    env = settings.env.make()
    annealed(settings.learner, settings.run, env, settings.learning.num_learners)
    torso = vx.networks.NatureTorso() if settings.network == "nature" else vx.networks.SmallTorso()
    kind = vx.networks.RecurrentActorCritic if settings.network == "lstm" else vx.networks.ActorCritic
    network = kind(env.spec.num_actions or 0, torso)
    return vx.learn(settings.learner, network, env, **vars(settings.learning)), None


if __name__ == "__main__":
    sys.exit(launch(make_algorithm, PRESETS, __doc__, sampled=True))
