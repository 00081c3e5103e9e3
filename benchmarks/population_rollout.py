"""How fast a population plays real Atari, against the serial bound of its parts and against plain vmap.

    python benchmarks/population_rollout.py --json

The population consists of mutants of 20 parents. One run prints: the emulators alone, the networks alone, the bound of
both in turn, the whole loop (with decoding, without compilation), plain vmap over a flax network (one synchronous pool,
waiting for the longest episode of each batch), and the peak memory of a population of 1 000. With `--peers` also
`torch.vmap` over a PyTorch network in one synchronous pool, which waits for no episode.
"""

import dataclasses
import json
import resource
import subprocess
import sys
import time
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from parts import env_steps_per_s, machine, repeatedly, run_peer, show

import volvox as vx
from volvox.ops.low_rank import with_bases
from volvox.population.decoding import Encoding, Member, decode_many, first_ancestors
from volvox.rollout.behaviors import Nothing
from volvox.rollout.evaluator import PopulationEvaluator
from volvox.rollout.slots import slot_variables

Flag = tyro.conf.arg
NUM_PARENTS, MUTATION_STD = 20, 0.002


@dataclasses.dataclass(frozen=True)
class Options:
    """The population rollout benchmark."""

    game: str = "Frostbite"
    population: Annotated[int, Flag(help="members")] = 256
    num_envs: Annotated[int, Flag(help="slots, in all groups together")] = 64
    groups: int = 2
    cutoff: Annotated[int, Flag(help="timesteps after which an episode is cut")] = 400
    network: Literal["large", "small"] = "large"
    noise: Annotated[Literal["table", "low-rank"], Flag(help="low-rank: of rank 1")] = "table"
    seconds: Annotated[float, Flag(help="of the emulators alone, and of the networks alone")] = 5.0
    seed: int = 0
    naive_batches: Annotated[int, Flag(help="batches of num_envs members for plain vmap; 0: skip it")] = 1
    memory: Annotated[bool, Flag(help="also measure a population of 1 000 in a process of its own")] = True
    peers: Annotated[bool, Flag(help="also measure PyTorch, which must be installed")] = False
    peak_of: Annotated[int, Flag(help="only play this number of members briefly, and print the peak memory")] = 0
    json: Annotated[bool, Flag(help="print one JSON object")] = False


class Setting:
    """Environments, network and encoding, which all measurements share."""

    def __init__(self, options: Options):
        self.env = vx.envs.atari(options.game, num_envs=options.num_envs, groups=options.groups)
        self.module = vx.networks.DeepGA(self.env.spec.num_outputs, size=options.network)
        self.net = vx.networks.genotype(self.module, self.env.spec)
        self.noise = vx.population.LowRank() if options.noise == "low-rank" else vx.population.Table()

    def evaluator(self, capacity: int) -> PopulationEvaluator:
        """Returns the evaluator of populations."""
        return PopulationEvaluator(self.net, self.noise, self.env, Nothing(), capacity)

    def population(self, code: Encoding, size: int, seed: int) -> vx.Population:
        """Returns mutants of random parents, with one episode each."""
        keys = jax.random.split(jax.random.key(seed), 3)
        ancestors = first_ancestors(code.draw_seeds(keys[0], (NUM_PARENTS,)))
        full = dataclasses.replace(code, formed=code.rank is not None)  # first ancestors have full noise
        bases = decode_many(full, code.zeros(1), ancestors)
        parent = jax.random.randint(keys[1], (size,), 0, NUM_PARENTS, jnp.int32)
        scale, initial = jnp.full(size, MUTATION_STD, jnp.float32), jnp.zeros(size, bool)
        seeds, episodes = code.draw_seeds(keys[2], (size,)), jnp.ones(size, jnp.int32)
        return vx.Population(bases, parent, seeds, scale, initial, episodes, jnp.zeros(size))


def inference_steps_per_s(setting: Setting, code: Encoding, population: vx.Population, seconds: float) -> float:
    """The networks alone: each slot's own network acts, group by group, inside one compiled loop."""
    spec, num_groups = setting.env.spec, setting.env.num_groups
    b = setting.env.num_envs // num_groups
    observation, bases = jnp.zeros((b, 1, *spec.observation_shape), spec.observation_dtype), population.bases

    @jax.jit
    def slots(code, bases, members):
        variables = jax.lax.map(lambda member: slot_variables(setting.net, code, bases, member), members)
        return tuple(jax.tree.map(lambda x, g=g: x[g * b : (g + 1) * b], variables) for g in range(num_groups))

    @jax.jit
    def forward(groups, bases, observation, times):
        def body(i, actions):
            for variables in groups:
                # The observation depends on the last action, as it does in the loop.
                seen = observation + (actions[0] + i).astype(observation.dtype)
                act = lambda v, o: setting.net.policy.apply(with_bases(v, bases), o, ())  # noqa: E731
                output, _ = jax.vmap(act)(variables, seen)
                actions = jnp.argmax(output[:, 0], axis=-1).astype(jnp.int32)
            return actions

        return jax.lax.fori_loop(0, times, body, jnp.zeros(b, jnp.int32))

    index = jnp.arange(setting.env.num_envs) % population.seed.size
    groups = slots(code, bases, jax.tree.map(lambda x: x[index], Member(*population[1:5])))
    jax.block_until_ready(forward(groups, bases, observation, 1))
    return 5 * setting.env.num_envs * repeatedly(lambda: forward(groups, bases, observation, 5), seconds)


