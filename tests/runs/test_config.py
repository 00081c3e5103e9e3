"""Settings survive JSON; files name nothing but public parts; differences are found."""

import dataclasses
import functools
import json
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import volvox as vx
from volvox.runs.config import differences, from_json, to_json


class UserNet(nn.Module):
    size: int = 4
    activation: object = nn.relu


@dataclasses.dataclass(frozen=True)
class UserSettings:
    rate: float
    added_later: int = 7


def user_reward(x):
    return x


def through_json(value, custom=()):
    return from_json(json.loads(json.dumps(to_json(value), allow_nan=False)), custom)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, 0.1, "text", (1, (2.5, "a")), {"type": "windy", "strength": 2}),
        *(math.inf, -math.inf, np.float32(0.1).item(), np.int32(4).item(), np.dtype("uint8"), jnp.float32, np.uint8),
        *(vx.GA(), vx.ES(), vx.PPO(learning_rate=1e-3), vx.TD3()),
        vx.networks.MLP(3, (8, 8), activation=nn.relu, kernel_init=nn.initializers.orthogonal(2.0)),
        vx.networks.ActorAndCritic.mlp(3),
        *(vx.population.LowRank(rank=2), vx.sparsity.Dynamic(sparsity=0.9)),
        *(optax.adam, nn.tanh, jax.nn.gelu, jnp.tanh, vx.networks.MLP),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_public_parts_survive(value):
    read = through_json(value)
    assert type(read) is type(value)
    assert read == value or to_json(read) == to_json(value)  # partials are equal only to themselves


def test_non_finite_and_partial_values_survive():
    assert math.isnan(through_json(math.nan))
    made = through_json(functools.partial(optax.adam, b1=0.5))
    assert (made.func, made.keywords) == (optax.adam, {"b1": 0.5})
    orthogonal = nn.initializers.orthogonal(2.0)
    drawn = [initializer(jax.random.key(0), (3, 2)) for initializer in (orthogonal, through_json(orthogonal))]
    np.testing.assert_array_equal(*drawn)
    array = np.linspace(0, 1, 7, dtype=np.float32).reshape(7, 1)
    read = through_json(array)
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize(
    "schedule",
    [
        optax.linear_schedule(1.0, 0.0, 100),
        optax.join_schedules([optax.constant_schedule(1.0), optax.linear_schedule(1.0, 0.0, 10)], [20]),
        optax.piecewise_constant_schedule(1.0, {10: 0.5, 20: 0.1}),
        optax.piecewise_interpolate_schedule("cosine", 1.0, {10: 0.5, 20: 0.1}),
        optax.warmup_cosine_decay_schedule(0.0, 1.0, 10, 100),
        optax.sgdr_schedule([{"init_value": 0.0, "peak_value": 1.0, "decay_steps": 20, "warmup_steps": 5}]),
    ],
)
def test_schedules_of_optax_are_described_by_name_and_arguments(schedule):
    read = through_json(schedule)
    for count in (0, 1, 7, 25, 300):
        assert read(count) == schedule(count)


class Pair(nn.Module):
    first: nn.Module
    second: nn.Module


def test_equal_modules_stay_two():
    """One object in two attributes would share its parameters."""
    pair = from_json(to_json(Pair(vx.networks.MLP(4), vx.networks.MLP(4))), custom=(Pair,))
    assert pair.first is not pair.second
    assert pair.first.num_outputs == pair.second.num_outputs == 4


def test_parts_of_users_are_passed_in():
    parts = (UserNet(size=5), UserSettings(0.5), user_reward)
    with pytest.raises(ValueError, match="UserNet"):
        through_json(parts)
    assert through_json(parts, [UserNet, UserSettings, user_reward]) == parts
    moved = json.loads(json.dumps(to_json(parts)).replace(__name__, "__main__"))  # run as a script, then imported
    assert from_json(moved, [UserNet, UserSettings, user_reward]) == parts


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"function": "volvox.runs.train.os"}, "public name"),
        ({"type": "volvox.train", "run_dir": "canary"}, "may not be called"),
        (
            {"type": "numpy.memmap", "filename": "canary", "dtype": "uint8", "mode": "w+", "shape": [4]},
            "may not be called",
        ),
        ({"partial": {"function": "jax.numpy.save"}, "arguments": ["canary"], "keywords": {}}, "may not be called"),
        ({"type": "volvox.envs.gymnasium", "make_env": "canary:Canary-v0", "num_envs": 1}, "import canary first"),
        ({"type": "canary.Canary"}, "public name"),
        ({"type": "volvox.GA", "no_such_field": 1}, "no_such_field"),
    ],
    ids=str,
)
def test_files_import_and_call_nothing_else(data, message, tmp_path, monkeypatch):
    """A module beside the run, which could be imported from the working directory, must not be executed."""
    (tmp_path / "canary.py").write_text("open('executed', 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=message):
        from_json(data)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["canary.py"]


def test_objects_without_a_json_form_are_named_and_not_rebuilt():
    data = to_json({"lock": object(), "function": lambda x: x})
    json.dumps(data)
    with pytest.raises(ValueError, match="object"):
        from_json(data["lock"])
    with pytest.raises(ValueError, match="no public name"):
        from_json(to_json(optax.adam(1e-3)))


def test_a_class_of_a_script_is_the_same_when_the_script_is_imported():
    saved = {"function": "__main__.Chase"}
    assert differences(saved, {"function": "tasks.Chase"}) == differences({"function": "tasks.Chase"}, saved) == []
    assert len(differences(saved, {"function": "tasks.Purchase"})) == 1
    assert len(differences({"function": "other.Chase"}, {"function": "tasks.Chase"})) == 1


def test_differences_are_listed_with_both_values():
    saved = to_json({"settings": vx.PPO(), "env": {"type": "volvox.envs.cartpole", "num_envs": 8}})
    current = to_json({"settings": vx.PPO(learning_rate=0.5), "env": {"type": "volvox.envs.cartpole", "num_envs": 4}})
    found = differences(saved, current)
    assert len(found) == 2
    assert all(word in " ".join(found) for word in ("settings.learning_rate", "0.5", "env.num_envs", "8", "4"))
    assert differences(saved, saved) == []
    assert differences({"sticky_actions": 0}, {"sticky_actions": 0.0}) == []
    assert len(differences({"lag": 1}, {"lag": True})) == 1


def test_a_field_missing_in_an_older_file_takes_its_default():
    saved = to_json(UserSettings(0.5))
    del saved["added_later"]
    assert differences(saved, to_json(UserSettings(0.5))) == []
    assert len(differences(saved, to_json(UserSettings(0.5, added_later=8)))) == 1
    assert differences([saved], [to_json(UserSettings(0.5))]) == []
    assert from_json(saved, [UserSettings]) == UserSettings(0.5)
