"""How fast the actor-critic plays and learns, against the bound of its parts in turn, and beside its peers.

    python benchmarks/actor_critic.py --json
    python benchmarks/actor_critic.py --json --peers

One run prints: emulators alone, the network acting alone, learning alone, the bound the three make in turn, and the
whole loop. With `--peers` also this loop with XLA's own convolution gradients, and the same algorithm as a PyTorch
loop and in plain JAX, with flax's own layers and automatic gradients kept out of compiled loops, where they are slower;
both on the same emulators and threads (`peers/`).
"""

import dataclasses
import json
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal
from unittest import mock

import jax
import jax.numpy as jnp
import optax
import tyro
from parts import env_steps_per_s, machine, show

import volvox as vx
from volvox.actor_critic.learner import Learner, LearnerState, LossSettings, learner
from volvox.data import segments
from volvox.networks.actor_critic import ActorCriticNetwork, actor_critic
from volvox.networks.distributions import distribution

Flag = tyro.conf.arg
UPDATES = 40
"""In a step of the algorithm. In every tenth step a few rounds are timed and overlap nothing: they count as well."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The actor-critic benchmark."""

    game: str = "Pong"
    size: Literal["small", "large"] = "small"
    first_stride: Annotated[int, Flag(help="of the first convolution")] = 4
    num_envs: int = 64
    groups: int = 2
    segment_length: Annotated[int, Flag(help="steps between updates")] = 5
    micro_batch: Annotated[int | None, Flag(help="environments learned at once; default: a3c's own choice")] = None
    seconds: Annotated[float, Flag(help="length of each measurement")] = 15.0
    seed: int = 0
    peers: Annotated[bool, Flag(help="also measure PyTorch (which must be installed) and plain JAX")] = False
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def make(options: Options) -> tuple[vx.types.Env, Any, vx.types.Algorithm]:
    """Recipe, flax module and algorithm."""
    env = vx.envs.atari(options.game, num_envs=options.num_envs, groups=options.groups)
    assert env.spec.num_actions is not None  # Atari's actions are discrete
    module = vx.networks.GA3C(env.spec.num_actions, size=options.size, first_stride=options.first_stride)
    settings = vx.actor_critic.ga3c() | {"segment_length": options.segment_length, "micro_batch": options.micro_batch}
    return env, module, vx.actor_critic.a3c(module, env, **settings, updates_per_step=UPDATES)


def repeatedly(call, seconds: float) -> float:
    """Calls per second, the first not counted."""
    jax.block_until_ready(call())
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        jax.block_until_ready(call())
        calls += 1
    return calls / (time.perf_counter() - began)


def inference_steps_per_s(net: ActorCriticNetwork, env: vx.types.Env, seconds: float) -> float:
    """Acting alone: forward passes and samples of one group after the other, inside one compiled loop."""
    b = env.num_envs // env.num_groups
    actions = distribution(env.spec)
    params = net.init(jax.random.key(0))
    seen = jnp.zeros((b, *env.spec.observation_shape), env.spec.observation_dtype)

    @jax.jit
    def play(params, seen):
        def body(i, action):
            # The observation depends on the last action, as it does in the loop.
            output, _, _ = net.apply(params, seen + action[0].astype(seen.dtype), ())
            return actions.sample(jax.random.fold_in(jax.random.key(0), i), output)

        return jax.lax.fori_loop(0, 20, body, jnp.zeros(b, jnp.int32))

    return 20 * b * repeatedly(lambda: play(params, seen), seconds)


def train_steps_per_s(learn: Learner, env: vx.types.Env, options: Options, micro_batch: int, seconds: float) -> float:
    """Learning alone: the gradients of a round in micro-batches, and its update, inside one compiled loop."""
    b = env.num_envs // env.num_groups
    ring = segments.empty(2, options.segment_length, b, env.spec, ())
    noise = jax.random.randint(jax.random.key(1), ring.observation.shape, 0, 256)
    ring = ring._replace(observation=noise.astype(ring.observation.dtype), valid=ring.valid | True)
    count = env.num_envs // micro_batch

    @jax.jit
    def round_(state: LearnerState, ring: segments.Segment) -> LearnerState:
        def one(i, state):
            start = i * micro_batch % b
            return learn.accumulate(
                state, segments.micro_batch(ring, i % 2, start, micro_batch, options.segment_length)
            )

        return learn.apply(jax.lax.fori_loop(0, count, one, state), jnp.float32(0))

    state = learn.init(jax.random.key(0))
    return options.num_envs * options.segment_length * repeatedly(lambda: round_(state, ring), seconds)


