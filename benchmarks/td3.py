"""How fast TD3 learns: updates a second against their matmuls alone, and the whole loop against the parts in turn.

    python benchmarks/td3.py --json
    python benchmarks/td3.py --json --peers

- updates: the learner's updates in a compiled loop, batches drawn from the replay of a run;
- floor: the matmuls of such an update, forward and backward, and nothing else;
- loop: steps a second of the algorithm with one update a step, over that of its parts in turn;
- ways: steps a second of the whole loop with sparse weights, in turns with dense ones, and what each stores;
- torch (with `--peers`): the same update in PyTorch, in a process of its own.
"""

import dataclasses
import itertools
import json
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
import tyro
from flax import linen as nn
from parts import machine, show

import volvox as vx
from volvox.networks.off_policy import actor_and_critics
from volvox.off_policy import schedule as schedules
from volvox.off_policy.learner import LossSettings, learner
from volvox.off_policy.schedule import Exploration, Sampling

Flag = tyro.conf.arg


@dataclasses.dataclass(frozen=True)
class Options:
    """TD3 with the reference settings."""

    task: str = "HalfCheetah"
    num_envs: int = 4
    groups: int = 2
    width: Annotated[int, Flag(help="of the two hidden layers")] = 256
    batch_size: int = 256
    iterations: Annotated[
        int, Flag(help="of 1 000 steps, measured; every tenth has a stopwatch, which is left out")
    ] = 6
    repeats: int = 7
    peers: Annotated[bool, Flag(help="also measure PyTorch, which must be installed")] = False
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def floor_updates_per_s(options: Options, observation: int, action: int) -> float:
    """The matmuls of an update in a compiled loop: the same networks without biases, activations, noise or Adam."""
    w, keys = options.width, iter(jax.random.split(jax.random.key(0), 64))

    def kernels(*widths: int) -> list[jax.Array]:
        return [0.05 * jax.random.normal(next(keys), pair) for pair in itertools.pairwise(widths)]

    def through(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            x = x @ kernel
        return x

    def both(critics, x: jax.Array) -> jax.Array:
        return jnp.stack([through(critic, x) for critic in critics])

    networks = {
        "actor": kernels(observation, w, w, action),
        "critics": [kernels(observation + action, w, w, 1) for _ in range(2)],
    }
    targets = jax.tree.map(jnp.copy, networks)
    seen = jax.random.normal(next(keys), (options.batch_size, observation))
    taken = jax.random.normal(next(keys), (options.batch_size, action))

    def critic_loss(critics):
        following = through(targets["actor"], seen)
        wanted = both(targets["critics"], jnp.concatenate([seen, following], 1)).min(0)
        return ((both(critics, jnp.concatenate([seen, taken], 1)) - wanted) ** 2).sum()

    def actor_loss(actor, critics):
        return (through(critics[0], jnp.concatenate([seen, through(actor, seen)], 1)) ** 2).sum()

    def descended(params, gradient):
        return jax.tree.map(lambda x, g: x - 1e-12 * g, params, gradient)

    @jax.jit
    def run(networks, times):
        def update(i, networks):
            critics = descended(networks["critics"], jax.grad(critic_loss)(networks["critics"]))

            def delayed(networks):
                gradient = jax.grad(actor_loss)(networks["actor"], networks["critics"])
                return {**networks, "actor": descended(networks["actor"], gradient)}

            return jax.lax.cond(i % 2 == 0, delayed, lambda x: x, {**networks, "critics": critics})

        return jax.lax.fori_loop(0, times, update, networks)

    return 200 / seconds_of(lambda: run(networks, 200), options.repeats)


def seconds_of(call: Any, repeats: int) -> float:
    """Median of several calls, after one that compiles."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def make(options: Options, way: str = "dense") -> vx.types.Algorithm:
    """The algorithm; sparse ones have an eighth of the large layer's weights after 1 000 updates."""
    env = vx.envs.mujoco(options.task, num_envs=options.num_envs, groups=options.groups)
    (action,) = env.spec.action_shape or (0,)
    hidden = (options.width, options.width)
    settings: dict[str, Any] = {
        **{"batch_size": options.batch_size, "random_steps": 1_000, "replay_size": 100_000},
        "steps_per_iteration": 1_000,
    }
    td3 = vx.off_policy.td3
    if way == "group-sparse":
        td3 = partial(vx.sparsity.group_sparse(block=4, final_sparsity=0.875, end=1_000, every=500), td3)
    elif way != "dense":
        rule = {
            "magnitude": vx.sparsity.magnitude(vx.sparsity.cubic(final_sparsity=0.875, begin=0, end=1_000), every=500),
            "dynamic": vx.sparsity.dynamic(sparsity=0.875, every=500),
        }[way]
        settings["optimizer"] = vx.sparsity.sparse(optax.adam(3e-4), rule, min_side=32)
    return td3(
        vx.networks.MLP(action, hidden=hidden, activation=nn.relu), vx.networks.QNetwork(hidden), env, **settings
    )


def ways(options: Options) -> dict[str, dict[str, float]]:
    """Steps a second of the whole loop, dense and sparse in turns, and the share of weights that need not be stored."""
    made = {way: make(options, way) for way in ("dense", "magnitude", "dynamic", "group-sparse")}
    states, rates, compression = {}, {way: [] for way in made}, {}
    for way, algorithm in made.items():
        state, _ = algorithm.step(algorithm.init(jax.random.key(0)))  # random actions, and compilation
        states[way], _ = algorithm.step(state)  # the stopwatch goes along
    for _ in range(options.iterations):
        for way, algorithm in made.items():
            began, before = time.perf_counter(), states[way].steps
            states[way], metrics = algorithm.step(states[way])
            if "share_learning" not in metrics:
                rates[way].append(int(states[way].steps - before) / (time.perf_counter() - began))
            compression[way] = metrics.get("compression", 0.0)
    for algorithm in made.values():
        algorithm.close()
    middle = {way: statistics.median(found) for way, found in rates.items()}
    return {
        way: {
            "loop_steps_per_s": middle[way],
            "lowest": min(rates[way]),
            "highest": max(rates[way]),
            "time_over_dense": middle["dense"] / middle[way],
            "compression": compression[way],
        }
        for way in made
    }


def measure(options: Options) -> dict[str, Any]:
    """Everything; JSON values."""
    algorithm = make(options)
    state = algorithm.init(jax.random.key(0))
    state, _ = algorithm.step(state)  # random actions, and compilation
    state, parts = algorithm.step(state)  # the stopwatch goes along
    rates = []
    for _ in range(options.iterations):
        began, before = time.perf_counter(), state.steps
        state, metrics = algorithm.step(state)
        if "share_learning" not in metrics:  # no stopwatch went along
            rates.append(int(state.steps - before) / (time.perf_counter() - began))
    algorithm.close()
    env = algorithm.env
    (observation,), (action,) = env.spec.observation_shape, env.spec.action_shape or (0,)
    floor = floor_updates_per_s(options, observation, action)
    updates = updates_per_s(options, algorithm, state)
    loop = statistics.median(rates)
    # The stopwatch's shares are of the time a step takes when its parts take turns; learning's is one update.
    per_step = 1 / updates / parts["share_learning"]
    figures = {
        "updates_per_s": updates,
        "floor_updates_per_s": floor,
        "fraction_of_floor": updates / floor,
        "loop_steps_per_s": loop,
        "bound_steps_per_s": 1 / per_step,
        "loop_fraction_of_bound": loop * per_step,
        **{name: parts[name] for name in ("share_emulators", "share_inference", "share_learning")},
        "ways": ways(options),
    }
    if options.peers:
        script = Path(__file__).parent / "peers" / "torch_td3.py"
        flags = {"observation": observation, "action": action, "width": options.width, "batch-size": options.batch_size}
        command = [sys.executable, str(script), *(x for key, value in flags.items() for x in (f"--{key}", str(value)))]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        figures["torch_updates_per_s"] = json.loads(printed)["updates_per_s"]
        figures["speedup_vs_torch"] = updates / figures["torch_updates_per_s"]
    return figures


def updates_per_s(options: Options, algorithm: vx.types.Algorithm, state: Any) -> float:
    """The loop's `work` alone, group after group, on the replays of the run: batches are drawn, and learned from."""
    env = algorithm.env
    (action,) = env.spec.action_shape or (0,)
    hidden = (options.width, options.width)
    network = actor_and_critics(
        vx.networks.MLP(action, hidden=hidden, activation=nn.relu), vx.networks.QNetwork(hidden), env.spec
    )
    learn = learner(
        network,
        settings=LossSettings(jnp.array([0.2]), 0.5, 2, 0.005),
        optimizer=optax.adam(1.0),
        learning_rate=jnp.array([3e-4]),
        observation_shape=env.spec.observation_shape,
    )
    updates = env.num_envs // env.num_groups  # one a step
    stages = schedules.stages(
        network,
        learn,
        Exploration(jnp.array([0.1]), 0),
        Sampling(options.batch_size, 0.99, 1, updates),
        num_learners=1,
        action_bounds=(-1.0, 1.0),
        normalize=False,
    )

    @jax.jit
    def run(carry, memory, rounds):
        def each_group(_, memory):
            for g in range(env.num_groups):
                _, memory = stages.work(carry, memory, (), g)
            return memory

        return jax.lax.fori_loop(0, rounds, each_group, memory)

    groups = env.make(0)
    carry = schedules.begin(groups, state.replays, state.key, state.draws, state.steps, state.episodes)
    for group in groups:
        group.close()
    memory = learn.init(jax.random.split(jax.random.key(0), 1))
    rounds = 200 // (updates * env.num_groups)
    return rounds * updates * env.num_groups / seconds_of(lambda: run(carry, memory, rounds), options.repeats)


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    show(measure(options) | {"settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
