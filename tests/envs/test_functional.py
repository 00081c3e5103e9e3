"""Environments of three functions, and gymnax, Brax and MuJoCo Playground where they are installed."""

import functools
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox import envs


def keep(state, action, key):
    return state, state, state > 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"step": lambda state, action, key: (state.astype(int), state, state > 0)}, AssertionError),
        ({"step": lambda state, action, key: (state, state[None], state > 0)}, AssertionError),
        ({"action_shape": (1,)}, ValueError),  # and num_actions
        ({"num_actions": None}, ValueError),
        ({"num_actions": None, "action_shape": (1,), "action_low": 1.0, "action_high": 1.0}, ValueError),
    ],
)
def test_functions_that_do_not_fit_are_refused(arguments, error):
    def make(**changes):
        given = {
            "reset": lambda key: jnp.float32(0),
            "step": keep,
            "observe": lambda state: state[None],
            "name": "mine",
            "num_envs": 2,
            "max_episode_steps": 3,
            "num_actions": 2,
        }
        return envs.from_functions(**given | changes)

    env = make()
    assert env.spec.observation_shape == (1,)
    assert env.config["type"] == "volvox.envs.from_functions"
    assert env.config["step"] is keep
    assert envs.from_functions(**{key: env.config[key] for key in env.config if key != "type"}).spec == env.spec
    with pytest.raises(error):
        make(**arguments)


@pytest.mark.parametrize("size", [1, 3])
def test_resets_in_batches_are_the_same_resets(size, play, actions_for, assert_equal):
    """Episodes of different lengths, whose state holds a key."""

    def played(reset_batch):
        env = envs.from_functions(
            lambda key: (key, jax.random.randint(key, (), 1, 6)),
            lambda state, action, key: ((state[0], state[1] - 1), jax.random.normal(state[0]), state[1] <= 1),
            lambda state: {"left": state[1]},
            name="countdown",
            num_envs=5,
            max_episode_steps=4,
            num_actions=2,
            reset_batch=reset_batch,
        )
        return play(env, actions_for(env, 20), restart_at=7)

    assert_equal(played(size), played(None))


def test_another_group_seed_or_cutoff_compiles_nothing_twice():
    traced = []

    def step(state, action, key):
        traced.append(None)
        return state, state, False

    env = envs.from_functions(
        lambda key: jnp.float32(0),
        step,
        lambda state: state[None],
        name="x",
        num_envs=4,
        groups=2,
        max_episode_steps=3,
        num_actions=2,
    )
    before = len(traced)
    for seed in (0, 1):
        for group in env.make(seed, max_episode_steps=3 + seed, host=seed == 1):
            group.recv(group.send(group.recv(group.init())[0], np.zeros(2, np.int32)))
    assert len(traced) == before + 1


def test_gymnax_steps_are_its_own_and_the_time_limit_truncates(play):
    gymnax = pytest.importorskip("gymnax", reason='needs pip install -e ".[gymnax]"')
    env = envs.gymnax("CartPole-v1", num_envs=3, max_episode_steps=8)
    actions = np.tile(np.array([0, 1], np.int32), 15)[:, None].repeat(3, axis=1)  # keeps the pole up for 8 timesteps
    played = play(env, actions)
    assert played.truncated[8].all()
    assert not played.terminated.any()
    assert played.first[9].all()
    task, params = gymnax.make("CartPole-v1")
    state = task.reset_env(jax.random.key(0), params)[1].replace(
        **dict(zip(("x", "x_dot", "theta", "theta_dot"), played.observation[0, 0], strict=True))
    )
    for t in range(1, 9):
        seen, state, reward, *_ = task.step_env(jax.random.key(1), state, actions[t - 1, 0], params)
        np.testing.assert_allclose(played.observation[t, 0], seen, rtol=1e-5)
        assert played.reward[t, 0] == reward


def test_gymnaxs_own_limit_is_no_termination(play):
    pytest.importorskip("gymnax", reason='needs pip install -e ".[gymnax]"')
    env = envs.gymnax("Pendulum-v1", num_envs=2)
    assert env.spec.max_episode_steps == 200
    assert env.spec.action_shape == (1,)
    played = play(env, np.zeros((205, 2, 1), np.float32))
    assert played.truncated[200].all()
    assert not played.terminated.any()
    assert played.first[201].all()


