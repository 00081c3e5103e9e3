"""A peer: PPO of rejax in environments of gymnax.

    python -m venv rejaxenv && rejaxenv/bin/pip install rejax==0.1.3 gymnax==0.0.9
    rejaxenv/bin/python benchmarks/peers/rejax_ppo.py --task CartPole-v1
    python benchmarks/jax_envs.py --python rejaxenv/bin/python

Iterations run in one compiled loop whose state is donated, without rejax's evaluations. It expects the five results of
`step` of gymnax before 1.0.
"""

import argparse
import json
import time

import jax
import rejax


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=2_048)
    parser.add_argument("--segment-length", type=int, default=32)
    parser.add_argument("--num-epochs", type=int, default=4)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    ppo = rejax.get_algo("ppo").create(
        env=options.task,
        num_envs=options.num_envs,
        num_steps=options.segment_length,
        num_epochs=options.num_epochs,
        num_minibatches=options.num_minibatches,
        learning_rate=2.5e-4,
        max_grad_norm=0.5,
        agent_kwargs={"activation": "tanh"},
    )
    iterations = 4
    run = jax.jit(
        lambda ppo, state: jax.lax.fori_loop(0, iterations, lambda _, state: ppo.train_iteration(state), state),
        donate_argnums=1,
    )
    state = jax.block_until_ready(run(ppo, ppo.init_state(jax.random.key(0))))
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < options.seconds:
        state = jax.block_until_ready(run(ppo, state))
        calls += 1
    rate = calls * iterations * options.num_envs * options.segment_length / (time.perf_counter() - began)
    print(json.dumps({"steps_per_s": rate, "jax": jax.__version__}))


if __name__ == "__main__":
    main()
