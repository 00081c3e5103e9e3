"""`sparse` over pytrees and optimisers, and `init_optimizers` over several networks and learners."""

import functools
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from volvox.runs.config import from_json, to_json
from volvox.sparsity import (
    Cubic,
    Dynamic,
    GroupSparse,
    KeepNOfM,
    Magnitude,
    RewardAware,
    masks_of,
    pruned,
    sparse,
    table,
)
from volvox.sparsity.optimizers import clipped, init_optimizers

SHAPES = {
    "Dense_0": {"kernel": (24, 8), "bias": (8,)},
    "Conv_0": {"kernel": (3, 1, 8, 4)},
    "Dense_1": {"kernel": (8, 2)},
}
CIRCULANT = {"Dense_0": {"circulant": (16, 4, 8), "bias": (32,)}}


def params_of(seed=0, shapes=SHAPES):
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(random.standard_normal(shape), jnp.float32),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def expanded(mask, kernel):
    """`[R, 1, F]` as the kernel's shape, with NumPy."""
    rows, _, columns = mask.shape
    group = kernel.size // (rows * columns)
    return np.broadcast_to(np.asarray(mask), (rows, group, columns)).reshape(kernel.shape)


RULES = {  # rule, density at the end
    "groups": (Magnitude(schedule=Cubic(final_sparsity=0.5, begin=0, end=10), group=4, every=2), 0.5),
    "n-of-m": (KeepNOfM(n=2, m=4, begin=4, every=3), 0.5),
    "n-of-m-dropping": (KeepNOfM(n=1, m=4, drop=0.2, every=3), 0.25),
    "dynamic": (Dynamic(sparsity=0.6, drop=0.2, every=3), 0.4),
    "rigl": (Dynamic(sparsity=0.6, drop=0.2, every=3, grow="gradient"), 0.4),
}


@pytest.mark.parametrize("name", RULES)
def test_masked_weights_and_their_moments_stay_zero(name):
    """Masked weights and their moments are 0 through 20 updates; other leaves follow the optimiser alone."""
    rule, density = RULES[name]
    params, wanted, optimizer = params_of(), params_of(1), optax.adam(0.05)
    sparse_optimizer = sparse(optimizer, rule, dense=("Dense_1/kernel",))

    def stepping(optimizer):
        def step(params, state):
            updates, state = optimizer.update(jax.tree.map(jnp.subtract, params, wanted), state, params)
            return optax.apply_updates(params, updates), state

        return jax.jit(step)

    step, state = stepping(sparse_optimizer), sparse_optimizer.init(params)
    step_alone, alone = stepping(optimizer), (params, optimizer.init(params))
    params = pruned(params, state)
    for _ in range(20):
        params, state = step(params, state)
        alone = step_alone(*alone)
        masks = masks_of((state, ()))
        for layer in ("Dense_0", "Conv_0"):
            is_pruned = ~expanded(masks[layer]["kernel"], params[layer]["kernel"])
            assert not np.asarray(params[layer]["kernel"])[is_pruned].any()
        assert masks["Dense_1"]["kernel"].shape == masks["Dense_0"]["bias"].shape == ()
        moments = [x for x in jax.tree.leaves(state.inner) if np.shape(x) == (24, 8)]
        assert moments
        for moment in moments:
            assert not np.asarray(moment)[~expanded(masks["Dense_0"]["kernel"], moment)].any()
    stored = table(*({layer: x[layer]["kernel"] for layer in ("Dense_0", "Conv_0")} for x in (params, masks)))
    assert stored[-1]["name"] == "all"
    assert stored[-1]["density"] == pytest.approx(density, abs=0.05)
    if name.startswith("n-of-m"):
        np.testing.assert_array_equal(masks["Dense_0"]["kernel"].reshape(6, 4, 8).sum(1), rule.n)
        np.testing.assert_array_equal(masks["Conv_0"]["kernel"].reshape(6, 4, 4).sum(1), rule.n)
    for layer, leaf in (("Dense_1", "kernel"), ("Dense_0", "bias")):
        np.testing.assert_allclose(params[layer][leaf], alone[0][layer][leaf], rtol=1e-5, atol=1e-6)


def test_gradients_of_masked_weights_do_not_count_when_gradients_are_clipped():
    """Clipping outside of `sparse` equals clipping inside, although the gradients of masked weights are huge."""
    params, rule = params_of(), RULES["dynamic"][0]
    outside = clipped(sparse(optax.sgd(0.1), rule), 0.5)
    inside = sparse(optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1)), rule)
    states = [jax.jit(optimizer.init)(params) for optimizer in (outside, inside)]
    both = [jax.jit(optimizer.update) for optimizer in (outside, inside)]
    masks = masks_of(states[0])
    kept = pruned(jax.tree.map(lambda p: jnp.full_like(p, 0.01), params), states[0])
    gradient = jax.tree.map(lambda p, g: jnp.where(g == 0, 100.0, g), params, kept)
    chex.assert_trees_all_equal(masks, masks_of(states[1]))
    updates = [update(gradient, s, params)[0] for update, s in zip(both, states, strict=True)]
    chex.assert_trees_all_close(*updates, rtol=1e-6)
    norm = float(optax.tree.norm(kept))
    assert norm < 0.5  # nothing is clipped
    np.testing.assert_allclose(updates[0]["Dense_1"]["kernel"].max(), -0.1 * 0.01, rtol=1e-5)
    larger = jax.tree.map(lambda g: 100 * g, gradient)
    updates = [update(larger, s, params)[0] for update, s in zip(both, states, strict=True)]
    chex.assert_trees_all_close(*updates, rtol=1e-5)


