"""Does an algorithm keep the promises of `Algorithm`, on which `volvox.train` relies?"""

import contextlib
import functools
import json
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox import checkpoint
from volvox._arguments import check_algorithm as check_kind
from volvox._arguments import state_and_metrics
from volvox.envs.groups import bounded_action
from volvox.report.files import to_json_row as to_json
from volvox.rollout.scoring import act
from volvox.types import Algorithm, ArrayTree, Interrupted

_NUM_ENVS = 2
_TIMESTEPS = 3


def check_algorithm(algorithm: Algorithm, *, seed: int = 0, exact: bool | None = None, draws: bool = True) -> None:
    """Takes a few steps and checks what they return; takes as long as five steps and three compilations.

    Checked are that `init` draws from its key alone; that `init` and `step` are pure in their state; that metrics are
    scalars; that a checkpoint holds all of the state; that a step can be interrupted; that the policy acts in the
    environment with the algorithm's variables; lineages, and the log. The algorithm is closed at the end.

        vx.testing.check_algorithm(vx.learn(MyLearner(), network, vx.envs.cartpole(num_envs=4, groups=2)))

    Args:
      algorithm: The algorithm, with settings that make its steps short.
      seed: Fixes its random numbers.
      exact: Whether steps from equal states must be equal bit by bit, a restored state's included. None: where groups
        of the environments are resumable, as those of pure JAX are.
      draws: Whether `init` draws something, so that another key must give another state.

    Raises:
      AssertionError: A promise is not kept; the message says which, and what to mend.
      TypeError: `algorithm` is none, or its step does not return (state, metrics).
    """
    check_kind("check_algorithm", algorithm)
    try:
        _check_config(algorithm)
        key = jax.random.key(seed)
        _check_init(algorithm, key)
        _check(algorithm, key, _is_exact(algorithm) if exact is None else exact)
        if draws:
            _check_seeds(algorithm, key)
    finally:
        algorithm.close()


def _check_config(algorithm: Algorithm) -> None:
    try:
        json.dumps(dict(algorithm.config), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"config must hold JSON values only, since runs save it: {error}") from error


def _check_init(algorithm: Algorithm, key: jax.Array) -> None:
    saved = _saved(algorithm, algorithm.init(key))
    _require_equal(saved, _saved(algorithm, algorithm.init(key)), "init(key) must give the same state for the same key")
    promise = (
        "init(key) must give the same state for the same key when it is traced again: draw from the key, for NumPy's "
        "random numbers become constants of what is compiled"
    )
    with _traced_again():
        _require_equal(saved, _saved(algorithm, algorithm.init(key)), promise)


@contextlib.contextmanager
def _traced_again() -> Iterator[None]:
    """What is compiled is traced anew: this setting is part of what JAX looks up, and changes warnings alone."""
    other = "allow" if jax.numpy_rank_promotion.value != "allow" else "warn"
    with warnings.catch_warnings(), jax.numpy_rank_promotion(other):
        warnings.simplefilter("ignore")
        yield


def _check(algorithm: Algorithm, key: jax.Array, exact: bool) -> None:
    begun = algorithm.init(key)
    first = _stepped(algorithm, begun, 1)
    after = _saved(algorithm, first)
    second = _stepped(algorithm, first, 2)
    final = _saved(algorithm, second)
    if exact:
        again = _saved(algorithm, _stepped(algorithm, begun, 1))
        promise = "step must give the same state from the same state: draw what is random from a key in it"
        _require_equal(after, again, promise)
    restored = _restored(algorithm, first, key)
    promise = "what `restore` makes of what was saved must be saved as the same"
    _require_equal(after, _saved(algorithm, restored), promise)
    if exact:
        went_on = _saved(algorithm, _stepped(algorithm, restored, 2))
        _require_equal(final, went_on, "a restored state must go on bit by bit: `save` must give all that `step` needs")
    _check_interrupt(algorithm, second)
    _check_policy(algorithm, second, key)
    _check_extras(algorithm, second)


def _is_exact(algorithm: Algorithm) -> bool:
    (group,) = algorithm.env.make(0, num_envs=_NUM_ENVS, num_groups=1)
    group.close()
    return group.resumable


def _stepped(algorithm: Algorithm, state: Any, number: int) -> Any:
    """Takes a step; checks its metrics, and that the state which was passed in is as before."""
    before = _saved(algorithm, state)
    new, metrics = state_and_metrics(algorithm.step(state, monitor=lambda figures: False))
    _require_equal(before, _saved(algorithm, state), "step must leave the state that it is given as it is")
    try:
        found = to_json(dict(metrics))
    except TypeError as error:
        raise AssertionError(f"metrics must be numbers by name: {error}") from error
    for name, value in found.items():
        if isinstance(value, list | dict):
            raise AssertionError(f"the metric {name!r} must be a scalar, for plots and loggers; it is {value}")
    if found.get(algorithm.step_name, number) != number:
        given = found[algorithm.step_name]
        raise AssertionError(f"the metric {algorithm.step_name!r} must count steps: {number}, and not {given}")
    return new


