"""Gymnasium's environments in groups, against environments that are stepped by hand."""

import multiprocessing
import os
import time

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import volvox as vx
from volvox import envs
from volvox._settings import CannotRebuildError, rebuild
from volvox.envs import gymnasium_workers

LENGTHS = (2, 5, 3)
LIMIT = {"max_episode_steps": 9}


def counter(act=lambda count: None):
    """A class whose episodes end after 2, 5, 3, 2, ... timesteps by its rules; `act` is called in each timestep.

    Classes that are local are taken to workers by value, so that these need not import the test.
    """

    class Counter(gymnasium.Env):
        observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        action_space = spaces.Discrete(3)
        episodes = -1

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.count, self.episodes = 0, self.episodes + 1
            return self.seen(), {}

        def step(self, action):
            act(self.count)
            self.count += 1
            ended = self.count == LENGTHS[self.episodes % len(LENGTHS)]
            return self.seen(), 10.0 * self.count + action, ended, False, {"a": "b"}

        def seen(self):
            return np.array([self.count, self.np_random.uniform()])

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
        for b, seed in enumerate(envs.envpool_group.environment_seeds(3, group=index, num_envs=4)):
            wanted = by_hand(counter(), seed, actions[:, b], limit=4)
            seen = [leaf[:, b] for leaf in (*played[:5], played.extras["elapsed_steps"])]
            for field, want, got in zip((*played._fields[:5], "elapsed_steps"), wanted, seen, strict=True):
                np.testing.assert_array_equal(got, want, err_msg=field)
    assert played.truncated.any()
    assert played.terminated.any()


def test_a_restart_with_a_seed_repeats_everything_and_another_cutoff_holds(drive, assert_equal):
    env = envs.gymnasium("CartPole-v1", num_envs=2)
    assert env.spec.max_episode_steps == 500
    (group,) = env.make(0, max_episode_steps=3)
    first = drive(group, np.ones((9, 2), np.int32))
    assert (first.extras["elapsed_steps"][first.truncated] == 3).all()
    assert first.truncated.sum() == 4
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
            raise KeyError("the valve is stuck")
        if kind == "raises what cannot be pickled":
            error = ValueError("the valve is stuck")
            error.valve = lambda: None
            raise error
        if kind == "ends":
            os._exit(7)
        time.sleep(1_000)

    return counter(act)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("raises", r"(?s)environment of Counter raised an error in its worker process:.*the valve is stuck"),
        ("raises what cannot be pickled", r"(?s)raised an error in its worker process:.*the valve is stuck"),
        ("ends", r"a worker process of Counter ended \(exit code 7\)"),
        pytest.param("blocks", r"of Counter did not answer within 5 seconds: an environment", marks=pytest.mark.slow),
    ],
)
def test_what_goes_wrong_in_a_worker_is_told_in_time(kind, message):
    env = envs.gymnasium(
        failing(kind), num_envs=2, workers=1, max_episode_steps=9, timeout=5 if kind == "blocks" else 60
    )
    (group,) = env.make(0)
    state, _ = group.recv(group.init())
    state, _ = group.recv(group.send(state, np.zeros(2, np.int32)))
    (workers,) = [process for process in multiprocessing.active_children() if "Vector" in process.name]
    with pytest.raises(RuntimeError, match=message):
        group.recv(group.send(state, np.zeros(2, np.int32)))
    assert not workers.is_alive()
    with pytest.raises(RuntimeError, match="Counter, or they were closed"):
        group.send(state, np.zeros(2, np.int32))
    group.close()


def blocking(where):
    """What makes an environment, and blocks where a worker reads it, or where a worker makes the environment."""
    make = counter()

    class Read:
        def __call__(self):
            return make()

        def __reduce__(self):
            return time.sleep, (1_000,)

    def made():
        if multiprocessing.parent_process() is not None:
            time.sleep(1_000)
        return make()

    return Read() if where == "read" else made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("read", "the workers of Counter did not answer within 3 seconds: they are still importing"),
        ("made", "the workers of Counter did not answer within 3 seconds: an environment blocks"),
    ],
)
def test_workers_that_do_not_begin_are_told_in_time(where, message, monkeypatch):
    if where == "read":
        monkeypatch.setattr(gymnasium_workers, "_SECONDS_TO_START", 3.0)
    env = envs.gymnasium(blocking(where), num_envs=2, workers=1, max_episode_steps=9, timeout=3)
    (group,) = env.make(0)
    with pytest.raises(RuntimeError, match=message):
        group.recv(group.init())
    assert not [process for process in multiprocessing.active_children() if "Vector" in process.name]


