"""A trained policy as one file, which acts without the code of its network.

    export("policy.stablehlo", policy, variables, env.spec, config=algorithm.config)
    act = vx.load("policy.stablehlo")
    action = act(observation)

The suffix of the path selects the format. Both formats hold the parameters and a JSON header, which describes inputs
and outputs, and has the settings of the environment, those of its preprocessing included, under `config.env`.
`.stablehlo` is a zip archive of `header.json` and `program.bin`, a program of `jax.export` for CPU and CUDA. It needs
jax, but not volvox:

    with zipfile.ZipFile("policy.stablehlo") as file:
        header = json.loads(file.read("header.json"))
        program = jax.export.deserialize(bytearray(file.read("program.bin")))
    action, *state = program.call(observation)  # of a recurrent policy: program.call(observation, first, *state)

A policy of several arrays takes each as an input of its own, in the order of `header["inputs"]`, such as
`observation.action_mask` and `observation.observation`.

`.onnx` is a model for any ONNX runtime, with the header as its metadata entry `volvox`. It is written by jax2onnx, and
run here by onnxruntime: both are in the extra `onnx`. `header["spec"]["action_range"]`, if it is not null, is the
lowest and highest action of the environment; add the lowest one to discrete actions.
"""

import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import import_extra
from volvox.ops.batching import where_rows
from volvox.rollout.scoring import Actor, act
from volvox.runs.config import from_json, to_json
from volvox.runs.directory import versions
from volvox.types import Array, ArrayTree, EnvSpec, Policy

SUFFIXES = (".stablehlo", ".onnx")
_HEADER, _PROGRAM = "header.json", "program.bin"
_CALLS = {"jit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vmap_call": "call"}
"""Primitives that call a function, and the parameter that holds the function."""
_HOST_CALL = re.compile(r'custom_call @"?(?!shape_assertion\b|lapack_\w+_ffi\b|(?:cu|hip)\w+\b)([^\s"(]+)')
"""Custom calls other than those of LAPACK and cuSOLVER. A host callback is an address in memory, which may run code."""


