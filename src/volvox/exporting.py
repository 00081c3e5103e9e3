"""A trained policy as one file, which acts without the code of its network.

    export("policy.stablehlo", policy, variables, env.spec, config=algorithm.config)
    act = vx.load("policy.stablehlo")
    action = act(observation)

The ending of the path chooses the format. Both hold the parameters, and a header of JSON that says what the inputs are
and how observations are made from the emulator's screens. `.stablehlo` is a zip archive of `header.json` and
`program.bin`, a program of `jax.export` for CPU and CUDA. It needs jax alone, not volvox:

    with zipfile.ZipFile("policy.stablehlo") as file:
        header = json.loads(file.read("header.json"))
        program = jax.export.deserialize(bytearray(file.read("program.bin")))
    action, *state = program.call(observation)  # of a recurrent policy: program.call(observation, first, *state)

`.onnx` is a model for any runtime of ONNX, whose metadata `volvox` is the header. It is written by jax2onnx and played
here by onnxruntime: `pip install "volvox[onnx]"`.
"""

import io
import json
import logging
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._settings import describe
from volvox.checkpoint import write_file
from volvox.exported import EXTRA, FORMAT, FORMAT_VERSION, HEADER, PROGRAM, SUFFIXES
from volvox.ops.batching import where_rows
from volvox.provenance import versions
from volvox.types import Array, ArrayTree, Config, EnvSpec, Policy

__all__ = ["export", "preprocessing"]

_PLATFORMS = ("cpu", "cuda")
_CALLS = {"jit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vmap_call": "call"}
"""Primitives that call a function, and the parameter that holds the function."""


class _Program(NamedTuple):
    """What is exported: (observation `[B, ...]`, then with recurrence first `[B]` and state) -> (action, state).

    Attributes:
      function: The function, with the parameters inside and leaves of the state as further arguments and results.
      inputs: Shape and dtype of each argument, by name. The batch size is symbolic.
      outputs: Shape and dtype of each result, likewise.
    """

    function: Callable[..., tuple[Array, ...]]
    inputs: dict[str, jax.ShapeDtypeStruct]
    outputs: dict[str, jax.ShapeDtypeStruct]


