"""Settings as JSON values."""

import functools

import flax.linen as nn
import jax
import numpy as np
import optax

import volvox as vx
from volvox import describe
from volvox._settings import versions


def test_settings_are_described_by_public_import_paths():
    assert describe(functools.partial(optax.adam, eps=1e-5)) == {"function": "optax:adam", "eps": 1e-5}
    assert describe(vx.GA())["type"] == "volvox:GA"
    assert describe(vx.GA())["objective"] == {"type": "volvox:Returns"}
    assert describe(nn.Dense(3))["type"] == "flax.linen:Dense"
    assert "name" not in describe(nn.Dense(3))


def test_what_has_no_public_path_keeps_its_own():
    def local(x):
        return x

    assert describe(local)["function"].endswith("test_what_has_no_public_path_keeps_its_own.<locals>.local")
    assert describe(optax.sgd(0.1)) == {"type": "optax:GradientTransformation"}
    assert describe(object()) == {"type": "builtins:object"}  # its representation names an address


def test_values_become_json():
    given = {"a": (1, 2.5, None), "b": np.arange(2), "c": np.float32(0.5), "d": frozenset("ba"), 1: True}
    assert describe(given) == {"a": [1, 2.5, None], "b": [0, 1], "c": 0.5, "d": ["a", "b"], "1": True}


class Doubled:
    """A function that is an instance, and so has no name of its own."""

    def __call__(self, x, power=1):
        return (2 * x) ** power


def test_a_partial_of_an_instance_is_described_by_its_class():
    described = describe(functools.partial(Doubled(), 3, power=2))
    assert described["type"].endswith("test_settings:Doubled")
    assert described["arguments"] == [3]
    assert described["power"] == 2
    assert describe(functools.partial(nn.Dense(3), mutable=True)) == {**describe(nn.Dense(3)), "mutable": True}


def test_versions():
    assert versions().keys() == {"volvox", "jax", "envpool"}
    assert versions()["jax"] == jax.__version__
