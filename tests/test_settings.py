"""Settings as JSON values."""

import dataclasses
import functools
import json
import subprocess
import sys
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest

import volvox as vx
from volvox import describe, recorded
from volvox._settings import CannotRebuildError, rebuild, resolved


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
    assert describe(optax.sgd(0.1))["type"] == "optax:GradientTransformation"
    assert describe(object()) == {"type": "builtins:object"}  # its representation names an address


def test_an_import_path_does_not_depend_on_what_else_is_imported(monkeypatch):
    package, inner, other = (types.ModuleType(name) for name in ("mypkg", "mypkg.inner.nets", "mypkg.eval"))
    made: type = type("Net", (nn.Module,), {"__module__": "mypkg.inner.nets"})
    inner.Net = made
    for module in (package, inner, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert describe(made())["type"] == "mypkg.inner.nets:Net"
    other.Net = made
    assert describe(made())["type"] == "mypkg.inner.nets:Net"
    assert resolved("mypkg.eval:Net") == "mypkg.inner.nets:Net"  # as earlier versions wrote it
    package.Net = made
    assert describe(made())["type"] == "mypkg:Net"
    assert resolved("no.such:Net") == "no.such:Net"


def test_values_become_json():
    given = {"a": (1, 2.5, None), "b": np.arange(2), "c": np.float32(0.5), "d": frozenset("ba"), 1: True}
    assert describe(given) == {"a": [1, 2.5, None], "b": [0, 1], "c": 0.5, "d": ["a", "b"], "1": True}


def test_numbers_that_json_lacks_are_kept():
    given = {"bounds": np.float32([-np.inf, 1.0]), "most": np.inf, "unknown": float("nan")}
    described = describe(given)
    assert described["bounds"] == [{"float": "-inf"}, 1.0]
    again = rebuild(json.loads(json.dumps(described, allow_nan=False)))
    assert again["bounds"] == (-np.inf, 1.0)
    assert again["most"] == np.inf
    assert np.isnan(again["unknown"])
    assert rebuild({"float": "1e400"}) == {"float": "1e400"}  # nothing else is read as a number


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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (optax.linear_schedule(1e-3, 0.0, 100), optax.linear_schedule(5e-4, 0.0, 100)),
        (optax.adam(1e-3), optax.adam(1e-4)),
        (optax.adam(1e-3, b1=0.9), optax.adam(1e-3, b1=0.8)),
        (optax.chain(optax.clip(1.0), optax.sgd(0.1)), optax.chain(optax.clip(2.0), optax.sgd(0.1))),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: jnp.sin(x), lambda x: jnp.cos(x)),
        (jax.jit(lambda x: x + 1), jax.jit(lambda x: x + 2)),
        (np.arange(1_000), np.arange(1_000) + 1),
        (lambda g: jax.tree.map(lambda x: x * 0.5, g), lambda g: jax.tree.map(lambda x: x * 0.1, g)),
        (lambda g: jax.tree.map(lambda x: jnp.sin(x), g), lambda g: jax.tree.map(lambda x: jnp.cos(x), g)),
        (lambda x, *, rate=0.5: x * rate, lambda x, *, rate=0.1: x * rate),
        (lambda x: x * RATES[0], lambda x: x * RATES[1]),
        (lambda name: name in {"kernel", "bias"}, lambda name: name in {"kernel", "scale"}),
    ],
)
def test_what_cannot_be_made_again_is_told_apart(one, other):
    assert describe(one) != describe(other)
    assert json.dumps(describe(one)) == json.dumps(describe(one))
    with pytest.raises(CannotRebuildError):
        rebuild(describe(one))


RATE = 0.5
RATES = (0.5, 0.1)


def helper(x):
    return x * RATE


def decayed(params):
    return jax.tree.map(lambda x: helper(x) * RATE, params)


def test_values_of_globals_and_helpers_of_the_same_module_are_noticed(monkeypatch):
    made = [describe(lambda x: decayed(x))["code"]]
    monkeypatch.setattr(sys.modules[__name__], "RATE", 0.25)
    made.append(describe(lambda x: decayed(x))["code"])
    monkeypatch.setattr(sys.modules[__name__], "helper", lambda x: x + RATE)
    made.append(describe(lambda x: decayed(x))["code"])
    monkeypatch.setattr(sys.modules[__name__], "RATE", [made])  # a value that is no setting is no error
    RATE.append(RATE)
    describe(lambda x: decayed(x))
    assert len(set(made)) == 3


HASHED = """
import optax
from volvox import describe
mask = lambda name: name in {"kernel", "bias", "scale", "embedding"} or name in frozenset("abcdefg")
print(describe(mask)["code"], describe(optax.adamw(1e-3, mask=mask))["code"])
"""