def export(
    path: str | os.PathLike[str], policy: Policy, variables: ArrayTree, spec: EnvSpec, *, config: Config
) -> Path:
    """Writes a policy that takes its likeliest actions to one file, for any number of environments.

    Args:
      path: Where to write; `.stablehlo` or `.onnx`. The folder is made if missing.
      policy: The policy.
      variables: What `policy.apply` takes.
      spec: The environment.
      config: The settings of the run, JSON values, such as `Algorithm.config`. Its entry "env" is `Env.config`.

    Returns:
      The path.

    Raises:
      ValueError: The path has another ending, or the policy cannot be written; the message says why.
      ImportError: The packages that `.onnx` needs are not installed.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"path={str(path)!r}: an exported policy ends in {' or '.join(SUFFIXES)}.")
    if not isinstance(spec.observation, jax.ShapeDtypeStruct):
        raise ValueError(f"{spec.name} has observations of several arrays, and only policies of one can be exported.")
    program = _program(policy, variables, spec)
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "spec": _finite(describe(spec._asdict() | {"observation_dtype": spec.observation.dtype.name})),
        "inputs": [_described(name, array) for name, array in program.inputs.items()],
        "outputs": [_described(name, array) for name, array in program.outputs.items()],
        "preprocessing": preprocessing(spec, config.get("env", {})),
        "config": describe(config),
        "versions": versions(),
    }
    write = _stablehlo if path.suffix == ".stablehlo" else _onnx
    content = write(program, json.dumps(header, indent=1, allow_nan=False))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)
    return path


def preprocessing(spec: EnvSpec, env_config: Config) -> dict[str, Any]:
    """Describes how an environment makes observations, so that someone else can make the same.

    `env_config` is `Env.config`. Returns JSON values: `steps`, text in the order of what is done, and its figures.
    """
    settings = env_config.get("settings", {})
    found: dict[str, Any] = {"frame_skip": spec.frame_skip}
    if "gray_scale" not in settings:  # not Atari
        stack = settings.get("frame_stack", 1)
        steps = [f"Each action lasts {spec.frame_skip} frames of the simulator."] if spec.frame_skip > 1 else []
        steps += [f"The last {stack} observations are stacked."] if stack > 1 else []
        return found | {"steps": [*steps, "Observations are those of the environment, unchanged."]}
    frames = env_config.get("frames", {})
    height, width = spec.observation_shape[:2]
    stack = frames.get("stack", settings["stack_num"])
    resize = frames.get("resize", "area" if settings["use_inter_area_resize"] else "linear")
    how = {
        "area": "by averaging areas (OpenCV's INTER_AREA)",
        "linear": "by linear interpolation (OpenCV's INTER_LINEAR)",
        "bilinear": "by linear interpolation with aligned corners",
    }[resize]
    steps = [
        f"The emulator repeats each action for {spec.frame_skip} frames.",
        "Of the last two frames the larger value of each pixel is taken, in grey (the emulator's luminance).",
        f"The image is resized to {height} x {width} pixels {how}.",
        f"The last {stack} images are stacked along the last axis, the newest last.",
    ]
    if frames:
        steps += ["What comes before the first image of an episode is black.", "Values are divided by 255."]
    else:
        steps += ["The first image of an episode is repeated.", "Values are bytes, 0 to 255; the network scales them."]
    figures = {"grey": bool(settings["gray_scale"]), "maximum_of_frames": 2, "resize": resize, "stack": stack}
    return found | figures | {"height": height, "width": width, "steps": steps}


def _act(
    policy: Policy, variables: ArrayTree, initial: ArrayTree, observation: Array, *rest: Array
) -> tuple[Array, ...]:
    """Returns (action, *leaves of the state); `initial` is the state in which episodes begin, leaves `[1, ...]`."""
    state, (likes, treedef) = initial, jax.tree.flatten(initial)
    if rest:
        first, *leaves = rest
        state = where_rows(first, initial, treedef.unflatten(leaves))
    output, state = policy.apply(variables, observation, state)
    new = [leaf.astype(like.dtype) for leaf, like in zip(jax.tree.leaves(state), likes, strict=True)]
    return policy.mode(output), *new


def _program(policy: Policy, variables: ArrayTree, spec: EnvSpec) -> _Program:
    initial = jax.tree.map(jnp.asarray, policy.initial_state(1))  # all episodes begin in the same state
    act = partial(_act, policy, variables, initial)
    (size,) = jax.export.symbolic_shape("batch")
    inputs = {"observation": jax.ShapeDtypeStruct((size, *spec.observation_shape), spec.observation_dtype)}
    leaves = enumerate(jax.tree.leaves(initial))
    states = {f"state_{i}": jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype) for i, leaf in leaves}
    if states:
        inputs |= {"first": jax.ShapeDtypeStruct((size,), bool), **states}
    try:
        action = jax.eval_shape(act, *inputs.values())[0]
    except Exception as error:  # whatever the network's own code raises
        raise ValueError(
            f"the network cannot be exported for any number of environments ({' '.join(str(error).split())[:200]}): "
            "take x.shape[0] in place of len(x), and let nothing depend on how large the batch is."
        ) from error
    return _Program(act, inputs, {"action": action} | {f"new_{name}": x for name, x in states.items()})


def _stablehlo(program: _Program, header: str) -> bytes:
    exported = jax.export.export(jax.jit(program.function), platforms=_PLATFORMS)(*program.inputs.values())
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        # ZipInfo has a fixed date: the same policy gives the same bytes. Weights hardly compress.
        archive.writestr(zipfile.ZipInfo(HEADER), header)
        archive.writestr(zipfile.ZipInfo(PROGRAM), bytes(exported.serialize()))
    return content.getvalue()


def _onnx(program: _Program, header: str) -> bytes:
    try:
        from jax2onnx import to_onnx
    except ImportError as error:
        raise ImportError(f"writing .onnx needs jax2onnx: {EXTRA}") from error
    # Traced here, without what jax2onnx puts in the place of flax's layers; it then sees array operations alone.
    inlined = partial(_inlined, jax.make_jaxpr(program.function)(*program.inputs.values()))
    names: dict[str, Any] = {"input_names": list(program.inputs), "output_names": list(program.outputs)}
    with _quiet("jax2onnx", "onnx_ir"):
        try:
            model: Any = to_onnx(inlined, list(program.inputs.values()), model_name="policy", **names)
        except Exception as error:  # of many kinds: each operation is converted by a plug-in
            said = str(error).splitlines()[:1]
            raise ValueError(
                f"jax2onnx cannot convert this policy ({type(error).__name__}: {''.join(said)}); .stablehlo takes any."
            ) from error
    entry = model.metadata_props.add()
    entry.key, entry.value = "volvox", header
    return model.SerializeToString()


@contextmanager
def _quiet(*packages: str) -> Iterator[None]:
    """Silences packages' logs but for errors: jax2onnx warns of each of its plug-ins that does not suit this JAX."""
    levels = {logger: logger.level for logger in map(logging.getLogger, packages)}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def _inlined(closed: Any, *args: Any) -> list[Any]:
    """Evaluates a jaxpr with the functions that it calls in place of the calls, which not every converter knows."""
    jaxpr = closed.jaxpr
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *args), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        inputs, primitive = map(read, equation.invars), equation.primitive
        if called := equation.params.get(_CALLS.get(primitive.name, "")):
            outputs = _inlined(called, *inputs)
        else:
            outputs = primitive.bind(*inputs, **equation.params)
            outputs = outputs if primitive.multiple_results else [outputs]
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _described(name: str, array: jax.ShapeDtypeStruct) -> dict[str, Any]:
    return {"name": name, "shape": ["batch", *array.shape[1:]], "dtype": np.dtype(array.dtype).name}


def _finite(value: Any) -> Any:
    """Other readers of JSON know no infinities: an action without a bound has None."""
    if value in [{"float": name} for name in ("inf", "-inf", "nan")]:
        return None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
