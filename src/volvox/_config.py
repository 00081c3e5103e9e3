"""`config.json` of a run directory, and the fingerprint of its policy: how a run is recognised."""

import difflib
import json
import stat
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from volvox import _manifest as manifest
from volvox._settings import defaults_of, resolved
from volvox.provenance import provenance, versions
from volvox.types import Algorithm, Array, ArrayTree, EnvSpec, Policy

FORMAT = 3
"""Format number of `config.json`; `volvox._formats.upgraded` converts older ones."""
CONFIG, METRICS, CHECKPOINTS = "config.json", "metrics.jsonl", "checkpoints"
ELITE, FINGERPRINT, PLOT, VIDEO = "elite.json", "fingerprint.json", "learning_curve.png", "episode.mp4"
REPORT, DIVERGED = "report.html", "diverged"
"""Names in a run directory. The last one marks a run whose numbers were no longer finite."""
_COMPARED = ("algorithm", "key")
_NOT_COMPARED = (
    ("algorithm", "env", "made_by"),  # it says nothing that the environment's settings do not
    *(("algorithm", name) for name in ("tuned", "given")),  # of format 2; now in "about"
)
_COPIES = (("algorithm", "env", "num_envs"), ("algorithm", "env", "groups"))
_DEEPEST = 60
"""Dictionaries and lists in `config.json` inside one another, at most."""
_OUTPUTS = 32
"""Numbers in a fingerprint, at most."""


