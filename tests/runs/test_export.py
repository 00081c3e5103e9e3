"""Exported policies act as the policies do, without the code of their networks."""

import json
import re
import subprocess
import sys
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import volvox as vx
from volvox import networks
from volvox.runs.export import export, is_exported, load_exported
from volvox.types import EnvSpec

WITHOUT_VOLVOX = """
import io, json, sys, zipfile
import jax, numpy as np
sys.modules["volvox"] = sys.modules["flax"] = None  # importing them would raise
with zipfile.ZipFile(sys.argv[1]) as file:
    header = json.loads(file.read("header.json"))
    program = jax.export.deserialize(bytearray(file.read("program.bin")))
observation = np.load(sys.argv[2])
state = [np.zeros([len(observation), *x["shape"][1:]], x["dtype"]) for x in header["inputs"][2:]]
first = [np.ones(len(observation), bool)] if state else []
action, *state = program.call(observation, *first, *state)
np.save(sys.argv[3], action)
"""


def spec(shape, dtype=np.float32, *, num_actions=None):
    bounds = None if num_actions else np.array([0.3, np.inf], np.float32)
    return EnvSpec(
        name="Made up",
        observation_shape=shape,
        observation_dtype=np.dtype(dtype),
        num_actions=num_actions,
        action_shape=None if num_actions else (2,),
        action_low=None if num_actions else -bounds,
        action_high=bounds,
        max_episode_steps=100,
        frame_skip=4,
    )


IMAGES, VECTORS, CONTINUOUS = spec((84, 84, 4), np.uint8, num_actions=5), spec((6,), num_actions=4), spec((6,))


