"""rejax's PPO on gymnax's CartPole, with the settings of `many_learners.py`: timesteps a second of S learners by vmap.

pip install rejax "gymnax<1"
python benchmarks/peers/rejax_learners.py 64
"""

import json
import statistics
import sys
import time

import jax
from rejax import PPO

TIMESTEPS = 51_200  # of each learner


def main(num_learners: int) -> None:
    sizes = {"num_envs": 8, "num_steps": 128, "num_epochs": 4, "num_minibatches": 4, "learning_rate": 5e-4}
    agent = {"hidden_layer_sizes": (64, 64), "activation": "tanh"}
    eval_freq = {"total_timesteps": TIMESTEPS, "eval_freq": TIMESTEPS, "skip_initial_evaluation": True}
    algorithm = PPO.create(env="CartPole-v1", max_grad_norm=0.5, agent_kwargs=agent, **sizes, **eval_freq)
    algorithm = algorithm.replace(eval_callback=lambda algorithm, state, key: ())
    train = jax.jit(jax.vmap(algorithm.train))
    keys, seconds = jax.random.split(jax.random.key(0), num_learners), []
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready(train(keys))
        seconds.append(time.perf_counter() - began)
    run = statistics.median(seconds[1:])
    rate = num_learners * TIMESTEPS / run
    print(json.dumps({"timesteps_per_s_all": rate, "compilation_s_all": seconds[0] - run, "run_s": run}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
