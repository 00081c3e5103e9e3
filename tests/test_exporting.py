"""Exported policies act as the policies do, without the code of their networks."""

import io
import json
import re
import subprocess
import sys
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from flax import linen as nn

import volvox as vx
from volvox import networks
from volvox.exported import load_exported
from volvox.exporting import export, preprocessing
from volvox.ops.batching import where_rows
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
    env = probes.target(num_envs=2, groups=1)
    networks_ = networks.ActorAndCritic(networks.MLP(2, (8,), activation=nn.relu), networks.QNetwork((8,)))
    algorithm = vx.learn(vx.TD3(normalize_observations=True), networks_, env)
    return algorithm.policy, algorithm.variables(algorithm.init(jax.random.key(0))), env.spec


POLICIES = [deep_ga, virtual_batch_norm, block_circulant, gaussian, recurrent, td3]
FORMATS = [".stablehlo", ".onnx"]


@pytest.fixture(params=FORMATS)
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


def played(policy, variables, observation, first):
    """Actions at observations `[T, B, ...]` of the policy itself."""
    initial = state = policy.initial_state(first.shape[1])
    actions = []
    for seen, begins in zip(observation, first, strict=True):
        state = where_rows(jnp.asarray(begins), initial, state)
        output, state = policy.apply(variables, seen, state)
        actions.append(np.asarray(policy.mode(output)))
    return np.stack(actions)


@pytest.mark.slow_except(".stablehlo-gaussian", ".stablehlo-recurrent", ".onnx-td3", ".onnx-gaussian")
@pytest.mark.parametrize("make", POLICIES, ids=lambda make: make.__name__)
def test_acts_as_the_policy_does(tmp_path, make, suffix):
    if make is block_circulant and suffix == ".onnx":
        pytest.skip("jax2onnx 0.13 does not convert block-circulant layers; see below")
    policy, variables, about = make()
    path = export(tmp_path / "new" / f"policy{suffix}", policy, variables, about, config={"env": {}})
    act = load_exported(path)
    for batch in (1, 3):
        seen = observations(about, 6, batch, seed=batch)
        first = np.zeros((6, batch), bool)
        first[0], first[3, -1] = True, True
        wanted = played(policy, variables, seen, first)
        act.reset()
        found = np.stack([act(x, begins) for x, begins in zip(seen, first, strict=True)])
        assert found.dtype == wanted.dtype
        assert len(np.unique(wanted)) > 1
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_the_recurrent_state_is_inside(tmp_path, suffix):
    policy, variables, about = recurrent()
    act = load_exported(export(tmp_path / f"policy{suffix}", policy, variables, about, config={}))
    (seen,) = observations(about, 1, 8)
    once = [int(act(x)) for x in seen]  # one observation without a batch gives one action
    assert len(set(once)) > 1
    assert [int(act(x)) for x in seen] != once, "the state went on"
    act.reset()
    assert [int(act(x)) for x in seen] == once
    assert [int(act(x, first=i == 0)) for i, x in enumerate(seen)] == once
    with pytest.raises(ValueError, match=r"8 observations, but the recurrent state is of 1 episodes: call reset"):
        act(seen)
    act.reset()
    assert act(seen).shape == (8,)


def test_it_can_be_scored_as_a_policy(tmp_path):
    env = vx.envs.cartpole(num_envs=2)
    policy = networks.genotype(networks.MLP(2, (4,)), env.spec).policy
    variables = policy.init(jax.random.key(3))
    act = load_exported(export(tmp_path / "policy.stablehlo", policy, variables, env.spec, config={}))
    found, wanted = (vx.play(env, *p, num_episodes=4) for p in ((act.policy(), ()), (policy, variables)))
    np.testing.assert_array_equal(found.returns, wanted.returns)
    with pytest.raises(ValueError, match="cannot be sampled from"):
        vx.play(env, act.policy(), (), num_episodes=1, sampled=True)


def test_a_recurrent_one_can_be_scored_too(tmp_path):
    policy, variables, about = recurrent()
    act = load_exported(export(tmp_path / "policy.stablehlo", policy, variables, about, config={}))
    seen, first = observations(about, 6, 3), np.zeros((6, 3), bool)
    first[3, 1] = True
    wanted = played(policy, variables, seen, first)
    np.testing.assert_array_equal(played(act.policy(), (), seen, first), wanted)


