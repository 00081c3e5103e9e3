"""Exported policies: files that act without the code of their network.

    act = load_exported("policy.stablehlo")
    action = act(observation)

`volvox.exporting` writes them, and says what is in them.
"""

import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox.rollout.actor import converted
from volvox.types import Array, ArrayTree, Policy

FORMAT, FORMAT_VERSION = "volvox policy", 1
SUFFIXES = (".stablehlo", ".onnx")
HEADER, PROGRAM = "header.json", "program.bin"
EXTRA = "install the extra \"onnx\", as by pip install 'volvox[onnx]'"
_OTHER_CALL = re.compile(r'custom_call @"?(?!shape_assertion\b|lapack_\w+_ffi\b|(?:cu|hip)\w+\b)([^\s"(]+)')
"""A call out of a program, such as a callback, which is an address in memory. Linear algebra's are allowed."""


def is_exported(path: Path) -> bool:
    """Whether a path names an exported policy, and no run directory."""
    return path.suffix in SUFFIXES and not path.is_dir()


class ExportedPolicy:
    """A policy from a file of `volvox.exporting.export`. Acts on NumPy arrays, and keeps the recurrent state inside.

        act = load_exported("policy.stablehlo")
        action = act(observation)

    Attributes:
      header: What the file says of itself: `spec`, `inputs`, `outputs`, `preprocessing`, `config`, `versions`.
    """

    def __init__(self, header: Mapping[str, Any], step: Callable[[Sequence[Any]], Sequence[Any]], *, traceable: bool):
        """Makes the policy.

        Args:
          header: See above.
          step: From the inputs to the outputs that the header names.
          traceable: Whether JAX can trace `step`.
        """
        self.header = dict(header)
        self._step, self._traceable = step, traceable
        self._states = self.header["inputs"][2:]
        self._state: list[np.ndarray] | None = None

    def __repr__(self) -> str:
        return f"ExportedPolicy({self.header['spec']['name']})"

    def reset(self) -> None:
        """Forgets the recurrent state: the next observations begin episodes."""
        self._state = None

    def __call__(self, observation: Any, first: Any = None) -> np.ndarray:
        """Returns the likeliest actions.

        Args:
          observation: `[*observation_shape]` or `[B, *observation_shape]`, numbers that the dtype in the header holds.
          first: bool or bool `[B]`: the observation begins an episode. None: none does, except the very first.

        Returns:
          One action, or actions `[B, ...]`.

        Raises:
          ValueError: Observations of another shape, or with numbers that their dtype does not hold; or B changed in the
            middle of recurrent episodes.
        """
        spec = self.header["spec"]
        like = jax.ShapeDtypeStruct(spec["observation_shape"], spec["observation_dtype"])
        batch, leading = converted(observation, like, spec["name"])
        if not self._states:
            action = np.asarray(self._step([batch])[0])
            return action if leading else action[0]
        size = len(batch)
        begins = np.broadcast_to(np.asarray(False if first is None else first, bool), size)
        if self._state is None:
            begins = np.ones(size, bool)
            self._state = [np.zeros((size, *leaf["shape"][1:]), leaf["dtype"]) for leaf in self._states]
        if len(self._state[0]) != size:
            raise ValueError(
                f"{size} observations, but the recurrent state is of {len(self._state[0])} episodes: call reset() "
                "before another number of episodes begins."
            )
        action, *state = self._step([batch, np.array(begins), *self._state])
        self._state = [np.asarray(leaf) for leaf in state]
        return np.asarray(action) if leading else np.asarray(action)[0]

    def policy(self) -> Policy:
        """The same as a `Policy`, whose variables are (), for `volvox.play` and videos.

        Raises:
          ValueError: The file is `.onnx`, which JAX does not run.
        """
        if not self._traceable:
            raise ValueError("JAX does not run .onnx: call this policy, or export the run as .stablehlo.")

        def initial_state(batch_size: int) -> ArrayTree:
            leaves = [jnp.zeros((batch_size, *leaf["shape"][1:]), leaf["dtype"]) for leaf in self._states]
            return [jnp.zeros(batch_size, bool), *leaves] if leaves else []

        def apply(variables: ArrayTree, observation: Array, state: ArrayTree) -> tuple[Array, ArrayTree]:
            if not state:
                return self._step([observation])[0], state
            begun, *leaves = state
            action, *leaves = self._step([observation, ~begun, *leaves])
            return action, [jnp.ones_like(begun), *leaves]

        def sample(key: Array, output: Array) -> Array:
            raise ValueError("an exported policy takes its likeliest actions; it cannot be sampled from.")

        return Policy(lambda key: (), initial_state, apply, sample, lambda output: output, self.header["config"])


