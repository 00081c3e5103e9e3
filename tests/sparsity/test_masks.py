"""Masks against their definitions, over pytrees and optimisers."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from volvox._settings import describe
from volvox.sparsity import (
    Cubic,
    Dynamic,
    KeepNOfM,
    Magnitude,
    RewardAware,
    compression,
    kernels,
    masks_of,
    pruned,
    sparse,
    table,
)
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


def expanded(mask, kernel):
    """`[R, 1, F]` as the kernel's shape, with NumPy."""
    rows, _, columns = mask.shape
    group = kernel.size // (rows * columns)
    return np.broadcast_to(np.asarray(mask), (rows, group, columns)).reshape(kernel.shape)


def cut(kernel, group=1):
    """`[K, N]` as `[R, g, N]`."""
    return kernel.reshape(-1, group, kernel.shape[-1])


STEP, KEY = jnp.int32(1), jax.random.key(0)

RULES = {
    "magnitude": lambda: Magnitude(schedule=Cubic(final_sparsity=0.75, begin=2, end=12), every=2),
    "groups": lambda: Magnitude(schedule=Cubic(final_sparsity=0.5, begin=0, end=10), group=4, every=2),
    "n-of-m": lambda: KeepNOfM(n=2, m=4, every=3),
    "n-of-m-dropping": lambda: KeepNOfM(n=1, m=4, drop=0.2, every=3),
    "n-of-m-later": lambda: KeepNOfM(n=1, m=4, begin=6, every=3),
    "dynamic": lambda: Dynamic(sparsity=0.6, drop=0.2, every=3),
    "rigl": lambda: Dynamic(sparsity=0.6, drop=0.2, every=3, grow="gradient"),
}
FINAL = {
    "magnitude": 0.25,
    "groups": 0.5,
    "n-of-m": 0.5,
    "n-of-m-dropping": 0.25,
    "n-of-m-later": 0.25,
    "dynamic": 0.4,
    "rigl": 0.4,
}


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
            dead = ~expanded(masks[name]["kernel"], params[name]["kernel"])
            assert not np.asarray(params[name]["kernel"])[dead].any()
        assert masks["Dense_1"]["kernel"].shape == masks["Dense_0"]["bias"].shape == ()
        moments = [x for x in jax.tree.leaves(state.inner) if np.shape(x) == (24, 8)]
        assert moments
        for moment in moments:
            assert not np.asarray(moment)[~expanded(masks["Dense_0"]["kernel"], moment)].any()
    stored = table(
        {"a": params["Dense_0"]["kernel"], "b": params["Conv_0"]["kernel"]},
        {"a": masks["Dense_0"]["kernel"], "b": masks["Conv_0"]["kernel"]},
    )
    assert stored[-1]["name"] == "all"
    assert stored[-1]["density"] == pytest.approx(FINAL[rule], abs=0.05)
    if rule.startswith("n-of-m"):
        n = round(4 * FINAL[rule])
        np.testing.assert_array_equal(masks["Dense_0"]["kernel"].reshape(6, 4, 8).sum(1), n)
        np.testing.assert_array_equal(masks["Conv_0"]["kernel"].reshape(6, 4, 4).sum(1), n)
    # Leaves that stay whole go where the optimiser alone takes them.
    alone = params_of()
    state = optimizer.init(alone)
    for _ in range(20):
        updates, state = optimizer.update(jax.tree.map(jnp.subtract, alone, wanted), state, alone)
        alone = optax.apply_updates(alone, updates)
    np.testing.assert_allclose(params["Dense_1"]["kernel"], alone["Dense_1"]["kernel"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(params["Dense_0"]["bias"], alone["Dense_0"]["bias"], rtol=1e-5, atol=1e-6)


def test_the_smallest_are_pruned():
    kernel = cut(params_of()["Dense_0"]["kernel"])
    rule = Magnitude(schedule=Cubic(final_sparsity=0.5, begin=0, end=1))
    mask = rule.update(KEY, jnp.ones((24, 1, 8), bool), kernel, kernel, STEP, jnp.float32(0.5))
    np.testing.assert_array_equal(mask, np.abs(kernel) > np.sort(np.abs(kernel).ravel())[95])


def test_groups_live_and_die_together():
    kernel = cut(params_of()["Dense_0"]["kernel"], 4)
    rule = Magnitude(schedule=Cubic(final_sparsity=0.25, begin=0, end=1), group=4)
    mask = rule.update(KEY, jnp.ones((6, 1, 8), bool), kernel, kernel, STEP, jnp.float32(0.25))
    sizes = np.sqrt((np.asarray(kernel) ** 2).mean(1))
    np.testing.assert_array_equal(mask[:, 0], sizes > np.sort(sizes.ravel())[11])


def test_the_dead_with_the_largest_gradients_come_back_first():
    kernel, gradient = cut(params_of()["Dense_0"]["kernel"]), cut(params_of(3)["Dense_0"]["kernel"])
    rule = Magnitude(schedule=Cubic(final_sparsity=0.5, begin=0, end=1))
    old = rule.update(KEY, jnp.ones((24, 1, 8), bool), kernel, gradient, STEP, jnp.float32(0.5))
    gradient = 1e-9 * gradient  # small ones are told apart as well
    new = np.asarray(rule.update(KEY, old, jnp.where(old, kernel, 0), gradient, STEP, jnp.float32(0.375)))
    begun = new & ~np.asarray(old)
    assert begun.sum() == 24
    assert (new | ~np.asarray(old)).all()
    assert np.abs(gradient)[begun].min() > np.abs(gradient)[~new].max()


def test_two_of_every_four_live():
    kernel = params_of()["Dense_0"]["kernel"]
    mask = np.asarray(KeepNOfM(n=2, m=4).init(KEY, cut(kernel), 0.5)).reshape(6, 4, 8)
    np.testing.assert_array_equal(mask.sum(1), 2)
    sizes = np.abs(np.asarray(kernel)).reshape(6, 4, 8)
    assert (np.where(mask, sizes, np.inf).min(1) > np.where(mask, 0, sizes).max(1)).all()


def test_n_of_m_makes_room_among_each_m():
    """A tenth of the living die, the smallest; for each lives the one of its m that has the largest gradient."""
    kernel, gradient = cut(params_of()["Dense_0"]["kernel"]), cut(params_of(3)["Dense_0"]["kernel"])
    rule = KeepNOfM(n=1, m=4, drop=0.1)
    old = rule.init(KEY, kernel, 0.25)
    kernel = jnp.where(old, kernel, 0.0)
    new = np.asarray(rule.update(KEY, old, kernel, gradient, STEP, jnp.float32(0))).reshape(6, 4, 8)
    old, sizes, slopes = (np.abs(np.asarray(x)).reshape(6, 4, 8) for x in (old, kernel, gradient))
    died = old.astype(bool) & ~new
    np.testing.assert_array_equal(new.sum(1), 1)
    assert died.sum() == 5  # of 48
    assert sizes[died].max() < sizes[old.astype(bool) & new].min()
    best = np.where(old, -1, slopes).argmax(1)
    for i, j in zip(*np.nonzero(died.any(1)), strict=True):
        assert new[i, best[i, j], j]


def test_one_group_of_each_kernel_lives():
    kernel = jnp.arange(1.0, 10.0).reshape(9, 1, 1)
    rule = Magnitude(schedule=Cubic(final_sparsity=0.96, begin=0, end=1))
    mask = rule.update(KEY, jnp.ones((9, 1, 1), bool), kernel, kernel, STEP, jnp.float32(0.96))
    assert mask.ravel().tolist() == [False] * 8 + [True]
    assert int(Dynamic(sparsity=0.96).init(KEY, kernel, 0.04).sum()) == 1


def test_fewer_and_fewer_weights_change_until_an_end():
    kernel = cut(params_of()["Dense_0"]["kernel"])
    rule = Dynamic(sparsity=0.5, drop=0.4, end=100, grow="gradient")
    mask = rule.init(KEY, kernel, 0.5)
    for step, left in ((0, 1.0), (50, 0.5), (100, 0.0), (200, 0.0)):
        new = rule.update(KEY, mask, kernel, kernel, jnp.int32(step), jnp.float32(0))
        assert int((mask & ~new).sum()) == round(0.4 * left * 96), step


@pytest.mark.parametrize("grow", ["random", "gradient"])
def test_as_many_begin_to_live_as_die(grow):
    kernel, gradient = cut(params_of()["Dense_0"]["kernel"]), cut(params_of(3)["Dense_0"]["kernel"])
    rule = Dynamic(sparsity=0.5, drop=0.25, grow=grow)
    mask = rule.init(KEY, kernel, 0.5)
    kernel = jnp.where(mask, kernel, 0.0)
    new = np.asarray(rule.update(jax.random.key(1), mask, kernel, gradient, STEP, jnp.float32(0)))
    old = np.asarray(mask)
    assert old.sum() == new.sum() == 96
    died, begun = old & ~new, new & ~old
    assert died.sum() == begun.sum() == 24
    assert np.abs(kernel)[died].max() < np.abs(kernel)[old & new].min()
    if grow == "gradient":
        never = ~old & ~new
        assert np.abs(gradient)[begun].min() > np.abs(gradient)[never].max()


CIRCULANT = {"Dense_0": {"circulant": (16, 4, 8), "bias": (32,)}}


def test_blocks_of_a_circulant_kernel_are_its_groups():
    """At b = 4 a sparsity of 0.75 is there from the beginning, and 0.9 leaves two of five blocks."""
    random = np.random.default_rng(0)
    params = jax.tree.map(
        lambda shape: jnp.asarray(random.standard_normal(shape), jnp.float32),
        CIRCULANT,
        is_leaf=lambda x: isinstance(x, tuple),
    )
    optimizer = sparse(optax.sgd(0.0), Magnitude(schedule=Cubic(final_sparsity=0.9, begin=0, end=2), every=1))
    state = optimizer.init(params)
    for step, living in ((1, 1 - 0.7875), (2, 0.1)):
        _, state = optimizer.update(params, state, params)
        mask = masks_of(state)["Dense_0"]["circulant"]
        assert mask.shape == (16, 1, 8)
        assert int(mask.sum()) == round(128 * min(1.0, 4 * living)), step
    rows = {row["name"]: row for row in table(params, masks_of(state))}
    kernel = rows["Dense_0/circulant"]
    assert (kernel["weights"], kernel["stored"], kernel["index_bits"]) == (2048, 51 * 4, 128)
    assert kernel["compression"] == pytest.approx(1 - (204 + 4) / 2048)
    assert rows["all"]["weights"] == 2048 + 32
    assert compression(params) == pytest.approx(1 - (512 + 32) / 2080)
    assert compression(params_of()) is None


def test_steps_may_be_given_and_rows_of_learners_change_together():
    """Under `vmap`, a change happens in the steps it is due, though the optimiser itself is called every other step."""
    optimizer = sparse(optax.sgd(0.1), Magnitude(schedule=Cubic(final_sparsity=0.5, begin=0, end=4), every=4), min_side=8)
    params = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), params_of())
    state = jax.vmap(optimizer.init)(params)

    @jax.jit
    def update(state, step):
        return jax.vmap(lambda s, p: optimizer.update(p, s, p, step=step)[1])(state, params)

    for step, living in ((1, 1.0), (3, 1.0), (5, 0.5), (7, 0.5)):
        state = update(state, step)
        masks = masks_of(state)
        np.testing.assert_array_equal(masks["Dense_0"]["kernel"].mean((1, 2, 3)), living)
        assert masks["Conv_0"]["kernel"].shape == masks["Dense_1"]["kernel"].shape == (2,)  # a side below 8
    text = str(jax.make_jaxpr(update)(state, 1))
    assert "cond[" in text  # sorting happens in the branch that is taken, not in a selection


