"""How fast a population plays real Atari, against the serial bound of its parts and against the usual way.

    python benchmarks/population_rollout.py --json

One run prints: the emulators alone, the networks alone, the bound both make together, the whole loop in the second
generation (decoding, ask and tell included, compilation not), the usual way (vmap over a plain network, one
synchronous pool, waiting for the longest episode of each batch), and the peak memory of a population of 1 000.

With low-rank noise the first generation has full noise and slots of its own. Those of the second are compiled with it,
so it is played twice, and timed when it is played again.
"""

import dataclasses
import json
import resource
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from parts import env_steps_per_s, machine, show

import volvox as vx
from volvox.ops.low_rank import with_bases
from volvox.population import Member, decode_many
from volvox.rollout import Evaluator, RolloutStatistics, SlotMemory

Flag = tyro.conf.arg


@dataclasses.dataclass(frozen=True)
class Options:
    """The population rollout benchmark."""

    game: str = "Frostbite"
    population: Annotated[int, Flag(help="members")] = 256
    num_envs: Annotated[int, Flag(help="slots, in all groups together")] = 64
    groups: int = 2
    cutoff: Annotated[int, Flag(help="steps after which an episode is cut")] = 400
    network: Literal["large", "small"] = "large"
    noise: Annotated[Literal["table", "low-rank"], Flag(help="low-rank: of rank 1")] = "table"
    seed: int = 0
    host: Annotated[bool, Flag(help="drive the loop from Python instead of compiling it whole")] = False
    naive_batches: Annotated[int, Flag(help="batches of num_envs members that the usual way plays; 0: skip it")] = 1
    memory: Annotated[bool, Flag(help="also measure a population of 1 000 in a process of its own")] = True
    peak_of: Annotated[int, Flag(help="only play so many members for a moment, and print the peak memory")] = 0
    json: Annotated[bool, Flag(help="print one JSON object")] = False


