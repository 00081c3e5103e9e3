"""Makes the run directories of the present format, packed, in `tests/golden/format_3`; later versions must load them.

    python tests/golden/make_runs.py

They were made once, and are not made anew: a later format has a folder of its own beside them.
"""

import json
import shutil
import tempfile
from pathlib import Path

import jax
import numpy as np
import optax

import volvox as vx

FOLDER = Path(__file__).parent / "format_3"
TABLE = vx.population.Table(size=10_000)


def algorithms() -> dict[str, vx.Algorithm]:
    """A small algorithm of each kind, on environments that volvox has."""
    cartpole, maze = (make(num_envs=4, groups=2) for make in (vx.envs.cartpole, vx.envs.hard_maze))
    policy, actor = vx.networks.CategoricalMLP(2, (4,)), vx.networks.MLP(2, hidden=(4,))
    ga = vx.GA(population_size=8, num_parents=2, num_elite_candidates=2, num_validation_episodes=2)
    es = vx.ES(population_size=8, num_validation_episodes=2)
    a3c = vx.A3C(segment_length=3, learning_rate=0.01, optimizer=optax.adam, updates_per_iteration=3)
    ppo = vx.PPO(segment_length=4, num_minibatches=2, rounds_per_iteration=2, normalize_observations=True)
    td3 = vx.TD3(batch_size=8, random_timesteps=16, replay_size=64, timesteps_per_iteration=24)
    critic = vx.networks.QNetwork(hidden=(4,))
    return {
        "ga": vx.evolve(ga, vx.networks.MLP(2, hidden=()), cartpole, noise=TABLE, max_episode_steps=20),
        "es": vx.evolve(es, vx.networks.MLP(2, hidden=()), cartpole, noise=TABLE, max_episode_steps=20),
        "a3c": vx.learn(a3c, policy, cartpole),
        "ppo": vx.learn(ppo, policy, cartpole),
        "td3": vx.learn(td3, vx.networks.ActorAndCritic(actor, critic), maze),
        "primal-dual": vx.learn(vx.learners.PrimalDual(timesteps_per_iteration=16), policy, cartpole),
    }


def main() -> None:
    """Trains two steps of each; what is not needed to load it is left out."""
    FOLDER.mkdir()  # an error where it is there
    for name, algorithm in algorithms().items():
        with tempfile.TemporaryDirectory() as directory:
            run = vx.train(algorithm, seed=0, steps=2, run_dir=directory, checkpoint_every=2, loggers=())
            spec = algorithm.env.spec
            observations = np.random.default_rng(0).standard_normal((2, *spec.observation_shape)).astype(np.float32)
            output, _ = algorithm.policy.apply(run.variables(), observations, ())
            outputs = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(output)]).astype(float).tolist()
            (Path(directory) / "outputs.json").write_text(json.dumps(outputs) + "\n")
            shutil.rmtree(Path(directory) / "checkpoints" / "00000000")
            (Path(directory) / "learning_curve.png").unlink()
            shutil.make_archive(str(FOLDER / name), "zip", directory)
        algorithm.close()


if __name__ == "__main__":
    main()
