"""One process of a run, for the tests: `process.py SETTINGS`, settings as JSON.

It learns a few iterations, and writes the parameters of the policy and the last row of metrics.
"""

import json
import sys
from typing import Any

import jax
import numpy as np
import probes as probe
from flax import linen as nn
from flax.serialization import to_state_dict

import volvox as vx


def algorithm(kind: str, num_envs: int, groups: int, **options: Any) -> vx.Algorithm:
    """A learner on a pure-JAX environment."""
    env = probe.corridor(num_envs=num_envs, groups=groups)
    if kind == "pqn":
        network: Any = vx.networks.MLP(2, (8,), layer_norm=True)
        changes: Any = {"num_minibatches": 1, "rounds_per_iteration": 3, "epsilon": 0.3}
        return vx.learn(vx.PQN(segment_length=8, **changes), network, env, **options)
    if kind == "a3c":
        settings: Any = vx.A3C(segment_length=5, learning_rate=0.01, updates_per_iteration=5)
    elif kind == "ppo":
        changes = {"kl_stop": 0.02, "normalize_observations": True, "normalize_rewards": True, "lag": 0}
        settings = vx.PPO(segment_length=8, num_minibatches=1, rounds_per_iteration=3, **changes)
    else:
        changes = {"batch_size": 16, "random_timesteps": 32, "replay_size": 256, "timesteps_per_iteration": 64}
        settings = vx.TD3(learning_rate=3e-3, normalize_observations=True, **changes)
        env = probe.target(num_envs=num_envs, groups=groups)
        actor, critic = vx.networks.MLP(2, (8,), activation=nn.relu), vx.networks.QNetwork((8,))
        return vx.learn(settings, vx.networks.ActorAndCritic(actor, critic), env, **options)
    return vx.learn(settings, vx.networks.ActorCritic(2, vx.networks.MLP(8, (8,))), env, **options)


def learned(kind: str, num_envs: int, groups: int, steps: int, **options: Any) -> tuple[Any, dict[str, float]]:
    """Returns the variables of all learners as one array, and the last row; checks that the state can be restored."""
    made = algorithm(kind, num_envs, groups, **options)
    state, row = made.init(0), {}
    for _ in range(steps):
        state, row = made.step(state)
    restored = made.restore(to_state_dict(made.save(state)))  # nested dictionaries, like a checkpoint
    variables, again = ([latest(x) for latest in made.learners] for x in (state, restored))
    made.close()
    jax.tree.map(np.testing.assert_array_equal, restored.learning, state.learning)
    jax.tree.map(np.testing.assert_array_equal, again, variables)
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(variables)]), row


def main(settings: dict[str, Any]) -> None:
    """Learns, or trains in a run directory."""
    vx.distributed.initialize(*settings["join"])
    if "run_dir" in settings:
        made, options = algorithm(*settings["algorithm"]), {"progress": False, "loggers": ()}
        run = vx.train(made, steps=settings["steps"], run_dir=settings["run_dir"], **options)
        sys.exit(run.exit_code)
    for name, (case, options) in settings["cases"].items():
        variables, row = learned(*case, **options)
        np.savez(f"{settings['out']}-{name}.npz", variables=variables, row=json.dumps(row))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
