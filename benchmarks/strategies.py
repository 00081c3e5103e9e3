"""Time and memory of a generation of evolution strategies without its episodes, against an independent library.

    python benchmarks/strategies.py --json
    python benchmarks/strategies.py --members 256 --json

Each side uses its own noise: here slices of a table, or with `--noise generator` random numbers as evosax draws them.
Both sides ask for a population, bring every member's parameters into being once, and are told the same returns:
OpenAI-ES with Adam. Here members are decoded one at a time, as slots need them; the library (evosax) makes them all.
Each side runs in a process of its own, so that its peak memory is its own; one that does not fit says so.
"""

import dataclasses
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from parts import machine, show

Flag = tyro.conf.arg
STD, RATE = 0.02, 0.01
NO_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "bad_alloc")


@dataclasses.dataclass(frozen=True)
class Options:
    """The benchmark of strategies."""

    members: Annotated[int, Flag(help="of the population")] = 1000
    params: Annotated[int, Flag(help="parameters of each member")] = 4_000_000
    generations: Annotated[int, Flag(help="timed ones")] = 3
    limit_gb: Annotated[float, Flag(help="address space of the library's process, which could take all memory")] = 20.0
    noise: Annotated[Literal["table", "generator"], Flag(help="of our side; the library draws numbers anew")] = "table"
    side: Annotated[Literal["both", "volvox", "peer"], Flag(help="the side that this process measures")] = "both"
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def volvox_generation(options: Options) -> Callable[[Any, jax.Array], Any]:
    """(state or None, returns) -> state."""
    import volvox as vx
    from volvox.population.decoding import Member, decode

    spec = vx.EnvSpec("none", (1,), np.float32, None, (1,), -np.ones(1, np.float32), np.ones(1, np.float32), 1, 1)
    genotype = vx.networks.genotype_from_functions(
        lambda key: {"weights": jnp.zeros(options.params)},
        lambda params, observation: observation * params["weights"][0],
        spec,
    )
    noise = vx.population.Table() if options.noise == "table" else vx.population.Generator()
    code = vx.population.encoding(genotype, noise)
    strategy = vx.ES(population_size=options.members, noise_std=STD, learning_rate=RATE, l2_coefficient=0.0)
    ask, tell = jax.jit(strategy.ask), jax.jit(strategy.tell)

    def evaluation(returns):
        shape = (returns.shape[0], 1)
        lengths, valid = jnp.ones(shape, jnp.int32), jnp.ones(shape, bool)
        return vx.Evaluation(returns[:, None], lengths, valid, jnp.zeros((*shape, 0)))

    @jax.jit
    def decode_each(code, population):
        """Returns a number that depends on all parameters of all members, which are decoded one after the other."""
        members = Member(*population[1:5])
        sums = jax.lax.map(lambda one: decode(code, population.bases, one)["weights"].sum(), members)
        return sums.sum()

    def generation(state, returns):
        if state is None:
            state = strategy.init(jax.random.key(0), code)
        population, state = ask(jax.random.key(1), state, code)
        made = decode_each(code, population)
        state, _ = tell(jax.random.key(0), state, population, evaluation(returns), code)
        return jax.block_until_ready((state, made))[0]

    return generation


def peer_generation(options: Options) -> Callable[[Any, jax.Array], Any]:
    """The same by evosax."""
    import optax
    from evosax.algorithms import Open_ES

    algorithm = Open_ES(
        population_size=options.members,
        solution={"weights": jnp.zeros(options.params)},
        optimizer=optax.adam(RATE),
        std_schedule=optax.constant_schedule(STD),
        metrics_fn=lambda key, population, fitness, state, params: {},
    )
    params = algorithm.default_params

    def generation(state, returns):
        key = jax.random.key(0)
        if state is None:
            state = algorithm.init(key, {"weights": jnp.zeros(options.params)}, params)
        population, state = algorithm.ask(key, state, params)
        state, _ = algorithm.tell(key, population, -returns, state, params)
        return jax.block_until_ready(state)

    return generation


def one_side(options: Options) -> dict[str, float]:
    """Seconds of a generation and peak memory of this process."""
    if options.side == "peer":
        limit = int(options.limit_gb * 1e9)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    generation = (volvox_generation if options.side == "volvox" else peer_generation)(options)
    returns = jax.random.normal(jax.random.key(2), (options.members,))
    state = generation(None, returns)  # compiles
    times = []
    for _ in range(options.generations):
        began = time.perf_counter()
        state = generation(state, returns)
        times.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {"s": statistics.median(times), "peak_gb": peak}


def measure(options: Options) -> dict[str, Any]:
    """Both sides, one after the other."""
    figures: dict[str, Any] = {}
    for side in ("volvox", "peer"):
        command = [sys.executable, __file__, "--side", side, "--json"]
        for name in ("members", "params", "generations", "limit_gb", "noise"):
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            printed = json.loads(done.stdout.strip().splitlines()[-1])
            figures |= {f"{side}_s": printed["s"], f"{side}_peak_gb": printed["peak_gb"]}
        elif side == "peer" and any(words in done.stderr for words in NO_MEMORY):
            said = [line for line in done.stderr.splitlines() if any(words in line for words in NO_MEMORY)][-1]
            figures |= {"peer_s": None, "peer_peak_gb": None, "peer_failed": said}
        else:
            raise SystemExit(f"{side} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    if figures["peer_s"] is not None:
        figures["speedup"] = figures["peer_s"] / figures["volvox_s"]
        figures["memory_ratio"] = figures["peer_peak_gb"] / figures["volvox_peak_gb"]
    return figures


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    figures = measure(options) if options.side == "both" else one_side(options)
    show(figures | {"settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
