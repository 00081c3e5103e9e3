"""Genotypes of modules and of functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from volvox.networks import MLP, DeepGA, genotype, genotype_from_functions


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


def test_continuous_actions_are_shaped_and_kept_within_each_bound(make_spec):
    low, high = np.array([[-1.0, -0.5], [-1.0, -2.0]], np.float32), np.array([[1.0, 0.5], [0.1, 2.0]], np.float32)
    spec = make_spec((3,), action_shape=(2, 2))._replace(action_low=low, action_high=high)
    net = genotype(MLP(4), spec).policy
    output = jnp.array([[5.0, 5.0, 5.0, 5.0], [-5.0, 0.25, -0.25, -5.0]])
    np.testing.assert_array_equal(net.mode(output), [high, [[-1.0, 0.25], [-0.25, -2.0]]])
    with pytest.raises(ValueError):
        net.sample(jax.random.key(0), output)


def test_the_kernels_serve_unmodified_modules(make_spec):
    policy = genotype(MLP(2), make_spec((3,), num_actions=2)).policy
    params = jax.eval_shape(policy.init, jax.random.key(0))
    assert "custom_vjp_call" in str(jax.make_jaxpr(policy.apply)(params, jnp.ones((1, 3)), ()))


def test_first_generation(make_spec, normal_like):
    module = Normed()
    net = genotype(module, make_spec((3,), num_actions=2))
    assert net.policy.config is module
    params = jax.jit(net.policy.init)(jax.random.key(0))
    noise = normal_like(params)
    first = jax.jit(net.from_noise)(noise)
    np.testing.assert_allclose(first["Dense_0"]["kernel"], noise["Dense_0"]["kernel"] * 2 / np.sqrt(3), rtol=1e-6)
    np.testing.assert_allclose(first["Dense_1"]["kernel"], noise["Dense_1"]["kernel"] / 4 / np.sqrt(5), rtol=1e-6)
    np.testing.assert_array_equal(first["Dense_0"]["bias"], np.full(5, 0.5))
    np.testing.assert_array_equal(first["Dense_1"]["bias"], np.zeros(2))
    np.testing.assert_array_equal(first["LayerNorm_0"]["scale"], np.ones(5))
    np.testing.assert_array_equal(first["LayerNorm_0"]["bias"], np.zeros(5))
    assert jax.tree.map(jnp.shape, first) == jax.tree.map(jnp.shape, params)


class Layers(nn.Module):
    """Dense layers of several outputs, with options of misfits."""

    widths: tuple = (4,)
    normalized: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=True)(x) if self.normalized else x
        outputs = tuple(nn.Dense(width)(x) for width in self.widths)
        return outputs if len(outputs) > 1 else outputs[0]


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (MLP(3), ValueError, "needs"),
        (Layers((4, 1)), ValueError, "volvox.learn"),
        (Layers(normalized=True), ValueError, "LayerNorm"),
        (DeepGA(4), ValueError, "cannot take"),
        (MLP, TypeError, "flax.linen module"),
    ],
)
def test_networks_that_do_not_fit_are_refused(make_spec, module, error, message):
    with pytest.raises(error, match=message):
        genotype(module, make_spec((3,), num_actions=4))


def test_genotype_from_functions(make_spec, normal_like):
    def init(key):
        return {"weights": jax.random.normal(key, (3, 2)), "temperature": jnp.array(2.0)}

    def linear(params, observation):
        return observation @ params["weights"] / params["temperature"]

    net = genotype_from_functions(init, linear, make_spec((3,), num_actions=2))
    assert net.policy.config["type"] == "volvox.networks.genotype_from_functions"
    assert net.policy.config["apply"] is linear
    params = jax.jit(net.policy.init)(jax.random.key(0))
    output, state = net.policy.apply(net.prepare(params), jnp.ones((4, 3)), net.policy.initial_state(4))
    assert output.shape == (4, 2)
    assert state == ()
    noise = normal_like(params)
    first = net.from_noise(noise)
    assert first["temperature"] == 2.0
    np.testing.assert_allclose(first["weights"], noise["weights"] / np.sqrt(3), rtol=1e-6)
    with pytest.raises(ValueError):
        genotype_from_functions(init, linear, make_spec((3,), num_actions=3))