class Setting:
    """What all measurements share: recipe, network, strategy, encoding and slots."""

    def __init__(self, options: Options, population: int):
        self.env = vx.envs.atari(options.game, num_envs=options.num_envs, groups=options.groups)
        assert self.env.spec.num_actions is not None  # Atari's actions are discrete
        self.module = vx.networks.DeepGA(self.env.spec.num_actions, size=options.network)
        self.net = vx.networks.genotype(self.module, self.env.spec)
        self.strategy = dataclasses.replace(vx.GA.paper(), population_size=population, num_test_episodes=0)
        noise = vx.population.LowRank() if options.noise == "low-rank" else vx.population.Table()
        self.code = vx.population.encoding(self.net, noise)
        # First ancestors have full noise, so the first generation's slots hold formed kernels.
        self.first_code = dataclasses.replace(self.code, formed=self.code.rank is not None)
        self.memory = self.slots(self.first_code)
        self.phases = vx.evolution.compiled_phases(self.strategy)

    def slots(self, code: vx.population.Encoding) -> SlotMemory:
        """Slots without members."""
        groups = self.env.num_groups
        return SlotMemory(self.net, code, groups, self.env.num_envs // groups)


def inference_steps_per_s(setting: Setting, bases, seconds: float = 5.0) -> float:
    """The networks alone: every slot's own network acts, group by group, inside one compiled loop.

    The slots are as a rollout left them. Low-rank members share what their parents share, as they did there.
    """
    spec = setting.env.spec
    b = setting.env.num_envs // setting.env.num_groups
    observation = jnp.zeros((b, 1, *spec.observation_shape), spec.observation_dtype)

    @jax.jit
    def forward(memory, bases, observation, times):
        def body(i, actions):
            for variables in memory:
                # The observation depends on the last action, as it does in the loop.
                seen = observation + (actions[0] + i).astype(observation.dtype)
                act = lambda v, o: setting.net.policy.apply(with_bases(v, bases), o, ())  # noqa: E731
                output, _ = jax.vmap(act)(variables, seen)
                actions = jnp.argmax(output[:, 0], axis=-1).astype(jnp.int32)
            return actions

        return jax.lax.fori_loop(0, times, body, jnp.zeros(b, jnp.int32))

    jax.block_until_ready(forward(setting.memory.groups, bases, observation, 1))
    began, times = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        jax.block_until_ready(forward(setting.memory.groups, bases, observation, 5))
        times += 5
    return times * setting.env.num_envs / (time.perf_counter() - began)


def second_generation(
    setting: Setting, make_groups: Any, options: Options
) -> tuple[RolloutStatistics, float, vx.Population]:
    """Plays two generations; figures, seconds (ask and tell included) and population of the second."""
    key, capacity = jax.random.key(options.seed), setting.strategy.population_size
    state = setting.strategy.init(key, setting.code)
    with closing(Evaluator(setting.net, make_groups, setting.memory, capacity=capacity)) as played:
        state, *_ = generation(setting, played, setting.first_code, state, jax.random.fold_in(key, 0))
        if setting.code.rank is None:
            return generation(setting, played, setting.code, state, jax.random.fold_in(key, 1))[1:]
    del played, setting.memory  # slots of both kinds at once would take the memory of both
    setting.memory = setting.slots(setting.code)
    with closing(Evaluator(setting.net, make_groups, setting.memory, capacity=capacity)) as played:
        generation(setting, played, setting.code, state, jax.random.fold_in(key, 1))
        return generation(setting, played, setting.code, state, jax.random.fold_in(key, 1))[1:]


def generation(setting: Setting, played: Evaluator, code: vx.population.Encoding, state: Any, key: jax.Array):
    """One generation: state, figures, seconds and population of its training phase."""
    keys = jax.random.split(key)
    began = time.perf_counter()
    training, validation = setting.phases[:2]
    offspring, state = training.ask(keys[0], state, setting.code)
    evaluation, figures = played.evaluate(offspring, 1, code, seed=0)
    state, _ = training.tell(keys[0], state, offspring, evaluation, setting.code)
    # The second phase's ask and tell belong to a generation too; its episodes are another measurement.
    candidates, state = validation.ask(keys[1], state, setting.code)
    shape = (validation.num_members, validation.num_episodes)
    scores = jax.random.normal(keys[1], shape)
    result = vx.Evaluation(scores, jnp.full(shape, 400), jnp.ones(shape, bool), jnp.zeros((*shape, 0)))
    state, _ = jax.block_until_ready(validation.tell(keys[1], state, candidates, result, setting.code))
    return state, figures, time.perf_counter() - began, offspring


def naive_scored_per_s(setting: Setting, offspring, options: Options, *, kernels: bool) -> float:
    """The usual way: a batch of members at a time, vmap over the network, until the batch's longest episode ends.

    With `kernels` the network is ours, which splits what the loop gains from what the kernels gain.
    """
    n = options.num_envs
    (group,) = setting.env.make(options.seed, max_episode_steps=options.cutoff, num_groups=1, host=True)
    module = setting.module

    @jax.jit
    def members(code, bases, start):
        index = start + jnp.arange(n)
        chosen = jax.tree.map(lambda x: x[index], Member(*offspring[1:5]))
        return decode_many(code, bases, chosen)

    @jax.jit
    def act(params, observation):
        if kernels:
            output = jax.vmap(lambda p, o: setting.net.policy.apply(p, o[None], ())[0][0])(params, observation)
        else:
            output = jax.vmap(lambda p, o: module.apply({"params": p}, o[None])[0])(params, observation)
        return jnp.argmax(output, axis=-1).astype(jnp.int32)

    state, timestep = group.recv(group.init())
    params = members(setting.code, offspring.bases, 0)
    jax.block_until_ready(act(params, timestep.observation))  # compilation
    # In the population's order, which is random: a batch is a fair sample of it. Restarts are not timed.
    steps, seconds = 0, 0.0
    for batch in range(options.naive_batches):
        if batch:
            state, timestep = group.recv(group.restart(state))
        began = time.perf_counter()
        params = members(setting.code, offspring.bases, batch * n)
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
    """Plays two short generations of a large population in this process; its peak memory."""
    setting = Setting(options, options.peak_of)
    second_generation(setting, partial(setting.env.make, max_episode_steps=10), options)
    return {"peak_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9}


def measure(options: Options) -> dict:
    """All figures in one run."""
    figures: dict = {}
    if options.memory:
        # First, and in a process of its own: nothing of ours is in its memory, and nothing runs beside it.
        command = [sys.executable, __file__, "--peak-of", "1000", "--num-envs", str(options.num_envs), "--json"]
        command += ["--game", options.game, "--network", options.network, "--groups", str(options.groups)]
        command += ["--noise", options.noise]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        figures["peak_rss_gb"] = json.loads(printed.strip().splitlines()[-1])["peak_rss_gb"]
    setting = Setting(options, options.population)
    make_groups = partial(setting.env.make, max_episode_steps=options.cutoff, host=options.host)
    rollout, seconds, offspring = second_generation(setting, make_groups, options)
    env_rate = env_steps_per_s(setting.env.make(options.seed, max_episode_steps=options.cutoff))
    inference_rate = inference_steps_per_s(setting, offspring.bases)
    bound = 1 / (1 / env_rate + 1 / inference_rate)
    figures |= {
        "env_steps_per_s": env_rate,
        "inference_steps_per_s": inference_rate,
        "bound_steps_per_s": bound,
        "stepped_per_s": rollout.stepped / seconds,
        "fraction_of_bound": rollout.stepped / seconds / bound,
        "makespan_over_bound": rollout.makespan_over_bound,
        "occupancy": rollout.occupancy,
        "scored_per_s": rollout.timesteps / seconds,
        "scored_over_bound": rollout.timesteps / seconds / bound,
        "seconds": seconds,
        "mean_episode_steps": rollout.timesteps / rollout.episodes,
    }
    if options.naive_batches:
        figures["naive_scored_per_s"] = naive_scored_per_s(setting, offspring, options, kernels=False)
        figures["naive_with_kernels_scored_per_s"] = naive_scored_per_s(setting, offspring, options, kernels=True)
        figures["speedup_vs_naive"] = figures["scored_per_s"] / figures["naive_scored_per_s"]
    return figures


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    figures = peak(options) if options.peak_of else measure(options)
    figures |= {"settings": dataclasses.asdict(options), **machine()}
    show(figures, options.json)


if __name__ == "__main__":
    main()
