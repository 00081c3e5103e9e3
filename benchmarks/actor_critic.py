"""How fast the actor-critic plays and learns, against the bound of its parts in turn, and beside its peers.

    python benchmarks/actor_critic.py --json
    python benchmarks/actor_critic.py --json --peers

One run prints: emulators alone, the network acting alone, learning alone, the bound the three make in turn, and the
whole loop. With `--peers` also this loop with XLA's own convolution gradients, and the same algorithm as a PyTorch
loop and in plain JAX, with flax's own layers and automatic gradients kept out of compiled loops, where they are slower;
both on the same emulators and threads (`peers/`).
"""

import dataclasses
import time
from contextlib import nullcontext
from typing import Annotated, Any, Literal
from unittest import mock

import jax
import jax.numpy as jnp
import tyro
from parts import env_steps_per_s, inference_steps_per_s, machine, repeatedly, run_peer, show

import volvox as vx
from volvox.data import segments

Flag = tyro.conf.arg
UPDATES = 40
"""Updates in a step of the algorithm."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The actor-critic benchmark."""

    game: str = "Pong"
    size: Literal["small", "large"] = "small"
    num_envs: int = 64
    groups: int = 2
    segment_length: Annotated[int, Flag(help="steps between updates")] = 5
    micro_batch: Annotated[int | None, Flag(help="environments learned at once; default: a3c's own choice")] = None
    seconds: Annotated[float, Flag(help="length of each measurement")] = 15.0
    seed: int = 0
    peers: Annotated[bool, Flag(help="also measure PyTorch (which must be installed) and plain JAX")] = False
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def make(options: Options) -> tuple[vx.Env, Any, vx.A3C]:
    """Environments, flax module and settings."""
    env = vx.envs.atari(options.game, num_envs=options.num_envs, groups=options.groups)
    assert env.spec.num_actions is not None  # Atari's actions are discrete
    module = vx.networks.GA3C(env.spec.num_actions, size=options.size)
    settings = dataclasses.replace(
        vx.A3C.ga3c(),
        segment_length=options.segment_length,
        micro_batch=options.micro_batch,
        updates_per_iteration=UPDATES,
    )
    return env, module, settings


def train_steps_per_s(learner: Any, env: vx.Env, options: Options, seconds: float) -> float:
    """Learning alone: the gradients of a round in micro-batches, and its update, inside one compiled loop."""
    b, micro_batch = env.num_envs // env.num_groups, learner.micro_batch
    ring = segments.init(2, options.segment_length, b, env.spec, ())
    noise = jax.random.randint(jax.random.key(1), ring.observation.shape, 0, 256)
    ring = ring._replace(observation=noise.astype(ring.observation.dtype), valid=ring.valid | True)
    count = env.num_envs // micro_batch

    @jax.jit
    def round_(learning, ring):
        def one(i, learning):
            segment = segments.take(ring, i % 2, i * micro_batch % b, micro_batch)
            return learner.accumulate(learning, segment)

        return learner.update(jax.lax.fori_loop(0, count, one, learning), jnp.float32(0))

    _, learning = learner.init(jax.random.key(0))
    return options.num_envs * options.segment_length * repeatedly(lambda: round_(learning, ring), seconds)


def whole_loop(algorithm: vx.Algorithm, options: Options) -> dict[str, float]:
    """The algorithm as `train` runs it, compilation not counted."""
    state = algorithm.init(jax.random.key(options.seed))
    state, _ = algorithm.step(state)
    first = state.timesteps
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
        "frames_per_s": (state.timesteps - first) * algorithm.env.spec.frame_skip / seconds,
        "trainings_per_s": updates / seconds,
        "lag_mean": sum(mean for mean, _ in lag) / len(lag),
        "lag_max": max(most for _, most in lag),
    }


def peer(name: str, options: Options) -> float:
    """Steps per second of a peer."""
    flags = {
        "game": options.game,
        "size": options.size,
        "num-envs": options.num_envs,
        "segment-length": options.segment_length,
        "seconds": options.seconds,
    }
    return run_peer(name, flags)["steps_per_s"]


def measure(options: Options) -> dict[str, Any]:
    """All figures in one run."""
    env, module, settings = make(options)
    loop = whole_loop(vx.learn(settings, module, env), options)
    learner: Any = settings.bind(module, env)
    parts = options.seconds / 3
    env_rate = env_steps_per_s(env.make(options.seed), parts)
    inference = inference_steps_per_s(learner.policy, env, parts)
    train = train_steps_per_s(learner, env, options, parts)
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
        with mock.patch("volvox.networks.genotypes.use_kernels", nullcontext):
            rate = whole_loop(vx.learn(settings, module, env), options)["steps_per_s"]
        figures |= {
            "automatic_gradients_steps_per_s": rate,
            "speedup_vs_automatic_gradients": loop["steps_per_s"] / rate,
        }
        for name in ("torch", "plain_jax"):
            rate = peer(f"{name}_a2c", options)
            figures |= {f"{name}_steps_per_s": rate, f"speedup_vs_{name}": loop["steps_per_s"] / rate}
    return figures | {"learner": repr(settings), "micro_batch": learner.micro_batch}


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    figures = measure(options) | {"settings": dataclasses.asdict(options), **machine()}
    show(figures, options.json)


if __name__ == "__main__":
    main()
