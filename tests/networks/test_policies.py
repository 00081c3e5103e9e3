"""Policies of modules and of functions."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from volvox.networks import MLP, policy, policy_from_functions


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
    net = policy(MLP(2), make_spec((3,), num_actions=2))
    params, x = net.init(jax.random.key(0)), jnp.ones((4, 3))
    state = net.initial_state(4)
    assert state == ()
    output, state = net.apply(net.prepare(params), x, state, None)
    assert state == ()
    np.testing.assert_allclose(output, MLP(2).apply({"params": params}, x), rtol=1e-6)


def test_state_is_threaded_and_a_key_draws(make_spec):
    net = policy(MLP(2), make_spec((3,), num_actions=2))
    params = net.init(jax.random.key(0))
    with_key, state = net.apply(params, jnp.ones((1, 3)), (), jax.random.key(1))
    without, _ = net.apply(params, jnp.ones((1, 3)), (), None)
    np.testing.assert_array_equal(with_key, without + jax.random.gumbel(jax.random.key(1), (1, 2)))
    assert state == ()


def test_vmap_over_parameters_reaches_the_kernels(make_spec):
    class Convolutional(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(4, (3, 3))(x)).reshape(x.shape[0], -1)
            return nn.Dense(2)(x)

    module = Convolutional()
    net = policy(module, make_spec((14, 14, 3), num_actions=2))
    params = jax.vmap(net.init)(jax.random.split(jax.random.key(0), 7))
    x = jnp.ones((7, 1, 14, 14, 3))
    ours = str(jax.make_jaxpr(jax.vmap(lambda p, x: net.apply(p, x, (), None)[0]))(params, x))
    naive = str(jax.make_jaxpr(jax.vmap(lambda p, x: module.apply({"params": p}, x)))(params, x))
    assert "feature_group_count=7" in naive
    assert "feature_group_count=7" not in ours
    assert "batch_group_count=7" not in ours
    assert "f32[7,2,1,2]" in ours, "the dense layer's contraction of 784 is cut in two"
    assert "f32[7,2,1,2]" not in naive


def test_first_generation(make_spec, normal_like):
    net = policy(Normed(), make_spec((3,), num_actions=2))
    params = net.init(jax.random.key(0))
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
    net = policy(Normed(), make_spec((3,), num_actions=2))
    assert "random" not in str(jax.make_jaxpr(net.from_noise)(net.init(jax.random.key(0))))


def test_spread_given_by_the_caller(make_spec, normal_like):
    net = policy(Normed(), make_spec((3,), num_actions=2), initial_std=lambda path: 3.0)
    noise = normal_like(net.init(jax.random.key(0)))
    np.testing.assert_allclose(
        net.from_noise(noise)["Dense_1"]["kernel"], noise["Dense_1"]["kernel"] * 3 / np.sqrt(5), rtol=1e-6
    )


def test_prepare(make_spec):
    net = policy(MLP(2), make_spec((3,), num_actions=2), prepare=lambda p: jax.tree.map(lambda a: 2 * a, p))
    params = net.init(jax.random.key(0))
    output, _ = net.apply(net.prepare(params), jnp.ones((1, 3)), (), None)
    doubled = jax.tree.map(lambda a: 2 * a, params)
    np.testing.assert_allclose(output, MLP(2).apply({"params": doubled}, jnp.ones((1, 3))), rtol=1e-6)


def test_config_is_json_and_stable(make_spec):
    spec = make_spec((3,), num_actions=2)
    config = policy(MLP(2, hidden=(4,)), spec).config
    assert json.loads(json.dumps(config)) == config
    assert config["network"] == "MLP"
    assert config["num_parameters"] == 3 * 4 + 4 + 4 * 2 + 2
    assert config["hidden"] == [4]
    assert config == policy(MLP(2, hidden=(4,)), spec).config
    closure = policy(MLP(2, activation=jax.jit(lambda x: x)), spec).config
    assert "0x" not in json.dumps(closure)


def test_continuous_actions(make_spec):
    spec = make_spec((3,), action_shape=(2, 3))
    assert policy(MLP(6), spec).config["num_parameters"] > 0
    with pytest.raises(ValueError, match=r"\[B, 5\].*requires \[B, 6\].*shape \(2, 3\)"):
        policy(MLP(5), spec)


def test_misfitting_output_says_what_to_do(make_spec):
    with pytest.raises(ValueError, match=r"MLP gives .* \[B, 3\].*Probe requires \[B, 4\].*last layer 4 wide"):
        policy(MLP(3), make_spec((3,), num_actions=4))

    class Flat(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(x)[0]

    with pytest.raises(ValueError, match=r"shape \[4\].*keep the batch axis first"):
        policy(Flat(), make_spec((3,), num_actions=4))

    class Two(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(x), nn.Dense(1)(x)

    with pytest.raises(ValueError, match=r"Two gives \(.*requires \[B, 4\]"):
        policy(Two(), make_spec((3,), num_actions=4))


def test_misfitting_module_says_what_to_do(make_spec):
    with pytest.raises(TypeError, match="instance and not its class"):
        policy(MLP, make_spec((3,), num_actions=4))  # pyright: ignore[reportArgumentType]

    class Statistics(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(nn.BatchNorm(use_running_average=True)(x))

    with pytest.raises(ValueError, match=r"batch_stats.*nn\.LayerNorm"):
        policy(Statistics(), make_spec((3,), num_actions=4))

    class Picky(nn.Module):
        @nn.compact
        def __call__(self, x):
            rows, columns = x.shape[1:]
            return nn.Dense(rows * columns)(x)

    with pytest.raises(ValueError, match=r"Picky cannot take observations of Probe, float32 \[B, 3\]"):
        policy(Picky(), make_spec((3,), num_actions=4))


def test_policy_from_functions(make_spec, normal_like):
    def init(key):
        return {"weights": jax.random.normal(key, (3, 2)), "temperature": jnp.array(2.0)}

    def linear(params, observation):
        return observation @ params["weights"] / params["temperature"]

    net = policy_from_functions(init, linear, make_spec((3,), num_actions=2), config={"kind": "test"})
    assert net.config == {"network": "linear", "num_parameters": 7, "kind": "test"}
    params = net.init(jax.random.key(0))
    output, state = net.apply(net.prepare(params), jnp.ones((4, 3)), net.initial_state(4), None)
    assert output.shape == (4, 2)
    assert state == ()
    noise = normal_like(params)
    first = net.from_noise(noise)
    assert first["temperature"] == 2.0
    np.testing.assert_allclose(first["weights"], noise["weights"] / np.sqrt(3), rtol=1e-6)
    with pytest.raises(ValueError, match=r"linear gives .*requires \[B, 3\]"):
        policy_from_functions(init, linear, make_spec((3,), num_actions=3))