def _check_seeds(algorithm: Algorithm, key: jax.Array) -> None:
    one, other = (_drawn(algorithm, algorithm.init(each)) for each in (key, jax.random.fold_in(key, 1)))
    if one.keys() == other.keys() and all(_same(one[path], other[path]) for path in one):
        raise AssertionError(
            "init(key) must give another state for another key, keys in it apart: draw the first parameters from the "
            "key, or all seeds begin alike; if there is nothing to draw, check it with draws=False"
        )


def _drawn(algorithm: Algorithm, state: Any) -> dict[Any, np.ndarray]:
    """Returns what a checkpoint holds, by path; without its keys, unless a population draws its members from them."""
    tree = state if algorithm.save is None else algorithm.save(state)
    leaves = jax.tree.leaves_with_path(tree)
    keys = algorithm.config.get("algorithm") == "evolve"
    return {path: _on_host(leaf) for path, leaf in leaves if keys or not checkpoint.is_key(leaf)}


def _saved(algorithm: Algorithm, state: Any) -> ArrayTree:
    """Returns what a checkpoint of a state holds, copied to the host."""
    tree = state if algorithm.save is None else algorithm.save(state)
    try:
        return jax.tree.map(_on_host, tree)
    except RuntimeError as error:  # deleted arrays
        raise AssertionError(f"step must leave the state that it is given, and not donate it: {error}") from error
    except TypeError as error:
        raise AssertionError(f"a checkpoint must hold what `save` gives, or the state itself: {error}") from error


def _on_host(leaf: Any) -> Any:
    array = np.array(jax.random.key_data(leaf) if checkpoint.is_key(leaf) else leaf)
    if array.dtype.kind == "O":
        raise TypeError(f"there is a {type(leaf).__name__} among its arrays, keys, numbers and strings")
    return array


def _require_equal(one: ArrayTree, other: ArrayTree, promise: str) -> None:
    old, new = dict(jax.tree.leaves_with_path(one)), dict(jax.tree.leaves_with_path(other))
    for path in [*old, *new]:
        if path not in old or path not in new or not _same(old[path], new[path]):
            place = jax.tree_util.keystr(path) or "its root"
            raise AssertionError(f"{promise}. They differ at {place}: {old.get(path)} and {new.get(path)}")


def _same(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


def _restored(algorithm: Algorithm, state: Any, key: jax.Array) -> Any:
    """Returns the state that a checkpoint on disk gives back, as `volvox.train` restores it."""
    tree = state if algorithm.save is None else algorithm.save(state)
    like = jax.eval_shape(algorithm.init, key) if algorithm.restore is None else None
    with tempfile.TemporaryDirectory() as folder:
        try:
            checkpoint.save(folder, 1, tree)
            read = checkpoint.restore(folder, 1, like)
        except (TypeError, ValueError) as error:
            raise AssertionError(f"a checkpoint must hold what `save` gives, or the state itself: {error}") from error
        return read if algorithm.restore is None else algorithm.restore(read)


def _check_interrupt(algorithm: Algorithm, state: Any) -> None:
    before, asked = _saved(algorithm, state), []

    def stop(figures: Any) -> bool:
        asked.append(figures)
        return True

    with contextlib.suppress(Interrupted):
        algorithm.step(state, monitor=stop)
    if not asked:
        raise AssertionError("step must call its monitor, once at least: that shows progress and interrupts a run")
    _require_equal(before, _saved(algorithm, state), "a step that was interrupted must leave the state as it was")


def _check_policy(algorithm: Algorithm, state: Any, key: jax.Array) -> None:
    """Plays a few timesteps with the likeliest actions."""
    policy, spec = algorithm.policy, algorithm.env.spec
    (group,) = algorithm.env.make(0, num_envs=_NUM_ENVS, num_groups=1, host=True)
    choose = jax.jit(functools.partial(act, policy, False))
    try:
        for variables in (algorithm.variables, algorithm.last_variables):
            if variables is None:
                continue
            env, memory = group.init(), policy.initial_state(_NUM_ENVS)
            for _ in range(_TIMESTEPS):
                env, timestep = group.recv(env)
                action, memory = choose(key, variables(state), jax.tree.map(jnp.asarray, timestep), memory)
                shape = (_NUM_ENVS, *(spec.action_shape or ()))
                if action.shape != shape:
                    raise AssertionError(f"policy.mode must give actions {list(shape)}; it gives {list(action.shape)}")
                if not np.array_equal(action, bounded_action(spec, action)):
                    raise AssertionError(f"policy.mode must give actions within the bounds; it gives {action}")
                env = group.send(env, np.asarray(action))
            env, _ = group.recv(env)
    finally:
        group.close()


def _check_extras(algorithm: Algorithm, state: Any) -> None:
    if algorithm.genome is not None and algorithm.from_genome is not None:
        try:
            genome = json.loads(json.dumps(algorithm.genome(state)))
        except TypeError as error:
            raise AssertionError(f"genome must give JSON values, which elite.json holds: {error}") from error
        rebuilt, kept = algorithm.from_genome(genome), algorithm.variables(state)
        promise = "from_genome(genome(state)) must give the variables of the same individual"
        _require_equal(jax.tree.map(np.array, kept), jax.tree.map(np.array, rebuilt), promise)
    if algorithm.log is not None:
        for name, x in algorithm.log(state).items():
            if not isinstance(x, np.ndarray):
                raise AssertionError(f"log must give NumPy arrays by name; {name!r} is of {type(x).__name__}")
