"""A peer: advantage actor-critic in plain JAX and flax on envpool, with automatic gradients throughout.

    python benchmarks/peers/plain_jax_a2c.py --game Pong --num-envs 64

One synchronous pool stepped from Python, one compiled function that acts and one that learns a segment; the size of the
micro-batches is tuned before anything is timed.
"""

import argparse
import json
import os
import time
from functools import partial

import envpool
import jax
import jax.numpy as jnp
import numpy as np
import optax

from volvox.networks import GA3C


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--size", default="small")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--segment-length", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    n, length = options.num_envs, options.segment_length
    threads = len(os.sched_getaffinity(0))
    pool = envpool.make(f"{options.game}-v5", env_type="gymnasium", num_envs=n, num_threads=threads, seed=0)
    net = GA3C(int(pool.action_space.n), size=options.size)
    optimizer = optax.rmsprop(3e-4, decay=0.99, eps=0.1, initial_scale=1.0)

    def images(observation):
        return jnp.moveaxis(observation, -3, -1)  # envpool's images are channels first

    @jax.jit
    def act(params, observation, key):
        logits, _ = net.apply({"params": params}, images(observation))
        return jax.random.categorical(key, logits).astype(jnp.int32)

    def loss(params, batch):
        observation, action, returns, valid = batch
        logits, value = net.apply({"params": params}, images(observation))
        p = jax.nn.softmax(logits)
        log_p = jnp.log(p + 1e-6)
        advantage = returns - value
        chosen = jnp.take_along_axis(log_p, action[:, None], 1)[:, 0]
        each = -chosen * jax.lax.stop_gradient(advantage) + 0.01 * (p * log_p).sum(-1) + 0.5 * advantage**2
        return (each * valid).sum()

    @partial(jax.jit, static_argnames="micro_batch", donate_argnums=(0, 1))
    def learn(params, state, observations, actions, rewards, ends, valid, last, micro_batch):
        _, following = net.apply({"params": params}, images(last))

        def backwards(following, step):
            reward, end = step
            target = reward + 0.99 * (1 - end) * following
            return target, target

        _, returns = jax.lax.scan(backwards, following, (rewards, ends), reverse=True)
        batch = (observations, actions, returns, valid)
        batch = jax.tree.map(lambda x: x.reshape(-1, micro_batch, *x.shape[2:]), batch)
        # Unrolled: inside a loop XLA's gradients of convolutions are slower still.
        gradients = [jax.grad(loss)(params, jax.tree.map(lambda x, i=i: x[i], batch)) for i in range(len(batch[1]))]
        gradient = jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *gradients)
        changes, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, changes), state

    key = jax.random.key(0)
    seen, _ = pool.reset()
    params = net.init(key, images(seen[:1]))["params"]
    state = optimizer.init(params)
    observations = np.zeros((length, *seen.shape), np.uint8)
    actions = np.zeros((length, n), np.int32)
    rewards, ends, valid = (np.zeros((length, n), np.float32) for _ in range(3))

    best: tuple[float, int] | None = None
    for micro_batch in sorted({m for m in (32, 64, 160, n * length) if n * length % m == 0}):
        times = []
        for _ in range(3):
            zeros = (observations, actions, rewards, ends, valid + 1, seen)
            began = time.perf_counter()
            params, state = jax.block_until_ready(learn(params, state, *zeros, micro_batch))
            times.append(time.perf_counter() - began)
        best = min(filter(None, (best, (min(times[1:]), micro_batch))))
    assert best is not None
    micro_batch = best[1]

    dummy = np.zeros(n, bool)  # envpool discards the action after an end
    began, updates = time.perf_counter(), -3
    while updates < 1 or time.perf_counter() - began < options.seconds:
        if updates == 0:
            began = time.perf_counter()
        for t in range(length):
            key, draw = jax.random.split(key)
            observations[t] = seen
            actions[t] = act(params, seen, draw)
            seen, reward, terminated, truncated, _ = pool.step(actions[t])
            rewards[t] = np.clip(reward, -1, 1)
            valid[t] = ~dummy
            dummy = terminated | truncated
            ends[t] = dummy
        params, state = learn(params, state, observations, actions, rewards, ends, valid, seen, micro_batch)
        jax.block_until_ready(params)
        updates += 1
    rate = updates * n * length / (time.perf_counter() - began)
    print(json.dumps({"steps_per_s": rate, "micro_batch": micro_batch, "jax": jax.__version__}))


if __name__ == "__main__":
    main()
