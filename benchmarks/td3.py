"""How fast TD3 or SAC learns: updates against their matmuls alone, and the whole loop against its parts in turn.

    python benchmarks/td3.py --json
    python benchmarks/td3.py --json --peers
    python benchmarks/td3.py --json --learner sac

- updates: the learner's updates in a compiled loop, batches drawn from the replay of a run;
- floor: the matmuls of such an update, forward and backward, and nothing else;
- emulators, inference: steps a second of these parts alone, each in the compiled loop with nothing else to do;
- loop: steps a second of the algorithm with one update a step, over that of its parts in turn;
- many (with `--learners`): the loop with that many learners in one program, two environments each;
- ways (with `--ways`): the same with sparse weights, in turns with dense ones, and the share of weights stored;
- torch (with `--peers`): the same update in PyTorch, in a process of its own.

All but PyTorch take turns, and the medians are reported; of the ways means, for their masks change now and then.
"""

import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import optax
import tyro
from parts import env_steps_per_s, machine, run_peer, show

import volvox as vx
from volvox.learners import Turn

Flag = tyro.conf.arg
_ROUNDS = 200
"""Of a loop that is measured."""


@dataclasses.dataclass(frozen=True)
class Options:
    """TD3 or SAC with the reference settings."""

    learner: Literal["td3", "sac"] = "td3"
    task: str = "HalfCheetah"
    num_envs: int = 4
    groups: int = 2
    width: Annotated[int, Flag(help="of the two hidden layers")] = 256
    batch_size: int = 256
    iterations: Annotated[int, Flag(help="measured iterations of 1 000 timesteps")] = 11
    learners: Annotated[tuple[int, ...], Flag(help="also measure the loop with so many learners")] = ()
    ways: Annotated[bool, Flag(help="also measure sparse weights, which compiles four more programs")] = False
    peers: Annotated[bool, Flag(help="also measure PyTorch, which must be installed")] = False
    python: Annotated[str, Flag(help="Python that has torch, for the peer")] = sys.executable
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def floor(options: Options, observation: int, action: int) -> Callable[[], float]:
    """Updates a second of their matmuls alone, in a compiled loop: no biases, activations, noise or Adam."""
    w, sac, keys = options.width, options.learner == "sac", iter(jax.random.split(jax.random.key(0), 64))

    def kernels(*widths: int) -> list[jax.Array]:
        return [0.05 * jax.random.normal(next(keys), pair) for pair in itertools.pairwise(widths)]

    def through(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            x = x @ kernel
        return x

    def both(critics, x: jax.Array) -> jax.Array:
        return jnp.stack([through(critic, x) for critic in critics])

    networks = {
        "actor": kernels(observation, w, w, action * (1 + sac)),
        "critics": [kernels(observation + action, w, w, 1) for _ in range(2)],
    }
    networks["temperature"] = jnp.zeros(())
    targets = jax.tree.map(jnp.copy, networks)
    batches = jax.random.normal(next(keys), (8, options.batch_size, observation + action))

    def acted(actor, seen):
        return through(actor, seen)[:, :action]

    def critic_loss(critics, actor, seen, taken):
        following = acted(actor if sac else targets["actor"], seen)
        wanted = both(targets["critics"], jnp.concatenate([seen, following], 1)).min(0)
        return ((both(critics, jnp.concatenate([seen, taken], 1)) - wanted) ** 2).sum()

    def actor_loss(actor, critics, seen):
        x = jnp.concatenate([seen, acted(actor, seen)], 1)
        return ((both(critics, x).min(0) if sac else through(critics[0], x)) ** 2).sum()

    def descended(params, gradient):
        return jax.tree.map(lambda x, g: x - 1e-12 * g, params, gradient)

    @jax.jit
    def run(networks, times):
        def update(i, networks):
            # Of one batch the targets' values would be computed once, before the loop.
            seen, taken = jnp.split(batches[i % len(batches)], [observation], axis=1)
            gradient = jax.grad(critic_loss)(networks["critics"], networks["actor"], seen, taken)
            networks = {**networks, "critics": descended(networks["critics"], gradient)}

            def delayed(networks):
                gradient = jax.grad(actor_loss)(networks["actor"], networks["critics"], seen)
                return {**networks, "actor": descended(networks["actor"], gradient)}

            if not sac:
                return jax.lax.cond(i % 2 == 0, delayed, lambda x: x, networks)
            networks = delayed(networks)
            return {
                **networks,
                "temperature": descended(networks["temperature"], (acted(networks["actor"], seen) ** 2).sum()),
            }

        return jax.lax.fori_loop(0, times, update, networks)

    return rate(lambda: run(networks, _ROUNDS), _ROUNDS)


def rate(call: Callable[[], Any], count: int) -> Callable[[], float]:
    """Returns a function that measures the operations per second of `call`, which makes `count` of them."""
    jax.block_until_ready(call())

    def measured() -> float:
        began = time.perf_counter()
        jax.block_until_ready(call())
        return count / (time.perf_counter() - began)

    return measured


def many(options: Options) -> dict[str, float]:
    """Timesteps a second of the whole loop, of all learners together, by their number."""
    rates = {}
    for number in options.learners:
        algorithm = vx.learn(*setup(dataclasses.replace(options, num_envs=2)), num_learners=number)
        state, _ = algorithm.step(algorithm.init(jax.random.key(0)))  # random actions, and compilation
        found = []
        for _ in range(options.iterations):
            began, before = time.perf_counter(), state.timesteps
            state, _ = algorithm.step(state)
            found.append(int(state.timesteps - before) / (time.perf_counter() - began))
        algorithm.close()
        rates[str(number)] = statistics.median(found)
    return rates


def setup(options: Options, way: str = "dense") -> tuple[Any, vx.networks.ActorAndCritic, vx.Env]:
    """Settings, networks and environments; sparse ones have an eighth of the large layer's weights in the end.

    Masks change as often as in `experiments/group_sparse.py`.
    """
    env = vx.envs.mujoco(options.task, num_envs=options.num_envs, groups=options.groups)
    action = env.spec.num_outputs
    hidden, kind = (options.width, options.width), vx.TD3 if options.learner == "td3" else vx.SAC
    networks = vx.networks.ActorAndCritic.mlp(action, hidden, gaussian=kind is vx.SAC)
    sizes: Any = {"random_timesteps": 1_000, "replay_size": 100_000, "timesteps_per_iteration": 1_000}
    settings: Any = kind(batch_size=options.batch_size, **sizes)
    if way == "dense":
        return settings, networks, env
    if way == "group-sparse":
        gst = vx.sparsity.GroupSparse(block=4, final_sparsity=0.875, end=1_000, every=5_000)
        networks = vx.networks.ActorAndCritic(gst.network(networks.actor), gst.network(networks.critic))
        optimizer = gst.optimizer(optax.adam(3e-4))
    else:
        cubic = vx.sparsity.Cubic(final_sparsity=0.875, begin=0, end=1_000)
        magnitude = vx.sparsity.Magnitude(schedule=cubic, every=1_000)
        rule = magnitude if way == "magnitude" else vx.sparsity.Dynamic(sparsity=0.875, every=1_000)
        optimizer = vx.sparsity.sparse(optax.adam(3e-4), rule, min_side=32)
    settings = dataclasses.replace(settings, optimizer=optimizer, learning_rate=None)
    return settings, networks, env


def ways(options: Options) -> dict[str, dict[str, float]]:
    """Steps a second of the whole loop, dense and sparse in turns, and the share of weights that need not be stored."""
    made = {way: vx.learn(*setup(options, way)) for way in ("dense", "magnitude", "dynamic", "group-sparse")}
    states, rates, compression = {}, {way: [] for way in made}, {}
    for way, algorithm in made.items():
        state, _ = algorithm.step(algorithm.init(jax.random.key(0)))  # random actions, and compilation
        states[way], _ = algorithm.step(state)
    for _ in range(options.iterations):
        for way, algorithm in made.items():
            began, before = time.perf_counter(), states[way].timesteps
            states[way], metrics = algorithm.step(states[way])
            rates[way].append(int(states[way].timesteps - before) / (time.perf_counter() - began))
            compression[way] = metrics.get("compression", 0.0)
    for algorithm in made.values():
        algorithm.close()
    middle = {way: statistics.harmonic_mean(found) for way, found in rates.items()}
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


def alone(made: tuple[Any, vx.networks.ActorAndCritic, vx.Env], state: Any) -> dict[str, Callable[[], float]]:
    """The loop's two halves, each by itself in a compiled loop: actions a second, and updates from a run's replays."""
    settings, networks, env = made
    settings = dataclasses.replace(settings, random_timesteps=0)
    action = env.spec.num_outputs
    learner: Any = settings.bind(networks, env)
    b, num_turns = env.num_envs // env.num_groups, -(-_ROUNDS // env.num_envs)

    def turn(g: int) -> Turn:
        return Turn(g, jnp.int32(0), jnp.int32(0), jnp.float32(0))

    @jax.jit
    def learned(collected, learning):
        def each_group(_, learning):
            for g in range(env.num_groups):
                _, learning = learner.work(collected, learning, state.key, turn(g))
            return learning

        return jax.lax.fori_loop(0, num_turns, each_group, learning)

    @jax.jit
    def acted(collected, learning):
        def each_group(i, both):
            collected, action = both
            for g in range(env.num_groups):
                # The observation depends on the last action, as it does in the loop.
                seen = jnp.broadcast_to(action[:, :1], (b, *env.spec.observation_shape))
                none, keys = jnp.zeros(b, bool), jax.random.split(jax.random.fold_in(state.key, i), b)
                timestep = vx.TimeStep(seen, jnp.zeros(b), none, none, none, {})
                collected, action = learner.act(collected, learning, keys, turn(g), timestep)
            return collected, action

        # Only the actions are used, so that XLA removes the replay.
        return jax.lax.fori_loop(0, _ROUNDS, each_group, (collected, jnp.zeros((b, action))))[1]

    collected = jax.tree.map(jnp.copy, state.acting.collected)  # the run continues with its own
    collected = collected._replace(credit=jnp.int32(2**30))  # so that each turn makes all its updates
    _, learning = learner.init(jax.random.key(0))
    return {
        "updates": rate(lambda: learned(collected, learning), num_turns * env.num_envs),
        "inference": rate(lambda: acted(collected, learning), _ROUNDS * env.num_envs),
    }


def measure(options: Options) -> dict[str, Any]:
    """Everything; JSON values."""
    algorithm = vx.learn(*setup(options))
    env = algorithm.env
    (observation,), (action,) = env.spec.observation_shape, env.spec.action_shape or (0,)
    state = algorithm.init(jax.random.key(0))
    state, _ = algorithm.step(state)  # random actions, and compilation
    state, _ = algorithm.step(state)
    calls = alone(setup(options), state) | {"emulators": lambda: env_steps_per_s(env.make(0), 0.5)}
    calls["floor"] = floor(options, observation, action)
    rates: dict[str, list[float]] = {name: [] for name in (*calls, "loop")}
    for _ in range(options.iterations):
        for name, call in calls.items():
            rates[name].append(call())
        began, before = time.perf_counter(), state.timesteps
        state, _ = algorithm.step(state)
        rates["loop"].append(int(state.timesteps - before) / (time.perf_counter() - began))
    algorithm.close()
    middle = {name: statistics.median(values) for name, values in rates.items()}
    bound = 1 / (1 / middle["emulators"] + 1 / middle["inference"] + 1 / middle["updates"])
    figures = {
        "updates_per_s": middle["updates"],
        "emulators_steps_per_s": middle["emulators"],
        "inference_steps_per_s": middle["inference"],
        "loop_steps_per_s": middle["loop"],
        "bound_steps_per_s": bound,
        "loop_fraction_of_bound": middle["loop"] / bound,
        "floor_updates_per_s": middle["floor"],
        "fraction_of_floor": middle["updates"] / middle["floor"],
        "ranges": {name: [min(values), max(values)] for name, values in rates.items()},
    }
    if options.learners:
        figures["many_steps_per_s"] = many(options)
    if options.ways:
        figures["ways"] = ways(options)
    if options.peers:
        flags = {"observation": observation, "action": action, "width": options.width, "batch-size": options.batch_size}
        flags["repeats"] = options.iterations
        figures["torch_updates_per_s"] = run_peer(f"torch_{options.learner}", flags, options.python)["updates_per_s"]
        figures["speedup_vs_torch"] = middle["updates"] / figures["torch_updates_per_s"]
    return figures


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    show(measure(options) | {"settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
