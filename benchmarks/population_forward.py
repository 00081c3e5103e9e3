"""Forward pass of a population: many different networks, one observation each.

Variants on the same rows, measured in turns so that drift cancels:

- naive_vmap: `jax.vmap` over the plain flax network, what everybody writes;
- volvox: `jax.vmap` over the policy's `apply`;
- low_rank and low_rank_20: as many members whose kernels differ from one base, or from one of 20, by rank-1 noise;
- shared: all rows through ONE plain flax network, the floor for anything with the same arithmetic;
- read: the sum of all weights of all networks, which is how fast this machine reads them once, and no more than that.

Different networks must be read from memory, one shared network stays in cache: `floor` is `read` and `shared` in turn.

Run `python benchmarks/population_forward.py`, or with `--json` for one JSON object on stdout.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from parts import in_turns, machine, show

from volvox.networks import DeepGA, genotype
from volvox.ops.flat import num_parameters, unflatten
from volvox.ops.low_rank import with_bases
from volvox.population import Generator, LowRank, encoding
from volvox.population.decoding import Member, decode
from volvox.rollout.slots import slot_variables
from volvox.types import EnvSpec

NUM_ACTIONS = 18
SPEC = EnvSpec(
    name="Atari frames",
    observation_shape=(84, 84, 4),
    observation_dtype=np.uint8,
    num_actions=NUM_ACTIONS,
    action_shape=None,
    action_low=None,
    action_high=None,
    max_episode_steps=1,
    frame_skip=1,
)


LOW_RANK = {"low_rank": 1, "low_rank_20": 20}
"""Numbers of bases."""


def variants(num_networks: int, size: str) -> dict[str, Callable[[], jax.Array]]:
    """Compiled calls without arguments, all for the same observations."""
    module = DeepGA(NUM_ACTIONS, size=size)  # pyright: ignore[reportArgumentType]
    net = genotype(module, SPEC)

    # A first generation: slices of one table of noise, as drawing so many numbers would take a minute.
    shapes = jax.eval_shape(net.policy.init, jax.random.key(0))
    size_of_one = num_parameters(shapes)
    rng = np.random.default_rng(0)
    table = rng.standard_normal(size_of_one + 1000 * num_networks, np.float32)
    noise = np.stack([table[1000 * i : 1000 * i + size_of_one] for i in range(num_networks)])
    many = jax.jit(jax.vmap(lambda vector: net.from_noise(unflatten(vector, shapes))))(noise)
    del noise
    one = jax.tree.map(lambda leaf: leaf[0], many)
    rows = jnp.asarray(rng.integers(0, 256, (num_networks, *SPEC.observation_shape), np.uint8))

    def plain(params: Any, observation: jax.Array) -> jax.Array:
        return module.apply({"params": params}, observation)  # pyright: ignore[reportReturnType]

    def ours(params: Any, observation: jax.Array) -> jax.Array:
        return net.policy.apply(params, observation, ())[0]

    def read(params: Any, observation: jax.Array) -> jax.Array:
        del observation
        return jnp.stack([leaf.sum() for leaf in jax.tree.leaves(params)])

    code = encoding(net, LowRank(source=Generator()))

    def low_rank_call(num_bases: int) -> tuple[Any, ...]:
        # One base more, which nobody descends from: strategies keep their best among the bases.
        bases = jax.tree.map(lambda leaf: leaf[: num_bases + 1], many)
        parent = jnp.asarray(np.arange(num_networks) % num_bases, jnp.int32)[rng.permutation(num_networks)]
        members = Member(parent, jnp.arange(num_networks), jnp.full(num_networks, 0.02), jnp.zeros(num_networks, bool))
        slots = jax.jit(lambda members: jax.lax.map(lambda one: slot_variables(net, code, bases, one), members))(
            members
        )

        def act(params: Any, observation: jax.Array) -> jax.Array:
            slots, bases = params
            return jax.vmap(lambda slot, row: ours(with_bases(slot, bases), row))(slots, observation)

        formed = jax.jit(lambda one: decode(code, bases, one))(jax.tree.map(lambda x: x[-1], members))
        check(act((slots, bases), rows[:, None])[-1], plain(formed, rows[-1:]))
        return jax.jit(act), (slots, bases), rows[:, None]

    calls = {
        "naive_vmap": (jax.jit(jax.vmap(plain)), many, rows[:, None]),
        "volvox": (jax.jit(jax.vmap(ours)), many, rows[:, None]),
        "shared": (jax.jit(plain), one, rows),
        "read": (jax.jit(read), many, rows),
        **{name: low_rank_call(num_bases) for name, num_bases in LOW_RANK.items() if num_bases < num_networks},
    }
    return {name: lambda call=call: call[0](call[1], call[2]) for name, call in calls.items()}


def check(ours: jax.Array, plain: jax.Array) -> float:
    """The largest difference; ends the program if it is more than rounding."""
    difference, scale = float(jnp.abs(ours - plain).max()), float(jnp.abs(plain).max())
    # GPUs multiply with 10 bits of mantissa unless told otherwise.
    if not difference <= (1e-4 if jax.default_backend() == "cpu" else 1e-2) * scale:
        raise SystemExit(
            f"volvox and plain flax differ by {difference} where outputs reach {scale}; no speed is reported"
        )
    return difference


def benchmark(num_networks: int, size: str, repeats: int) -> dict[str, Any]:
    """Run everything; JSON values."""
    calls = variants(num_networks, size)
    difference = check(calls["volvox"](), calls["naive_vmap"]())
    times = in_turns(calls, repeats)
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "num_networks": num_networks,
        "size": size,
        **{f"{name}_ms": round(value, 3) for name, value in median.items()},
        "speedup": round(median["naive_vmap"] / median["volvox"], 3),
        "volvox_over_shared": round(median["volvox"] / median["shared"], 3),
        **{f"{name}_over_shared": round(median[name] / median["shared"], 3) for name in LOW_RANK if name in median},
        "floor_over_shared": round((median["read"] + median["shared"]) / median["shared"], 3),
        "volvox_over_floor": round(median["volvox"] / (median["read"] + median["shared"]), 3),
        "spread_ms": {
            name: {"min": round(min(values), 3), "median": round(median[name], 3), "max": round(max(values), 3)}
            for name, values in times.items()
        },
        "repeats": repeats,
        "max_difference": difference,
        **machine(),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Forward pass of many different networks.")
    parser.add_argument("--num-networks", type=int, default=64)
    parser.add_argument("--size", choices=("large", "small"), default="large")
    parser.add_argument("--repeats", type=int, default=15, help="timed calls of each variant")
    parser.add_argument("--json", action="store_true", help="print exactly one JSON object")
    options = parser.parse_args()
    if options.num_networks < 1 or options.repeats < 1:
        parser.error("--num-networks and --repeats must be positive")
    show(benchmark(options.num_networks, options.size, options.repeats), options.json)


if __name__ == "__main__":
    main()