@pytest.mark.slow_except("recurrent")
@pytest.mark.parametrize("make", [deep_ga, recurrent], ids=lambda make: make.__name__)
def test_a_program_needs_jax_alone(tmp_path, make):
    policy, variables, about = make()
    path = export(tmp_path / "policy.stablehlo", policy, variables, about, config={})
    (seen,) = observations(about, 1, 3)
    np.save(tmp_path / "seen.npy", seen)
    command = [sys.executable, "-c", WITHOUT_VOLVOX, *map(str, (path, tmp_path / "seen.npy", tmp_path / "action.npy"))]
    subprocess.run(command, check=True)
    wanted = played(policy, variables, seen[None], np.ones((1, 3), bool))[0]
    np.testing.assert_array_equal(np.load(tmp_path / "action.npy"), wanted)


def test_the_program_is_for_cpu_and_cuda_and_any_batch(tmp_path):
    path = export(tmp_path / "policy.stablehlo", *deep_ga(), config={})
    with zipfile.ZipFile(path) as file:
        program = jax.export.deserialize(bytearray(file.read("program.bin")))
    assert program.platforms == ("cpu", "cuda")
    assert str(program.in_avals[0].shape[0]) == "batch"
    targets = set(re.findall(r"custom_call @(\w+)", program.mlir_module()))
    assert targets <= {"shape_assertion"}


def test_the_same_policy_gives_the_same_bytes(tmp_path):
    one, other = (export(tmp_path / name, *gaussian(), config={}) for name in ("a.stablehlo", "b.stablehlo"))
    assert one.read_bytes() == other.read_bytes()


def test_the_header_says_what_the_policy_needs(tmp_path, suffix):
    policy, variables, about = recurrent()
    config = {"algorithm": "evolve", "env": {"environment": "made up"}}
    header = load_exported(export(tmp_path / f"p{suffix}", policy, variables, about, config=config)).header
    assert (header["format"], header["format_version"], header["config"]) == ("volvox policy", 1, config)
    assert [entry["name"] for entry in header["inputs"]] == ["observation", "first", "state_0", "state_1"]
    assert header["inputs"][0] == {"name": "observation", "shape": ["batch", 6], "dtype": "float32"}
    assert [entry["name"] for entry in header["outputs"]] == ["action", "new_state_0", "new_state_1"]
    assert header["spec"]["num_actions"] == 4
    assert header["versions"]["jax"] == jax.__version__


def test_an_unbounded_action_is_json(tmp_path):
    header = load_exported(export(tmp_path / "p.stablehlo", *gaussian(), config={})).header
    assert header["spec"]["action_high"] == [pytest.approx(0.3), None]


def test_preprocessing_of_atari():
    env = vx.envs.atari("Pong", num_envs=2, frame_skip=3, stack=2, image_size=42)
    about = preprocessing(env.spec, env.config)
    steps = about.pop("steps")
    wanted = {"frame_skip": 3, "grey": True, "maximum_of_frames": 2, "resize": "area", "stack": 2}
    assert about == wanted | {"height": 42, "width": 42}
    assert "averaging areas" in steps[2]
    published = vx.envs.atari("Pong", num_envs=2, preprocessing="uber")
    about = preprocessing(published.spec, published.config)
    assert (about["resize"], about["stack"], about["height"]) == ("bilinear", 4, 84)
    assert "Values are divided by 255." in about["steps"]


def test_preprocessing_of_other_environments():
    env = vx.envs.mujoco("HalfCheetah", num_envs=1)
    assert preprocessing(env.spec, env.config)["steps"][0] == "Each action lasts 5 frames of the simulator."
    assert len(preprocessing(VECTORS._replace(frame_skip=1), {})["steps"]) == 1


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export(tmp_path_factory.mktemp("exported") / "policy.stablehlo", *deep_ga(), config={})


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (np.zeros((84, 84, 3), np.uint8), r"have shape \[84, 84, 4\], or \[B, ...\] as a batch; got \[84, 84, 3\]"),
        (np.zeros((2, 84, 84, 4), np.float32), "observations of Made up are uint8, got float32: do not scale"),
    ],
)
def test_other_observations_are_refused(exported, observation, message):
    with pytest.raises(ValueError, match=message):
        load_exported(exported)(observation)


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"policy.pt'?: an exported policy ends in .stablehlo or .onnx"):
        export(tmp_path / "policy.pt", *gaussian(), config={})
    with pytest.raises(ValueError, match=r"ends in .stablehlo or .onnx"):
        load_exported(tmp_path / "policy.pt")
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_exported(tmp_path / "policy.onnx")


