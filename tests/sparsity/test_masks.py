"""Masks against their definitions, over pytrees and optimisers."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from volvox.sparsity import cubic, dynamic, keep_n_of_m, magnitude, masks_of, pruned, sparse, table
from volvox.sparsity.rules import erdos_renyi

SHAPES = {
    "Dense_0": {"kernel": (24, 8), "bias": (8,)},
    "Conv_0": {"kernel": (3, 1, 8, 4)},
    "Dense_1": {"kernel": (8, 2)},
}


def params_of(seed=0):
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(random.standard_normal(shape), jnp.float32),
        SHAPES,
        is_leaf=lambda x: isinstance(x, tuple),
    )


RULES = {
    "magnitude": lambda: magnitude(cubic(final_sparsity=0.75, begin=2, end=12), every=2),
    "groups": lambda: magnitude(cubic(final_sparsity=0.5, begin=0, end=10), group=4, every=2),
    "n-of-m": lambda: keep_n_of_m(2, 4, every=3),
    "n-of-m-later": lambda: keep_n_of_m(1, 4, begin=6, every=3),
    "dynamic": lambda: dynamic(sparsity=0.6, drop=0.2, every=3),
    "rigl": lambda: dynamic(sparsity=0.6, drop=0.2, every=3, grow="gradient"),
}
FINAL = {"magnitude": 0.25, "groups": 0.5, "n-of-m": 0.5, "n-of-m-later": 0.25, "dynamic": 0.4, "rigl": 0.4}


@pytest.mark.parametrize("optimizer", [optax.adam(0.05), optax.sgd(0.05, momentum=0.9)], ids=["adam", "momentum"])
@pytest.mark.parametrize("rule", RULES)
def test_what_is_masked_is_nothing(rule, optimizer):
    """Through 20 updates: masked weights are 0, the optimiser keeps nothing of them, other leaves are left alone."""
    params = params_of()
    optimizer_ = sparse(optimizer, RULES[rule](), dense=("Dense_1/kernel",))
    state = optimizer_.init(params)
    wanted = params_of(1)

    @jax.jit
    def step(params, state):
        gradient = jax.tree.map(jnp.subtract, params, wanted)
        updates, state = optimizer_.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params = pruned(params, state)
    for _ in range(20):
        params, state = step(params, state)
        masks = masks_of((state, ()))
        for name in ("Dense_0", "Conv_0"):
            dead = ~np.asarray(masks[name]["kernel"])
            assert not np.asarray(params[name]["kernel"])[dead].any()
        assert masks["Dense_1"]["kernel"].shape == masks["Dense_0"]["bias"].shape == ()
        moments = [x for x in jax.tree.leaves(state.inner) if np.shape(x) == (24, 8)]
        assert moments
        for moment in moments:
            assert not np.asarray(moment)[~np.asarray(masks["Dense_0"]["kernel"])].any()
    stored = table(
        {"a": params["Dense_0"]["kernel"], "b": params["Conv_0"]["kernel"]},
        {"a": masks["Dense_0"]["kernel"], "b": masks["Conv_0"]["kernel"]},
    )
    assert stored[-1]["name"] == "all"
    assert stored[-1]["density"] == pytest.approx(FINAL[rule], abs=0.05)
    # Leaves that stay whole go where the optimiser alone takes them.
    alone = params_of()
    state = optimizer.init(alone)
    for _ in range(20):
        updates, state = optimizer.update(jax.tree.map(jnp.subtract, alone, wanted), state, alone)
        alone = optax.apply_updates(alone, updates)
    np.testing.assert_allclose(params["Dense_1"]["kernel"], alone["Dense_1"]["kernel"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(params["Dense_0"]["bias"], alone["Dense_0"]["bias"], rtol=1e-5, atol=1e-6)


def test_the_smallest_are_pruned():
    kernel = params_of()["Dense_0"]["kernel"]
    rule = magnitude(lambda count: jnp.float32(0.5))
    mask = rule.update(jax.random.key(0), jnp.ones((24, 8), bool), kernel, kernel, jnp.int32(1))
    np.testing.assert_array_equal(mask, np.abs(kernel) > np.sort(np.abs(kernel).ravel())[95])


def test_groups_live_and_die_together():
    kernel = params_of()["Dense_0"]["kernel"]
    rule = magnitude(lambda count: jnp.float32(0.25), group=4)
    mask = np.asarray(rule.update(jax.random.key(0), jnp.ones((24, 8), bool), kernel, kernel, jnp.int32(1)))
    grouped = mask.reshape(6, 4, 8)
    assert (grouped.all(axis=1) == grouped.any(axis=1)).all()
    sizes = np.sqrt((np.asarray(kernel).reshape(6, 4, 8) ** 2).mean(1))
    np.testing.assert_array_equal(grouped[:, 0], sizes > np.sort(sizes.ravel())[11])


def test_two_of_every_four_live():
    mask = np.asarray(keep_n_of_m(2, 4).init(jax.random.key(0), params_of()["Dense_0"]["kernel"], 0.5))
    np.testing.assert_array_equal(mask.reshape(6, 4, 8).sum(1), 2)
    kernel = np.abs(np.asarray(params_of()["Dense_0"]["kernel"])).reshape(6, 4, 8)
    assert (
        np.where(mask.reshape(6, 4, 8), kernel, np.inf).min(1) > np.where(mask.reshape(6, 4, 8), 0, kernel).max(1)
    ).all()


@pytest.mark.parametrize("grow", ["random", "gradient"])
def test_as_many_begin_to_live_as_die(grow):
    kernel, gradient = params_of()["Dense_0"]["kernel"], params_of(3)["Dense_0"]["kernel"]
    rule = dynamic(sparsity=0.5, drop=0.25, grow=grow)
    mask = rule.init(jax.random.key(0), kernel, 0.5)
    kernel = jnp.where(mask, kernel, 0.0)
    new = np.asarray(rule.update(jax.random.key(1), mask, kernel, gradient, jnp.int32(1)))
    old = np.asarray(mask)
    assert old.sum() == new.sum() == 96
    died, begun = old & ~new, new & ~old
    assert died.sum() == begun.sum() == 24
    assert np.abs(kernel)[died].max() < np.abs(kernel)[old & new].min()
    if grow == "gradient":
        never = ~old & ~new
        assert np.abs(gradient)[begun].min() > np.abs(gradient)[never].max()


def test_the_cubic_schedule():
    sparsity = cubic(final_sparsity=0.8, begin=10, end=30)
    np.testing.assert_allclose([sparsity(jnp.int32(t)) for t in (0, 10, 20, 30, 99)], [0, 0, 0.7, 0.8, 0.8], rtol=1e-6)


def test_densities_of_erdos_renyi():
    sides = {"a": (100, 100), "b": (10, 1_000), "c": (4, 2)}
    found = erdos_renyi(sides, 0.2)
    assert found["c"] == 1.0  # it would be above
    assert found["b"] / found["a"] == pytest.approx((1_010 / 10_000) / (200 / 10_000))
    total = sum(found[name] * k * n for name, (k, n) in sides.items())
    assert total == pytest.approx(0.2 * (10_000 + 10_000 + 8))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cubic(final_sparsity=1.0, begin=0, end=1), "final_sparsity=1.0: give a share"),
        (lambda: cubic(final_sparsity=0.5, begin=5, end=5), "end=5 must come after begin=5"),
        (lambda: dynamic(sparsity=-0.1), "sparsity=-0.1: give a share"),
        (lambda: dynamic(sparsity=0.5, grow="best"), "grow='best' is unknown"),
        (lambda: keep_n_of_m(5, 4), "n=5 exceeds m=4"),
        (
            lambda: sparse(optax.sgd(1.0), keep_n_of_m(2, 4), dense=("Dense_9/kernel",)).init(params_of()),
            "Dense_9/kernel",
        ),
        (
            lambda: sparse(optax.sgd(1.0), keep_n_of_m(2, 16)).init(params_of()),
            "m=16 does not divide the input axis of",
        ),
        (
            lambda: sparse(optax.sgd(1.0), magnitude(cubic(final_sparsity=0.5, begin=0, end=9), group=5)).init(
                params_of()
            ),
            "group=5 does not divide",
        ),
        (lambda: masks_of(optax.adam(1.0).init(params_of())), "of no sparse optimiser"),
    ],
)
def test_mistakes_are_told(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