def test_an_error_in_this_process_names_the_environment():
    (group,) = envs.gymnasium(failing("raises"), num_envs=2, max_episode_steps=9).make(0)
    state, _ = group.recv(group.init())
    state, _ = group.recv(group.send(state, np.zeros(2, np.int32)))
    with pytest.raises(KeyError, match="the valve is stuck") as raised:
        group.recv(group.send(state, np.zeros(2, np.int32)))
    assert raised.value.__notes__ == ["This was raised in the environment Counter."]


class OldStep(counter()):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class OldReset(counter()):
    def reset(self):
        return super().reset()[0]


class NoAction(counter()):
    def step(self):
        return super().step(0)


class Unpacks(counter()):
    def step(self, action):
        _one, _two = (1, 2, 3)


def test_gyms_old_interface_is_told():
    with pytest.raises(
        TypeError, match=r"reset of OldReset cannot be seeded.*reset\(self, \*, seed=None, options=None"
    ):
        envs.gymnasium(OldReset, num_envs=1, **LIMIT)
    (group,) = envs.gymnasium(OldStep, num_envs=1, **LIMIT).make(0)
    state, _ = group.recv(group.init())
    with pytest.raises(TypeError, match=r"five items, of which Gym's old step had four: .*expected 5, got 4"):
        group.recv(group.send(state, np.zeros(1, np.int32)))
    (group,) = envs.gymnasium(NoAction, num_envs=1, **LIMIT).make(0)
    state, _ = group.recv(group.init())
    with pytest.raises(TypeError, match=r"must have reset\(self, .* and step\(self, action\): .*takes 1 positional"):
        group.recv(group.send(state, np.zeros(1, np.int32)))
    (group,) = envs.gymnasium(Unpacks, num_envs=1, **LIMIT).make(0)
    state, _ = group.recv(group.init())
    with pytest.raises(ValueError, match=r"^too many values to unpack"):  # its own mistake
        group.recv(group.send(state, np.zeros(1, np.int32)))


class Wrong(counter()):
    def __init__(self, wrong, value):
        super().__init__()
        self._wrong, self._value = wrong, value

    def step(self, action):
        names = ("observation", "reward", "terminated", "truncated", "info")
        return tuple((dict(zip(names, super().step(action), strict=True)) | {self._wrong: self._value}).values())


@pytest.mark.parametrize(
    ("wrong", "value"),
    [("observation", np.zeros((2, 3, 4), np.float32)), ("reward", [1.0, 2.0]), ("terminated", np.zeros(2, bool))],
)
def test_what_does_not_fit_the_spaces_is_told_with_them(wrong, value):
    (group,) = envs.gymnasium(Wrong, num_envs=1, **LIMIT, wrong=wrong, value=value).make(0)
    state, _ = group.recv(group.init())
    told = r"Wrong must return observations of its observation_space, Box\(.*a number as the reward, .*something else"
    with pytest.raises(TypeError, match=told):
        group.recv(group.send(state, np.zeros(1, np.int32)))
    group.close()


def test_what_info_holds_may_differ_between_environments_and_timesteps():
    """Gymnasium would put it side by side, and fail: None beside a number, arrays of two shapes, a dict beside one."""
    various = [{"a": 1, "b": np.zeros(2), "c": {}}, {"a": None, "b": np.zeros(3), "c": 0.5}]

    class Tells(counter()):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed, options=options)[0], various[int(self.np_random.uniform() < 0.5)]

        def step(self, action):
            return *super().step(action)[:4], various[int(self.np_random.uniform() < 0.5)]

    (group,) = envs.gymnasium(Tells, num_envs=8, **LIMIT).make(0)
    state, rewards = group.init(), []
    for _ in range(8):
        state, timestep = group.recv(state)
        rewards.append(timestep.reward)
        state = group.send(state, np.zeros(8, np.int32))
    group.close()
    # An episode of two timesteps, and one of five.
    np.testing.assert_array_equal(rewards, np.tile([0, 10, 20, 0, 10, 20, 30, 40], (8, 1)).T)


