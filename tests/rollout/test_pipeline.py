"""The stopwatch, on a clock that the loop's own parts move."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox.rollout import pipeline
from volvox.rollout.pipeline import LoopState, Stages

B, BEATS = 4, 3


@pytest.fixture
def clock(monkeypatch):
    """Seconds, moved by hand; the first round costs a thousand times as much, as if it compiled."""

    class Clock:
        now = 0.0

        def spend(self, seconds, beat):
            self.now += float(seconds) * (1_000 if int(beat) < BEATS else 1)

    made = Clock()
    monkeypatch.setattr(pipeline.time, "perf_counter", lambda: made.now)
    return made


def loop(clock):
    """Two groups; acting takes 1 s, `work` 6 s in every third beat only, `finish` 3 s, the emulators 2 s."""

    def spend(seconds, beat):
        jax.experimental.io_callback(clock.spend, None, seconds, beat, ordered=True)

    def act(carry, memory, constants, g, timestep):
        spend(1.0, carry)
        return carry, jnp.zeros(B, jnp.int32)

    def work(carry, memory, constants, g):
        spend(jnp.where(carry % BEATS == 1, 6.0, 0.0), carry)
        return carry + (g == 1), memory

    def finish(carry, memory, constants):
        spend(3.0, carry - 1)
        return carry, memory + 1

    groups = []
    for group in probes.constant(num_envs=2 * B, groups=2).make(0, host=True):

        def recv(state, group=group):
            clock.spend(2.0, BEATS)
            return group.recv(state)

        groups.append(group._replace(recv=recv, traceable=False))
    return Stages(act, work, None, None, finish), groups


def test_times_are_means_over_whole_rounds(clock):
    stages, groups = loop(clock)
    run = pipeline.timed(stages, groups, beats_per_round=BEATS)
    state = LoopState(tuple(group.init() for group in groups), jnp.int32(0), jnp.int32(0))
    state, times = run(state, (), 3)
    assert int(state.memory) == 3  # rounds were finished
    assert int(state.carry) == 3 * BEATS
    assert times.acting == pytest.approx(1 / B)
    # 6 s for each of two groups and 3 s once, over the steps of a round
    assert times.working == pytest.approx((2 * 6 + 3) / (2 * BEATS * B))
    assert times.emulators == pytest.approx(2 / B)


def test_a_first_round_is_left_out(clock):
    stages, groups = loop(clock)
    run = pipeline.timed(stages, groups, beats_per_round=BEATS)
    state = LoopState(tuple(group.init() for group in groups), jnp.int32(0), jnp.int32(0))
    with pytest.raises(ValueError, match="rounds"):
        run(state, (), 1)


def test_what_is_in_flight_stays_in_flight(clock):
    """The plain loop goes on from there."""
    stages, groups = loop(clock)
    state = LoopState(tuple(group.init() for group in groups), jnp.int32(0), jnp.int32(0))
    state, _ = pipeline.timed(stages, groups, beats_per_round=BEATS)(state, (), 2)
    state, done = pipeline.driven(stages, groups, beats_per_round=BEATS)(state, (), 2)
    assert done == 2
    np.testing.assert_array_equal(state.memory, 4)
