"""The host's side of a learner on the pipeline: pools, chunks of about a second, progress, interrupts, a stopwatch."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from volvox.loop import pipeline
from volvox.loop.pipeline import Stages, Times
from volvox.types import ArrayTree, Env, EnvGroup, Interrupted

_TIMED_EVERY = 10
"""Runs; in the second after a start, and then every so many, the stopwatch goes along."""

Monitor = Callable[[dict[str, Any]], bool]
Counts = Mapping[str, int]


class Plan(NamedTuple):
    """What one run of the loop is to do.

    Attributes:
      seed: () -> seed of the environments, should they have to be started.
      begin: groups just made -> carry to begin with.
      prepare: (carry, memory) -> the same with what is counted in each run set back.
      goal: carry to begin with -> what is to be reached, in whatever `rounds_left` counts.
      rounds_left: (carry, goal) -> rounds that bring it no further than one round beyond the goal; none left ends the
        run.
      counts: (carry, memory) -> numbers that progress and rates are made of; looked at between chunks.
      progress: (counts before, counts now, seconds in between) -> what the monitor is told: `done` and `total`, and
        more.
      unit: What `done` and `total` count.
      check: memory -> nothing; raises where learning has failed. After each chunk.
    """

    seed: Callable[[], int]
    begin: Callable[[tuple[EnvGroup, ...]], ArrayTree]
    prepare: Callable[[ArrayTree, ArrayTree], tuple[ArrayTree, ArrayTree]]
    goal: Callable[[ArrayTree], int]
    rounds_left: Callable[[ArrayTree, int], int]
    counts: Callable[[ArrayTree, ArrayTree], Counts]
    progress: Callable[[Counts, Counts, float], dict[str, Any]]
    unit: str
    check: Callable[[ArrayTree], None]


class Ran(NamedTuple):
    """What came of it.

    Attributes:
      rounds: Rounds of the loop, those with the stopwatch left out, as in all that follows but `times`.
      times: None where the stopwatch did not go along.
    """

    carry: ArrayTree
    memory: ArrayTree
    rounds: int
    seconds: float
    before: Counts
    after: Counts
    times: Times | None


class Runner(NamedTuple):
    """The loop over pools of its own; they stay open from one run to the next.

    Attributes:
      run: (memory, plan, monitor) -> Ran. Goes on in the same episodes where `memory` is what the last run returned;
        otherwise it makes new pools. Neither `memory` nor what the last run returned is changed. Raises `Interrupted`
        if the monitor returns True before all rounds are done; after any exception, pools are closed.
    """

    run: Callable[..., Ran]
    close: Callable[[], None]


class _Live:
    """Pools, the compiled loop, and what is in flight: never part of a state."""

    def __init__(self):
        self.groups: tuple[EnvGroup, ...] = ()
        self.chunk: pipeline.Chunk | None = None
        self.timed: Any = None
        self.loop: tuple[ArrayTree, ArrayTree] | None = None
        """(environment states, carry) where the last run ended."""
        self.follows: ArrayTree = None
        """The memory that goes on from there."""
        self.rounds = 4
        """In a chunk, so that it lasts about as long as asked."""
        self.runs = 0
        """On these pools."""

    def close(self):
        for group in self.groups:
            group.close()
        self.__init__()


def runner(
    stages: Stages, env: Env, *, beats_per_round: int, timed_rounds: int, chunk_seconds: float, host: bool
) -> Runner:
    """Makes a runner.

    Args:
      stages: of the learner.
      env: recipe of the environments.
      beats_per_round: beats of a round.
      timed_rounds: rounds with the stopwatch, at least 2.
      chunk_seconds: how often progress and interrupts are looked at.
      host: drive the loop from Python.

    Returns:
      `Runner`.

    Raises:
      ValueError: `chunk_seconds` is not positive.
    """
    if not 0 < chunk_seconds < float("inf"):
        raise ValueError(f"chunk_seconds={chunk_seconds}: give a positive number of seconds.")
    live = _Live()

    def start(memory: ArrayTree, plan: Plan) -> tuple[list[ArrayTree], ArrayTree]:
        if live.loop is not None and live.follows is memory:
            envs, carry = live.loop
            return list(envs), carry
        live.close()  # envpool's emulators cannot be seeded anew, and may have actions in flight
        live.groups = env.make(plan.seed(), host=host)
        form = pipeline.driven if host else pipeline.traced
        live.chunk = form(stages, live.groups, beats_per_round=beats_per_round)
        live.timed = pipeline.timed(stages, live.groups, beats_per_round=beats_per_round)
        carry = plan.begin(live.groups)
        return [group.init() for group in live.groups], carry

    def advance(memory: ArrayTree, plan: Plan, monitor: Monitor | None) -> Ran:
        envs, carry = start(memory, plan)
        assert live.chunk is not None
        live.loop = None
        # The loop donates what it is given; what was passed in must outlive it, and so must what the last run returned.
        carry, memory = plan.prepare(*jax.tree.map(jnp.copy, (carry, memory)))
        goal, times = plan.goal(carry), None
        left = plan.rounds_left(carry, goal)
        # Not in the first run after a start, whose time is compilation anyway; tests and short runs end there.
        if live.runs % _TIMED_EVERY == 1 and timed_rounds < left:
            if monitor is not None and live.runs == 1 and monitor({"phase": "compiling"}):
                raise Interrupted("before the stopwatch was compiled")
            loop, times = live.timed(pipeline.LoopState(tuple(envs), carry, memory), (), timed_rounds)
            envs, carry, memory = list(loop.envs), loop.carry, loop.memory
            left = plan.rounds_left(carry, goal)
        live.runs += 1
        began, done = time.perf_counter(), 0
        before = now = plan.counts(carry, memory)
        while left > 0:
            chunk_began = time.perf_counter()
            rounds = min(live.rounds, left)
            loop, _ = live.chunk(pipeline.LoopState(tuple(envs), carry, memory), (), rounds)
            envs, carry, memory = list(loop.envs), loop.carry, loop.memory
            plan.check(memory)
            done += rounds
            if rounds == live.rounds:
                factor = chunk_seconds / max(time.perf_counter() - chunk_began, 1e-6)
                live.rounds = max(1, int(live.rounds * min(max(factor, 0.5), 2.0)))
            now, left = plan.counts(carry, memory), plan.rounds_left(carry, goal)
            if monitor is not None:
                progress = plan.progress(before, now, time.perf_counter() - began)
                if monitor(progress) and left > 0:
                    made = f"{progress['done']} of {progress['total']} {plan.unit}"
                    raise Interrupted(f"{made} were made and are dropped")
        seconds = time.perf_counter() - began
        live.loop, live.follows = (tuple(envs), carry), memory
        return Ran(carry, memory, done, seconds, before, now, times)

    def run(memory: ArrayTree, plan: Plan, monitor: Monitor | None = None) -> Ran:
        if monitor is not None and live.chunk is None and monitor({"phase": "compiling"}):
            raise Interrupted("before the loop was compiled")
        try:
            return advance(memory, plan, monitor)
        except BaseException:
            live.close()  # donated buffers and pools in flight cannot be trusted any more
            raise

    return Runner(run, live.close)
