"""The loop in chunks, which adapt and end; interrupts between them; groups that are made, restarted and closed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox.rollout import loop as rollout_loop
from volvox.rollout.loop import Loop, Stages, seed_of

B = 2
ENV = probes.countdown(low=2, high=5, num_envs=2 * B, groups=2)


def make_groups(seed, host=False):
    return ENV.make(seed, num_envs=2 * B, num_groups=2, host=host)


make_host_groups = partial(make_groups, host=True)


def act(carry, memory, constants, g, timestep):
    """Keeps sums of what is observed, which tell apart any two histories."""
    beats, seen = carry
    seen = 0.9 * seen + timestep.observation.sum() + 10 * timestep.first.sum()
    return (beats + (g == 1), seen), jnp.zeros(B, jnp.int32)


def work(carry, memory, constants, g):
    return carry, memory + carry[0]


STAGES = Stages(act, work)
FINITE = Stages(act, work, lambda carry, g: carry[0] < 50)


def begin():
    return (jnp.int32(0), jnp.float32(0)), jnp.int32(0)


def opened(stages=STAGES, make=make_groups, seed=0, **options):
    loop = Loop(stages, make, **options)
    loop.open(seed)
    return loop


def rounds_until(goal):
    return lambda carry: goal - int(carry[0])


@pytest.fixture
def clock(monkeypatch):
    """A clock by which a chunk of `n` rounds takes `seconds(n)`."""

    class Clock:
        now, seconds = 0.0, staticmethod(lambda rounds: 0.0)

    made = Clock()
    monkeypatch.setattr(rollout_loop.time, "perf_counter", lambda: made.now)
    real = rollout_loop.traced

    def traced(*args, **kwargs):
        chunk = real(*args, **kwargs)

        def run(state, constants, rounds):
            made.now += made.seconds(rounds)
            return chunk(state, constants, rounds)

        return run

    monkeypatch.setattr(rollout_loop, "traced", traced)
    return made


def test_chunks_approach_the_asked_length_at_most_doubling(clock):
    clock.seconds = lambda rounds: rounds / 32
    loop = opened()
    chunks = list(loop.run(*begin(), rounds_left=rounds_until(159)))
    assert [rounds for _, rounds in chunks] == [1, 2, 4, 8, 16, 32, 32, 32, 32]
    clock.seconds = lambda rounds: rounds / 4  # eight times as slow
    chunks = list(loop.run(*begin(), rounds_left=rounds_until(81)))
    assert [rounds for _, rounds in chunks] == [32, 16, 8, 4, 4, 4, 4, 4, 4, 1]  # the last is cut short by the goal
    chunks = list(loop.run(*begin(), rounds_left=rounds_until(9)))
    assert [rounds for _, rounds in chunks] == [4, 4, 1]  # and says nothing of how long a chunk takes
    loop.close()


@pytest.mark.parametrize("make", [make_groups, make_host_groups], ids=["traced", "driven"])
def test_a_run_ends_when_nothing_remains_or_no_rounds_are_left(make, monkeypatch):
    for chunk_seconds in (1e6, 1e-6):  # the last chunk is cut short, or ends where nothing remains
        monkeypatch.setattr(rollout_loop, "CHUNK_SECONDS", chunk_seconds)
        loop = opened(FINITE, make)
        chunks = list(loop.run(*begin()))
        assert sum(rounds for _, rounds in chunks) == 50
        assert int(chunks[-1][0].carry[0]) == 50
        ((state, rounds),) = loop.run(*chunks[-1][0][1:])
        assert (rounds, int(state.carry[0])) == (0, 50)
    chunks = list(loop.run(*begin(), rounds_left=rounds_until(21)))
    assert int(chunks[-1][0].carry[0]) == 21
    assert list(loop.run(*begin(), rounds_left=lambda carry: 0)) == []
    loop.close()


@pytest.mark.parametrize("make", [make_groups, make_host_groups], ids=["traced", "driven"])
def test_stopping_between_chunks_loses_nothing(make, monkeypatch):
    """Stopped or run in one go, the same rounds leave the same bits."""
    monkeypatch.setattr(rollout_loop, "CHUNK_SECONDS", 1e6)
    whole = opened(make=make)
    *_, (expected, _) = whole.run(*begin(), rounds_left=rounds_until(60))

    monkeypatch.setattr(rollout_loop, "CHUNK_SECONDS", 1e-6)
    loop = opened(make=make)
    carry, memory = begin()
    for _ in range(3):
        for state, _ in loop.run(carry, memory, rounds_left=rounds_until(60)):
            carry, memory = state.carry, state.memory
            if int(carry[0]) % 3 == 0:
                break
    assert 0 < int(carry[0]) < 60
    *_, (last, _) = loop.run(carry, memory, rounds_left=rounds_until(60))
    jax.tree.map(np.testing.assert_array_equal, last[1:], expected[1:])
    assert int(last.carry[0]) == 60
    loop.close()
    whole.close()


def test_the_loop_in_python_works_only_in_turns_that_are_due():
    due = np.array([[False, True], [True, False], [False, False]])
    counting = Stages(act, lambda carry, memory, constants, g: (carry, memory.at[g].add(1)), due=due)
    loop = opened(counting, make_host_groups, beats_per_round=3)
    *_, (last, _) = loop.run(begin()[0], jnp.zeros(2, jnp.int32), rounds_left=lambda carry: 4 - int(carry[0]) // 3)
    loop.close()
    assert int(last.carry[0]) == 12
    np.testing.assert_array_equal(last.memory, [4, 4])


def test_the_continuation_is_reset_when_the_loop_moves():
    loop = opened()
    run = loop.run(*begin(), rounds_left=rounds_until(8))
    loop.continuation = "here"
    next(run)  # only now the loop moves
    assert loop.continuation is None
    for change in (loop.restart, loop.close, lambda: loop.open(1)):
        loop.continuation = "here"
        change()
        assert loop.continuation is None
    loop.close()


def history(loop, goal=20):
    *_, (state, _) = loop.run(*begin(), rounds_left=rounds_until(goal))
    return float(state.carry[1])


def test_pools_are_made_restarted_and_closed():
    seeds, closed = [], []

    def make(seed):
        seeds.append(seed)
        return tuple(group._replace(close=lambda g=g: closed.append(g)) for g, group in enumerate(make_groups(seed)))

    loop = Loop(STAGES, make)
    assert loop.groups == ()
    loop.open(3)
    first = history(loop)
    loop.open(3)
    assert closed == [0, 1]
    assert history(loop) == first
    loop.open(4)
    assert history(loop) != first
    loop.restart(5)
    again = history(loop)
    loop.restart(5)
    assert history(loop) == again
    assert seeds == [3, 3, 4]
    loop.close()
    loop.close()
    assert closed == [0, 1] * 3
    assert loop.groups == ()


def test_seeds_depend_on_the_key_and_each_number():
    key = jax.random.key(7)
    seeds = [seed_of(jax.random.key(8), 1), seed_of(key), seed_of(key, 1), seed_of(key, 0, 1), seed_of(key, 2, 1)]
    assert len(set(seeds)) == 5
    assert all(isinstance(seed, int) and 0 <= seed < 2**31 for seed in seeds)
    assert seed_of(key, 3, 1) == seed_of(jax.random.key_data(key), 3, 1)
    assert seed_of(key, 3, 1) == 977_761_756  # published runs were played with such seeds
