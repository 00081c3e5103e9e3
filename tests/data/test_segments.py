"""The ring of segments, on a made-up timeline whose every number says where it belongs."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox.data import segments
from volvox.types import TimeStep

B, T = 6, 4
SPEC = probes.constant().spec


def number(k, b):
    """Observation of environment `b` at beat `k`."""
    return 100.0 * k + b


def timestep(k):
    """Environment b ends at every beat k with (k + b) % 5 == 4, by a time limit if b is odd."""
    b = np.arange(B)
    end = (k + b) % 5 == 4
    first = (k + b - 1) % 5 == 4
    return TimeStep(
        observation=jnp.float32(number(k, b))[:, None],
        reward=jnp.float32(10.0 * k + b),
        first=jnp.asarray(first),
        terminated=jnp.asarray(end & (b % 2 == 0)),
        truncated=jnp.asarray(end & (b % 2 == 1)),
        extras={},
    )


@pytest.mark.parametrize("num_segments", [2, 3])  # a single one would be overwritten as it is completed
def test_a_segment_holds_what_belongs_together(num_segments):
    """T beats a round; steps are completed one beat later."""
    ring = segments.init(num_segments, T, B, SPEC, jnp.zeros((B, 2)))
    add, b = jax.jit(segments.add), np.arange(B)
    seen = 0
    for k in range(4 * T + 1):
        r, t = divmod(k, T)
        step = timestep(k)
        results = {"reward": step.reward, "value": jnp.float32(1_000 * k + b), "log_prob": -jnp.ones(B)}
        results |= {"action": jnp.asarray((k + b) % 2, jnp.int32), "recurrent": jnp.full((B, 2), float(k))}
        ring = add(ring, jnp.int32(r), jnp.int32(t), step, version=jnp.int32(7 * r), **results)
        # Looked at in the first beat after its T steps, and as late as the ring holds it.
        for begin in {k - T, k - (num_segments * T - 1)} & set(range(0, k + 1, T)):
            seen += 1
            check(ring, begin, num_segments)
    assert seen > 0


def check(ring, begin, num_segments):
    """The segment that began at beat `begin`."""
    slot = jnp.int32(begin // T % num_segments)
    got = segments.take(ring, slot, jnp.int32(2), 3)
    ks, bs = np.arange(begin, begin + T)[:, None], np.arange(2, 5)[None]
    np.testing.assert_array_equal(got.observation[..., 0], number(ks, bs))
    np.testing.assert_array_equal(got.action, (ks + bs) % 2)
    np.testing.assert_array_equal(got.log_prob, -np.ones((T, 3)))
    np.testing.assert_array_equal(got.first, (ks + bs - 1) % 5 == 4)
    # The results of the step came one beat later.
    np.testing.assert_array_equal(got.reward, 10.0 * (ks + 1) + bs)
    end = (ks + 1 + bs) % 5 == 4
    np.testing.assert_array_equal(got.terminated, end & (bs % 2 == 0))
    np.testing.assert_array_equal(got.truncated, end & (bs % 2 == 1))
    np.testing.assert_array_equal(got.valid, (ks + bs) % 5 != 4)
    np.testing.assert_array_equal(got.version, np.full((T, 3), 7 * (begin // T)))
    np.testing.assert_array_equal(got.bootstrap, 1_000 * (begin + T) + bs[0])
    np.testing.assert_array_equal(got.recurrent, np.full((3, 2), float(begin)))
    more = segments.take(ring, slot, jnp.int32(2), 3, with_next=True)
    np.testing.assert_array_equal(more.observation[..., 0], number(np.arange(begin, begin + T + 1)[:, None], bs))
    np.testing.assert_array_equal(more.first[:T], got.first)
    np.testing.assert_array_equal(more.first[T], (begin + T + bs[0] - 1) % 5 == 4)
    np.testing.assert_array_equal(more.reward, got.reward)
