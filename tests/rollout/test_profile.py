"""Times of the parts of the loop, by a clock that only the parts advance."""

import jax
import jax.numpy as jnp
import probes
import pytest

from volvox.rollout import loop as rollout_loop
from volvox.rollout.loop import Loop, Stages, time_parts

B, BEATS = 4, 3


@pytest.fixture
def clock(monkeypatch):
    """Seconds, moved by hand; the first round costs a thousand times as much, as if it compiled."""

    class Clock:
        now, rounds = 0.0, 0

        def spend(self, seconds, beat):
            self.now += float(seconds) * (1_000 if int(beat) < BEATS else 1)

        def count(self):
            self.rounds += 1

    made = Clock()
    monkeypatch.setattr(rollout_loop.time, "perf_counter", lambda: made.now)
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
        jax.experimental.io_callback(clock.count, None, ordered=True)
        return carry, memory + 1

    groups = []
    for group in probes.constant(num_envs=2 * B, groups=2).make(0, host=True):

        def recv(state, group=group):
            clock.spend(2.0, BEATS)
            return group.recv(state)

        groups.append(group._replace(recv=recv, traceable=False))
    loop = Loop(Stages(act, work, finish=finish), lambda seed: tuple(groups), beats_per_round=BEATS)
    loop.open(0)
    return loop


@pytest.mark.parametrize(("seconds", "rounds"), [(1.0, 2), (60.0, 3)])
def test_times_are_means_over_whole_rounds(clock, seconds, rounds):
    """A round takes 3 * 2 * (1 + 2) + 2 * 6 + 3 = 33 s; the first is not timed."""
    made = loop(clock)
    emulators, acting, working = time_parts(made, jnp.int32(0), jnp.int32(0), seconds=seconds)
    assert clock.rounds == rounds
    assert acting == pytest.approx(1 / B)
    # 6 s for each of two groups and 3 s once, over the steps of a round
    assert working == pytest.approx((2 * 6 + 3) / (2 * BEATS * B))
    assert emulators == pytest.approx(2 / B)
    made.close()
