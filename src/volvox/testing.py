"""Checks of environments and strategies that you write.

    vx.testing.check_env(env)
    vx.testing.check_strategy(strategy)

They raise AssertionError if the interface is violated.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import check_has
from volvox.envs import from_functions
from volvox.evolution.algorithm import evolve
from volvox.evolution.strategy import Strategy, Validation
from volvox.networks import MLP, genotype
from volvox.networks.distributions import distribution, mask_logits
from volvox.population import Table, encoding
from volvox.types import ArrayTree, Env, EnvGroup, EnvSpec, Evaluation, TimeStep

__all__ = ["check_env", "check_strategy"]

_NUM_ENVS = 3


def check_env(
    env: Env, *, num_timesteps: int = 45, max_episode_steps: int | None = None, is_random: bool = True
) -> None:
    """Plays three environments with random actions, and checks the interface of `Env`, `EnvGroup` and `TimeStep`.

    It checks shapes and dtypes, starts and ends of episodes, the time limit, restarts, seeds, that the compiled
    and the host-driven form give the same bits, and that a group that claims to be resumable continues from its state.
    Episodes are cut after 10 timesteps by default; give a larger limit and more timesteps to check later parts of an
    episode.

        vx.testing.check_env(vx.envs.cartpole())

    Args:
      env: The environment.
      num_timesteps: Timesteps to play.
      max_episode_steps: Time limit of episodes, which must end within `num_timesteps`.
      is_random: Whether another seed must give another result.

    Raises:
      AssertionError: The environment violates its interface; the message says how.
    """
    check_has("env", env, ("spec", "num_envs", "num_groups", "make", "config"), "an environment, such as cartpole()")
    limit = min(env.spec.max_episode_steps, 10) if max_episode_steps is None else max_episode_steps
    actions, restart_at, played = actions_for(env, num_timesteps, _NUM_ENVS), num_timesteps // 8, []
    for host in (False, True):
        with _open(env, limit, host=host) as (group,):
            wanted, made = (env.spec._replace(max_episode_steps=limit), _NUM_ENVS), (group.spec, group.num_envs)
            assert _is_equal(made, wanted), f"spec and num_envs of a group must be as in make, {wanted}; got {made}"
            assert not (host and group.traceable), "groups of make(host=True) must have traceable=False"
            played.append(drive(group, actions, restart_at=restart_at))
    _check_arrays(env.spec, played[1])
    assert _is_equal(*played), "make(host=False) and make(host=True) must give the same bits"
    _check_episodes(played[1], restart_at + 1, limit)
    _check_seeds(env, actions[:8], limit, is_random)
    _check_resumable(env, actions[:8], limit)


def actions_for(env: Env, num_timesteps: int, num_envs: int | None = None, seed: int = 0) -> np.ndarray:
    """Returns random actions `[T, B, ...]` of a group; an infinite bound is replaced by one at a distance of 2."""
    spec, rng = env.spec, np.random.default_rng(seed)
    shape = (num_timesteps, num_envs or env.num_envs, *(spec.action_shape or ()))
    if not spec.continuous:
        return rng.integers(0, spec.num_actions or spec.num_choices, shape).astype(np.int32)
    low, high = np.asarray(spec.action_low), np.asarray(spec.action_high)
    low = np.where(np.isfinite(low), low, np.nan_to_num(high, posinf=1.0) - 2)
    high = np.where(np.isfinite(high), high, low + 2)
    return rng.uniform(low, high, shape).astype(np.float32)


def drive(group: EnvGroup, actions: np.ndarray, *, restart_at: int | None = None, state: Any = None) -> TimeStep:
    """Plays actions `[T, B, ...]` from Python.

    Args:
      group: The group; its functions are compiled if it is traceable.
      actions: The actions. A masked action is replaced by the first allowed one.
      restart_at: Timestep after which the group is restarted, which adds a timestep.
      state: The first state; None is that of `group.init`.

    Returns:
      Timesteps with NumPy leaves `[T + 1, B, ...]`, or `[T + 2, B, ...]` with a restart.
    """
    recv, send = (jax.jit(group.recv), jax.jit(group.send)) if group.traceable else (group.recv, group.send)
    state, steps = group.init() if state is None else state, []
    for t, action in enumerate(actions):
        state, step = recv(state)
        steps.append(jax.device_get(step))
        if t == restart_at:
            state, step = recv(group.restart(state))
            steps.append(jax.device_get(step))
        state = send(state, _allowed_action(group.spec, step, action))
    steps.append(jax.device_get(recv(state)[1]))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *steps)


def _allowed_action(spec: EnvSpec, step: TimeStep, action: np.ndarray) -> np.ndarray:
    mask = spec.split_mask(step.observation)[1]
    if mask is None:
        return action
    counts, parts = spec.num_choices or (spec.num_outputs,), action.reshape(len(action), -1).T
    wanted = [jax.nn.one_hot(part, count) for part, count in zip(parts, counts, strict=True)]
    return np.asarray(distribution(spec).mode(mask_logits(jnp.concatenate(wanted, axis=-1), mask)))


def _is_equal(one: ArrayTree, other: ArrayTree) -> bool:
    """Whether two trees have the same structure, dtypes and bits."""

    def same(x: Any, y: Any) -> bool:
        x, y = np.asarray(x), np.asarray(y)
        return x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")

    same_structure = jax.tree.structure(one) == jax.tree.structure(other)
    return same_structure and all(map(same, jax.tree.leaves(one), jax.tree.leaves(other)))


@contextmanager
def _open(env: Env, limit: int, *, seed: int = 0, num_groups: int = 1, host: bool = True) -> Iterator[Any]:
    num_envs = _NUM_ENVS * num_groups
    groups = env.make(seed, host=host, num_envs=num_envs, num_groups=num_groups, max_episode_steps=limit)
    try:
        yield groups
    finally:
        for group in groups:
            group.close()


def _check_arrays(spec: EnvSpec, step: TimeStep) -> None:
    size = (len(step.reward), _NUM_ENVS)
    wanted = jax.tree.map(lambda x: f"{x.dtype} {[*size, *x.shape]}", spec.observation)
    found = jax.tree.map(lambda x: f"{x.dtype} {list(x.shape)}", step.observation)
    assert wanted == found, f"observations [T, B, ...] must be {wanted}, as in the spec; they are {found}"
    for name, dtype in (("reward", np.float32), ("first", bool), ("terminated", bool), ("truncated", bool)):
        x = getattr(step, name)
        assert (x.dtype, x.shape) == (dtype, size), f"{name} must be {dtype} {size}; it is {x.dtype} {x.shape}"
    assert set(step.extras) == set(spec.extras), f"extras must be those of the spec; they are {[*step.extras]}"
    assert all(x.shape[:2] == size for x in step.extras.values()), "extras must be arrays [B, ...]"
    floats = [x for x in jax.tree.leaves((step.observation, step.reward)) if x.dtype.kind == "f"]
    assert all(np.isfinite(x).all() for x in floats), "observations and rewards must be finite"


def _check_episodes(step: TimeStep, restarted: int, limit: int) -> None:
    first, done = step.first, step.terminated | step.truncated
    begins = np.concatenate([np.ones_like(done[:1]), done[:-1]])
    begins[restarted] = True
    again = np.concatenate([np.zeros_like(done[:1]), first[:-1]])  # `first` may hold several times in a row
    assert first[[0, restarted]].all(), "`first` must hold after init and after restart"
    assert (first | ~begins).all(), "`first` must hold at the timestep after an end"
    assert (~first | begins | again).all(), "`first` must hold only where an episode begins"
    assert not first.all(), "`first` must not hold at every timestep"
    assert not (first & done).any(), "an episode must not end where `first` holds (see envs.groups.consistent)"
    assert (step.reward[first] == 0).all(), "the reward must be 0 where `first` holds (see envs.groups.consistent)"
    assert not (step.terminated & step.truncated).any(), "an episode must not be both terminated and truncated"
    lengths = np.zeros(first.shape, int)
    for t in range(1, len(first)):
        lengths[t] = np.where(first[t], 0, lengths[t - 1] + 1)
    assert (done | (lengths < limit)).all(), f"with max_episode_steps={limit} episodes must not be longer"
    assert done.any(), f"no episode ended within {len(first)} timesteps: give a smaller max_episode_steps"


def _check_seeds(env: Env, actions: np.ndarray, limit: int, is_random: bool) -> None:
    played = []
    for seed in (0, 0, 1):
        with _open(env, limit, seed=seed, num_groups=2) as groups:
            played.append([drive(group, actions) for group in groups])
    assert _is_equal(played[0], played[1]), "the same seed must give the same results"
    if is_random:
        assert not _is_equal(played[0], played[2]), "another seed must give other results; or give is_random=False"
        assert not _is_equal(*played[0]), "two groups must give different results; or give is_random=False"


def _check_resumable(env: Env, actions: np.ndarray, limit: int) -> None:
    with _open(env, limit, host=False) as (one,), _open(env, limit, seed=9, host=False) as (other,):
        if one.resumable:
            state = one.send(one.recv(one.init())[0], actions[0])
            played = [drive(group, actions, state=state) for group in (one, other)]
            assert _is_equal(*played), "a resumable group must continue from the state of another group"
            begun = [(group, group.restart(group.recv(group.init())[0], 5)) for group in (one, other)]
            played = [drive(group, actions, state=state) for group, state in begun]
            assert _is_equal(*played), "after restart(state, seed) results must depend on the seed alone"


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
    assert dataclasses.is_dataclass(strategy), "a strategy must be a dataclass: its fields are saved in config.json"
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

    algorithm = evolve(strategy, network, env, noise=noise, validation=Validation(num_elite_candidates=2))
    elites = run(0)
    assert _is_equal(elites, run(0)), "the same key must give the same run: draw from the keys that are passed"
    assert not _is_equal(elites, run(1)), "another key must give another run: ask must use its key"
    algorithm.close()
    if improves:
        outputs = [algorithm.policy.apply(elite, jnp.zeros((1, 1)), ())[0] for elite in elites]
        errors = [float(jnp.abs(algorithm.policy.mode(output) - 0.7).max()) for output in outputs]
        assert errors[-1] < errors[0], f"the elite must improve; its distances from the best action are {errors}"


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
                assert shape == (size,), f"{name} of a population must have shape {(size,)}; it has {shape}"
            valid = jnp.tile(population.episodes[:, None] > 0, num_episodes)
            returns = jnp.where(valid, jax.random.normal(key, valid.shape), 0.0)
            returns = jnp.where(valid & (jnp.arange(size) == generation)[:, None], jnp.nan, returns)
            behaviors = jnp.ones((*valid.shape, behavior_size))
            evaluation = Evaluation(returns, valid.astype(jnp.int32), valid, behaviors)
            state, metrics = tell(key, asked, population, evaluation, code)
            _check_form(state, asked, "tell")
            for name, value in metrics.items():
                assert jnp.shape(value) == (), f"the metric {name!r} must be a scalar, not {jnp.shape(value)}"
        results.append([np.asarray(x, np.float64) for x in jax.tree.leaves(state)])
    finite = all(not np.isnan(x).any() for x in results[0])
    assert finite, "returns of NaN must not spoil the state (see evolution.fitness)"
    same = all(np.allclose(x, y, rtol=1e-3, atol=1e-5) for x, y in zip(results[0], results[-1], strict=True))
    assert same, "ask and tell must give the same state when they are compiled: they must be pure functions"


def _check_form(new: ArrayTree, old: ArrayTree, method: str) -> None:
    """Checks that a state has kept its structure, shapes and dtypes."""
    forms = [jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x).name), tree) for tree in (new, old)]
    kept = forms[0] == forms[1]
    assert kept, f"{method} must keep structure, shapes and dtypes of the state; {forms[1]} became {forms[0]}"
