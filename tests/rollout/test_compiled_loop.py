"""Order and copies in the compiled loop, read from its scheduled HLO."""

import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from volvox import networks, population
from volvox.envs import atari
from volvox.population import decoding
from volvox.rollout import Trajectory, slots
from volvox.rollout.loop import Loop, LoopState
from volvox.types import Population, zeros

pytestmark = pytest.mark.optimized

ENVS_PER_GROUP = 5  # a number that occurs in no other shape


@pytest.fixture(
    scope="module",
    params=[population.Table, pytest.param(population.LowRank, marks=pytest.mark.slow)],
    ids=["full", "low-rank"],
)
def hlo(request):
    """The optimised program of a population's chunk, on real Atari pools."""
    env = atari("Pong", num_envs=2 * ENVS_PER_GROUP, groups=2)
    net = networks.genotype(networks.DeepGA(env.spec.num_actions, size="small"), env.spec)
    code = population.encoding(net, request.param())
    n, behavior = 16, Trajectory("ram", 128, every=1, length=3_000)
    rollout = slots.Rollout(net, behavior)
    loop = Loop(rollout.stages(), env.make)
    loop.open(0)
    bases = jax.tree.map(lambda x: jnp.zeros((3, *x.shape)), code.like)
    numbers = jnp.zeros(n, jnp.int32)
    member = decoding.Member(numbers[0], numbers[0], jnp.float32(0), jnp.bool_(False))
    held = zeros(jax.eval_shape(partial(slots.slot_variables, net), code, bases, member), ENVS_PER_GROUP)
    everyone = Population(bases, numbers, numbers, jnp.ones(n), numbers > 0, numbers + 1, jnp.zeros(n))
    constants = slots.make_queue(everyone, jax.random.key(0), None, 1, n), bases, code
    memory = (held, held), jnp.zeros((n, behavior.size))
    carry, memory = jax.eval_shape(lambda *of: rollout.begin(*of, 2, ENVS_PER_GROUP), memory, constants)
    chunk = loop.run_chunk
    text = chunk.func.lower(*chunk.args, LoopState(loop.envs, carry, memory), constants, 1).compile().as_text()
    loop.restart()  # nothing may be in flight when a pool is dropped
    loop.close()
    return text


def computations(text):
    """Name -> lines of every computation of an HLO module."""
    found, name = {}, None
    for line in text.splitlines():
        head = re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line)
        if head and "=" not in line.split("(")[0]:
            name = head.group(1)
            found[name] = []
        elif name:
            found[name].append(line)
    return found


def test_a_beat_is_step_work_step_work(hlo):
    """In the loop's body each group's conditional (recv, act, send) comes before its work, and that before the next."""
    found = computations(hlo)
    slots = rf"f32\[{ENVS_PER_GROUP},\d+,\d+\]"
    for lines in found.values():
        kinds = []
        for line in lines:
            if " conditional(" in line:
                kinds.append("step")
            elif re.search(rf"{slots}.* (while|call)\(", line):  # newer versions of XLA call the loop
                kinds.append("work")
        if kinds.count("step") == 2:
            # Work is two loops: over the slots that are due, and over those whose episode ended.
            assert kinds == ["step", "work", "work", "step", "work", "work"]
            break
    else:
        pytest.fail("no computation holds both groups' steps")


def largest_copy(text):
    """(elements, line) of the largest copy in an HLO module."""
    found = [(0, "")]
    for line in text.splitlines():
        match = re.search(r"= (\S+?)\{?[\d,]*\}? copy(?:-start)?\(", line)
        if match:
            size = re.match(r"\w+\[([\d,]*)\]", match.group(1))
            found.append((math.prod(int(n) for n in filter(None, size.group(1).split(",") if size else [])), line))
    return max(found)


def test_no_copy_the_size_of_the_slots(hlo):
    """Slot parameters, bases, the table and the episodes' behaviours (6 million numbers) stay where they are."""
    assert 0 < largest_copy(hlo)[0] < 1_000_000, largest_copy(hlo)  # some small ones there are