@pytest.mark.slow
def test_a_hash_is_the_same_in_each_process():
    found = set()
    for seed in ("1", "2"):
        environment = {**__import__("os").environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", HASHED], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1


def test_the_same_function_made_twice_is_described_alike():
    assert describe(optax.linear_schedule(1e-3, 0.0, 100)) == describe(optax.linear_schedule(1e-3, 0.0, 100))
    assert describe(optax.adam(1e-3)) == describe(optax.adam(1e-3))


@pytest.mark.parametrize(
    "settings",
    [
        vx.GA(objective=vx.Novelty(behavior=vx.rollout.behaviors.Trajectory("position", 2, every=5, length=3))),
        vx.ES(noise_std="linear:1,0.1,100"),
        vx.A3C.ga3c(),
        vx.PPO.mujoco(),
        vx.TD3(optimizer=vx.sparsity.sparse(optax.adam, vx.sparsity.Dynamic(sparsity=0.5))),
        vx.population.LowRank(rank=2, source=vx.population.Generator()),
        vx.networks.MLP(6, hidden=(4, 3), activation=nn.relu),
        vx.networks.ActorCritic(4, vx.networks.SmallTorso()),
        vx.networks.ActorAndCritic(vx.networks.MLP(6, (8,)), vx.networks.QNetwork()),
        nn.Dense(3, kernel_init=nn.initializers.zeros),
    ],
    ids=lambda settings: type(settings).__name__,
)
def test_settings_are_made_again(settings):
    described = json.loads(json.dumps(describe(settings)))
    again = rebuild(described)
    assert type(again) is type(settings)
    assert describe(again) == describe(settings)


def test_environments_are_made_again():
    env = probes.corridor(length=5, num_envs=6, groups=3)
    again = rebuild(json.loads(json.dumps(env.config)))
    assert again.spec == env.spec
    assert again.config == env.config
    assert (again.num_envs, again.num_groups) == (6, 3)


@recorded
def wind(*, num_envs, force=1.0):
    return vx.envs.from_functions(
        lambda key: jnp.zeros(2),
        lambda state, action, key: (state + force, 0.0, False),
        lambda state: state,
        name="wind",
        num_envs=num_envs,
        num_actions=2,
        max_episode_steps=3,
    )


def test_an_environment_of_ones_own_records_its_call_and_what_it_computes():
    described = wind(num_envs=2, force=2.0).config
    assert described["made_by"]["call"].endswith("test_settings:wind")
    assert described["made_by"]["force"] == 2.0
    assert described["settings"] == wind(num_envs=2, force=2.0).config["settings"]
    assert described["settings"] != wind(num_envs=2, force=3.0).config["settings"]
    again = rebuild(json.loads(json.dumps(described)))
    assert again.config == described
    assert again.num_envs == 2


@recorded
@dataclasses.dataclass(frozen=True)
class Own:
    """Settings of one's own, with names that descriptions have too."""

    type: str = "windy"
    code: int = 3
    inner: object = None


@recorded
def swish(x, beta=1.0):
    return x * jax.nn.sigmoid(beta * x)


class Kind(nn.Module):
    type: str = "conv"
    groups: int = 2


@pytest.mark.parametrize(
    "settings",
    [Own(), Own(type="still", code=4, inner=Own()), Kind(type="dense"), nn.Dense(3, kernel_init=nn.initializers.ones)],
    ids=["default", "nested", "module", "function"],
)
def test_names_of_fields_do_not_collide_with_those_of_descriptions(settings):
    described = json.loads(json.dumps(describe(settings)))
    assert rebuild(described) == settings


def test_marked_functions_are_given_back_and_bound_to_arguments():
    assert rebuild(describe(swish)) is swish
    bound = rebuild(describe(functools.partial(swish, beta=2.0)))
    assert bound(1.0) == swish(1.0, beta=2.0)
    with pytest.raises(TypeError, match="cannot be given by name"):
        recorded(lambda *sizes: sizes)
    plain = swish.__wrapped__
    assert plain.__module__ == swish.__module__
    with pytest.raises(CannotRebuildError, match=r"marked by volvox\.recorded"):
        rebuild({"function": f"{__name__}:helper"})


def test_a_mapping_may_have_the_names_of_descriptions():
    settings = {"type": "windy", "format": "rgb", "call": 3, "inner": {"function": "x"}}
    assert rebuild(json.loads(json.dumps(describe(settings)))) == settings


def test_a_description_without_end_is_refused():
    described = []
    for _ in range(5_000):
        described = [described]
    with pytest.raises(CannotRebuildError, match="nested too deeply"):
        rebuild(described)


@pytest.mark.parametrize(
    "described",
    [
        {"function": "os:system"},
        {"function": "os:system", "arguments": ["true"]},
        {"call": "subprocess:run", "args": ["true"]},
        {"type": "pathlib:Path"},
        {"function": "volvox.tuning:os.getcwd"},
        {"call": "volvox.tuning:os.getcwd"},
        {"call": "pytest:exit", "reason": "called"},
        {"function": "pytest:exit", "reason": "called"},
        {"type": "volvox:train"},
        {"type": "volvox:GA", "population": 3},
        {"type": "volvox:NoSuchClass"},
        {"type": "no_such_module:Class"},
        {"type": ".relative:Class"},
        {"type": "volvox:GA", "arguments": 3},
        {"type": "volvox:GA", "values": 3},
        {"call": "volvox:GA"},
        {"function": "a:b.<locals>.c"},
    ],
    ids=str,
)
def test_nothing_is_called_that_is_no_setting(described):
    with pytest.raises(CannotRebuildError, match=r"learner\.part"):
        rebuild({"part": described}, place="learner")