def changed(path, tmp_path, without=None, **changes):
    """A copy of an exported file with another header."""
    content = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(content, "w") as new:
        header = {name: value for name, value in json.loads(old.read("header.json")).items() if name != without}
        new.writestr("header.json", json.dumps(header | changes))
        new.writestr("program.bin", old.read("program.bin"))
    (copy := tmp_path / "changed.stablehlo").write_bytes(content.getvalue())
    return copy


def test_a_later_format_is_refused(exported, tmp_path):
    with pytest.raises(ValueError, match="has format version 7, and this volvox reads up to 1: update volvox"):
        load_exported(changed(exported, tmp_path, format_version=7))


@pytest.mark.parametrize("part", ["spec", "inputs", "preprocessing", "config", "versions"])
def test_a_header_of_another_shape_is_refused(exported, tmp_path, part):
    with pytest.raises(ValueError, match="is damaged: its header does not have the parts"):
        load_exported(changed(exported, tmp_path, without=part))
    for value in (3, "text", [3, 4, 5], None):
        with pytest.raises(ValueError, match="is damaged: its header does not have the parts"):
            load_exported(changed(exported, tmp_path, **{part: value}))


def test_other_files_are_refused(exported, tmp_path):
    with pytest.raises(ValueError, match="is not a policy that volvox exported"):
        load_exported(changed(exported, tmp_path, format="another"))
    whole = exported.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for name, content in (("cut", whole[: len(whole) // 2]), ("flipped", flipped), ("empty", b"")):
        (path := tmp_path / f"{name}.stablehlo").write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}.stablehlo is damaged"):
            load_exported(path)


def test_a_file_that_expands_is_refused(tmp_path):
    path = tmp_path / "policy.stablehlo"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.json", "{}")
        file.writestr("program.bin", bytes(10**6))
    with pytest.raises(ValueError, match="is compressed"):
        load_exported(path)


def of_program(path, function, calls="none"):
    """An exported file whose program is another function of one observation."""
    unchecked = [jax.export.DisabledSafetyCheck.custom_call(calls)]
    shape = jax.ShapeDtypeStruct((3, 3), jnp.float32)
    program = jax.export.export(jax.jit(function), disabled_checks=unchecked)(shape)
    header: dict = {"format": "volvox policy", "format_version": 1, "config": {}, "inputs": [], "versions": {}}
    header |= {"preprocessing": {}, "spec": {"name": "a", "observation_shape": [3], "observation_dtype": "float32"}}
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("header.json", json.dumps(header))
        file.writestr("program.bin", bytes(program.serialize()))
    return path


def test_a_program_that_calls_an_address_is_refused(tmp_path):
    name = "xla_ffi_python_cpu_callback"
    called = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((3, 3), jnp.float32))
    path = of_program(tmp_path / "policy.stablehlo", lambda x: called(x, index=np.uint64(1)), name)
    with pytest.raises(ValueError, match=rf"policy.stablehlo calls {name}, which no network does"):
        load_exported(path)
    load_exported(of_program(path, lambda x: jnp.linalg.qr(x)[0]))  # linear algebra of the system's library


@pytest.mark.parametrize("package", ["jax2onnx", "onnxruntime"])
def test_what_onnx_needs_is_said(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    (path := tmp_path / "policy.onnx").write_bytes(b"")
    with pytest.raises(ImportError, match=rf'{package}: install the extra "onnx"'):
        load_exported(path) if package == "onnxruntime" else export(path, *gaussian(), config={})


def test_a_network_that_needs_the_batch_size_is_refused(tmp_path):
    constant = networks.genotype_from_functions(lambda key: jnp.zeros(4), lambda p, x: jnp.zeros((len(x), 4)), VECTORS)
    with pytest.raises(ValueError, match=r"cannot be exported for any number.*take x.shape\[0\] in place of len"):
        export(tmp_path / "policy.stablehlo", constant.policy, jnp.zeros(4), VECTORS, config={})


def test_what_cannot_be_converted_is_refused(tmp_path):
    pytest.importorskip("jax2onnx", reason="volvox[onnx] is not installed")
    with pytest.raises(ValueError, match=r"jax2onnx cannot convert this policy \(.*\); .stablehlo takes any"):
        export(tmp_path / "policy.onnx", *block_circulant(), config={})
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_onnx_file_is_refused(tmp_path):
    pytest.importorskip("onnxruntime", reason="volvox[onnx] is not installed")
    (path := tmp_path / "policy.onnx").write_bytes(b"no model")
    with pytest.raises(ValueError, match="is damaged, or it is no model of ONNX"):
        load_exported(path)