class Flat(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.relu(nn.Dense(16)(x))


def deep_ga():
    net = networks.genotype(networks.DeepGA(5, size="small"), IMAGES)
    return net.policy, net.prepare(net.policy.init(jax.random.key(0))), IMAGES


def virtual_batch_norm():
    reference = np.random.default_rng(0).integers(0, 256, (4, 84, 84, 4)).astype(np.uint8)
    net = networks.reference_genotype(networks.VirtualBatchNormNet(5), IMAGES, reference)
    return net.policy, net.prepare(net.policy.init(jax.random.key(0))), IMAGES


def block_circulant():
    net = networks.genotype(networks.Grouped(networks.MLP(4, (32, 32)), block=4, min_side=6), VECTORS)
    return net.policy, net.policy.init(jax.random.key(0)), VECTORS


def gaussian():
    policy = networks.actor_critic(networks.GaussianMLP(2), CONTINUOUS).policy
    return policy, policy.init(jax.random.key(0)), CONTINUOUS


def recurrent():
    policy = networks.actor_critic(networks.RecurrentActorCritic(4, Flat(), width=8), VECTORS).policy
    params = jax.tree.map(lambda leaf: 3 * leaf, policy.init(jax.random.key(0)))  # so that actions depend on the state
    begin = policy.initial_state  # an episode that begins with zeros would hide a state that is not begun
    return policy._replace(initial_state=lambda n: jax.tree.map(lambda x: x + 0.5, begin(n))), params, VECTORS


def td3():
    env = vx.envs.mujoco("InvertedPendulum", num_envs=2, groups=1)
    networks_ = networks.ActorAndCritic(networks.MLP(1, (8,), activation=nn.relu), networks.QNetwork((8,)))
    algorithm = vx.learn(vx.TD3(normalize_observations=True), networks_, env)
    return algorithm.policy, algorithm.variables(algorithm.init(jax.random.key(0))), env.spec


POLICIES = [deep_ga, virtual_batch_norm, block_circulant, gaussian, recurrent, td3]


@pytest.fixture(params=[".stablehlo", ".onnx"])
def suffix(request):
    if request.param == ".onnx":
        pytest.importorskip("jax2onnx", reason="volvox[onnx] is not installed")
        pytest.importorskip("onnxruntime", reason="volvox[onnx] is not installed")
    return request.param


def observations(spec, *shape, seed=0):
    drawn = np.random.default_rng(seed).normal(size=(*shape, *spec.observation_shape))
    if np.dtype(spec.observation_dtype) == np.uint8:
        return (drawn * 60 + 128).clip(0, 255).astype(np.uint8)
    return drawn.astype(spec.observation_dtype)


@pytest.mark.slow
@pytest.mark.parametrize("make", POLICIES, ids=lambda make: make.__name__)
def test_every_network_acts_as_the_actor_of_the_run(tmp_path, make, suffix):
    if make is block_circulant and suffix == ".onnx":
        pytest.skip("jax2onnx 0.13 does not convert block-circulant layers")
    check_actions(tmp_path, make, suffix)


@pytest.mark.parametrize("make", [gaussian, recurrent])
def test_the_file_acts_as_the_actor_of_the_run(tmp_path, make, suffix):
    check_actions(tmp_path, make, suffix)


def check_actions(tmp_path, make, suffix):
    """Compares actions at observations `[T, B, ...]`, with episodes that begin in between."""
    policy, variables, about = make()
    act = load_exported(export(tmp_path / "new" / f"policy{suffix}", policy, variables, about, config={}))
    for batch in (1, 3):
        seen = observations(about, 6, batch, seed=batch)
        first = np.zeros((6, batch), bool)
        first[0], first[3, -1] = True, True
        actor = vx.Actor(policy, variables, about)
        act.reset()
        wanted, found = (np.stack([play(x, f) for x, f in zip(seen, first, strict=True)]) for play in (actor, act))
        assert found.dtype == wanted.dtype
        assert len(np.unique(wanted)) > 1
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    act.reset()
    assert act(seen[0, 0]).shape == wanted.shape[2:]


def test_it_is_scored_as_the_policy(tmp_path):
    env = vx.envs.cartpole(num_envs=2)
    policy = networks.genotype(networks.MLP(2, (4,)), env.spec).policy
    variables = policy.init(jax.random.key(3))
    act = load_exported(export(tmp_path / "policy.stablehlo", policy, variables, env.spec, config={}))
    found, wanted = (vx.play(env, *p, num_episodes=4) for p in ((act.policy, ()), (policy, variables)))
    np.testing.assert_array_equal(found.returns, wanted.returns)


def test_a_program_needs_jax_alone(tmp_path):
    policy, variables, about = recurrent()
    path = export(tmp_path / "policy.stablehlo", policy, variables, about, config={})
    (seen,) = observations(about, 1, 3)
    np.save(tmp_path / "seen.npy", seen)
    command = [sys.executable, "-c", WITHOUT_VOLVOX, *map(str, (path, tmp_path / "seen.npy", tmp_path / "action.npy"))]
    subprocess.run(command, check=True)
    wanted = vx.Actor(policy, variables, about)(seen)
    np.testing.assert_array_equal(np.load(tmp_path / "action.npy"), wanted)


def test_the_program_is_for_cpu_and_cuda(tmp_path):
    path = export(tmp_path / "policy.stablehlo", *gaussian(), config={})
    with zipfile.ZipFile(path) as file:
        program = jax.export.deserialize(bytearray(file.read("program.bin")))
    assert program.platforms == ("cpu", "cuda")
    assert str(program.in_avals[0].shape[0]) == "batch"


def test_the_header(tmp_path, suffix):
    config = {"type": "volvox.evolve", "env": {"type": "volvox.envs.atari", "image_size": 42, "stack": 2}}
    policy, variables, about = recurrent()
    path = export(tmp_path / f"p{suffix}", policy, variables, about, config=config)
    assert is_exported(path)
    act = load_exported(path)
    assert (act.header["config"], act.spec) == (config, about)
    assert [entry["name"] for entry in act.header["inputs"]] == ["observation", "first", "state_0", "state_1"]
    assert act.header["inputs"][0] == {"name": "observation", "shape": ["batch", 6], "dtype": "float32"}
    assert [entry["name"] for entry in act.header["outputs"]] == ["action", "new_state_0", "new_state_1"]


def test_unbounded_actions_are_strict_json(tmp_path):
    act = load_exported(export(tmp_path / "p.stablehlo", *gaussian(), config={}))
    json.dumps(act.header, allow_nan=False)
    np.testing.assert_array_equal(act.spec.action_high, CONTINUOUS.action_high)


@pytest.mark.parametrize("content", [b"", b"PK nothing", None])
def test_damaged_files_are_refused(tmp_path, suffix, content):
    path = export(tmp_path / f"policy{suffix}", *gaussian(), config={})
    path.write_bytes(path.read_bytes()[:-200] if content is None else content)
    with pytest.raises(ValueError, match="damaged"):
        load_exported(path)


def test_other_suffixes_and_missing_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"policy\.pt"):
        export(tmp_path / "policy.pt", *gaussian(), config={})
    with pytest.raises(FileNotFoundError):
        load_exported(tmp_path / "policy.onnx")


def test_a_program_that_calls_the_host_is_refused(tmp_path):
    name = "xla_ffi_python_cpu_callback"
    called = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((3, 2), jnp.float32))
    path = export(tmp_path / "policy.stablehlo", *gaussian(), config={})
    with zipfile.ZipFile(path) as file:
        header = file.read("header.json")
    unchecked = [jax.export.DisabledSafetyCheck.custom_call(name)]
    program = jax.export.export(jax.jit(lambda x: called(x, index=np.uint64(1))), disabled_checks=unchecked)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("header.json", header)
        file.writestr("program.bin", bytes(program(jax.ShapeDtypeStruct((3, 6), jnp.float32)).serialize()))
    with pytest.raises(ValueError, match=name):
        load_exported(path)


def test_a_network_that_needs_the_batch_size_is_refused(tmp_path):
    constant = networks.genotype_from_functions(lambda key: jnp.zeros(4), lambda p, x: jnp.zeros((len(x), 4)), VECTORS)
    with pytest.raises(ValueError, match=re.escape("x.shape[0]")):
        export(tmp_path / "policy.stablehlo", constant.policy, jnp.zeros(4), VECTORS, config={})
    assert not (tmp_path / "policy.stablehlo").exists()
