"""The authors' PQN on gymnax's CartPole, with their settings, beside `experiments/choose_settings.py pqn-cartpole`.

    pip install jax==0.10.2 flax==0.12.8 optax==0.2.8 gymnax==0.0.8 hydra-core omegaconf safetensors wandb
    git clone https://github.com/mttga/purejaxql && git -C purejaxql checkout 47af6d7
    PYTHONPATH=purejaxql python benchmarks/peers/purejaxql_pqn.py --reward-scale 0.1 --out purejaxql.json

The result has `timesteps` `[P]` and `evaluated` `[P, S]`: mean returns of all episodes that end in 500 timesteps of 128
environments with greedy actions, as the authors test. Short episodes count more often, so the figure is too low.
"""

import argparse
import json
from typing import Any

import jax
import numpy as np

if not hasattr(jax, "tree_map"):  # gymnax needs it, and newer JAX removed it
    jax.tree_map = jax.tree.map  # pyright: ignore[reportAttributeAccessIssue]

from purejaxql.pqn_gymnax import make_train  # pyright: ignore[reportMissingImports]

CONFIG: dict[str, Any] = {
    "ENV_NAME": "CartPole-v1",
    "ENV_KWARGS": {},
    "TOTAL_TIMESTEPS": 5e5,
    "TOTAL_TIMESTEPS_DECAY": 5e5,
    "NUM_ENVS": 32,
    "NUM_STEPS": 64,
    "EPS_START": 1.0,
    "EPS_FINISH": 0.2,
    "EPS_DECAY": 0.2,
    "NUM_MINIBATCHES": 16,
    "NUM_EPOCHS": 4,
    "NORM_INPUT": False,
    "HIDDEN_SIZE": 256,
    "NUM_LAYERS": 2,
    "NORM_TYPE": "layer_norm",
    "LR": 1e-4,
    "MAX_GRAD_NORM": 10,
    "LR_LINEAR_DECAY": True,
    "GAMMA": 0.99,
    "LAMBDA": 0.95,
    "TEST_DURING_TRAINING": True,
    "TEST_INTERVAL": 0.1,
    "TEST_NUM_ENVS": 128,
    "EPS_TEST": 0.0,
    "WANDB_MODE": "disabled",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reward-scale", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    train = jax.jit(jax.vmap(make_train({**CONFIG, "REW_SCALE": options.reward_scale})))
    metrics = train(jax.random.split(jax.random.PRNGKey(0), options.seeds))["metrics"]
    (name,) = (name for name in metrics if name.startswith("test") and name.endswith("returned_episode_returns"))
    timesteps, returns = np.asarray(metrics["env_step"])[0], np.asarray(metrics[name])
    points = [int(np.searchsorted(timesteps, 50_000 * i)) for i in range(1, 10)] + [len(timesteps) - 1]
    found = {"reward_scale": options.reward_scale, "timesteps": timesteps[points].tolist()}
    found |= {"evaluated": returns[:, points].T.round(2).tolist()}
    with open(options.out, "w") as file:
        file.write(json.dumps(found) + "\n")
    print(returns[:, points].mean(axis=0))


if __name__ == "__main__":
    main()
