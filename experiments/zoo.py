"""Makes the agents of `volvox.zoo` from committed lineages, and by short training.

    python experiments/zoo.py --only frostbite-ga cartpole-ppo

Writes to `src/volvox/runs/agents`. Training on other hardware gives other bits.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import maze_novelty
import tyro
from flax import linen as nn
from jax.flatten_util import ravel_pytree
from launch import exit_code

import volvox as vx
from volvox.envs import maze as hard_maze
from volvox.networks import MLP, ActorAndCritic, CategoricalMLP
from volvox.sparsity import GroupSparse

ROOT = Path(__file__).parent
AGENTS = ROOT.parent / "src/volvox/runs/agents"
LINEAGES = {
    "amidar-ga": "ga-low-rank-noise/amidar-v5-2.5-million-frames/seed-0",
    "assault-ga": "ga-low-rank-noise/assault-v5-2.5-million-frames/seed-0",
    "asterix-ga": "ga-low-rank-noise/asterix-v5-2.5-million-frames/seed-0",
    "frostbite-ga": "low_rank/ga_frostbite/low_rank",
    "kangaroo-ga": "ga-low-rank-noise/kangaroo-v5-2.5-million-frames/seed-0",
    "seaquest-ga": "ga-low-rank-noise/seaquest-v5-8-million-frames/seed-0",
    "zaxxon-ga": "ga-low-rank-noise/zaxxon-v5-2.5-million-frames/seed-0",
}
"""Run directories under `experiments/results`."""


def committed(directory: Path) -> tuple[vx.Run, dict[str, str]]:
    """Returns a committed run, and how it was trained."""
    made = json.loads((directory / "run.json").read_text())
    origin = {"command": f"python experiments/{made['command']}", "revision": made["commit"], "date": made["date"]}
    return vx.load(directory), origin


def learn(settings: Any, network: Any, env: vx.Env, timesteps: int, *, num_learners: int = 4) -> vx.Run:
    """Returns the best of several learners."""
    algorithm = vx.learn(settings, network, env, num_learners=num_learners, evaluate_every=timesteps // 10)
    return vx.train(algorithm, max_timesteps=timesteps)


def cartpole(settings: Any, network: Any) -> Callable[[], vx.Run]:
    return lambda: learn(settings, network, vx.envs.cartpole(num_envs=8), 400_000)


def pendulum(settings: Any, *, gaussian: bool) -> Callable[[], vx.Run]:
    network = ActorAndCritic.mlp(1, (64, 64), gaussian=gaussian)
    settings = dataclasses.replace(settings, learning_rate=1e-3, discount=0.98, random_timesteps=1_000, batch_size=128)
    return lambda: learn(settings, network, vx.envs.envpool("Pendulum-v1", num_envs=1), 20_000)


def mujoco(
    task: str, learning_rate: float, timesteps: int = 150_000, gst: GroupSparse | None = None
) -> Callable[[], vx.Run]:
    def train() -> vx.Run:
        env = vx.envs.mujoco(task, num_envs=2, threads=1)
        networks = ActorAndCritic.mlp(env.spec.num_outputs, (128, 128))
        settings = vx.TD3(learning_rate=learning_rate, batch_size=128, random_timesteps=10_000, replay_size=200_000)
        if gst is not None:
            networks = ActorAndCritic(gst.network(networks.actor), gst.network(networks.critic))
            settings = dataclasses.replace(settings, optimizer=gst.optimizer(settings.optimizer))
        return learn(settings, networks, env, timesteps, num_learners=2)

    return train


def maze() -> vx.Run:
    """Novelty search until its elite is robust: 64 copies with weights changed by 0.001% all reach the goal.

    Collisions amplify differences, so the rounding of another compiler decides where most elites end.
    """
    settings = maze_novelty.Settings()
    algorithm = maze_novelty.make_algorithm(settings, "novelty")
    policy = algorithm.policy

    @jax.jit
    def robust(variables: Any) -> jax.Array:
        flat, unravel = ravel_pytree(variables)

        def distance(noise: jax.Array) -> jax.Array:
            changed = unravel(flat * (1 + 1e-5 * noise))

            def move(state: hard_maze.MazeState, _: None) -> tuple[hard_maze.MazeState, None]:
                output, _ = policy.apply(changed, hard_maze.observe(state)[None], policy.initial_state(1))
                return hard_maze.step(state, policy.mode(output)[0])[0], None

            state, _ = jax.lax.scan(move, hard_maze.start(), None, hard_maze.STEPS)
            return jnp.linalg.norm(state.position - hard_maze.GOAL)

        noise = jax.random.normal(jax.random.key(0), (64, *flat.shape))
        return (jax.vmap(distance)(noise) < maze_novelty.REACHED).all()

    options = {"steps": settings.generations, "on_step": lambda run: robust(run.variables())}
    return vx.train(algorithm, seed=6, **options)  # no elite of seed 4 was robust


TRAINED: dict[str, Callable[[], vx.Run]] = {
    "cartpole-a3c": cartpole(vx.A3C(), CategoricalMLP(2, (64, 64))),
    "cartpole-ppo": cartpole(vx.PPO(num_minibatches=4, value_clip=0.2), CategoricalMLP(2, (64, 64))),
    "cartpole-pqn": cartpole(vx.PQN(), MLP(2, (64, 64), nn.relu, layer_norm=True)),
    "halfcheetah-td3": mujoco("HalfCheetah", 1e-3),
    "halfcheetah-td3-group-sparse": mujoco("HalfCheetah", 1e-3, gst=GroupSparse(final_sparsity=0.875)),
    "hopper-td3": mujoco("Hopper", 3e-4, 300_000),
    "hopper-td3-group-sparse": mujoco("Hopper", 3e-4, gst=GroupSparse(final_sparsity=0.875)),
    "maze-novelty": maze,
    "pendulum-sac": pendulum(vx.SAC(), gaussian=True),
    "pendulum-td3": pendulum(vx.TD3(), gaussian=False),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The agents of the zoo.

    Attributes:
      only: names of agents; default: all.
      episodes: episodes of a score.
    """

    only: tuple[str, ...] = ()
    episodes: int = 100


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    if unknown := set(settings.only) - {*LINEAGES, *TRAINED}:
        raise ValueError(f"--only {min(unknown)}: choose from {', '.join((*LINEAGES, *TRAINED))}")
    for name in settings.only or (*LINEAGES, *TRAINED):
        run, origin = (TRAINED[name](), None) if name in TRAINED else committed(ROOT / "results" / LINEAGES[name])
        path = run.publish(AGENTS / name, origin=origin, num_episodes=settings.episodes)
        card = vx.zoo.card(path)
        print(f"{name}: {card['mean']:.1f} [{card['low']}, {card['high']}], {path.stat().st_size} bytes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
