"""Iterations of `volvox.learn`, on one device or several."""

import functools
import time
from typing import Any

import jax

from volvox.data import metrics
from volvox.learners import reporting
from volvox.learners.evaluation import PolicyEvaluator
from volvox.learners.state import Acting, LearnState, States, without
from volvox.rollout.loop import Loop, Monitor, copied, seed_of, time_parts
from volvox.types import Interrupted, zeros


class Iterations:
    """Makes iterations: chunks of the loop between two states, with progress, interrupts and a row of metrics."""

    def __init__(self, states: States, loop: Loop, evaluator: PolicyEvaluator | None):
        """Prepares iterations; environments are made by the first."""
        self.states, self.loop, self.evaluator = states, loop, evaluator
        self.learner, self.schedule, self.env = states.learner, states.schedule, states.env
        self.num_learners = self.schedule.num_learners or 1

    def step(self, state: LearnState, *, monitor: Monitor | None = None) -> tuple[LearnState, dict[str, Any]]:
        """Makes an iteration; see `Algorithm.step`."""
        monitor = monitor or (lambda figures: False)
        try:
            new, row = self.iteration(state, monitor)
            if self.evaluator is None:
                return new, row
            candidates = self.learner.variables(new.learning)
            new, found = self.evaluator.evaluate(new, candidates, state.timesteps, monitor)
            return new, row | found
        except BaseException:
            self.close()  # donated buffers and actions in flight cannot be trusted any more
            raise

    def iteration(self, state: LearnState, monitor: Monitor) -> tuple[LearnState, dict[str, Any]]:
        """Returns the next state and the row of metrics, without evaluation."""
        loop, devices, frame_skip = self.loop, self.loop.devices, self.env.spec.frame_skip
        is_open, begun, learning = self.opened(state, monitor)
        # The loop donates its arguments, and the state of the caller must outlive it.
        acting, learning = copied((begun, learning))
        learning = learning._replace(metrics=devices.placed(zeros(state.learning.metrics)))
        first = int(state.learning.update)
        rounds = timesteps = updates = 0
        began, before = time.perf_counter(), (0, 0, 0)
        rounds_left = lambda acting: self.progress(state, begun, acting)[2]  # noqa: E731
        for chunk in loop.run(acting, learning, devices.placed(state.key), rounds_left=rounds_left):
            acting, learning, rounds = chunk.carry, chunk.memory, rounds + chunk.rounds
            timesteps, updates = self.made(begun, acting), _difference(devices.local(learning.update), first)
            reporting.check_finite(self.learner, devices.local(learning), self.env.spec.name)
            done, total, left = self.progress(state, begun, acting)
            rate = (timesteps - before[1]) * frame_skip / (time.perf_counter() - began)
            if not is_open and rounds == chunk.rounds and left:  # rates leave compilation out
                began, before = time.perf_counter(), (rounds, timesteps, updates)
            figures = {"phase": "training", "done": done, "total": total, "stepped": timesteps}
            if self.stops(monitor, figures | {"frames_per_second": rate}) and left:
                raise Interrupted(f"{done} of {total} parts of this iteration were made and are dropped")
        seconds = time.perf_counter() - began

        kept, learned = devices.local((acting, learning))
        if devices.mesh is not None:
            join = jax.jit(devices.mapped(functools.partial(metrics.over_devices, axis=self.env.axis)))
            episodes, gathered = devices.local(join(acting.episodes, learning.metrics))
            kept, learned = kept._replace(episodes=episodes), learned._replace(metrics=gathered)
            if not devices.agree(getattr(learning, "params", ())):
                raise ValueError("devices have learned different parameters: sum gradients over env.axis.")
        loop.standing = learned, acting, learning
        new = LearnState(state.key, kept, learned, state.timesteps + timesteps, state.evaluated)
        rates = {
            "predictions": (rounds - before[0]) * self.schedule.beats_per_round * self.env.all_envs,
            "updates": updates - before[2],
            "frames": (timesteps - before[1]) * frame_skip,
        }
        row = reporting.row(new, self.schedule, self.env)
        row |= {f"{name}_per_second": count / seconds for name, count in rates.items()}
        if devices.mesh is None and all(group.resumable for group in loop.groups):
            return new._replace(envs=copied(loop.envs)), row
        return without(new, "collectors"), row

    def opened(self, state: LearnState, monitor: Monitor) -> tuple[bool, Acting, Any]:
        """Makes environments, unless those of the state are open; returns (are open, acting, learning) on devices."""
        loop, devices = self.loop, self.loop.devices
        if loop.standing is not None and loop.standing[0] is state.learning:
            return True, *loop.standing[1:]
        if self.stops(monitor, {"phase": "compiling"}):
            raise Interrupted("before the loop was compiled")
        if state.envs and devices.mesh is None:
            loop.open(0, state.envs)
            return False, state.acting, state.learning
        loop.open(seed_of(state.key, state.timesteps))
        acting = self.states.begin(state.acting)
        if devices.mesh is not None:
            # The episodes so far are counted once.
            later = acting._replace(episodes=zeros(acting.episodes))
            acting = devices.placed(*(later if number else acting for number in devices.numbers))
        return False, acting, devices.placed(state.learning)

    def progress(self, state: LearnState, begun: Acting, acting: Acting) -> tuple[int, int, int]:
        """Returns (done, total, rounds left) of the iteration of `state`, in rounds or timesteps."""
        schedule, local = self.schedule, self.loop.devices.local
        if schedule.timesteps_per_iteration is None:
            total, delay = schedule.rounds_per_iteration or 1, schedule.delay
            before, now = (int(local(x.round)) - delay for x in (begun, acting))
            before = max(before, 0)  # the first rounds have nothing to learn from
            return max(now, 0) - before, total, before + total - now
        made = self.made(begun, acting)
        total = schedule.timesteps_per_iteration * self.num_learners
        missing = total - state.timesteps % total - made
        # Timesteps that begin an episode do not count, so that these rounds may not be enough, and some follow.
        left = max(-(-missing // (self.env.all_envs * schedule.beats_per_round)), 0)
        return made // self.num_learners, schedule.timesteps_per_iteration, left

    def made(self, begun: Acting, acting: Acting) -> int:
        """Returns the timesteps that all devices have made since `begun`."""
        return _difference(*self.loop.devices.sum((acting.timesteps, begun.timesteps)))

    def stops(self, monitor: Monitor, figures: dict[str, Any]) -> bool:
        """Returns whether the monitor of any process asks to stop."""
        return self.loop.devices.largest(bool(monitor(figures))) > 0

    def profile(self, state: LearnState, seconds: float) -> tuple[LearnState, Any]:
        """Times the parts of the loop on a copy of the state, whose environments begin new episodes."""
        try:
            _, acting, learning = self.opened(state, lambda figures: False)
            acting, learning = copied((acting, learning))
            key, rounds = self.loop.devices.placed(state.key), max(2, self.schedule.delay + 1)
            acting, learning, times = time_parts(self.loop, acting, learning, key, rounds=rounds)
            rounds = int(seconds / (sum(times) * self.schedule.beats_per_round * self.env.num_envs))
            if rounds >= 2:
                *_, times = time_parts(self.loop, acting, learning, key, rounds=rounds)
            return state, times
        finally:
            self.loop.close()

    def close(self) -> None:
        """Frees all environments."""
        self.loop.close()
        if self.evaluator is not None:
            self.evaluator.close()


def _difference(now: Any, before: Any) -> int:
    """Returns the difference of two int32 counts, which may have overflowed in between."""
    return (int(now) - int(before)) % 2**32