def export(
    path: str | os.PathLike[str],
    policy: Policy,
    variables: ArrayTree,
    spec: EnvSpec,
    *,
    config: Mapping[str, Any],
) -> Path:
    """Writes the greedy policy to one file, for any batch size: networks must use `x.shape[0]`, not `len(x)`.

    Args:
      path: File to write, ending in `.stablehlo` or `.onnx`; its directory is made if it is missing.
      policy: The policy.
      variables: Variables of `policy.apply`.
      spec: The environment.
      config: `Algorithm.config`, for the header.

    Returns:
      The path.

    Raises:
      ValueError: The path has another suffix.
      ImportError: The packages that `.onnx` needs are not installed.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: the name of an exported policy ends in {' or '.join(SUFFIXES)}")
    initial = jax.tree.map(jnp.asarray, policy.initial_state(1))  # all episodes begin in the same state
    leaves, treedef = jax.tree.flatten(initial)
    (size,) = jax.export.symbolic_shape("batch")
    states = [jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
    arrays, structure = jax.tree.flatten_with_path({"observation": spec.observation})
    inputs = {
        jax.tree_util.keystr(path, simple=True, separator="."): jax.ShapeDtypeStruct((size, *x.shape), x.dtype)
        for path, x in arrays
    }
    if states:
        inputs["first"] = jax.ShapeDtypeStruct((size,), bool)
        inputs |= {f"state_{i}": state for i, state in enumerate(states)}

    def act(*given: Array) -> tuple[Array, ...]:
        observation, rest = structure.unflatten(given[: len(arrays)])["observation"], given[len(arrays) :]
        begun = where_rows(rest[0], initial, treedef.unflatten(rest[1:])) if rest else initial
        output, new = policy.apply(variables, observation, begun)
        new = [leaf.astype(like.dtype) for leaf, like in zip(jax.tree.leaves(new), leaves, strict=True)]
        return policy.mode(output), *new

    action = jax.eval_shape(act, *inputs.values())[0]
    outputs = {"action": action, **{f"new_state_{i}": state for i, state in enumerate(states)}}
    header = {
        "spec": to_json(spec),
        "inputs": [_describe(name, array) for name, array in inputs.items()],
        "outputs": [_describe(name, array) for name, array in outputs.items()],
        "config": to_json(config),
        "versions": versions(),
    }
    text = json.dumps(header, indent=1, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".onnx":
        path.write_bytes(_to_onnx(act, inputs, outputs, text))
        return path
    program = jax.export.export(jax.jit(act), platforms=("cpu", "cuda"))(*inputs.values())
    with zipfile.ZipFile(path, "w") as archive:  # not compressed, because weights hardly get smaller
        archive.writestr(_HEADER, text)
        archive.writestr(_PROGRAM, bytes(program.serialize()))
    return path


class ExportedPolicy(Actor):
    """A policy from a file that `export` wrote: takes and returns NumPy arrays, and keeps the recurrent state.

        act = vx.load("policy.stablehlo")
        action = act(observation)

    Attributes:
      header: Header of the file: `spec`, `inputs`, `outputs`, `config`, `versions`.
      policy: The same as a `Policy` with variables `()`, for `volvox.play` (`.stablehlo` only). It cannot be sampled.
    """

    def __init__(self, header: Mapping[str, Any], run: Callable[..., Any], *, compiled: bool):
        """Makes the policy from its header, and from a function of the inputs that the header lists."""
        self.header = dict(header)
        states = [leaf for leaf in header["inputs"] if leaf["name"].startswith("state_")]

        def initial_state(batch_size: int) -> ArrayTree:
            zeros = [jnp.zeros((batch_size, *leaf["shape"][1:]), leaf["dtype"]) for leaf in states]
            return (jnp.ones(batch_size, bool), *zeros) if zeros else ()  # whether the episode begins

        def apply(variables: ArrayTree, observation: ArrayTree, state: ArrayTree) -> tuple[Array, ArrayTree]:
            action, *new = run(*jax.tree.leaves(observation), *state)
            return action, (jnp.zeros_like(state[0]), *new) if states else ()

        def sample(key: Array, output: Array) -> Array:
            raise ValueError("an exported policy cannot be sampled: it holds the likeliest actions only")

        self.policy = Policy(lambda key: (), initial_state, apply, sample, lambda output: output, header["config"])
        super().__init__(self.policy, (), from_json(header["spec"]))
        if not compiled:
            self._act = partial(act, self.policy, False, None)


def is_exported(path: str | os.PathLike[str]) -> bool:
    """Whether a path names an exported policy, and not a run directory."""
    return Path(path).suffix in SUFFIXES and not Path(path).is_dir()


def load_exported(path: Path) -> ExportedPolicy:
    """Loads a policy that `export` wrote; needs neither the code of the network nor an environment.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: The program calls functions outside of XLA, which could run any code.
      ImportError: `.onnx` needs onnxruntime, which is not installed.
    """
    if path.suffix == ".onnx":
        header, run = _read_onnx(path.read_bytes())
    else:
        with zipfile.ZipFile(path) as archive:
            header, program = json.loads(archive.read(_HEADER)), archive.read(_PROGRAM)
        exported = jax.export.deserialize(bytearray(program))
        run = exported.call
        if calls := set(_HOST_CALL.findall(exported.mlir_module())):
            raise ValueError(f"the program of {path} calls {', '.join(sorted(calls))}, which could run any code")
    return ExportedPolicy(header, run, compiled=path.suffix == ".stablehlo")


def _to_onnx(act: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any], header: str) -> bytes:
    to_onnx = import_extra("jax2onnx", "onnx").to_onnx
    inlined = partial(_inline, jax.make_jaxpr(act)(*inputs.values()))
    names: dict[str, Any] = {"input_names": list(inputs), "output_names": list(outputs)}
    model: Any = to_onnx(inlined, list(inputs.values()), model_name="policy", **names)
    entry = model.metadata_props.add()
    entry.key, entry.value = "volvox", header
    return model.SerializeToString()


def _read_onnx(content: bytes) -> tuple[dict[str, Any], Callable[..., Any]]:
    session: Any = import_extra("onnxruntime", "onnx").InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]

    def run(*arrays: Any) -> Any:
        return session.run(None, {name: np.asarray(x) for name, x in zip(names, arrays, strict=True)})

    return json.loads(session.get_modelmeta().custom_metadata_map["volvox"]), run


def _inline(closed: Any, *args: Any) -> list[Any]:
    """Evaluates a jaxpr without calls of functions, of which jax2onnx does not know all kinds."""
    values = dict(zip((*closed.jaxpr.constvars, *closed.jaxpr.invars), (*closed.consts, *args), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]

    for equation in closed.jaxpr.eqns:
        inputs, primitive = map(read, equation.invars), equation.primitive
        if called := equation.params.get(_CALLS.get(primitive.name, "")):
            outputs = _inline(called, *inputs)
        else:
            outputs = primitive.bind(*inputs, **equation.params)
            outputs = outputs if primitive.multiple_results else [outputs]
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def _describe(name: str, array: jax.ShapeDtypeStruct) -> dict[str, Any]:
    return {"name": name, "shape": ["batch", *array.shape[1:]], "dtype": np.dtype(array.dtype).name}
