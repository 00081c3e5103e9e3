"""Does an environment keep the promises of `Env`, `EnvGroup` and `TimeStep`?"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import numpy as np

from volvox._arguments import check_env
from volvox.types import ArrayTree, Env, EnvGroup, TimeStep

_MOST_TIMESTEPS = 10


def check_environment(
    env: Env,
    *,
    num_envs: int = 3,
    num_timesteps: int = 45,
    max_episode_steps: int | None = None,
    draws: bool = True,
    seed: int = 0,
) -> None:
    """Plays a few environments with random actions and checks what they show; takes some seconds.

    Episodes are cut after 10 timesteps, unless `max_episode_steps` says otherwise: give a larger number, and more
    `num_timesteps`, where what is to be checked happens later in an episode.

    Checked are the spec and the config; shapes and dtypes; that `first` holds where episodes begin and only there; that
    ends, rewards and the cutoff are as `TimeStep` says; that the compiled and the host-driven form show the same bits;
    that seeds fix everything; restarts; that actions at their bounds are taken and those of another shape refused;
    of a resumable group, that another one goes on from its state; and of one of Gymnasium's, that observations belong
    to its `observation_space` and rewards are numbers.

        vx.testing.check_environment(vx.envs.cartpole())

    Args:
      env: The environment.
      num_envs: Environments of a group that is played.
      num_timesteps: Timesteps that are played.
      max_episode_steps: Cutoff of the episodes, which must end within `num_timesteps`; None: 10, or the environment's
        own if that is less.
      draws: Whether something in the environment is random, so that other seeds must show something else.
      seed: Seed of the environments and of the actions.

    Raises:
      AssertionError: A promise is not kept; the message says which, and what to mend.
      TypeError: `env` is no environment.
      ValueError: It does not take `max_episode_steps`, as tasks of envpool that end by rules of their own: give theirs,
        and as many `num_timesteps`.
    """
    check_env("check_environment", env)
    _check_spec(env)
    limit = min(env.spec.max_episode_steps, _MOST_TIMESTEPS) if max_episode_steps is None else max_episode_steps
    how = {"max_episode_steps": limit, "num_envs": num_envs, "num_groups": 1}
    actions, restart_at = actions_for(env, num_timesteps, num_envs, seed), num_timesteps // 8
    played = []
    for host in (False, True):
        with _made(env, seed, host=host, **how) as (group,):
            _check_group(env, group, num_envs, limit, host)
            played.append(drive(group, actions, restart_at=restart_at))
    _check_seeds(env, actions[:8], how, seed, draws)
    _require(env, _equal(*played), "make(host=False) and make(host=True) must show the same bits for the same actions")
    _check_shapes(env, played[1], num_envs)
    _check_episodes(env, played[1], restart_at + 1, limit)
    _check_actions(env, how, seed)
    _check_states(env, actions[:8], how, seed)


@contextmanager
def _made(env: Env, seed: int, **how: Any) -> Iterator[tuple[EnvGroup, ...]]:
    """Groups that are closed at the end, whether or not they keep their promises."""
    with ExitStack() as stack:
        groups = env.make(seed, **how)
        for group in groups:
            stack.callback(group.close)
        yield groups


def actions_for(env: Env, num_timesteps: int, num_envs: int | None = None, seed: int = 0) -> np.ndarray:
    """Returns random actions `[T, B, ...]` of one group; without a bound, within 1 of the other one, or of 0."""
    rng, spec, shape = np.random.default_rng(seed), env.spec, (num_timesteps, num_envs or env.num_envs)
    shape = (*shape, *(spec.action_shape or ()))
    if (choices := _choices(env)) is not None:
        return rng.integers(0, choices, shape).astype(np.int32)
    assert spec.action_low is not None
    assert spec.action_high is not None
    least = np.where(np.isfinite(spec.action_low), spec.action_low, np.nan_to_num(spec.action_high, posinf=0.0) - 1)
    most = np.where(np.isfinite(spec.action_high), spec.action_high, np.nan_to_num(spec.action_low, neginf=0.0) + 1)
    return rng.uniform(least, most, shape).astype(np.float32)


def _choices(env: Env) -> Any:
    """Number of discrete actions, or of choices of each component; None of continuous actions."""
    return env.spec.num_actions if env.spec.num_actions is not None else env.spec.num_choices


def drive(group: EnvGroup, actions: np.ndarray, *, restart_at: int | None = None, state: Any = None) -> TimeStep:
    """Plays recorded actions `[T, B, ...]` from Python.

    Args:
      group: The group; its functions are compiled if it can be traced.
      actions: What is sent.
      restart_at: Beat after which everything is restarted, which shows as one more time step; None: there is none.
      state: The state to begin with; None: that of `group.init`.

    Returns:
      Time steps with NumPy leaves `[T + 1, B, ...]`; with a restart `[T + 2, B, ...]`.
    """
    recv, send = (jax.jit(group.recv), jax.jit(group.send)) if group.traceable else (group.recv, group.send)
    state, seen = group.init() if state is None else state, []
    for beat, action in enumerate(actions):
        state, step = recv(state)
        seen.append(jax.device_get(step))
        if beat == restart_at:
            state, step = recv(group.restart(state))
            seen.append(jax.device_get(step))
        state = send(state, action)
    seen.append(jax.device_get(recv(state)[1]))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *seen)


def _require(env: Env, kept: Any, promise: str) -> None:
    if not kept:
        raise AssertionError(f"{env.spec.name}: {promise}")


def _equal(one: ArrayTree, other: ArrayTree) -> bool:
    """Bit-equal, structure and dtypes included."""

    def same(x: Any, y: Any) -> bool:
        x, y = np.asarray(x), np.asarray(y)
        return x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")

    alike = jax.tree.structure(one) == jax.tree.structure(other)
    return alike and all(map(same, jax.tree.leaves(one), jax.tree.leaves(other)))


def _check_spec(env: Env) -> None:
    spec = env.spec
    one = (spec.action_shape is None) == (spec.num_actions is not None)
    kinds = one and (spec.action_low is None) == (spec.action_high is None) == (_choices(env) is not None)
    told = "spec must have num_actions; or action_shape, with num_choices or with action_low and action_high"
    _require(env, kinds, told)
    for name, bound in (("action_low", spec.action_low), ("action_high", spec.action_high)):
        fits = bound is None or (bound.shape == spec.action_shape and bound.dtype == np.float32)
        _require(
            env, fits, f"spec.{name} must be float32 {spec.action_shape}; volvox.envs.groups.action_bounds makes it"
        )
    for name in ("max_episode_steps", "frame_skip"):
        value = getattr(spec, name)
        _require(env, isinstance(value, int) and value > 0, f"spec.{name} must be a positive int; it is {value!r}")
    _require(env, env.num_envs % env.num_groups == 0, "num_envs must be a multiple of num_groups")


def _check_group(env: Env, group: EnvGroup, num_envs: int, limit: int, host: bool) -> None:
    _require(env, group.num_envs == num_envs, f"make(num_envs={num_envs}) must give groups of so many environments")
    _require(env, not (host and group.traceable), "a group made with host=True must have traceable=False")
    wanted = env.spec._replace(max_episode_steps=limit)
    told = {name: (a, b) for name, a, b in zip(wanted._fields, wanted, group.spec, strict=True) if not _equal(a, b)}
    _require(env, not told, f"make(max_episode_steps={limit}) must give groups of this spec; wanted and got {told}")


def _check_shapes(env: Env, step: TimeStep, num_envs: int) -> None:
    spec, steps = env.spec, (len(step.reward), num_envs)
    wanted = jax.tree.map(lambda x: f"{x.dtype} {[*steps, *x.shape]}", spec.observation)
    found = jax.tree.map(lambda x: f"{x.dtype} {list(x.shape)}", step.observation)
    _require(env, wanted == found, f"observations [T, B, ...] must be {wanted}, as spec says; they are {found}")
    for name, dtype in (("reward", np.float32), ("first", bool), ("terminated", bool), ("truncated", bool)):
        x = getattr(step, name)
        fits = x.dtype == dtype and x.shape == steps
        told = f"{x.dtype} {list(x.shape)}"
        _require(env, fits, f"{name} [T, B] must be {np.dtype(dtype)} {list(steps)}; it is {told} (groups.consistent)")
    _require(
        env, set(step.extras) == set(spec.extras), f"extras must be those of spec.extras; they are {[*step.extras]}"
    )
    for name, x in step.extras.items():
        _require(env, x.shape[:2] == steps, f"extras[{name!r}] must be [B, ...]; a timestep's is {x.shape[1:]}")
    for name, tree in (("observations", step.observation), ("rewards", step.reward)):
        finite = all(np.isfinite(x).all() for x in jax.tree.leaves(tree) if x.dtype.kind == "f")
        _require(env, finite, f"{name} must be finite numbers; learners stop at others")


def _check_episodes(env: Env, step: TimeStep, restarted: int, limit: int) -> None:
    first, done = step.first, step.terminated | step.truncated
    begins = np.concatenate([np.ones_like(done[:1]), done[:-1]])
    begins[restarted] = True
    again = np.concatenate([np.zeros_like(done[:1]), first[:-1]])  # `first` may hold several times in a row
    _require(env, not (first & done).any(), "a timestep with `first` must not have ended; groups.consistent mends it")
    _require(env, first[0].all(), "`first` must hold at the first timestep after init")
    _require(env, first[restarted].all(), "`first` must hold everywhere after restart")
    _require(env, (first | ~begins).all(), "`first` must hold at the timestep after one that terminated or truncated")
    _require(env, (~first | begins | again).all(), "`first` must hold only where an episode begins")
    _require(env, not first.all(), "`first` holds everywhere: no timestep is ever played")
    _require(
        env, (step.reward[first] == 0).all(), "the reward must be 0 where `first` holds; groups.consistent mends it"
    )
    both = (step.terminated & step.truncated).any()
    _require(env, not both, "an episode that terminates must not be truncated too; groups.consistent mends it")
    played = np.zeros(first.shape, int)
    for t in range(1, len(first)):
        played[t] = np.where(first[t], 0, played[t - 1] + 1)
    cut = f"with max_episode_steps={limit} an episode must end, as `truncated`, after {limit} timesteps at the latest"
    _require(env, played.max() <= limit and (done | (played < limit)).all(), cut)
    _require(env, done.any(), f"no episode ended within {len(first)} timesteps: give a smaller max_episode_steps")


def _check_seeds(env: Env, actions: np.ndarray, how: dict[str, Any], seed: int, draws: bool) -> None:
    played = []
    for one in (seed, seed, seed + 1):
        with _made(env, one, **(how | {"num_envs": 2 * how["num_envs"], "num_groups": 2, "host": True})) as groups:
            _require(env, len(groups) == 2, "make(num_groups=2) must give two groups")
            played.append([drive(group, actions) for group in groups])
    same = _equal(played[0], played[1])
    promise = (
        "groups made with the same seed must show the same for the same actions: draw all that is random from it (in a "
        "gymnasium.Env, call super().reset(seed=seed) and draw from self.np_random)"
    )
    _require(env, same, promise)
    if draws:
        why = "if nothing in the environment is random, check it with draws=False"
        _require(env, not _equal(played[0], played[2]), f"another seed must show something else; {why}")
        _require(
            env, not _equal(*played[0]), f"groups must differ: make random numbers of the seed and the index; {why}"
        )


def _check_actions(env: Env, how: dict[str, Any], seed: int) -> None:
    spec, b = env.spec, how["num_envs"]
    shape = (b, *(spec.action_shape or ()))
    dtype = spec.action.dtype
    extremes: list[Any] = [spec.action_low, spec.action_high]
    if (choices := _choices(env)) is not None:
        extremes = [0, np.asarray(choices) - 1]
    for host in (False, True):
        with _made(env, seed, host=host, **how) as (group,):
            step = drive(group, np.stack([np.broadcast_to(extreme, shape) for extreme in extremes]).astype(dtype))
            _require(env, np.isfinite(step.reward).all(), "rewards must be finite for actions at their bounds, too")
        with _made(env, seed, host=host, **how) as (group,):
            state, _ = group.recv(group.init())
            try:
                group.send(state, np.zeros((b + 1, *shape[1:]), dtype))
            except ValueError:
                continue
        _require(env, False, "send must refuse actions of another shape by a ValueError; groups.checked_action does")


def _check_states(env: Env, actions: np.ndarray, how: dict[str, Any], seed: int) -> None:
    """Checks restarts with seeds, and states in other groups, where a group says that its state is all there is."""
    with _made(env, seed, **how) as (group,), _made(env, seed, **how) as (other,):
        if not group.resumable:
            return
        begun = [one.restart(one.recv(one.init())[0], 5) for one in (group, other)]
        begun[1] = other.restart(other.recv(other.send(other.recv(begun[1])[0], actions[0]))[0], 5)
        played = [drive(one, actions, state=state) for one, state in zip((group, other), begun, strict=True)]
        _require(env, _equal(*played), "after restart(state, seed) everything must depend on this seed alone")
        state = group.send(group.recv(begun[0])[0], actions[0])
        played = [drive(one, actions, state=state) for one in (group, other)]
        _require(env, _equal(*played), "a group is not resumable, if another one does not go on from its state")