def test_rows_that_are_not_due_stay_as_they_are():
    """A population whose rows have made different numbers of steps: only those that are due change."""
    optimizer = sparse(optax.sgd(0.1), Magnitude(schedule=Cubic(final_sparsity=0.5, begin=0, end=4), every=4), min_side=8)
    params = jax.tree.map(lambda x: jnp.stack([x, x, x]), params_of())
    state = jax.vmap(optimizer.init)(params)
    state = jax.jit(jax.vmap(lambda s, p, step: optimizer.update(p, s, p, step=step)[1]))(
        state, params, jnp.array([3, 4, 5])
    )
    np.testing.assert_array_equal(masks_of(state)["Dense_0"]["kernel"].mean((1, 2, 3)), [1.0, 0.5, 0.5])


OPTIMIZERS = {
    "adafactor": lambda: optax.adafactor(1e-2),
    "adamw": lambda: optax.adamw(1e-2),
    "lamb": lambda: optax.lamb(1e-2),
    "masked": lambda: optax.masked(optax.adam(1e-2), lambda p: jax.tree.map(lambda x: x.ndim == 2, p)),
    "partition": lambda: optax.partition(
        {"a": optax.adam(1e-2), "b": optax.sgd(1e-2, momentum=0.9)},
        lambda p: jax.tree.map(lambda x: "a" if x.ndim > 1 else "b", p),
    ),
    "injected": lambda: optax.inject_hyperparams(optax.adam)(1e-2),
    "muon": lambda: optax.contrib.muon(1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimisers_of_all_kinds_are_wrapped(name):
    optimizer = sparse(OPTIMIZERS[name](), Dynamic(sparsity=0.5, every=2))
    params = params_of()
    state = optimizer.init(params)
    params, update = pruned(params, state), jax.jit(optimizer.update)
    for _ in range(3):
        updates, state = update(params, state, params)
        params = optax.apply_updates(params, updates)
        for layer in ("Dense_0", "Conv_0", "Dense_1"):
            kernel = params[layer]["kernel"]
            dead = ~expanded(masks_of(state)[layer]["kernel"], kernel)
            assert dead.any() or layer == "Dense_1"  # the smallest are whole
            assert not np.asarray(kernel)[dead].any()
            assert np.asarray(kernel)[~dead].any()


def test_an_optimiser_of_a_learning_rate_is_described_in_full():
    made = sparse(optax.sgd, Magnitude(schedule=Cubic(final_sparsity=0.5, begin=0, end=9)), min_side=8)
    assert describe(made) == {
        "type": "volvox.sparsity.optimizers:_Sparse",
        "optimizer": {"function": "optax._src.alias:sgd"},
        "rule": {
            **{"type": "volvox.sparsity.rules:Magnitude", "group": 1, "every": 100},
            "schedule": {"type": "volvox.sparsity.schedules:Cubic", "final_sparsity": 0.5, "begin": 0, "end": 9},
        },
        **{"dense": [], "min_side": 8, "only_circulant": False, "seed": 0},
    }
    params = params_of()
    given, rule = sparse(optax.sgd(0.1), made.rule, min_side=8), made(0.1)
    for optimizer in (given, rule):
        assert isinstance(optimizer, optax.GradientTransformationExtraArgs)
    chex.assert_trees_all_equal(*(o.update(params, o.init(params), params)[0] for o in (given, rule)))


def test_biases_and_scales_are_no_kernels():
    params = {"a": {"kernel": jnp.ones((4, 2, 3)), "bias": jnp.ones((2, 3)), "scale": jnp.ones((2, 3))}}
    assert list(kernels(params)) == ["a/kernel"]


def test_the_cubic_schedule():
    schedule = Cubic(final_sparsity=0.8, begin=10, end=30)
    found = [schedule.advance((), jnp.int32(t), None)[0] for t in (0, 10, 20, 30, 99)]
    np.testing.assert_allclose(found, [0, 0, 0.7, 0.8, 0.8], rtol=1e-6)


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (-500.0, 1.0), (3.0, 1e-3)])
def test_the_reward_aware_schedule_rises_stays_and_falls(shift, scale):
    schedule = RewardAware(final_sparsity=0.8, initial_sparsity=0.5, increment=0.1, tolerance=0.1, begin=2)
    state, found = schedule.init(), []
    #             no episode yet, too early, begins, best, within 10%, within 20%, below, below, below, back, ...
    returns = [np.nan, 0.0, 0.0, 100.0, 91.0, 85.0, 70.0, 10.0, 0.0, 95.0, 100.0, 200.0, 300.0]
    for step, value in enumerate(returns):
        sparsity, state = schedule.advance(state, jnp.int32(step), jnp.float32(shift + scale * value))
        found.append(float(sparsity))
    expected = [0.5, 0.5, 0.6, 0.7, 0.8, 0.8, 0.7, 0.6, 0.5, 0.6, 0.7, 0.8, 0.8]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_sparsity_at_which_returns_keep_falling_is_tried_less_and_less_often():
    """Returns that fall to nothing above 0.65, and later no longer do: one accident costs no time."""
    schedule = RewardAware(final_sparsity=0.9, initial_sparsity=0.5, increment=0.1, tolerance=0.1)
    advance = jax.jit(schedule.advance)
    _, state = advance(schedule.init(), 0, jnp.float32(0.0))
    found = []
    for step in range(1, 40):
        sparsity, state = advance(state, step, jnp.float32(100.0 if step > 34 or found[-1:] < [0.65] else 0.0))
        found.append(round(float(sparsity), 3))
    tries = [i for i, value in enumerate(found) if value > 0.65]
    # One change for the fall, and as often returns hold up: 1, 2, 4, 8 and 16 times.
    assert np.diff(tries[:6]).tolist() == [2, 3, 5, 9, 17]
    assert found[-3:] == [0.7, 0.8, 0.9]


