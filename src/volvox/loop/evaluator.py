"""Playing a whole population: the host's side of `episodes`, in chunks of about a second."""

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox.loop import pipeline
from volvox.loop import slots as episodes
from volvox.loop.behaviors import Behavior, nothing
from volvox.population.decoding import Encoding, Member
from volvox.types import Array, ArrayTree, EnvGroup, EnvSpec, Evaluation, Interrupted, Policy, Population

Monitor = Callable[[dict[str, Any]], bool | None]

_MOST_BEATS = 2**20
_TIMED_BEATS = 20


class Figures(NamedTuple):
    """How a rollout went. Steps are agent decisions; a beat steps every group once.

    Attributes:
      steps: Scored steps: the sum of the episodes' lengths.
      stepped: Slot-steps of the emulators, idle slots and reset steps included.
      occupancy: Slot-steps with an episode to play, over `stepped`.
      makespan: Beats from the first to the last.
      makespan_over_bound: `makespan` over the larger of steps / slots and the longest episode: 1 is a perfect schedule.
      seconds: Wall-clock, decoding and scheduling included; compilation too if this was the first call.
      steps_per_second: `steps / seconds`.
      stepped_per_second: Slot-steps per second of the loop, what was played with a stopwatch not counted.
      times: Of the parts of a slot-step, if asked for.
    """

    steps: int
    stepped: int
    episodes: int
    occupancy: float
    makespan: int
    makespan_over_bound: float
    seconds: float
    steps_per_second: float
    stepped_per_second: float
    times: pipeline.Times | None


class SlotMemory:
    """The parameters of every slot: allocated once, donated to each rollout, shared by pools that take turns.

    The one mutable thing here: gigabytes that are updated in place.
    """

    def __init__(self, policy: Policy, encoding: Encoding, num_groups: int, group_size: int):
        """Allocates zeros: `num_groups` × `group_size` × what a slot holds of a member."""
        bases = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), encoding.like)
        member = Member(jnp.int32(0), jnp.int32(0), jnp.float32(0), jnp.bool_(False))
        one = jax.eval_shape(lambda *of: episodes.slot_variables(policy, *of), encoding, bases, member)
        self.groups: tuple[ArrayTree, ...] = tuple(
            jax.tree.map(lambda x: jnp.zeros((group_size, *x.shape), x.dtype), one) for _ in range(num_groups)
        )


class Evaluator(NamedTuple):
    """Plays populations on pools of its own.

    Attributes:
      evaluate: (population, num_episodes, encoding, *, seed=None, timed=False, monitor=None) -> (Evaluation `[N,
        num_episodes]`, Figures). `timed` plays a few beats halfway with a stopwatch (`pipeline.timed`), which the first
        call only compiles. Every environment begins a new episode, seeded by `seed` where it can be (see
        `EnvGroup.restart`). Calls `monitor` about once a second with progress figures; raises `Interrupted` if it
        returns True, ValueError if more episodes are asked for than there is room, RuntimeError after `close`.
      chunk: The loop itself; for tests that read it.
    """

    evaluate: Callable[..., tuple[Evaluation, Figures]]
    chunk: pipeline.Chunk
    close: Callable[[], None]


def greedy_action(spec: EnvSpec) -> Callable[[Array], Array]:
    """How a network's output becomes an action: the largest of a discrete set, or clipped to the bounds."""
    if spec.num_actions is not None:
        return lambda output: jnp.argmax(output, axis=-1).astype(jnp.int32)
    shape = spec.action_shape or ()
    return lambda output: jnp.clip(output, spec.action_low, spec.action_high).reshape(-1, *shape)