def rollout(
    setting: Setting, options: Options, size: int, cutoff: int
) -> tuple[dict[str, Any], Encoding, vx.Population]:
    """Plays a population twice; returns figures of the second time, the encoding and the population."""
    evaluator = setting.evaluator(size)
    population = setting.population(evaluator.encoding, size, options.seed)
    how: Any = {"max_episode_steps": cutoff, "pool_seed": options.seed}
    evaluator.evaluate(population, 1, seed=0, **how)
    began = time.perf_counter()
    evaluation, statistics = evaluator.evaluate(population, 1, seed=1, **how)
    seconds = time.perf_counter() - began
    lengths = np.asarray(evaluation.lengths)
    figures = {
        "stepped_per_s": statistics.stepped / seconds,
        "makespan_over_bound": statistics.makespan_over_bound(lengths),
        "occupancy": statistics.occupancy,
        "scored_per_s": int(lengths.sum()) / seconds,
        "seconds": seconds,
        "mean_episode_steps": float(lengths.mean()),
    }
    code = evaluator.encoding
    evaluator.close()
    return figures, code, population


def naive_scored_per_s(
    setting: Setting, code: Any, offspring: vx.Population, options: Options, *, kernels: bool
) -> float:
    """Plain vmap: a batch of members at a time, until the batch's longest episode ends.

    With `kernels` the network uses the kernels of volvox, which separates their gain from the gain of the loop.
    """
    n = options.num_envs
    (group,) = setting.env.make(options.seed, max_episode_steps=options.cutoff, num_groups=1, host=True)
    module = setting.module

    @jax.jit
    def members(code, bases, start):
        index = start + jnp.arange(n)
        return decode_many(code, bases, jax.tree.map(lambda x: x[index], Member(*offspring[1:5])))

    @jax.jit
    def act(params, observation):
        if kernels:
            output = jax.vmap(lambda p, o: setting.net.policy.apply(p, o[None], ())[0][0])(params, observation)
        else:
            output = jax.vmap(lambda p, o: module.apply({"params": p}, o[None])[0])(params, observation)
        return jnp.argmax(output, axis=-1).astype(jnp.int32)

    state, timestep = group.recv(group.init())
    params = members(code, offspring.bases, 0)
    jax.block_until_ready(act(params, timestep.observation))  # compilation
    # The order of the population is random, so a batch is a fair sample of it. Restarts are not timed.
    steps, seconds = 0, 0.0
    for batch in range(options.naive_batches):
        if batch:
            state, timestep = group.recv(group.restart(state))
        began = time.perf_counter()
        params = members(code, offspring.bases, batch * n)
        playing = np.ones(n, bool)
        while playing.any():
            action = np.asarray(act(params, timestep.observation))
            state, timestep = group.recv(group.send(state, action))
            steps += int(playing.sum())
            playing &= ~(timestep.terminated | timestep.truncated)
        seconds += time.perf_counter() - began
    group.close()
    return steps / seconds


def peak(options: Options) -> dict:
    """Plays short episodes of a large population in this process; returns its peak memory."""
    rollout(Setting(options), options, options.peak_of, cutoff=10)
    return {"peak_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9}


def measure(options: Options) -> dict:
    """All figures in one run."""
    figures: dict = {}
    if (needed := options.naive_batches * options.num_envs) > options.population:
        raise SystemExit(f"plain vmap needs {needed} members: give a larger --population or fewer --naive-batches")
    if options.memory:  # in another process, before anything else is in memory
        command = [sys.executable, __file__, "--peak-of", "1000", "--num-envs", str(options.num_envs), "--json"]
        command += ["--game", options.game, "--network", options.network, "--groups", str(options.groups)]
        command += ["--noise", options.noise]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        figures["peak_rss_gb"] = json.loads(printed.strip().splitlines()[-1])["peak_rss_gb"]
    setting = Setting(options)
    played, code, offspring = rollout(setting, options, options.population, options.cutoff)
    env_rate = env_steps_per_s(setting.env.make(options.seed, max_episode_steps=options.cutoff), options.seconds)
    inference_rate = inference_steps_per_s(setting, code, offspring, options.seconds)
    bound = 1 / (1 / env_rate + 1 / inference_rate)
    figures |= played | {
        "env_steps_per_s": env_rate,
        "inference_steps_per_s": inference_rate,
        "bound_steps_per_s": bound,
        "fraction_of_bound": played["stepped_per_s"] / bound,
        "scored_over_bound": played["scored_per_s"] / bound,
    }
    if options.naive_batches:
        figures["naive_scored_per_s"] = naive_scored_per_s(setting, code, offspring, options, kernels=False)
        figures["naive_with_kernels_scored_per_s"] = naive_scored_per_s(setting, code, offspring, options, kernels=True)
        figures["speedup_vs_naive"] = figures["scored_per_s"] / figures["naive_scored_per_s"]
    if options.peers:
        flags = {"game": options.game, "size": options.network, "num-envs": options.num_envs}
        figures["torch_steps_per_s"] = run_peer("torch_population", flags)["steps_per_s"]
        figures["speedup_vs_torch"] = figures["stepped_per_s"] / figures["torch_steps_per_s"]
    return figures


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    figures = peak(options) if options.peak_of else measure(options)
    figures |= {"settings": dataclasses.asdict(options), **machine()}
    show(figures, options.json)


if __name__ == "__main__":
    main()