@pytest.mark.parametrize("wrong", [{"task": "CartPol-v1"}, {"gravit": 1.0}, {"max_steps_in_episode": 9}])
def test_mistakes_are_refused(wrong):
    pytest.importorskip("gymnax", reason='needs pip install -e ".[gymnax]"')
    with pytest.raises((ValueError, TypeError), match="|".join([*wrong, "CartPol-v1"])):
        envs.gymnax(**{"task": "CartPole-v1", "num_envs": 1, **wrong})


def test_a_suite_that_is_not_installed_is_named_with_its_command(monkeypatch):
    for module, make in (("gymnax", envs.gymnax), ("brax.envs", envs.brax), ("mujoco_playground", envs.playground)):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=rf"pip install 'volvox-rl\[{make.__name__}\]'"):
            make("x", num_envs=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Brax System:UserWarning", "ignore:JAXopt is no longer:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Accessing .* directly from `Data`:DeprecationWarning")  # Brax with mjx 3.17
def test_brax_steps_and_truncates(play, actions_for):
    pytest.importorskip("brax", reason='needs pip install -e ".[brax]"')
    env = envs.brax("inverted_pendulum", num_envs=2, max_episode_steps=3, backend="positional")
    played = play(env, 0 * actions_for(env, 5))
    assert played.truncated[3].all()
    assert played.first[4].all()


TASK = "CartpoleBalance"  # of Playground


@pytest.fixture(name="registry", scope="module")
def _registry():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of packages that it imports
        playground = pytest.importorskip("mujoco_playground", reason='needs pip install -e ".[playground]"')
    return playground.registry


@functools.cache
def short_episodes():
    return envs.playground(TASK, num_envs=2, max_episode_steps=4, action_repeat=2)


@pytest.mark.slow
def test_playground_steps_are_its_own_and_the_time_limit_truncates(registry, drive, actions_for):
    env = short_episodes()
    assert envs.playground(TASK, num_envs=2, action_repeat=2).spec.max_episode_steps == 500
    (group,), actions = env.make(0), actions_for(env, 7)
    one = drive(group, actions)
    assert one.truncated[4].all()
    assert one.first[[0, 5]].all()
    assert not one.terminated.any()
    assert (one.observation[0] != one.observation[5]).any()  # a new start, not that of the first episode
    suite = registry.load(TASK, config_overrides={"impl": "jax"})
    # In a batch as well, because the solver rounds differently alone.
    keys = jax.vmap(lambda key: jax.random.split(key, 3)[1])(group.init().key)
    state, step = jax.jit(jax.vmap(suite.reset))(keys), jax.jit(jax.vmap(suite.step))
    np.testing.assert_allclose(one.observation[0], state.obs, rtol=1e-5, atol=1e-6)
    for t in range(1, 5):
        between = step(state, actions[t - 1])
        state = step(between, actions[t - 1])
        np.testing.assert_allclose(one.observation[t], state.obs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(one.reward[t], between.reward + state.reward, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("registry")
def test_a_simulation_of_playground_that_diverges_terminates(play):
    actions = np.zeros((6, 2, 1), np.float32)
    actions[1, 0] = np.nan
    played = play(short_episodes(), actions)
    assert played.terminated[:, 0].tolist() == [t == 2 for t in range(7)]
    assert played.first[:, 0].tolist() == [t in (0, 3) for t in range(7)]
    assert played.truncated[:, 1].tolist() == [t == 4 for t in range(7)]
    assert all(np.isfinite(x).all() for x in (played.observation, played.reward))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Playground leaves pipes of git open
@pytest.mark.usefixtures("registry")
def test_mistakes_with_playground_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="Cheetah"):
        envs.playground("Cheetah", num_envs=1)
    with pytest.raises(KeyError, match="ctrl_d"):
        envs.playground("CheetahRun", num_envs=1, ctrl_d=0.1)
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "none")  # no download, as without a network
    with pytest.raises(OSError, match="Go1Getup needs MuJoCo Menagerie"):
        envs.playground("Go1Getup", num_envs=1)