def evaluator(
    policy: Policy,
    groups: Iterable[EnvGroup],
    memory: SlotMemory,
    *,
    capacity: int,
    behavior: Behavior | None = None,
    chunk_seconds: float = 1.0,
) -> Evaluator:
    """Makes an evaluator over groups of environments.

    Groups that can be traced run in the compiled loop, others are driven from Python; the results mean the same.

    Args:
      policy: the network.
      groups: of one size; the evaluator closes them.
      memory: parameters of the slots, for as many groups of that size.
      capacity: the most episodes of one call. A shape: it is compiled in, the population's size is not.
      behavior: what is recorded of each episode; None records nothing.
      chunk_seconds: about how long the compiled loop runs before Python looks at progress and interrupts.

    Returns:
      `Evaluator`.

    Raises:
      ValueError: groups of different sizes, or a non-positive capacity.
    """
    groups = tuple(groups)
    sizes = {group.num_envs for group in groups}
    if len(sizes) != 1:
        raise ValueError(f"groups of {sorted(sizes)} environments; all groups of a pool have one size.")
    if capacity < 1:
        raise ValueError(f"capacity={capacity}: room for at least one episode is needed.")
    behavior = nothing() if behavior is None else behavior
    stages = episodes.stages(policy, greedy_action(groups[0].spec), behavior)
    traceable = all(group.traceable for group in groups)
    chunk = (pipeline.traced if traceable else pipeline.driven)(stages, groups)
    with_stopwatch = pipeline.timed(stages, groups)
    num_slots = sum(group.num_envs for group in groups)
    envs: list[ArrayTree] | None = None
    beats = 8
    closed = have_played = False

    @jax.jit
    def begin(queue):
        return episodes.start(policy, groups, queue, behavior)

    fill = jax.jit(lambda carry, memory, constants: episodes.fill(stages, carry, memory, constants), donate_argnums=1)
    remaining = jax.jit(lambda carry: episodes.remaining(carry))
    line_up = jax.jit(episodes.queue, static_argnums=(1, 2))
    sort_out = jax.jit(episodes.evaluation, static_argnums=(3, 4))
    drain = [
        jax.jit(lambda env, recv=group.recv: recv(env)[0]) if traceable else lambda env, recv=group.recv: recv(env)[0]
        for group in groups
    ]

    def restart(seed: int | None) -> list[ArrayTree]:
        nonlocal envs
        if envs is None:
            envs = [group.init() for group in groups]
        # What is in flight (the first episodes, or the actions of the last beat) must land first.
        envs = [group.restart(take(env), seed) for group, take, env in zip(groups, drain, envs, strict=True)]
        return envs

    def evaluate(
        population: Population,
        num_episodes: int,
        encoding: Encoding,
        *,
        seed: int | None = None,
        timed: bool = False,
        monitor: Monitor | None = None,
    ) -> tuple[Evaluation, Figures]:
        nonlocal envs, beats, have_played
        if closed:
            raise RuntimeError("this evaluator was closed and its pools are gone; make another.")
        total, most = int(population.episodes.sum()), int(population.episodes.max())
        if not 0 < total <= capacity:
            raise ValueError(f"{total} episodes asked for; this evaluator holds 1 to {capacity}.")
        if most > num_episodes:
            raise ValueError(f"a member asks for {most} episodes, but num_episodes={num_episodes}.")
        if encoding.rank is not None and bool(population.initial.any()):
            raise ValueError("with low-rank noise first ancestors are bases (decode them), never members.")
        began = time.perf_counter()
        queue = line_up(population._replace(bases=()), num_episodes, capacity)
        constants = episodes.Constants(queue, population.bases, encoding)
        state_envs = restart(seed)
        held = episodes.Memory(memory.groups, jnp.zeros((capacity, behavior.size)))
        carry, held = fill(begin(queue), held, constants)
        memory.groups = held.variables
        done, times = False, None
        left_out = (0.0, 0)  # seconds and slot-steps with the stopwatch
        while not done:
            halfway = 2 * int(carry.played.sum()) >= total  # where slots take members as they do on the whole
            compiles = not have_played
            if timed and times is None and (compiles or halfway):
                timed_began, before = time.perf_counter(), int(carry.counters.stepped)
                state = pipeline.LoopState(tuple(state_envs), carry, held)
                state, times = with_stopwatch(state, constants, 2 if compiles else _TIMED_BEATS)
                state_envs, carry, held = list(state.envs), state.carry, state.memory
                envs, memory.groups = state_envs, held.variables
                left_out = (time.perf_counter() - timed_began, int(carry.counters.stepped) - before)
                timed = not compiles
                times = None if compiles else times
            chunk_began = time.perf_counter()
            state = pipeline.LoopState(tuple(state_envs), carry, held)
            state, beats_done = chunk(state, constants, beats)
            state_envs, carry, held = list(state.envs), state.carry, state.memory
            envs, memory.groups = state_envs, held.variables
            cut_short = int(beats_done) < beats
            done = cut_short or not bool(remaining(carry))
            now = time.perf_counter()
            if not cut_short:
                # Towards chunks of the asked length, at most doubling: the first calls include compilation.
                factor = chunk_seconds / max(now - chunk_began, 1e-6)
                beats = min(max(1, int(beats * min(max(factor, 0.5), 2.0))), _MOST_BEATS)
            if monitor is not None:
                stepped, busy = int(carry.counters.stepped), int(carry.counters.busy)
                progress = {
                    "done": int(carry.played.sum()),
                    "total": total,
                    "stepped": stepped,
                    "steps_per_second": stepped / (now - began),
                    "occupancy": busy / max(stepped, 1),
                }
                if monitor(progress) and not done:
                    raise Interrupted(f"{progress['done']} of {total} episodes were played and are dropped")
        result = sort_out(carry, held.behaviors, queue, population.seed.shape[0], num_episodes)
        if int(result.valid.sum()) != total:
            raise RuntimeError(f"{int(result.valid.sum())} of {total} episodes were played; this is a bug in the loop.")
        have_played = True
        return result, _figures(carry, num_slots, time.perf_counter() - began, times, left_out)

    def close():
        nonlocal closed
        closed = True
        for group in groups:
            group.close()

    return Evaluator(evaluate, chunk, close)


def _figures(
    carry: episodes.EpisodesCarry,
    num_slots: int,
    seconds: float,
    times: pipeline.Times | None,
    left_out: tuple[float, int],
) -> Figures:
    lengths = np.asarray(carry.lengths)
    steps, stepped = int(lengths.sum(dtype=np.int64)), int(carry.counters.stepped)
    makespan = int(carry.counters.group_beats.max())
    bound = max(steps / num_slots, int(lengths.max()), 1)
    return Figures(
        steps=steps,
        stepped=stepped,
        episodes=int(carry.played.sum()),
        occupancy=int(carry.counters.busy) / max(stepped, 1),
        makespan=makespan,
        makespan_over_bound=makespan / bound,
        seconds=seconds,
        steps_per_second=steps / seconds,
        stepped_per_second=(stepped - left_out[1]) / (seconds - left_out[0]),
        times=times,
    )
