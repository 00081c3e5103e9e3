"""Two devices learn as one does with twice the environments; each part of the loop's state has a device axis."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import probes
import pytest
from flax import linen as nn

import volvox as vx
from volvox.rollout.devices import ALONE

TESTS = Path(__file__).parent.parent
SETTINGS = {
    "a3c": vx.A3C(segment_length=5, learning_rate=0.01, updates_per_iteration=5),
    "ppo": vx.PPO(
        segment_length=8,
        num_minibatches=1,
        rounds_per_iteration=3,
        kl_stop=0.02,
        normalize_observations=True,
        normalize_rewards=True,
        lag=0,
    ),
    "td3": vx.TD3(
        learning_rate=3e-3,
        batch_size=16,
        random_timesteps=32,
        replay_size=256,
        timesteps_per_iteration=64,
        normalize_observations=True,
    ),
}


def learned(kind, num_envs, *, host=False, devices=None):
    """The variables of the policy, one array, and the last row."""
    env, network = probes.corridor(num_envs=num_envs), vx.networks.CategoricalMLP(2, (8,))
    if kind == "td3":
        critic = vx.networks.QNetwork((8,))
        network = vx.networks.ActorAndCritic(vx.networks.MLP(2, (8,), activation=nn.relu), critic)
        env = probes.target(num_envs=num_envs)
    algorithm = vx.learn(SETTINGS[kind], network, env, host=host, devices=devices)
    state, row = algorithm.init(0), {}
    for _ in range(2):
        state, row = algorithm.step(state)
    variables = algorithm.variables(state)
    again = algorithm.restore(nested(algorithm.save(state)))
    algorithm.close()
    jax.tree.map(np.testing.assert_array_equal, again.learning, state.learning)
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(variables)]), row


def nested(tree):
    """Nested dictionaries, as a checkpoint gives them."""
    if hasattr(tree, "_asdict"):
        return {name: nested(part) for name, part in tree._asdict().items()}
    if isinstance(tree, tuple | list):
        return {str(i): nested(part) for i, part in enumerate(tree)}
    return {key: nested(part) for key, part in tree.items()} if isinstance(tree, dict) else tree


@pytest.mark.slow
def test_two_devices_learn_as_one_with_twice_the_environments(tmp_path):
    """TD3 has a replay on each device, so that only counts are equal."""
    program = f"""
import json, sys
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS / "rollout")!r}]
import jax, test_devices
assert len(jax.devices()) == 2
found = {{kind: test_devices.learned(kind, 4, devices=jax.devices()) for kind in test_devices.SETTINGS}}
print(json.dumps({{kind: [variables.tolist(), row] for kind, (variables, row) in found.items()}}))
"""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    flags["PYTHONPATH"] = str(Path(vx.__file__).parent.parent)
    run = subprocess.run([sys.executable, "-c", program], env=os.environ | flags, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    for kind in ("a3c", "ppo"):
        variables, row = learned(kind, 8)
        np.testing.assert_allclose(found[kind][0], variables, rtol=1e-5, atol=1e-6)
        same = {name: value for name, value in row.items() if "per_second" not in name}
        for name, value in same.items():
            np.testing.assert_allclose(found[kind][1][name], value, rtol=1e-3, atol=1e-6, err_msg=name)
    _, row = learned("td3", 8)
    for name in ("timesteps", "update", "frames"):
        assert found["td3"][1][name] == row[name]
    assert np.isfinite(found["td3"][0]).all()


def test_one_device_has_no_device_axis():
    tree = {"a": np.ones(2)}
    assert ALONE.placed(tree) is ALONE.local(tree) is tree
    assert ALONE.mapped(len) is len
    assert ALONE.largest(3.0) == 3.0
    assert ALONE.agree(tree)
