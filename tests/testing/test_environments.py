"""`check_environment` passes what keeps its promises, and says of anything else what to mend."""

import functools
import itertools

import gymnasium
import jax.numpy as jnp
import numpy as np
import probes
import pytest

import volvox as vx
from volvox.testing import check_environment
from volvox.testing.environments import actions_for


def altered(change=lambda step: step, **functions):
    """env -> the same environment with other time steps, or with other functions made of its groups."""

    def mutate(group):
        def recv(state):
            state, step = group.recv(state)
            return state, change(step)

        return group._replace(recv=recv, **{name: make(group) for name, make in functions.items()})

    return lambda env: env._replace(make=lambda seed, **how: tuple(map(mutate, env.make(seed, **how))))


def making(make):
    """env -> the same environment, made by `make(env, seed, **how)`."""
    return lambda env: env._replace(make=lambda seed, **how: make(env, seed, **how))


def uncut(env, seed, *, max_episode_steps=None, **how):
    groups = env.make(seed, max_episode_steps=1_000, **how)
    return tuple(group._replace(spec=env.spec._replace(max_episode_steps=max_episode_steps)) for group in groups)


def alike(env, seed, *, num_envs, num_groups, **how):
    one = {"num_envs": num_envs // num_groups, "num_groups": 1}
    return tuple(env.make(seed, **one, **how)[0] for _ in range(num_groups))


def loud(env, seed, *, host=False, **how):
    return altered(lambda step: step._replace(reward=step.reward + ~step.first) if host else step)(env).make(
        seed, **how
    )


def counting(change):
    """env -> the same environment with other time steps, which depend on how many came since init or restart."""

    def mutate(group):
        def recv(state):
            inner, count = state
            inner, step = group.recv(inner)
            return (inner, count), change(step, count)

        return group._replace(
            init=lambda: (group.init(), 0),
            recv=recv,
            send=lambda state, action: (group.send(state[0], action), state[1] + 1),
            restart=lambda state, seed=None: (group.restart(state[0]), 0),
        )

    return lambda env: env._replace(make=lambda seed, **how: tuple(map(mutate, env.make(seed, **how))))


def begun_twice(step, count):
    """The third timestep begins an episode that has begun."""
    if count != 3:
        return step
    none = np.zeros_like(step.first)
    return step._replace(first=~none, terminated=none, truncated=none, reward=step.reward * 0)


seeds = itertools.count()
BREACHES = {
    "reward-dtype": (
        altered(lambda s: s._replace(reward=s.reward.astype(np.int32))),
        r"reward \[T, B\] must be float32",
    ),
    "first-dtype": (altered(lambda s: s._replace(first=s.first.astype(np.int8))), r"first \[T, B\] must be bool"),
    "observation": (
        altered(lambda s: s._replace(observation=s.observation.astype(np.float64))),
        r"observations \[T, B, \.\.\.\] must be float32 .*; they are float64",
    ),
    "extras": (altered(lambda s: s._replace(extras={})), r"extras must be those of spec\.extras; they are \[\]"),
    "extras-shape": (altered(lambda s: s._replace(extras={"elapsed_steps": np.int32(0)})), r"must be \[B, \.\.\.\]"),
    "nan": (
        altered(lambda s: s._replace(reward=np.where(s.first, np.nan, s.reward).astype(np.float32))),
        "rewards must be finite",
    ),
    "nan-seen": (
        altered(lambda s: s._replace(observation=np.where(s.first[:, None], np.nan, s.observation).astype(np.float32))),
        "observations must be finite",
    ),
    "never-first": (altered(lambda s: s._replace(first=s.first & False)), "must hold at the first timestep after init"),
    "always-first": (
        altered(
            lambda s: s._replace(
                first=s.first | True, reward=s.reward * 0, terminated=s.first & False, truncated=s.first & False
            )
        ),
        "holds everywhere: no timestep is ever played",
    ),
    "restart": (altered(restart=lambda group: lambda state, seed=None: state), "must hold everywhere after restart"),
    "no-first-after-an-end": (
        counting(lambda s, count: s._replace(first=s.first & (count == 0))),
        "must hold at the timestep after one that terminated or truncated",
    ),
    "first-twice": (counting(begun_twice), "must hold only where an episode begins"),
    "end-at-first": (altered(lambda s: s._replace(terminated=s.terminated | s.first)), "`first` must not have ended"),
    "reward-at-first": (
        altered(lambda s: s._replace(reward=s.reward + s.first)),
        "reward must be 0 where `first` holds",
    ),
    "both-ends": (altered(lambda s: s._replace(terminated=s.terminated | s.truncated)), "must not be truncated too"),
    "no-cutoff": (making(uncut), "max_episode_steps=10 an episode must end"),
    "spec": (making(lambda env, seed, *, max_episode_steps, **how: env.make(seed, **how)), "groups of this spec"),
    "one-seed": (making(lambda env, seed, **how: env.make(0, **how)), "another seed must show something else"),
    "no-seed": (making(lambda env, seed, **how: env.make(next(seeds), **how)), "same bits|made with the same seed"),
    "groups": (making(alike), "groups must differ"),
    "one-group": (
        making(lambda env, seed, *, num_groups, **how: env.make(seed, num_groups=1, **how)),
        r"make\(num_groups=2\) must give two groups",
    ),
    "unequal-groups": (
        lambda env: env._replace(num_envs=3, num_groups=2),
        "num_envs must be a multiple of num_groups",
    ),
    "forms": (making(loud), r"make\(host=False\) and make\(host=True\) must show the same bits"),
    "sizes": (making(lambda env, seed, *, num_envs, **how: env.make(seed, num_envs=4, **how)), r"make\(num_envs=3\)"),
    "any-action": (
        altered(send=lambda group: lambda state, action: group.send(state, action[: group.num_envs])),
        "send must refuse actions of another shape",
    ),
    "two-kinds": (
        lambda env: env._replace(spec=env.spec._replace(action_shape=(2,))),
        "spec must have num_actions; or",
    ),
    "cutoff": (
        lambda env: env._replace(spec=env.spec._replace(max_episode_steps=0)),
        "must be a positive int; it is 0",
    ),
    "config": (lambda env: env._replace(config={"a": (1,)}), "config must hold JSON values only"),
}


def test_an_environment_that_keeps_its_promises(walks):
    check_environment(walks)
    check_environment(walks, num_envs=1, max_episode_steps=3, num_timesteps=20, seed=4)


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_said(walks, name):
    breach, message = BREACHES[name]
    opened, closed = itertools.count(), []

    def counted(env, seed, **how):
        def one(group):
            number = next(opened)
            return group._replace(close=lambda: closed.append(number))

        return tuple(map(one, env.make(seed, **how)))

    with pytest.raises(AssertionError, match=f"^walks: .*(?:{message})") as error:
        check_environment(making(counted)(breach(walks)))
    assert "\n" not in str(error.value)
    assert sorted(closed) == list(range(next(opened)))


def asked_for_more(env):
    """The same environment, whose reward is no number where an action is as large as it may be."""

    def mutate(group):
        def recv(state):
            inner, last = state
            inner, step = group.recv(inner)
            most = (last >= env.spec.action_high).all(axis=-1) & ~step.first
            return (inner, last), step._replace(reward=jnp.where(most, jnp.nan, step.reward))

        return group._replace(
            init=lambda: (group.init(), jnp.zeros((group.num_envs, *env.spec.action_shape))),
            recv=recv,
            send=lambda state, action: (group.send(state[0], action), jnp.asarray(action)),
            restart=lambda state, seed=None: (group.restart(state[0]), state[1]),
        )

    return env._replace(make=lambda seed, **how: tuple(map(mutate, env.make(seed, **how))))


def driven_only(env):
    """The same environment, driven from Python."""
    return env._replace(make=lambda seed, *, host=False, **how: env.make(seed, host=True, **how))


def remembering(env):
    """The same environment, driven from Python, whose groups count timesteps outside of their state."""

    def mutate(group):
        counted = [0]

        def recv(state):
            state, step = group.recv(state)
            return state, step._replace(reward=np.where(step.first, 0, counted[0]).astype(np.float32))

        def send(state, action):
            counted[0] += 1
            return group.send(state, action)

        def restart(state, seed=None):
            counted[0] = 0
            return group.restart(state, seed)

        return group._replace(recv=recv, send=send, restart=restart, resumable=True)

    return env._replace(make=lambda seed, **how: tuple(map(mutate, driven_only(env).make(seed, **how))))


@pytest.mark.parametrize(
    ("breach", "message"),
    [
        (asked_for_more, "rewards must be finite for actions at their bounds, too"),
        (
            lambda env: env._replace(spec=env.spec._replace(action_low=np.zeros(2, np.float64))),
            r"spec\.action_low must be float32 \(2,\)",
        ),
        (
            lambda env: env._replace(make=lambda seed, *, host=False, **how: env.make(seed, **how)),
            "a group made with host=True must have traceable=False",
        ),
        (remembering, "a group is not resumable, if another one does not go on from its state"),
    ],
    ids=["bounds", "dtype", "host", "hidden"],
)
def test_a_breach_of_an_environment_in_jax_is_said(breach, message):
    env = probes.target(size=2, num_envs=3)
    check_environment(env)
    with pytest.raises(AssertionError, match=f"^{env.spec.name}: .*(?:{message})"):
        check_environment(breach(env))


def test_an_environment_without_ends_is_told_what_to_give(walks):
    with pytest.raises(AssertionError, match="no episode ended within 4 timesteps: give a smaller max_episode_steps"):
        check_environment(walks, num_timesteps=2, max_episode_steps=30)


@pytest.mark.parametrize(
    ("breach", "message"),
    [
        (lambda group: lambda state, seed=None: group.restart(state), "everything must depend on this seed alone"),
        (lambda group: group.restart, ""),
    ],
    ids=["ignores the seed", "as it is"],
)
def test_restarts_of_groups_that_can_be_seeded(breach, message):
    env = probes.countdown(low=2, high=5, num_envs=3)
    if message:
        with pytest.raises(AssertionError, match=message):
            check_environment(altered(restart=breach)(env), num_timesteps=16)
    else:
        check_environment(env, num_timesteps=16)


class Unbounded(gymnasium.Env):
    """One action without bounds, one with a least value alone, and one with both."""

    action_space = gymnasium.spaces.Box(np.float32([-np.inf, 5, 0]), np.float32([np.inf, np.inf, 2]))
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = 4
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._left -= 1
        return np.zeros(2, np.float32), 0.0, self._left == 0, False, {}


def test_actions_without_bounds_are_drawn_near_those_there_are():
    env = vx.envs.gymnasium(Unbounded, num_envs=2, max_episode_steps=8)
    actions = actions_for(env, 50)
    assert actions.shape == (50, 2, 3)
    assert (actions.min((0, 1)) >= [-1, 5, 0]).all()
    assert (actions.max((0, 1)) <= [1, 6, 2]).all()
    check_environment(env, draws=False)


class Declared(gymnasium.Env):
    """Shows and rewards what it is made with."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, space, shown, reward=0.0):
        self.observation_space, self._shown, self._reward = space, shown, reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._shown, {}

    def step(self, action):
        return self._shown, self._reward, False, False, {}


BOX, UNIT = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(3)
OUTSIDE = "observations must belong to the observation_space, .*: widen the space$"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((BOX, np.float32([0, 2])), OUTSIDE),
        ((UNIT, 3), OUTSIDE),
        ((gymnasium.spaces.Dict({"a": BOX, "b": UNIT}), {"a": np.zeros(2, np.float32), "b": 4}), OUTSIDE),
        ((gymnasium.spaces.Tuple((BOX, BOX)), (np.zeros(2), np.full(2, -1.5))), OUTSIDE),
        ((BOX, np.zeros(2), "0"), "rewards must be numbers; step returned '0'$"),
        ((BOX, np.zeros(2)), None),  # of 64 bits in a box of 32
        ((BOX, [0.5, 1], np.float32([1])[0]), None),
        ((gymnasium.spaces.Tuple((BOX, UNIT)), (np.ones(2), 2), 3), None),
    ],
)
def test_what_gymnasiums_environments_declare(arguments, message):
    names = dict(zip(("space", "shown", "reward"), arguments, strict=False))
    env = vx.envs.gymnasium(functools.partial(Declared, **names), num_envs=2, max_episode_steps=5)
    if message is None:
        check_environment(env, draws=False)
        return
    with pytest.raises(AssertionError, match=f"^Declared: {message}") as error:
        check_environment(env, draws=False)
    assert "\n" not in str(error.value)
