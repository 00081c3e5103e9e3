"""Bases are recognised by what is in them, made where they can be, and asked for otherwise."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import networks, population
from volvox.distributed.bases import ZEROS, Bases, Origin, digests
from volvox.population.decoding import Member, decode_many

pytestmark = pytest.mark.optimized


@pytest.fixture(scope="module", params=[None, 1], ids=["dense", "low rank"])
def code(request):
    noise = population.Table(size=5_000)
    if request.param:
        noise = population.LowRank(rank=request.param, source=noise)
    return population.encoding(networks.genotype(networks.MLP(2, (4,)), probes.target().spec), noise)


def sent(tree, j):
    return [np.asarray(leaf[j]) for leaf in jax.tree.leaves(tree)]


def first_generation(code):
    return decode_many(code, code.zeros(3), population.first_ancestors(jnp.arange(3, dtype=jnp.int32)))


def survivors():
    parent, seed = jnp.array([2, 0, 1], jnp.int32), jnp.array([7, 0, 9], jnp.int32)
    return Member(parent, seed, jnp.array([0.5, 0.0, -0.1]), jnp.zeros(3, bool))


def test_a_digest_tells_every_bit(code):
    tree = first_generation(code)
    names = digests(tree)
    assert len(set(names)) == 3
    assert digests(jax.tree.map(lambda x: x[::-1], tree)) == names[::-1]
    leaves, treedef = jax.tree.flatten(tree)
    last = np.array(leaves[-1])
    last.reshape(3, -1)[1, -1] = np.nextafter(last.reshape(3, -1)[1, -1], np.float32(9))
    changed = digests(treedef.unflatten([*leaves[:-1], jnp.asarray(last)]))
    assert [a == b for a, b in zip(changed, names, strict=True)] == [True, False, True]
    swapped = [leaf[..., ::-1] for leaf in leaves]
    assert digests(treedef.unflatten(swapped))[0] != names[0]
    assert digests(code.zeros(1)) == (ZEROS,)


def test_the_next_generation_is_made_of_survivors_alone(code):
    held, before = Bases(code), first_generation(code)
    names = digests(before)
    assert set(held.take(names, None, {})) == set(names)
    assert held.tree is None
    assert held.take(names, None, {name: sent(before, j) for j, name in enumerate(names)}) == ()
    after = decode_many(code, before, survivors())
    origin = Origin(names, jax.tree.map(np.asarray, survivors()))
    assert held.take(digests(after), origin, {}) == ()
    jax.tree.map(np.testing.assert_array_equal, held.tree, after)


def test_what_cannot_be_made_is_asked_for(code):
    held, before = Bases(code), first_generation(code)
    names = digests(before)
    held.take(names, None, {name: sent(before, j) for j, name in enumerate(names)})
    after = decode_many(code, before, survivors())
    new = digests(after)
    wrong = Origin(names, jax.tree.map(np.asarray, survivors()._replace(seed=jnp.array([8, 0, 9], jnp.int32))))
    late = Origin((*names[:2], (1, 1)), jax.tree.map(np.asarray, survivors()))
    for origin, missing in ((wrong, new[:1]), (late, new[::2]), (None, new[::2])):  # the second is one that it has
        held = Bases(code)
        held.take(names, None, {name: sent(before, j) for j, name in enumerate(names)})
        assert held.take(new, origin, {}) == missing  # it made another base, and noticed
        assert held.names == names
    assert held.take(new, None, {new[0]: sent(after, 0), new[2]: sent(after, 2)}) == ()
    jax.tree.map(np.testing.assert_array_equal, held.tree, after)


def test_bases_come_in_pieces(code):
    held, before = Bases(code), first_generation(code)
    names = digests(before)
    assert held.take(names, None, {}) == names
    assert held.take(names, None, {names[2]: sent(before, 2)}) == names[:2]
    assert held.take(names, None, {names[0]: sent(before, 0)}) == names[1:2]
    assert held.tree is None
    assert held.take(names, None, {names[1]: sent(before, 1)}) == ()
    jax.tree.map(np.testing.assert_array_equal, held.tree, before)
    assert held.take(names[:1], None, {}) == ()  # others are held from here
    jax.tree.map(np.testing.assert_array_equal, held.tree, jax.tree.map(lambda x: x[:1], before))


def test_pieces_of_others_are_forgotten(code):
    held, before = Bases(code), first_generation(code)
    names = digests(before)
    assert held.take(names[:2], None, {names[0]: sent(before, 0)}) == names[1:2]
    assert held.take(names[1:], None, {names[1]: sent(before, 1)}) == names[2:]
    assert held.take(names[:2], None, {names[1]: sent(before, 1)}) == names[:1]


def test_zeros_are_never_sent(code):
    held = Bases(code)
    assert held.take((ZEROS, ZEROS), None, {}) == ()
    jax.tree.map(np.testing.assert_array_equal, held.tree, code.zeros(2))