def test_densities_of_erdos_renyi():
    sides = {"a": (100, 100), "b": (10, 1_000), "c": (4, 2)}
    found = erdos_renyi(sides, 0.2)
    assert found["c"] == 1.0  # it would be above
    assert found["b"] / found["a"] == pytest.approx((1_010 / 10_000) / (200 / 10_000))
    total = sum(found[name] * k * n for name, (k, n) in sides.items())
    assert total == pytest.approx(0.2 * (10_000 + 10_000 + 8))
    found = erdos_renyi(sides, 0.2, most={"a": 1.0, "b": 0.125, "c": 0.5})
    assert (found["b"], found["c"]) == (0.125, 0.5)
    assert found["a"] == pytest.approx((0.2 * 20_008 - 1_250 - 4) / 10_000)  # what the others may not have


def test_a_mixture_of_grouped_and_dense_kernels_is_as_sparse_as_asked():
    params = {"dense": {"kernel": jnp.ones((64, 64))}, "grouped": {"circulant": jnp.ones((16, 4, 16))}}
    state = sparse(optax.sgd(1.0), Dynamic(sparsity=0.5)).init(params)
    assert table(params, masks_of(state))[-1]["density"] == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cubic(final_sparsity=1.0, begin=0, end=1), "final_sparsity=1.0: give a share"),
        (lambda: Cubic(final_sparsity=0.5, begin=5, end=5), "end=5 must come after begin=5"),
        (lambda: Dynamic(sparsity=-0.1), "sparsity=-0.1: give a share"),
        (lambda: Dynamic(sparsity=0.5, grow="best"), "grow='best' is unknown"),
        (lambda: KeepNOfM(n=5, m=4), "n=5 exceeds m=4"),
        (lambda: Magnitude(schedule=0.5), "Magnitude needs a schedule"),
        (lambda: sparse(optax.sgd(1.0), Cubic(final_sparsity=0.5, begin=0, end=1)), "sparse needs a rule"),
        (lambda: sparse("adam", Dynamic(sparsity=0.5)), "sparse needs an optax.GradientTransformation"),
        (lambda: sparse(lambda rate: rate, Dynamic(sparsity=0.5))(0.1), "made no optax.GradientTransformation"),
        (
            lambda: sparse(sparse(optax.sgd(1.0), Dynamic(sparsity=0.5)), Dynamic(sparsity=0.5)).init(params_of()),
            "that is not sparse already",
        ),
        (
            lambda: (o := sparse(optax.sgd(1.0), Dynamic(sparsity=0.5))).update(
                {"w": jnp.ones((4, 4))}, o.init({"w": jnp.ones((8, 8))}), {"w": jnp.ones((4, 4))}
            ),
            "masks do not match the parameters: w is [4, 4], its mask [8, 1, 8]",
        ),
        (lambda: KeepNOfM(n=2, m=4, drop=1.5), "drop=1.5: give a share from 0 to 1"),
        (lambda: Dynamic(sparsity=0.5, end=0), "end must be"),
        (lambda: Dynamic(sparsity="0.5"), "sparsity='0.5': give a share"),
        (lambda: sparse(optax.sgd(1.0), Dynamic(sparsity=0.5), dense="Dense_2/kernel"), "give names in a tuple"),
        (lambda: sparse(optax.sgd(1.0), Dynamic(sparsity=0.5), seed=1.5), "seed must be an integer of at least 0"),
        (lambda: sparse(optax.sm3(1.0), Dynamic(sparsity=0.5)).init(params_of()), "sparse cannot tell what"),
        (lambda: table({"circulant": jnp.zeros((2, 4, 4, 4))}), "give the parameters of one"),
        (
            lambda: sparse(optax.sgd(1.0), KeepNOfM(n=2, m=4), dense=("Dense_9/kernel",)).init(params_of()),
            "Dense_9/kernel",
        ),
        (
            lambda: sparse(optax.sgd(1.0), KeepNOfM(n=2, m=16)).init(params_of()),
            "m=16 does not divide the input axis of",
        ),
        (
            lambda: sparse(optax.sgd(1.0), Magnitude(schedule=Cubic(final_sparsity=0.5, begin=0, end=9), group=5)).init(
                params_of()
            ),
            "group=5 does not divide",
        ),
        (lambda: RewardAware(final_sparsity=0.5, initial_sparsity=0.6), "initial_sparsity=0.6 exceeds"),
        (lambda: RewardAware(final_sparsity=0.5, tolerance=0.0), "tolerance=0.0: give a number above 0"),
        (lambda: RewardAware(final_sparsity=0.5).advance((), STEP, None), "needs update(gradient"),
        (lambda: table({"a": jnp.zeros((4, 3))}, {"a": jnp.ones((4, 1, 2), bool)}), "a is [4, 3], its mask [4, 1, 2]"),
        (lambda: table({"a": jnp.zeros(3)}, {"b": jnp.ones((), bool)}), "a is in only one"),
        (lambda: masks_of(optax.adam(1.0).init(params_of())), "of no sparse optimiser"),
    ],
)
def test_mistakes_are_told(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
