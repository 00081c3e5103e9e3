"""Gymnasium's environments in groups, against environments that are stepped by hand."""

import multiprocessing
import os

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from volvox import envs
from volvox.envs.groups import environment_seeds

# Gymnasium warns of an error in a worker before it raises it.
pytestmark = pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")
LENGTHS = (2, 5, 3)
LIMIT = {"max_episode_steps": 9}


def counter(act=lambda count: None, dtype=np.float64):
    """A class whose episodes end after 2, 5, 3, 2, ... timesteps by its rules; `act` is called in each timestep.

    Classes that are local are taken to workers by value, so that these need not import the test.
    """

    class Counter(gymnasium.Env):
        observation_space = spaces.Box(-np.inf, np.inf, (2,), dtype)
        action_space = spaces.Discrete(3)
        episodes = -1

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.count, self.episodes = 0, self.episodes + 1
            return self.observation(), {}

        def step(self, action):
            act(self.count)
            self.count += 1
            ended = self.count == LENGTHS[self.episodes % len(LENGTHS)]
            return self.observation(), 10.0 * self.count + action, ended, False, {"a": "b"}

        def observation(self):
            return np.array([self.count, self.np_random.uniform()], dtype)

    return Counter


def by_hand(make_env, seed, actions, limit):
    """Plays one environment with `limit` timesteps an episode, as `TimeStep` says: fields `[T]`."""
    env, steps = make_env(), []
    observation, _ = env.reset(seed=seed)
    fields, elapsed = (0.0, True, False, False), 0
    for action in [*actions, None]:
        steps.append((observation.astype(np.float32), *fields, elapsed))
        if action is None:
            break
        if fields[2] or fields[3]:
            (observation, _), fields, elapsed = env.reset(), (0.0, True, False, False), 0
        else:
            elapsed += 1
            observation, reward, terminated, _, _ = env.step(action)
            fields = (reward, False, terminated, elapsed == limit and not terminated)
    return [np.stack(each) for each in zip(*steps, strict=True)]


@pytest.mark.parametrize(("workers", "groups"), [(0, 2), (2, 1)])
def test_time_steps_are_those_of_environments_stepped_by_hand(workers, groups, drive):
    env = envs.gymnasium(counter(), num_envs=4 * groups, groups=groups, workers=workers, max_episode_steps=4)
    assert env.spec.name == "Counter"
    assert env.spec.observation_shape == (2,)
    assert env.spec.observation_dtype == np.float32
    actions = np.random.default_rng(0).integers(0, 3, (12, 4))
    for index, group in enumerate(env.make(3)):
        assert not group.traceable
        played = drive(group, actions)
        group.close()
        for b, seed in enumerate(environment_seeds(3, group=index, num_envs=4)):
            wanted = by_hand(counter(), seed, actions[:, b], limit=4)
            shown = [leaf[:, b] for leaf in (*played[:5], played.extras["elapsed_steps"])]
            for field, want, got in zip((*played._fields[:5], "elapsed_steps"), wanted, shown, strict=True):
                np.testing.assert_array_equal(got, want, err_msg=field)
    assert played.truncated.any()
    assert played.terminated.any()


def test_a_restart_with_a_seed_repeats_everything(drive):
    env = envs.gymnasium("CartPole-v1", num_envs=2, sutton_barto_reward=True)
    assert env.spec.max_episode_steps == 500
    (group,) = env.make(0)
    first = drive(group, np.ones((3, 2), np.int32))
    assert (first.reward == 0).all()  # the option reached the environments
    for seed in (0, 1):
        state = group.restart(None, seed=seed)
        _, begun = group.recv(state)
        assert np.array_equal(begun.observation, first.observation[0]) is (seed == 0)
        assert begun.first.all()
    group.close()


def failing(kind):
    def act(count):
        if count < 1:
            return
        if kind == "raises":
            error = ValueError("the valve is stuck")
            error.valve = lambda: None  # cannot be pickled
            raise error
        if kind == "ends":
            os._exit(7)
        multiprocessing.Process(target=print).start()

    return counter(act)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("raises", "(?s)Counter.*the valve is stuck"), ("ends", "Counter.*ended"), ("has children", "workers=0")],
)
def test_an_error_in_a_worker_ends_all_workers(kind, message):
    (group,) = envs.gymnasium(failing(kind), num_envs=2, workers=1, **LIMIT).make(0)
    state, _ = group.recv(group.init())
    state, _ = group.recv(group.send(state, np.zeros(2, np.int32)))
    (worker,) = [process for process in multiprocessing.active_children() if "Vector" in process.name]
    with pytest.raises(RuntimeError, match=message):
        group.recv(group.send(state, np.zeros(2, np.int32)))
    assert not worker.is_alive()
    group.close()


def test_workers_know_names_of_the_main_program_and_share_any_dtype():
    """`multiprocessing` has no shared memory for float16; the name is registered in this process alone."""
    gymnasium.register("Mine-v0", entry_point=counter(dtype=np.float16), max_episode_steps=5)
    env = envs.gymnasium("Mine-v0", num_envs=4, workers=2)
    (group,) = env.make(3)
    state, step = group.recv(group.init())
    state = group.send(state, np.zeros(4, np.int32))
    state, step = group.recv(state)
    group.send(state, np.zeros(4, np.int32))
    group.close()  # with actions in flight
    assert step.observation.dtype == np.float16
    np.testing.assert_array_equal(step.observation[:, 0], 1)
    assert not [process for process in multiprocessing.active_children() if "Vector" in process.name]