def load_exported(path: str | os.PathLike[str]) -> ExportedPolicy:
    """Loads a policy that `volvox.exporting.export` wrote; needs neither the network's code nor an environment.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: It is not a file of `export`, or it is damaged, or of a later format.
      ImportError: `.onnx` needs onnxruntime, which is not installed.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: an exported policy ends in {' or '.join(SUFFIXES)}.")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file.")
    text, step = (_read_stablehlo if path.suffix == ".stablehlo" else _read_onnx)(path)
    return ExportedPolicy(_header(path, text), step, traceable=path.suffix == ".stablehlo")


def _header(path: Path, text: str) -> dict[str, Any]:
    """The header of a file; raises ValueError where it is none that volvox writes."""
    try:
        header: Any = json.loads(text)
        known = header["format"] == FORMAT and type(header["format_version"]) is int
    except (KeyError, RecursionError, TypeError, ValueError):
        header, known = {}, False
    if not known:
        raise ValueError(f"{path} is not a policy that volvox exported.")
    if header["format_version"] > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {header['format_version']}, and this volvox reads up to {FORMAT_VERSION}: "
            f"update volvox; the file was written by {header.get('versions')}."
        )
    try:
        spec, inputs = header["spec"], header["inputs"]
        like = jax.ShapeDtypeStruct(spec["observation_shape"], np.dtype(spec["observation_dtype"]))
        states = [jax.ShapeDtypeStruct(leaf["shape"][1:], np.dtype(leaf["dtype"])) for leaf in inputs[2:]]
        sizes = [size for array in (like, *states) for size in array.shape]
        known = type(spec["name"]) is str and all(type(size) is int and size >= 0 for size in sizes)
        known = known and all(type(header[name]) is dict for name in ("config", "versions", "preprocessing"))
    except (KeyError, TypeError, ValueError):
        known = False
    if not known:
        raise ValueError(f"{path} is damaged: its header does not have the parts that volvox writes.")
    return header


def _read_stablehlo(path: Path) -> tuple[str, Callable[..., Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            if any(archive.getinfo(name).compress_type != zipfile.ZIP_STORED for name in (HEADER, PROGRAM)):
                raise ValueError(f"{path} is compressed, which volvox's own files are not.")  # it could fill the memory
            header, exported = archive.read(HEADER).decode(), jax.export.deserialize(bytearray(archive.read(PROGRAM)))
    except Exception as error:  # of the archive, of its text, or of any kind of JAX's reader
        raise ValueError(f"{path} is damaged, or it is no policy that volvox exported: {error}") from error
    if strange := sorted(set(_OTHER_CALL.findall(exported.mlir_module()))):
        raise ValueError(f"{path} calls {', '.join(strange)}, which no network does that volvox exports: not loaded.")
    call = jax.jit(exported.call)
    return header, lambda inputs: call(*inputs)


def _read_onnx(path: Path) -> tuple[str, Callable[..., Any]]:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(f"{path}: playing .onnx needs onnxruntime: {EXTRA}") from error
    try:
        session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own kinds, which have no common base
        raise ValueError(f"{path} is damaged, or it is no model of ONNX: {error}") from error
    names = [node.name for node in session.get_inputs()]
    header = session.get_modelmeta().custom_metadata_map.get("volvox", "")
    return header, lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))