@pytest.mark.parametrize("max_norm", [0.5, 1e3])
def test_without_masks_gradients_are_clipped_as_optax_clips_them(max_norm):
    params, gradient = params_of(), params_of(1)
    ours, theirs = clipped(optax.adam(0.1), max_norm), optax.chain(optax.clip_by_global_norm(max_norm), optax.adam(0.1))
    updates = [optimizer.update(gradient, optimizer.init(params), params)[0] for optimizer in (ours, theirs)]
    chex.assert_trees_all_equal(*updates)
    alone = optax.adam(0.1)
    chex.assert_trees_all_equal(
        clipped(alone, None).update(gradient, alone.init(params))[0], alone.update(gradient, alone.init(params))[0]
    )


def test_masks_of_learners_change_in_the_steps_that_are_given():
    """Under `vmap` masks change when a change is due, although the optimiser is called in every other step only."""
    optimizer = sparse(
        optax.sgd(0.1), Magnitude(schedule=Cubic(final_sparsity=0.5, begin=0, end=4), every=4), min_side=8
    )
    params = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), params_of())
    state = jax.vmap(optimizer.init)(params)

    @jax.jit
    def update(state, step):
        return jax.vmap(lambda s, p: optimizer.update(p, s, p, step=step)[1])(state, params)

    for step, kept in ((1, 1.0), (3, 1.0), (5, 0.5), (7, 0.5)):
        state = update(state, step)
        masks = masks_of(state)
        np.testing.assert_array_equal(masks["Dense_0"]["kernel"].mean((1, 2, 3)), kept)
        assert masks["Conv_0"]["kernel"].shape == masks["Dense_1"]["kernel"].shape == (2,)  # a side below 8
    text = str(jax.make_jaxpr(update)(state, 1))
    assert "cond[" in text  # sorting happens in the branch that is taken, not in a selection


OPTIMIZERS = {
    "adafactor": lambda: optax.adafactor(1e-2),
    "partition": lambda: optax.partition(
        {"a": optax.adam(1e-2), "b": optax.sgd(1e-2, momentum=0.9)},
        lambda p: jax.tree.map(lambda x: "a" if x.ndim > 1 else "b", p),
    ),
    "injected": lambda: optax.inject_hyperparams(optax.adam)(1e-2),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "adafactor" else name for name in OPTIMIZERS]
)
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
            is_pruned = ~expanded(masks_of(state)[layer]["kernel"], kernel)
            assert is_pruned.any() or layer == "Dense_1"  # the smallest kernel stays dense
            assert not np.asarray(kernel)[is_pruned].any()
            assert np.asarray(kernel)[~is_pruned].any()


def test_an_optimiser_of_a_learning_rate_can_be_saved():
    rule = Magnitude(schedule=Cubic(final_sparsity=0.5, begin=0, end=9))
    made = sparse(optax.sgd, rule, min_side=8)
    made = from_json(json.loads(json.dumps(to_json(made))))
    params = params_of()
    optimizers = made(0.1), sparse(optax.sgd(0.1), rule, min_side=8)
    chex.assert_trees_all_equal(*(o.update(params, o.init(params), params)[0] for o in optimizers))


def test_blocks_of_a_circulant_kernel_are_its_groups():
    """With b = 4 grouping alone reaches a sparsity of 0.75, and 0.9 leaves two of five blocks."""
    params = params_of(shapes=CIRCULANT)
    optimizer = sparse(optax.sgd(0.0), Magnitude(schedule=Cubic(final_sparsity=0.9, begin=0, end=2), every=1))
    state = optimizer.init(params)
    for step, kept in ((1, 1 - 0.7875), (2, 0.1)):
        _, state = optimizer.update(params, state, params)
        mask = masks_of(state)["Dense_0"]["circulant"]
        assert mask.shape == (16, 1, 8)
        assert int(mask.sum()) == round(128 * min(1.0, 4 * kept)), step
    assert table(params)[-1]["compression"] == pytest.approx(1 - (512 + 32) / 2080)


SPARSE = sparse(optax.adam(0.1), Dynamic(sparsity=0.5, every=2), min_side=8)