def config_of(algorithm: Algorithm, key: Array, about: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What `config.json` says, in the form in which it is read back; `about` is kept in it, and never compared."""
    config = {
        "format": FORMAT,
        "algorithm": algorithm.config,
        "key": {"impl": str(jax.random.key_impl(key)), "data": np.asarray(jax.random.key_data(key)).tolist()},
        "versions": versions(),
        "provenance": provenance(),
    }
    if about:
        config["about"] = about
    try:
        return json.loads(json.dumps(config, allow_nan=False, default=dict))
    except (TypeError, ValueError) as error:
        raise TypeError(f"algorithm.config and about must hold JSON values only: {error}") from error


def read_config(directory: Path) -> dict[str, Any]:
    """Reads `config.json` of a run directory.

    Raises:
      ValueError: There is none, or it is none of `volvox.train`; the message names the file.
    """
    path = directory / CONFIG
    if not path.exists():
        seeds = sorted(folder.parent.name for folder in directory.glob(f"seed-*/{CONFIG}"))
        there = sorted(file.parent.name for file in directory.parent.glob(f"*/{CONFIG}"))
        like = difflib.get_close_matches(directory.name, there, n=1)
        hint = f"; did you mean {directory.with_name(like[0])}?" if like else ""
        hint = f"; its runs are {', '.join(seeds)}" if seeds else hint
        raise ValueError(f"{directory} holds no run: there is no {path}{hint}")
    try:
        config = json.loads(path.read_text() if path.is_file() else "")
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict) or not all(isinstance(config.get(name), dict) for name in _COMPARED):
        raise ValueError(f"{path} is not the configuration of a run: 'algorithm' and 'key' are not there")
    settings = config["algorithm"]
    made_here = settings.get("algorithm") in ("evolve", "learn")  # others may describe their parts as they like
    names = [name for name in ("env", "network") if made_here and settings.get(name) is not None]
    parts = {f"algorithm.{name}": settings[name] for name in names}
    parts |= {name: config[name] for name in ("versions", "provenance", "about") if name in config}
    if wrong := [name for name, value in parts.items() if not isinstance(value, dict)]:
        raise ValueError(f"{path} is not the configuration of a run: {wrong[0]} is no object of JSON")
    if _is_deeper(config, _DEEPEST):
        raise ValueError(f"{path} is not the configuration of a run: its values are nested too deeply")
    if not isinstance(config.get("format", 1), int) or config.get("format", 1) > FORMAT:
        raise ValueError(
            f"{path} has format {config['format']}, and this version of volvox reads formats up to {FORMAT}: take the "
            f"version that wrote it ({config.get('versions')}), or a newer one"
        )
    try:
        saved_key(config)
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not the configuration of a run: its 'key' is no key ({error})") from error
    return config


def _is_deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(item, levels - 1) for item in inner)


def saved_key(config: Mapping[str, Any]) -> Array:
    """The key that a run's `config.json` says it began with."""
    return jax.random.wrap_key_data(jnp.asarray(config["key"]["data"], jnp.uint32), impl=config["key"]["impl"])


def check_settings(
    directory: Path,
    saved: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    copies: bool = True,
    network: bool = True,
    whole: bool = True,
) -> None:
    """Raises ValueError if the run in a directory has other settings than those given; it names every difference.

    Functions that are described by a hash of their code are not compared across versions of Python and the libraries,
    with which such a hash may change though the function does the same; a warning names those whose hashes differ.
    Nor are settings that other versions of volvox or envpool did not have yet, nor fields that a class did not have yet
    and that have their defaults; a warning names them and their values. It leaves out fields of volvox's own classes,
    since with its default a field that is added to one does what the class did without it.

    Args:
      directory: The run directory, for the message.
      saved: What its `config.json` holds.
      given: What it would hold now.
      copies: Whether the numbers of environments and of groups are compared.
      network: Whether it matters what the network's class or function is called, and where it is.
      whole: Whether each has all settings; False compares those that are in both.
    """
    known = ("format", "versions")
    comparable = all(saved.get(name) == given.get(name) for name in known)
    left_out = _NOT_COMPARED if copies else (*_NOT_COMPARED, *_COPIES)
    old, new = (_flat(config, left_out, network) for config in (saved, given))
    places = [place for place in dict.fromkeys([*old, *new]) if whole or (place in old and place in new)]
    differ = [place for place in places if not _same(old.get(place), new.get(place))]
    codes = [] if comparable else [place for place in differ if place[-1] == "code"]
    then, now = ({name: config.get(name) for name in known} for config in (saved, given))
    updated = _is_updated(then, now)
    found = _added(saved["algorithm"], given["algorithm"], ("algorithm",))
    added = {p: kind for p in differ for top, kind in found.items() if p[: len(top)] == top and (kind or updated)}
    for places, text in (
        (list(map(".".join, codes)), "so it cannot be told whether these functions changed"),
        (
            [f"{'.'.join(place)} = {new[place]}" for place, kind in added.items() if not kind.startswith("volvox")],
            "which did not have these settings yet",
        ),
    ):
        if places:
            others = f"by other versions ({then}; now {now})" if updated or codes else "by an earlier form of a class"
            said = f"{directory} was written {others}, {text}: {', '.join(places)}"
            warnings.warn(said, UserWarning, stacklevel=2)
    differences = [
        f"\n  {'.'.join(place)}: saved {old.get(place, 'null')}, now {new.get(place, 'null')}"
        for place in differ
        if place not in codes and place not in added
    ]
    if differences:
        listed = "".join(differences).replace("\n  key.data:", "\n  key.data (seed):")
        raise ValueError(f"{directory} was started with other settings; use those, or another run_dir:{listed}")


def _is_updated(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the version of volvox or of envpool, whose objects the settings describe, has changed."""
    one, other = (config["versions"] or {} for config in (then, now))
    return any(one.get(name) != other.get(name) for name in ("volvox", "envpool"))


def _added(old: Any, new: Any, place: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    """Settings of which nothing was saved (null would be something), in those that were, by their places.

    Where one is a field of the same class as before, and has its default, with that class; with "" otherwise.
    """
    if not (isinstance(old, Mapping) and isinstance(new, Mapping) and old):
        return {}
    kind, found = str(new.get("type")), {}
    defaults = defaults_of(kind) if old.get("type") == kind else {}
    for name, value in new.items():
        if name in old:
            found |= _added(old[name], value, (*place, name))
        else:
            found[(*place, name)] = kind if name in defaults and _text(defaults[name]) == _text(value) else ""
    return found


def _text(described: Any) -> str:
    return json.dumps(described, sort_keys=True, default=dict)


def _same(old: str | None, new: str | None) -> bool:
    """Whether two settings are the same, as JSON text; of import paths, whether they lead to the same thing."""
    one, other = (json.loads(text or "null") for text in (old, new))
    if isinstance(one, str) and isinstance(other, str) and ":" in one and ":" in other:
        (place, _, name), (now, _, named) = one.partition(":"), other.partition(":")
        # A script is __main__ in its own process, and a module for whoever imports it.
        return resolved(one) == resolved(other) or (name == named and "__main__" in (place, now))
    return one == other


def _flat(
    config: Mapping[str, Any], left_out: tuple[tuple[str, ...], ...], network: bool
) -> dict[tuple[str, ...], str]:
    """Settings that are compared, by their places, such as `("algorithm", "env", "game")`, as JSON text."""
    flat = flatten_dict({name: config[name] for name in _COMPARED}, keep_empty_nodes=True)
    kept = {}
    for place, value in flat.items():
        called = place[:2] == ("algorithm", "network") and place[-1] in ("type", "function", "code")
        if not any(place[: len(other)] == other for other in left_out) and (network or not called):
            kept[place] = json.dumps(value, default=lambda empty: {})
    return kept


def outputs_of(policy: Policy, spec: EnvSpec) -> Callable[[ArrayTree], list[float]]:
    """Returns `variables -> outputs`: the first numbers of what a policy answers to two fixed observations.

    With other parameters, or with another network of the same structure, these numbers differ.
    """
    random, apply = np.random.default_rng(0), jax.jit(policy.apply)

    def drawn(like: jax.ShapeDtypeStruct) -> np.ndarray:
        shape, integers = (2, *like.shape), np.issubdtype(like.dtype, np.integer)
        return (random.integers(0, 128, shape) if integers else random.standard_normal(shape)).astype(like.dtype)

    observation = jax.tree.map(drawn, spec.observation)

    def outputs(variables: ArrayTree) -> list[float]:
        with jax.default_matmul_precision("highest"):  # alike on processors with less by default, such as GPUs
            output, _ = apply(variables, observation, policy.initial_state(2))
        numbers = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(output)])
        return numbers[:_OUTPUTS].astype(float).tolist()

    return outputs


def fingerprint(step: int, outputs: list[float]) -> str:
    """What `fingerprint.json` says of the best policy of a step: its outputs, and a sum that notices damage."""
    answers = {"step": step, "outputs": outputs}
    return json.dumps(answers | {"sha256": manifest.digest(answers)}) + "\n"


def is_outputs(value: Any) -> bool:
    """Whether a value read from JSON is one of `outputs_of`."""
    return type(value) is list and all(type(number) in (int, float) for number in value)


def check_fingerprint(
    directory: Path, step: int, algorithm: Algorithm, variables: ArrayTree, outputs: list[float] | None = None
) -> None:
    """Raises ValueError if the best policy of a step does not answer as it did when it was saved.

    Its answers are `outputs`, or where the checkpoint has none, those of `fingerprint.json`; where that has none of
    this step either, nothing is checked. A damaged file is a ValueError, too.
    """
    saved = _saved_outputs(directory / FINGERPRINT, step) if outputs is None else outputs
    if saved is None:
        return
    old, new = np.array(saved), np.array(outputs_of(algorithm.policy, algorithm.env.spec)(variables))
    largest = np.abs(old[np.isfinite(old)]).max(initial=0.0)
    if old.shape != new.shape or not np.allclose(new, old, rtol=1e-3, atol=1e-3 * largest, equal_nan=True):
        raise ValueError(
            f"{directory}: with the same parameters this network answers {new[:4]} where the run's network answered "
            f"{old[:4]} (of a fixed observation): give the network that the run was made with"
            f"{f', or {ELITE} was changed' if outputs is None and getattr(algorithm, 'genome', None) else ''}"
        )


def _saved_outputs(path: Path, step: int) -> list[float] | None:
    """The outputs that were saved for a step; None if there are none."""
    if not path.exists():
        return None
    try:
        saved = json.loads(path.read_text() if stat.S_ISREG(path.stat().st_mode) else "")
        outputs = saved["outputs"]
        known = type(saved["step"]) is int and is_outputs(outputs)
        known = known and saved.keys() <= {"step", "outputs", "sha256"}
        # Format 2 had no sum.
        if known and saved.get("sha256", manifest.digest(saved)) == manifest.digest(saved):
            return outputs if saved["step"] == step else None
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError):
        pass
    raise ValueError(
        f"{path} is damaged: remove it to use the run all the same, but then make sure that the network is the run's, "
        "because a wrong one is not noticed"
    )
