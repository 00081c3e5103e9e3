"""Checks of environments and strategies that you write.

vx.testing.check_env(env)  # raises AssertionError if the environment violates its interface
vx.testing.check_strategy(strategy)
"""

import dataclasses
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import check_has
from volvox.envs import from_functions
from volvox.evolution import Strategy, evolve
from volvox.networks import MLP, genotype
from volvox.population import Table, encoding
from volvox.types import ArrayTree, Env, EnvGroup, Evaluation, TimeStep

__all__ = ["check_env", "check_strategy"]


def check_env(
    env: Env,
    *,
    num_envs: int = 3,
    num_timesteps: int = 45,
    max_episode_steps: int | None = None,
    is_random: bool = True,
    seed: int = 0,
) -> None:
    """Plays a few environments with random actions, and checks the interface of `Env`, `EnvGroup` and `TimeStep`.

    It checks shapes and dtypes, starts and ends of episodes, the time limit, restarts, seeds, actions at their bounds
    and of wrong shape, that the compiled and the host-driven form give the same bits, and that a group which claims to
    be resumable continues from its state. Episodes are cut after 10 timesteps by default; give a larger limit and more
    timesteps to check later parts of an episode.

        vx.testing.check_env(vx.envs.cartpole())

    Args:
      env: The environment.
      num_envs: Environments of a group.
      num_timesteps: Timesteps to play.
      max_episode_steps: Time limit of episodes, which must end within `num_timesteps`.
      is_random: Whether another seed must give another result.
      seed: Seed of the environments and of the actions.

    Raises:
      AssertionError: The environment violates its interface; the message says how.
    """
    check_has("env", env, ("spec", "num_envs", "num_groups", "make", "config"), "an environment, such as cartpole()")
    limit = min(env.spec.max_episode_steps, 10) if max_episode_steps is None else max_episode_steps
    actions = actions_for(env, num_timesteps, num_envs, seed)
    restart_at = num_timesteps // 8
    played = []
    for host in (False, True):
        with _open(env, seed, limit, num_envs, host=host) as (group,):
            wanted = (env.spec._replace(max_episode_steps=limit), num_envs)
            made = (group.spec, group.num_envs)
            _require(_is_equal(made, wanted), f"spec and num_envs of a group must be as in make, {wanted}; got {made}")
            _require(not (host and group.traceable), "groups of make(host=True) must have traceable=False")
            played.append(drive(group, actions, restart_at=restart_at))
    _check_arrays(env, played[1], num_envs)
    _require(_is_equal(*played), "make(host=False) and make(host=True) must give the same bits")
    _check_episodes(played[1], restart_at + 1, limit)
    _check_seeds(env, actions[:8], limit, num_envs, seed, is_random)
    _check_actions(env, limit, num_envs, seed)
    _check_resumable(env, actions[:8], limit, num_envs, seed)


def actions_for(env: Env, num_timesteps: int, num_envs: int | None = None, seed: int = 0) -> np.ndarray:
    """Returns random actions `[T, B, ...]` of a group; an infinite bound is replaced by a distance of 1."""
    spec, rng = env.spec, np.random.default_rng(seed)
    shape = (num_timesteps, num_envs or env.num_envs, *(spec.action_shape or ()))
    if not spec.continuous:
        return rng.integers(0, spec.num_actions or spec.num_choices, shape).astype(np.int32)
    low, high = np.asarray(spec.action_low), np.asarray(spec.action_high)
    finite_low = np.where(np.isfinite(low), low, np.nan_to_num(high, posinf=0.0) - 1)
    finite_high = np.where(np.isfinite(high), high, np.nan_to_num(low, neginf=0.0) + 1)
    return rng.uniform(finite_low, finite_high, shape).astype(np.float32)


def drive(group: EnvGroup, actions: np.ndarray, *, restart_at: int | None = None, state: Any = None) -> TimeStep:
    """Plays actions `[T, B, ...]` from Python.

    Args:
      group: The group; its functions are compiled if it is traceable.
      actions: The actions.
      restart_at: Timestep after which the group is restarted, which adds a time step.
      state: The first state; None is that of `group.init`.

    Returns:
      Time steps with NumPy leaves `[T + 1, B, ...]`, or `[T + 2, B, ...]` with a restart.
    """
    recv, send = (jax.jit(group.recv), jax.jit(group.send)) if group.traceable else (group.recv, group.send)
    state, steps = group.init() if state is None else state, []
    for t, action in enumerate(actions):
        state, step = recv(state)
        steps.append(jax.device_get(step))
        if t == restart_at:
            state, step = recv(group.restart(state))
            steps.append(jax.device_get(step))
        state = send(state, action)
    steps.append(jax.device_get(recv(state)[1]))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *steps)


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _is_equal(one: ArrayTree, other: ArrayTree) -> bool:
    """Whether two trees have the same structure, dtypes and bits."""

    def same(x: Any, y: Any) -> bool:
        x, y = np.asarray(x), np.asarray(y)
        return x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")

    same_structure = jax.tree.structure(one) == jax.tree.structure(other)
    return same_structure and all(map(same, jax.tree.leaves(one), jax.tree.leaves(other)))