def test_each_network_of_each_learner_has_different_masks():
    """Keys depend on the parameters: equal parameters have equal masks, and different ones have different masks."""
    optimizer = optax.named_chain(("a", optax.identity()), ("b", SPARSE))
    params = jax.vmap(lambda x: jax.tree.map(lambda leaf: leaf * x, params_of()))(jnp.array([1.0, 1.5, 3.0]))
    networks = (params, (), jax.tree.map(jnp.negative, params))
    begin = jax.jit(jax.vmap(functools.partial(init_optimizers, optimizer)))
    pruned_networks, states = begin(networks)
    assert states[1] == pruned_networks[1] == ()
    masks = np.stack([masks_of(states[i])["Dense_0"]["kernel"] for i in (0, 2)]).reshape(6, -1)
    assert len(np.unique(masks, axis=0)) >= 3  # an even number of signs cancels
    np.testing.assert_array_equal(masks.sum(1), 96)
    chex.assert_trees_all_equal(pruned_networks[0], jax.vmap(pruned)(params, states[0]))
    chex.assert_trees_all_equal(begin(networks)[1], states)


def test_one_network_may_be_too_small_but_not_all():
    optimizer = sparse(optax.sgd(1.0), Dynamic(sparsity=0.5), min_side=8)
    small = {"kernel": jnp.ones((4, 4))}
    _, states = init_optimizers(optimizer, (small, params_of()))
    assert masks_of(states[0])["kernel"].ndim == 0
    with pytest.raises(ValueError):
        init_optimizers(optimizer, (small, small))


class Striped:
    """A rule of a user: every other group is kept, and kept and pruned groups change places."""

    every, schedule = 2, None

    def init(self, key, kernels):
        return {name: jnp.indices(kernel.mask_shape)[0] % 2 == 0 for name, kernel in kernels.items()}

    def update(self, key, mask, kernel, gradient, step, sparsity):
        return ~mask


def test_a_rule_of_a_user():
    params = params_of()
    optimizer = sparse(optax.sgd(0.1), Striped())
    state = optimizer.init(params)
    for first in (True, False, False, True):
        _, state = optimizer.update(params, state, params)
        rows = np.asarray(masks_of(state)["Dense_0"]["kernel"])[:, 0, 0]
        np.testing.assert_array_equal(rows, (np.arange(24) % 2 == 0) == first)


def test_group_sparse_training_prunes_blocks_on_top_of_grouping():
    gst = GroupSparse(block=4, final_sparsity=0.9, increment=0.1, every=1, min_side=8)
    assert gst.rule == Magnitude(
        schedule=RewardAware(final_sparsity=0.9, initial_sparsity=0.75, increment=0.1, tolerance=0.1), every=1
    )
    optimizer = gst.optimizer(optax.sgd)(0.1)
    params = {"a": params_of(shapes=CIRCULANT), "b": params_of()}
    state = optimizer.init(params)
    _, state = optimizer.update(params, state, params, mean_return=jnp.float32(1.0))
    masks = masks_of(state)
    assert int(masks["a"]["Dense_0"]["circulant"].sum()) == round(128 * 4 * 0.15)
    assert all(mask.ndim == 0 for mask in jax.tree.leaves(masks["b"]))
    assert GroupSparse(end=9).rule.schedule == Cubic(final_sparsity=0.9, begin=0, end=9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GroupSparse(block=8, final_sparsity=0.8),
        lambda: GroupSparse(end=5, begin=9),
        lambda: sparse(sparse(optax.sgd(1.0), Dynamic(sparsity=0.5)), Dynamic(sparsity=0.5)).init(params_of()),
        lambda: SPARSE.update(params_of(), SPARSE.init(params_of())),
        lambda: sparse(optax.sgd(1.0), KeepNOfM(n=2, m=4), dense=("Dense_9/kernel",)).init(params_of()),
        lambda: sparse(optax.sgd(1.0), Cubic(final_sparsity=0.5, begin=0, end=1)),
        lambda: sparse("adam", Dynamic(sparsity=0.5)),
        lambda: sparse(optax.sgd, KeepNOfM),
        lambda: sparse(optax.sgd(1.0), Dynamic(sparsity=0.5), 0.1),
        lambda: sparse(optax.sgd(1.0), Dynamic(sparsity=0.5), dense="Dense_2/kernel"),
        lambda: Dynamic(sparsity=-0.1),
        lambda: Dynamic(sparsity=0.5, grow="best"),
        lambda: KeepNOfM(n=5, m=4),
        lambda: Magnitude(schedule=0.5),
        lambda: Cubic(final_sparsity=0.5, begin=5, end=5),
        lambda: RewardAware(final_sparsity=0.5, initial_sparsity=0.6),
        lambda: table({"a": jnp.zeros((4, 3))}, {"a": jnp.ones((4, 1, 2), bool)}),
        lambda: table({"a": jnp.zeros(3)}, {"b": jnp.ones((), bool)}),
        lambda: masks_of(optax.adam(1.0).init({"a": jnp.zeros(3)})),
    ],
)
def test_bad_settings_and_parameters_are_refused(make):
    with pytest.raises((TypeError, ValueError)):
        make()


def test_errors_of_kernels_and_schedules_name_the_cause():
    with pytest.raises(ValueError, match="divide"):
        sparse(optax.sgd(1.0), KeepNOfM(n=2, m=16)).init(params_of())
    with pytest.raises(ValueError, match="mean return"):
        RewardAware(final_sparsity=0.5).advance((), jnp.int32(1), None)