def test_info_may_differ_between_environments_and_timesteps():
    """Gymnasium would batch it, and fail: None beside a number, arrays of two shapes, a dict beside a number."""
    various = [{"a": 1, "b": np.zeros(2), "c": {}}, {"a": None, "b": np.zeros(3), "c": 0.5}]

    class Various(counter()):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed, options=options)[0], various[int(self.np_random.uniform() < 0.5)]

        def step(self, action):
            return *super().step(action)[:4], various[int(self.np_random.uniform() < 0.5)]

    (group,) = envs.gymnasium(Various, num_envs=8, **LIMIT).make(0)
    state, rewards = group.init(), []
    for _ in range(8):
        state, timestep = group.recv(state)
        rewards.append(timestep.reward)
        state = group.send(state, np.zeros(8, np.int32))
    group.close()
    # An episode of two timesteps, and one of five.
    np.testing.assert_array_equal(rewards, np.tile([0, 10, 20, 0, 10, 20, 30, 40], (8, 1)).T)


def test_rewards_and_ends_may_be_arrays_of_one_element(drive):
    class Arrays(counter()):
        def step(self, action):
            observation, *fields, info = super().step(action)
            return observation, *(np.array([field]) for field in fields), info

    (group,), (plain,) = (envs.gymnasium(make, num_envs=3, **LIMIT).make(0) for make in (Arrays, counter()))
    found, wanted = (drive(each, np.zeros((8, 3), np.int32)) for each in (group, plain))
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    group.close()
    plain.close()


def echo(action_space, observation_space):
    """A class that records the actions it gets, and shows random observations."""

    class Echo(gymnasium.Env):
        received = []  # noqa: RUF012  # read by the test

        def __init__(self):
            self.action_space, self.observation_space = action_space, observation_space

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action):
            assert self.action_space.contains(action), action
            self.received.append(np.asarray(action).tolist())
            return self.observation_space.sample(), 0.0, False, False, {}

    return Echo


BOX = spaces.Box(np.array([-1.0, 0.0]), np.array([0.1, 3.0]), dtype=np.float64)
NESTED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (3, 4, 1), np.uint8),
        "parts": spaces.Tuple((spaces.Discrete(5), spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
    }
)


@pytest.mark.parametrize(
    ("space", "fields", "sent", "received"),
    [
        (spaces.Discrete(3, start=-1), {"num_actions": 3}, [0, 2], [-1, 1]),
        (
            spaces.MultiDiscrete([[2, 3], [4, 5]]),
            {"num_choices": (2, 3, 4, 5), "action_shape": (4,)},
            [[1, 2, 3, 4], [0, 0, 0, 9]],
            [[[1, 2], [3, 4]], [[0, 0], [0, 4]]],
        ),
        (spaces.MultiBinary(2), {"num_choices": (2, 2), "action_shape": (2,)}, [[0, 1], [1, 1]], [[0, 1], [1, 1]]),
        (
            spaces.Box(-2, np.array([0, 3]), dtype=np.int16),
            {"num_choices": (3, 6), "action_shape": (2,)},
            [[0, 5], [2, 0]],
            [[-2, 3], [0, -2]],
        ),
        (BOX, {"action_shape": (2,)}, np.float32([[0.1, 3.0], [-1.0, 0.0]]), [[0.1, 3.0], [-1.0, 0.0]]),
    ],
    ids=["discrete", "multi-discrete", "multi-binary", "integers", "box"],
)
def test_spaces(space, fields, sent, received):
    make_env = echo(space, NESTED)
    env = envs.gymnasium(make_env, num_envs=2, **LIMIT)
    given = {name: getattr(env.spec, name) for name in ("num_actions", "num_choices", "action_shape")}
    assert {name: value for name, value in given.items() if value is not None} == fields
    parts = (((), np.int32), ((2,), np.int8), ((2,), np.int32))
    parts = tuple(jax.ShapeDtypeStruct(*part) for part in parts)
    assert env.spec.observation == {"image": jax.ShapeDtypeStruct((3, 4, 1), np.uint8), "parts": parts}
    (group,) = env.make(0)
    state, begun = group.recv(group.init())
    _, timestep = group.recv(group.send(state, np.asarray(sent)))
    group.close()
    assert make_env.received == received
    for step in (begun, timestep):
        found = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), step.observation)
        assert found == env.spec.observation
        assert all(len(leaf) == 2 for leaf in jax.tree.leaves(step.observation))


@pytest.mark.parametrize(
    ("make_env", "options", "error"),
    [
        (counter(), {}, ValueError),  # no limit of episodes
        (counter()(), LIMIT, TypeError),
        (dict, LIMIT, TypeError),
        (echo(spaces.Dict({}), BOX), LIMIT, ValueError),
        (echo(BOX, spaces.Text(3)), LIMIT, ValueError),
    ],
)
def test_mistakes_are_refused(make_env, options, error):
    with pytest.raises(error):
        envs.gymnasium(make_env, **{"num_envs": 4, **options})