@contextmanager
def _open(env: Env, seed: int, limit: int, num_envs: int, *, num_groups: int = 1, host: bool = True):
    with ExitStack() as stack:
        options = {"num_envs": num_envs * num_groups, "num_groups": num_groups, "max_episode_steps": limit}
        groups = env.make(seed, host=host, **options)
        for group in groups:
            stack.callback(group.close)
        yield groups


def _check_arrays(env: Env, step: TimeStep, num_envs: int) -> None:
    spec, size = env.spec, (len(step.reward), num_envs)
    wanted = jax.tree.map(lambda x: f"{x.dtype} {[*size, *x.shape]}", spec.observation)
    found = jax.tree.map(lambda x: f"{x.dtype} {list(x.shape)}", step.observation)
    _require(wanted == found, f"observations [T, B, ...] must be {wanted}, as in the spec; they are {found}")
    for name, dtype in (("reward", np.float32), ("first", bool), ("terminated", bool), ("truncated", bool)):
        x = getattr(step, name)
        _require(x.dtype == dtype and x.shape == size, f"{name} must be {dtype} {size}; it is {x.dtype} {x.shape}")
    _require(set(step.extras) == set(spec.extras), f"extras must be those of the spec; they are {[*step.extras]}")
    _require(all(x.shape[:2] == size for x in step.extras.values()), "extras must be arrays [B, ...]")
    floats = [x for x in jax.tree.leaves((step.observation, step.reward)) if x.dtype.kind == "f"]
    _require(all(np.isfinite(x).all() for x in floats), "observations and rewards must be finite")


def _check_episodes(step: TimeStep, restarted: int, limit: int) -> None:
    first, done = step.first, step.terminated | step.truncated
    begins = np.concatenate([np.ones_like(done[:1]), done[:-1]])
    begins[restarted] = True
    again = np.concatenate([np.zeros_like(done[:1]), first[:-1]])  # `first` may hold several times in a row
    _require(first[0].all() and first[restarted].all(), "`first` must hold after init and after restart")
    _require((first | ~begins).all(), "`first` must hold at the timestep after an end")
    _require((~first | begins | again).all() and not first.all(), "`first` must hold only where an episode begins")
    _require(not (first & done).any(), "an episode must not end where `first` holds (see envs.groups.consistent)")
    _require((step.reward[first] == 0).all(), "the reward must be 0 where `first` holds (see envs.groups.consistent)")
    _require(not (step.terminated & step.truncated).any(), "an episode must not be both terminated and truncated")
    lengths = np.zeros(first.shape, int)
    for t in range(1, len(first)):
        lengths[t] = np.where(first[t], 0, lengths[t - 1] + 1)
    _require((done | (lengths < limit)).all(), f"with max_episode_steps={limit} episodes must not be longer")
    _require(done.any(), f"no episode ended within {len(first)} timesteps: give a smaller max_episode_steps")


def _check_seeds(env: Env, actions: np.ndarray, limit: int, num_envs: int, seed: int, is_random: bool) -> None:
    played = []
    for each in (seed, seed, seed + 1):
        with _open(env, each, limit, num_envs, num_groups=2) as groups:
            _require(len(groups) == 2, "make(num_groups=2) must return two groups")
            played.append([drive(group, actions) for group in groups])
    _require(_is_equal(played[0], played[1]), "the same seed must give the same results")
    if is_random:
        _require(not _is_equal(played[0], played[2]), "another seed must give other results; or give is_random=False")
        _require(not _is_equal(*played[0]), "two groups must give different results; or give is_random=False")


def _check_actions(env: Env, limit: int, num_envs: int, seed: int) -> None:
    spec, shape = env.spec, (num_envs, *(env.spec.action_shape or ()))
    extremes: list[Any] = [spec.action_low, spec.action_high]
    if not spec.continuous:
        extremes = [0, np.asarray(spec.num_actions or spec.num_choices) - 1]
    for host in (False, True):
        with _open(env, seed, limit, num_envs, host=host) as (group,):
            step = drive(group, np.stack([np.broadcast_to(x, shape) for x in extremes]).astype(spec.action.dtype))
            _require(np.isfinite(step.reward).all(), "rewards must be finite for actions at their bounds")
        with _open(env, seed, limit, num_envs, host=host) as (group,):
            state, _ = group.recv(group.init())
            try:
                group.send(state, np.zeros((num_envs + 1, *shape[1:]), spec.action.dtype))
            except ValueError:
                continue
        _require(False, "send must raise ValueError for actions of another shape (see envs.groups.checked_action)")


def _check_resumable(env: Env, actions: np.ndarray, limit: int, num_envs: int, seed: int) -> None:
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(_open(env, each, limit, num_envs, host=False))[0] for each in (seed, seed + 9)
        )
        if one.resumable:
            state = one.send(one.recv(one.init())[0], actions[0])
            played = [drive(group, actions, state=state) for group in (one, other)]
            _require(_is_equal(*played), "a resumable group must continue from the state of another one")
            begun = [(group, group.restart(group.recv(group.init())[0], 5)) for group in (one, other)]
            played = [drive(group, actions, state=state) for group, state in begun]
            _require(_is_equal(*played), "after restart(state, seed) results must depend on the seed alone")


