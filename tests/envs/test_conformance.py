"""What every environment promises, whoever steps it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox import envs
from volvox.envs import groups
from volvox.envs.preprocessing import opening
from volvox.types import EnvGroup, EnvSpec, TimeStep


def counter(*, num_envs):
    """A group written with `volvox.envs.groups` that leaves every promise of a time step to `consistent`."""

    def make_group(spec, num_envs, *, index, seed, host):
        begin = 0.25 * (1 + index + seed)

        def init():
            return jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32), jnp.ones(num_envs, bool)

        def recv(state):
            total, count, first = state
            total, count = jnp.where(first, begin, total), jnp.where(first, 0, count + 1)
            extras = {"elapsed_steps": count}
            # Rewarded and ended at `first`, and terminated and truncated together: `consistent` puts it right.
            step = TimeStep(total[:, None], total, first, (total > 8) | first, count >= spec.max_episode_steps, extras)
            step = groups.consistent(step)
            return (total, count, step.terminated | step.truncated), step

        def send(state, action):
            return state[0] + groups.checked_action(spec, num_envs, jnp.asarray(action)), *state[1:]

        def restart(state, seed=None):
            return *state[:2], jnp.ones(num_envs, bool)

        def host_recv(state):
            state, step = recv(state)
            return state, jax.device_get(step)

        return EnvGroup(spec, num_envs, not host, init, host_recv if host else recv, send, restart, lambda: None)

    spec = EnvSpec("counter", (1,), np.dtype(np.float32), 3, None, None, None, 6, 1, ("elapsed_steps",))
    return groups.recipe(spec, make_group, num_envs=num_envs, groups=1, environment="counter", settings={})


def pair(*, num_envs):
    """Pure functions of an action whose components have different bounds."""
    return envs.from_functions(
        jax.random.uniform,
        lambda state, action, key: (jax.random.uniform(key), jnp.dot(action, jnp.array([1.0, state])), state > 0.8),
        lambda state: state[None],
        name="pair",
        num_envs=num_envs,
        max_episode_steps=7,
        action_shape=(2,),
        action_low=np.array([-1.0, 0.0]),
        action_high=np.array([1.0, 3.0]),
    )


ENVS = {
    "atari": lambda: envs.atari("pong", num_envs=3, groups=1, max_episode_steps=7),
    "atari-ends": lambda: envs.atari("assault", num_envs=3, groups=1, episodic_life=True, frame_skip=16),
    "atari-uber": lambda: envs.atari("Boxing", num_envs=3, groups=1, max_episode_steps=7, preprocessing="uber"),
    "mujoco": lambda: envs.mujoco("HalfCheetah", num_envs=3, max_episode_steps=9),
    "mujoco-ends": lambda: envs.mujoco("Hopper", num_envs=3, max_episode_steps=50),
    "cartpole": lambda: envs.envpool_task("CartPole-v1", num_envs=3),
    "frozen-lake": lambda: envs.envpool_task("FrozenLake-v1", num_envs=3),
    "car-racing": lambda: envs.envpool_task("CarRacing-v3", num_envs=3, max_episode_steps=9),
    "counter": lambda: counter(num_envs=3),
    "counter-opening": lambda: opening(counter(num_envs=3), (2, 1)),
    "pair": lambda: pair(num_envs=3),
    "constant": lambda: envs.probe.constant(num_envs=3),
    "observed-reward": lambda: envs.probe.observed_reward(num_envs=3),
    "delayed-reward": lambda: envs.probe.delayed_reward(num_envs=3),
    "chosen-reward": lambda: envs.probe.chosen_reward(num_envs=3),
    "matched-reward": lambda: envs.probe.matched_reward(num_envs=3),
    "countdown": lambda: envs.probe.countdown(num_envs=3, max_episode_steps=6),
    "corridor": lambda: envs.probe.corridor(num_envs=3),
    "target": lambda: envs.probe.target(num_envs=3),
}
STEPS = 45
RESTART_AT = 5


@pytest.fixture(scope="module", params=ENVS)
def env(request):
    return ENVS[request.param]()


@pytest.fixture(scope="module")
def recorded(env, drive, actions_for):
    """The same actions played through the traceable group and through the one driven from Python."""
    played = []
    for host in (False, True):
        (group,) = env.make(5, host=host, num_groups=1)
        assert group.traceable is not host
        assert group.num_envs == env.num_envs
        assert group.spec == env.spec
        played.append(drive(group, actions_for(env, STEPS), restart_at=RESTART_AT))
        group.close()
    return played


def test_both_forms_agree_bit_for_bit(recorded, assert_equal):
    assert_equal(*recorded)


def test_shapes_and_dtypes_are_the_specs(env, recorded):
    spec, step = env.spec, recorded[0]
    steps = (STEPS + 2, env.num_envs)
    assert step.observation.shape == (*steps, *spec.observation_shape)
    assert step.observation.dtype == spec.observation_dtype
    assert step.reward.dtype == np.float32
    assert {step.first.dtype, step.terminated.dtype, step.truncated.dtype} == {np.dtype(bool)}
    assert step.extras["elapsed_steps"].dtype == np.int32
    for leaf in jax.tree.leaves(step):
        assert leaf.shape[:2] == steps
    assert (spec.num_actions is None) != (spec.action_shape is None)
    for bound in (spec.action_low, spec.action_high):
        if spec.action_shape is None:
            assert bound is None
        else:
            assert (bound.shape, bound.dtype) == (spec.action_shape, np.float32)
    assert set(step.extras) == set(spec.extras)


def test_first_follows_ends_and_restarts_and_nothing_else(env, recorded):
    step = recorded[0]
    done = step.terminated | step.truncated
    begun = np.concatenate([np.ones_like(done[:1]), done[:-1]])
    begun[RESTART_AT + 1] = True
    expected = begun.copy()
    for steps in range(len(env.config.get("opening", ()))):
        expected[1 + steps :] |= begun[: -1 - steps]
    np.testing.assert_array_equal(step.first, expected)
    assert not (step.first & done).any()
    assert done.any(), "the case must see an end"


def test_first_steps_carry_no_reward(recorded):
    assert (recorded[0].reward[recorded[0].first] == 0).all()


def test_ends_are_told_apart(env, recorded):
    step = recorded[0]
    assert not (step.terminated & step.truncated).any()
    elapsed = step.extras["elapsed_steps"]
    assert (elapsed[step.truncated] == env.spec.max_episode_steps).all()
    assert elapsed.max() <= env.spec.max_episode_steps


def test_elapsed_steps_count_from_each_first(env, recorded):
    step = recorded[0]
    elapsed = step.extras["elapsed_steps"]
    if env.config["settings"].get("episodic_life"):
        # The game goes on after a lost life, and so does envpool's count.
        assert (elapsed[step.first] > 0).any()
        return
    assert (elapsed[step.first] == 0).all()
    going_on = ~step.first[1:]
    np.testing.assert_array_equal(elapsed[1:][going_on], elapsed[:-1][going_on] + 1)


def test_a_scan_of_groups_sees_what_python_sees(env, drive, actions_for, assert_equal):
    groups = env.make(2, num_envs=2 * env.num_envs, num_groups=2)
    actions = actions_for(env, 8)

    @jax.jit
    def chunk(states, actions):
        def beat(states, action):
            seen, after = [], []
            for group, state in zip(groups, states, strict=True):
                state, step = group.recv(state)
                seen.append(step)
                after.append(group.send(state, action))
            return tuple(after), tuple(seen)

        return jax.lax.scan(beat, states, actions)

    states, seen = chunk(tuple(group.init() for group in groups), jnp.asarray(actions))
    seen = jax.device_get(seen)
    jax.block_until_ready([group.recv(state)[0] for group, state in zip(groups, states, strict=True)])
    hosts = env.make(2, num_envs=2 * env.num_envs, num_groups=2, host=True)
    for group, host, steps in zip(groups, hosts, seen, strict=True):
        alone = jax.tree.map(lambda leaf: leaf[:-1], drive(host, actions))
        assert_equal(steps, alone)
        group.close()
        host.close()


def test_seeds_fix_everything_and_groups_differ(env, drive, actions_for, assert_equal):
    actions = actions_for(env, 8)
    played = []
    for seed in (1, 1, 2):
        groups = env.make(seed, num_envs=2 * env.num_envs, num_groups=2, host=True)
        played.append([drive(group, actions) for group in groups])
        for group in groups:
            group.close()
    assert_equal(*played[:2])
    if env.spec.name in ("probe-constant", "probe-delayed-reward", "probe-chosen-reward", "probe-corridor"):
        return  # these draw nothing
    different = [np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (played[0][0], played[0][1])), strict=True)]
    assert any(different)
    different = [np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (played[0], played[2])), strict=True)]
    assert any(different)


def test_the_cutoff_can_be_another(env, drive, actions_for):
    (group,) = env.make(0, max_episode_steps=1, num_groups=1, host=True)
    step = drive(group, actions_for(env, 5))
    group.close()
    assert group.spec.max_episode_steps == 1
    opening = len(env.config.get("opening", ()))
    expected = ([True] * (1 + opening) + [False]) * 3
    np.testing.assert_array_equal(step.first[:, 0], expected[: len(step.first)])
    np.testing.assert_array_equal((step.terminated | step.truncated)[:, 0], ~step.first[:, 0])


def test_config_is_json_and_names_the_recipe(env):
    assert json.loads(json.dumps(env.config)) == env.config


@pytest.mark.parametrize("host", [False, True])
def test_wrong_action_shapes_and_recipes_are_told(env, host):
    (group,) = env.make(0, num_groups=1, host=host)
    state, _ = group.recv(group.init())
    with pytest.raises(ValueError, match=r"must have shape \(3,"):
        group.send(state, np.zeros((env.num_envs + 1, *(env.spec.action_shape or ())), np.float32))
    group.close()
    with pytest.raises(ValueError, match="multiple of groups"):
        env.make(0, num_groups=env.num_envs + 1, host=host)
    with pytest.raises(ValueError, match="max_episode_steps must be an integer of at least 1, got 0"):
        env.make(0, max_episode_steps=0, host=host)
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got -1"):
        env.make(-1, host=host)
