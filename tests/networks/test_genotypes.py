"""Genotypes of modules and of functions."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from volvox.networks import MLP, DeepGA, genotype, genotype_from_functions
from volvox.networks.genotypes import GIVEN


class Normed(nn.Module):
    """A module with leaves that are no kernels, and its own spread."""

    width: int = 5

    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm()(nn.Dense(self.width, bias_init=nn.initializers.constant(0.5))(x))
        return nn.Dense(2)(x)

    @nn.nowrap
    def initial_std(self, path):
        return 0.25 if path == ("Dense_1", "kernel") else 2.0


def test_apply_is_the_module(make_spec):
    net = genotype(MLP(2), make_spec((3,), num_actions=2))
    params, x = net.policy.init(jax.random.key(0)), jnp.ones((4, 3))
    state = net.policy.initial_state(4)
    assert state == ()
    output, state = net.policy.apply(net.prepare(params), x, state)
    assert state == ()
    np.testing.assert_allclose(output, MLP(2).apply({"params": params}, x), rtol=1e-6)


def test_discrete_actions_are_drawn_from_logits_or_the_likeliest(make_spec):
    net = genotype(MLP(3), make_spec((3,), num_actions=3)).policy
    logits, state = net.apply(net.init(jax.random.key(0)), jnp.arange(12.0).reshape(4, 3), ())
    assert state == ()
    np.testing.assert_array_equal(net.mode(logits), np.argmax(logits, axis=-1))
    assert net.mode(logits).dtype == jnp.int32
    for seed in range(20):
        key = jax.random.key(seed)
        action = net.sample(key, logits)
        assert action.dtype == jnp.int32
        # The Gumbel-max trick: the largest of perturbed logits.
        np.testing.assert_array_equal(action, jnp.argmax(logits + jax.random.gumbel(key, (4, 3)), axis=-1))


def test_continuous_actions_are_shaped_and_kept_within_each_bound(make_spec):
    low, high = np.array([[-1.0, -0.5], [-1.0, -2.0]], np.float32), np.array([[1.0, 0.5], [0.1, 2.0]], np.float32)
    spec = make_spec((3,), action_shape=(2, 2))._replace(action_low=low, action_high=high)
    net = genotype(MLP(4), spec).policy
    output = jnp.array([[5.0, 5.0, 5.0, 5.0], [-5.0, 0.25, -0.25, -5.0]])
    np.testing.assert_array_equal(net.mode(output), [high, [[-1.0, 0.25], [-0.25, -2.0]]])
    with pytest.raises(ValueError, match="MLP gives one action and no distribution"):
        net.sample(jax.random.key(0), output)


def test_vmap_over_parameters_reaches_the_kernels(make_spec):
    class Convolutional(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(4, (3, 3))(x)).reshape(x.shape[0], -1)
            return nn.Dense(2)(x)

    module = Convolutional()
    net = genotype(module, make_spec((14, 14, 3), num_actions=2))
    params = jax.vmap(net.policy.init)(jax.random.split(jax.random.key(0), 7))
    x = jnp.ones((7, 1, 14, 14, 3))
    ours = str(jax.make_jaxpr(jax.vmap(lambda p, x: net.policy.apply(p, x, ())[0]))(params, x))
    naive = str(jax.make_jaxpr(jax.vmap(lambda p, x: module.apply({"params": p}, x)))(params, x))
    assert "feature_group_count=7" in naive
    assert "feature_group_count=7" not in ours
    assert "batch_group_count=7" not in ours
    assert "f32[7,2,1,2]" in ours, "the dense layer's contraction of 784 is cut in two"
    assert "f32[7,2,1,2]" not in naive


def test_first_generation(make_spec, normal_like):
    net = genotype(Normed(), make_spec((3,), num_actions=2))
    params = net.policy.init(jax.random.key(0))
    noise = normal_like(params)
    first = jax.jit(net.from_noise)(noise)
    np.testing.assert_allclose(first["Dense_0"]["kernel"], noise["Dense_0"]["kernel"] * 2 / np.sqrt(3), rtol=1e-6)
    np.testing.assert_allclose(first["Dense_1"]["kernel"], noise["Dense_1"]["kernel"] / 4 / np.sqrt(5), rtol=1e-6)
    np.testing.assert_array_equal(first["Dense_0"]["bias"], np.full(5, 0.5))
    np.testing.assert_array_equal(first["Dense_1"]["bias"], np.zeros(2))
    np.testing.assert_array_equal(first["LayerNorm_0"]["scale"], np.ones(5))
    np.testing.assert_array_equal(first["LayerNorm_0"]["bias"], np.zeros(5))
    assert jax.tree.map(jnp.shape, first) == jax.tree.map(jnp.shape, params)


def test_first_generation_draws_nothing(make_spec):
    net = genotype(Normed(), make_spec((3,), num_actions=2))
    assert "random" not in str(jax.make_jaxpr(net.from_noise)(net.policy.init(jax.random.key(0))))


def test_spread_given_by_the_caller(make_spec, normal_like):
    net = genotype(Normed(), make_spec((3,), num_actions=2), initial_std=lambda path: 3.0)
    noise = normal_like(net.policy.init(jax.random.key(0)))
    np.testing.assert_allclose(
        net.from_noise(noise)["Dense_1"]["kernel"], noise["Dense_1"]["kernel"] * 3 / np.sqrt(5), rtol=1e-6
    )


def test_prepare(make_spec):
    net = genotype(MLP(2), make_spec((3,), num_actions=2), prepare=lambda p: jax.tree.map(lambda a: 2 * a, p))
    params = net.policy.init(jax.random.key(0))
    output, _ = net.policy.apply(net.prepare(params), jnp.ones((1, 3)), ())
    doubled = jax.tree.map(lambda a: 2 * a, params)
    np.testing.assert_allclose(output, MLP(2).apply({"params": doubled}, jnp.ones((1, 3))), rtol=1e-6)


def test_functions_given_are_part_of_the_config_and_fields_keep_their_names(make_spec):
    class Narrow(nn.Module):
        initial_std: float = 0.5

        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(x)

    spec = make_spec((3,), num_actions=2)
    assert genotype(Narrow(), spec).policy.config["initial_std"] == 0.5
    assert GIVEN not in genotype(Narrow(), spec).policy.config
    given = [genotype(Narrow(), spec, initial_std=lambda path, std=std: std).policy.config for std in (1.0, 2.0)]
    assert given[0]["initial_std"] == 0.5
    assert set(given[0][GIVEN]) == {"initial_std"}
    assert given[0] != given[1]


def test_config_is_json_and_stable(make_spec):
    spec = make_spec((3,), num_actions=2)
    config = genotype(MLP(2, hidden=(4,)), spec).policy.config
    assert json.loads(json.dumps(config)) == config
    assert config["type"] == "volvox.networks:MLP"
    assert config["num_parameters"] == 3 * 4 + 4 + 4 * 2 + 2
    assert config["hidden"] == [4]
    assert config == genotype(MLP(2, hidden=(4,)), spec).policy.config
    closure = genotype(MLP(2, activation=jax.jit(lambda x: x)), spec).policy.config
    assert "0x" not in json.dumps(closure)


def test_continuous_actions(make_spec):
    spec = make_spec((3,), action_shape=(2, 3))
    assert genotype(MLP(6), spec).policy.config["num_parameters"] > 0
    with pytest.raises(ValueError, match=r"\[B, 5\].*requires \[B, 6\].*shape \(2, 3\)"):
        genotype(MLP(5), spec)


def test_misfitting_output_says_what_to_do(make_spec):
    with pytest.raises(ValueError, match=r"MLP gives .* \[B, 3\].*Probe requires \[B, 4\].*last layer 4 wide"):
        genotype(MLP(3), make_spec((3,), num_actions=4))

    class Flat(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(x)[0]

    with pytest.raises(ValueError, match=r"Flat gives \[4\].*keep the batch axis first"):
        genotype(Flat(), make_spec((3,), num_actions=4))

    class Two(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(x), nn.Dense(1)(x)

    with pytest.raises(
        ValueError, match=r"Two gives \(.*requires \[B, 4\], alone: .* trained by volvox.learn and do not"
    ):
        genotype(Two(), make_spec((3,), num_actions=4))


def test_misfitting_module_says_what_to_do(make_spec):
    with pytest.raises(TypeError, match="instance and not its class"):
        genotype(MLP, make_spec((3,), num_actions=4))  # pyright: ignore[reportArgumentType]

    class Statistics(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(nn.BatchNorm(use_running_average=True)(x))

    with pytest.raises(ValueError, match=r"batch_stats.*nn\.LayerNorm"):
        genotype(Statistics(), make_spec((3,), num_actions=4))

    class Picky(nn.Module):
        @nn.compact
        def __call__(self, x):
            rows, columns = x.shape[1:]
            return nn.Dense(rows * columns)(x)

    with pytest.raises(ValueError, match=r"Picky cannot take observations of Probe, float32 \[B, 3\]"):
        genotype(Picky(), make_spec((3,), num_actions=4))
    with pytest.raises(ValueError, match=r"DeepGA cannot .*\[B, 3\]: images \[B, H, W, C\] are needed, not 2 axes"):
        genotype(DeepGA(4), make_spec((3,), num_actions=4))

    class Flat(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(x.reshape(-1))

    class Fixed(nn.Module):  # without parameters
        @nn.compact
        def __call__(self, x):
            return jnp.broadcast_to(jnp.arange(4.0), (x.shape[0], 4))

    assert not jax.tree.leaves(genotype(Fixed(), make_spec((3,), num_actions=4)).policy.init(jax.random.key(0)))
    with pytest.raises(ValueError, match="Flat: the shapes of its parameters depend on the batch size B"):
        genotype(Flat(), make_spec((3,), num_actions=4))


def test_genotype_from_functions(make_spec, normal_like):
    def init(key):
        return {"weights": jax.random.normal(key, (3, 2)), "temperature": jnp.array(2.0)}

    def linear(params, observation):
        return observation @ params["weights"] / params["temperature"]

    net = genotype_from_functions(init, linear, make_spec((3,), num_actions=2), config={"kind": "test"})
    assert net.policy.config == {"kind": "test", "num_parameters": 7}
    named = genotype_from_functions(init, linear, make_spec((3,), num_actions=2)).policy.config
    assert named["function"].endswith("linear")
    params = net.policy.init(jax.random.key(0))
    output, state = net.policy.apply(net.prepare(params), jnp.ones((4, 3)), net.policy.initial_state(4))
    assert output.shape == (4, 2)
    assert state == ()
    noise = normal_like(params)
    first = net.from_noise(noise)
    assert first["temperature"] == 2.0
    np.testing.assert_allclose(first["weights"], noise["weights"] / np.sqrt(3), rtol=1e-6)
    with pytest.raises(ValueError, match=r"linear gives .*requires \[B, 3\]"):
        genotype_from_functions(init, linear, make_spec((3,), num_actions=3))