def check_strategy(strategy: Strategy, *, num_generations: int = 6, improves: bool = True) -> None:
    """Checks the interface of a strategy, and evolves a small network with it.

    It checks the fields of populations, that the state keeps its structure, shapes and dtypes, that metrics are
    scalars, that compiled methods give the same results as in Python, that returns of NaN do not spoil the state, that
    the key determines a run, and that the elite improves.

        vx.testing.check_strategy(vx.GA(population_size=12, num_parents=3))

    Args:
      strategy: The strategy; a small population suffices.
      num_generations: Generations to evolve.
      improves: Whether the elite must improve. A search for novelty alone does not promise it.

    Raises:
      AssertionError: The strategy violates its interface; the message says how.
    """
    check_has("strategy", strategy, ("population_size", "init", "ask", "tell"), "a strategy, such as vx.GA()")
    _require(dataclasses.is_dataclass(strategy), "a strategy must be a dataclass: its fields are saved in config.json")
    env = from_functions(
        lambda key: jnp.zeros(1),
        lambda state, action, key: (state, -jnp.abs(action[0] - 0.7), True),
        lambda state: state,
        name="reach",
        num_envs=8,
        max_episode_steps=1,
        action_shape=(1,),
    )
    network, noise = MLP(env.spec.num_outputs, hidden=()), Table(size=5_000)
    _check_generations(strategy, encoding(genotype(network, env.spec), noise))

    def run(seed: int) -> list[Any]:
        state, elites = algorithm.init(jax.random.key(seed)), []
        for _ in range(num_generations):
            state, _ = algorithm.step(state)
            elites.append(jax.device_get(algorithm.variables(state)))
        return elites

    algorithm = evolve(strategy, network, env, noise=noise)
    try:
        elites = run(0)
        _require(_is_equal(elites, run(0)), "the same key must give the same run: draw from the keys that are passed")
        _require(not _is_equal(elites, run(1)), "another key must give another run: ask must use its key")
    finally:
        algorithm.close()
    if improves:
        outputs = [algorithm.policy.apply(elite, jnp.zeros((1, 1)), ())[0] for elite in elites]
        errors = [float(jnp.abs(algorithm.policy.mode(output) - 0.7).max()) for output in outputs]
        _require(errors[-1] < errors[0], f"the elite must improve; its distances from the best action are {errors}")


def _check_generations(strategy: Any, code: Any) -> None:
    """Runs two generations with made-up returns, in Python and compiled."""
    size, num_episodes = strategy.population_size, getattr(strategy, "num_episodes", 1)
    behavior_size = getattr(getattr(strategy, "behavior", None), "size", 0)
    results = []
    for transform in (lambda f: f, jax.jit) if getattr(strategy, "traceable", True) else (lambda f: f,):
        ask, tell = transform(strategy.ask), transform(strategy.tell)
        state = transform(strategy.init)(jax.random.key(0), code)
        for generation in range(2):
            key = jax.random.key(generation)
            population, asked = ask(key, state, code)
            _check_form(asked, state, "ask")
            for name in ("parent", "seed", "scale", "initial", "episodes", "priority"):
                shape = jnp.shape(getattr(population, name))
                _require(shape == (size,), f"{name} of a population must have shape {(size,)}; it has {shape}")
            valid = jnp.arange(num_episodes) < population.episodes[:, None]
            returns = jnp.where(valid, jax.random.normal(key, valid.shape), 0.0)
            returns = jnp.where(valid & (jnp.arange(size) == generation)[:, None], jnp.nan, returns)
            behaviors = jnp.ones((*valid.shape, behavior_size))
            evaluation = Evaluation(returns, valid.astype(jnp.int32), valid, behaviors)
            state, metrics = tell(key, asked, population, evaluation, code)
            _check_form(state, asked, "tell")
            for name, value in metrics.items():
                _require(jnp.shape(value) == (), f"the metric {name!r} must be a scalar, not {jnp.shape(value)}")
        results.append(jax.tree.leaves(jax.tree.map(_numbers, state)))
    finite = all(not np.isnan(x).any() for x in results[0])
    _require(finite, "returns of NaN must not spoil the state (see evolution.fitness)")
    same = all(np.allclose(x, y, rtol=1e-3, atol=1e-5) for x, y in zip(results[0], results[-1], strict=True))
    _require(same, "ask and tell must give the same state when they are compiled: they must be pure functions")


def _numbers(x: Any) -> np.ndarray:
    x = jax.random.key_data(x) if jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key) else x
    return np.asarray(x, np.float64)


def _check_form(new: ArrayTree, old: ArrayTree, method: str) -> None:
    """Checks that a state has kept its structure, shapes and dtypes."""
    forms = [jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x).name), tree) for tree in (new, old)]
    told = f"{method} must keep structure, shapes and dtypes of the state"
    _require(forms[0] == forms[1], f"{told}; {forms[1]} became {forms[0]}")