def test_an_environment_that_ignores_its_seed_is_told():
    class Unseeded(counter()):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=None, options=options)

    with pytest.raises(AssertionError, match=r"same seed must show the same.*super\(\)\.reset\(seed=seed\)"):
        vx.testing.check_environment(envs.gymnasium(Unseeded, num_envs=2, **LIMIT))


def echo(action_space, observation_space):
    """A class that shows what it was sent in `info`, and random observations."""

    class Echo(gymnasium.Env):
        sent = []  # noqa: RUF012  # read by the test

        def __init__(self):
            self.action_space, self.observation_space = action_space, observation_space

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action):
            assert self.action_space.contains(action), action
            self.sent.append(np.asarray(action).tolist())
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
        (BOX, {"action_shape": (2,)}, np.float32([[0.1, 3.0], [-1.0, 0.0]]), [[0.1, 3.0], [-1.0, 0.0]]),
    ],
    ids=["discrete", "multi-discrete", "multi-binary", "box"],
)
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_spaces(workers, space, fields, sent, received):
    make_env = echo(space, NESTED)
    env = envs.gymnasium(make_env, num_envs=2, max_episode_steps=9, workers=workers)
    shown = {name: getattr(env.spec, name) for name in ("num_actions", "num_choices", "action_shape")}
    assert {name: value for name, value in shown.items() if value is not None} == fields
    assert env.spec.observation == {
        "image": jax.ShapeDtypeStruct((3, 4, 1), np.uint8),
        "parts": (
            jax.ShapeDtypeStruct((), np.int32),
            jax.ShapeDtypeStruct((2,), np.int8),
            jax.ShapeDtypeStruct((2,), np.int32),
        ),
    }
    (group,) = env.make(0)
    state, begun = group.recv(group.init())
    _, timestep = group.recv(group.send(state, np.asarray(sent)))
    group.close()
    if not workers:
        assert make_env.sent == received
    for step in (begun, timestep):
        found = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), step.observation)
        assert found == env.spec.observation
        assert all(len(leaf) == 2 for leaf in jax.tree.leaves(step.observation))


@pytest.mark.parametrize(
    ("make_env", "options", "error", "message"),
    [
        ("CartPol-v1", {}, ValueError, "Gymnasium cannot make 'CartPol-v1'"),
        (counter(), {}, ValueError, "Counter has no limit on the timesteps of an episode: give max_episode_steps"),
        (counter(), {"max_episode_steps": 0}, ValueError, "max_episode_steps must be an integer of at least 1, got 0"),
        (counter(), {"workers": -1}, ValueError, "workers must be an integer of at least 0, got -1"),
        (counter(), {"timeout": 0}, ValueError, "timeout=0: give a"),
        (counter()(), {}, TypeError, "give the name, the class or the function that makes one environment, not"),
        (dict, {}, TypeError, "which is no gymnasium.Env"),
        ("CartPole-v1", {"num_envs": 3, "groups": 2}, ValueError, "num_envs must be a multiple of groups"),
        (
            echo(spaces.Dict({}), BOX),
            LIMIT,
            ValueError,
            r"Echo has actions of the space Dict\(\); supported are Discrete",
        ),
        (echo(BOX, spaces.Text(3)), LIMIT, ValueError, "Echo has observations of the space Text"),
    ],
)
def test_mistakes_are_told(make_env, options, error, message):
    with pytest.raises(error, match=message):
        envs.gymnasium(make_env, **{"num_envs": 4, **options})


def test_a_saved_call_runs_no_function():
    env = envs.gymnasium("CartPole-v1", num_envs=2, sutton_barto_reward=True)
    assert rebuild(env.config).config == env.config
    with pytest.raises(CannotRebuildError, match=r"jax:devices is neither"):
        rebuild({"call": "volvox.envs:gymnasium", "make_env": {"function": "jax:devices"}, "num_envs": 1})


@pytest.mark.slow
@pytest.mark.optimized
def test_gymnasiums_cartpole_is_learned():
    """A3C reaches returns that random play, of about 22, does not."""
    env = vx.envs.gymnasium("CartPole-v1", num_envs=8, groups=2)
    settings = vx.A3C(learning_rate=3e-3, updates_per_iteration=120)
    algorithm = vx.learn(settings, vx.networks.CategoricalMLP(2, (32,)), env)
    _, row = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    assert row["training_mean"] > 50