def whole_loop(algorithm: vx.types.Algorithm, options: Options) -> dict[str, float]:
    """The algorithm as `train` runs it, compilation not counted."""
    state = algorithm.init(jax.random.key(options.seed))
    for _ in range(2):  # the second one compiles the stopwatch
        state, _ = algorithm.step(state)
    first = state.frames
    began, updates, lag = time.perf_counter(), 0, []
    while time.perf_counter() - began < options.seconds:
        state, metrics = algorithm.step(state)
        updates += UPDATES
        lag.append((metrics["lag_mean"], metrics["lag_max"]))
    seconds = time.perf_counter() - began
    algorithm.close()
    steps = updates * options.num_envs * options.segment_length
    return {
        "steps_per_s": steps / seconds,
        "frames_per_s": (state.frames - first) / seconds,
        "trainings_per_s": updates / seconds,
        "lag_mean": sum(mean for mean, _ in lag) / len(lag),
        "lag_max": max(most for _, most in lag),
    }


def peer(name: str, options: Options) -> float:
    """Steps per second of a peer, in a process of its own."""
    script = Path(__file__).parent / "peers" / f"{name}.py"
    flags = {
        "game": options.game,
        "size": options.size,
        "first-stride": options.first_stride,
        "num-envs": options.num_envs,
        "segment-length": options.segment_length,
        "seconds": options.seconds,
    }
    command = [sys.executable, str(script), *(x for key, value in flags.items() for x in (f"--{key}", str(value)))]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(printed.strip().splitlines()[-1])["steps_per_s"]


def measure(options: Options) -> dict[str, Any]:
    """All figures in one run."""
    env, module, algorithm = make(options)
    loop = whole_loop(algorithm, options)
    actions = distribution(env.spec)
    net = actor_critic(module, env.spec, output_size=actions.size)
    settings = vx.actor_critic.ga3c()
    learn = learner(
        net,
        actions,
        settings=LossSettings(settings["discount"], 1.0, False, 1.0, 1.0, settings["log_epsilon"], 1.0),
        entropy_coefficient=lambda update: jnp.float32(settings["entropy_coefficient"]),
        optimizer=optax.rmsprop(settings["learning_rate"], **settings["optimizer_options"]),
        loss_reduction="sum",
    )
    parts = options.seconds / 3
    env_rate = env_steps_per_s(env.make(options.seed), parts)
    inference = inference_steps_per_s(net, env, parts)
    train = train_steps_per_s(learn, env, options, algorithm.config["schedule"]["micro_batch"], parts)
    bound = 1 / (1 / env_rate + 1 / inference + 1 / train)
    figures = {
        "env_steps_per_s": env_rate,
        "inference_steps_per_s": inference,
        "train_steps_per_s": train,
        "bound_steps_per_s": bound,
        **loop,
        "fraction_of_bound": loop["steps_per_s"] / bound,
    }
    if options.peers:
        # The same loop, but convolutions and their gradients are XLA's own.
        with mock.patch("volvox.networks.actor_critic.use_kernels", nullcontext):
            rate = whole_loop(make(options)[2], options)["steps_per_s"]
        figures |= {
            "automatic_gradients_steps_per_s": rate,
            "speedup_vs_automatic_gradients": loop["steps_per_s"] / rate,
        }
        for name in ("torch", "plain_jax"):
            rate = peer(f"{name}_a2c", options)
            figures |= {f"{name}_steps_per_s": rate, f"speedup_vs_{name}": loop["steps_per_s"] / rate}
    return figures | {"schedule": algorithm.config["schedule"]}


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    figures = measure(options) | {"settings": dataclasses.asdict(options), **machine()}
    show(figures, options.json)


if __name__ == "__main__":
    main()
