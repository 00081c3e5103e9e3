import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from gymnasium import spaces

import volvox as vx
from volvox.runs.export import export
from volvox.types import Policy

SPEC = probes.corridor(num_envs=1).spec


def counting():
    """Answers the number of observations since the episode began."""
    return Policy(
        init=lambda key: jnp.float32(0),
        initial_state=lambda batch_size: jnp.full(batch_size, 5.0),
        apply=lambda variables, observation, state: (state - 4, state + 1),
        sample=lambda key, output: output,
        mode=lambda output: output.astype(jnp.int32),
        config={},
    )


@pytest.mark.parametrize("suffix", [None, ".stablehlo", pytest.param(".onnx", marks=pytest.mark.slow)])
def test_recurrent_state_is_kept_and_begins_anew(suffix, tmp_path):
    act = vx.Actor(counting(), (), SPEC)
    if suffix is not None:
        act = vx.load(export(tmp_path / f"policy{suffix}", counting(), (), SPEC, config={}))
    observation = np.zeros((3, *SPEC.observation_shape), np.float32)
    assert [act(observation).tolist() for _ in range(2)] == [[1, 1, 1], [2, 2, 2]]
    assert act(observation, first=np.array([False, True, False])).tolist() == [3, 1, 3]
    act.reset()
    assert act(observation).tolist() == [1, 1, 1]
    assert act(observation, first=True).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [
        (np.float32, np.zeros((3, 3, 3))),
        (np.float32, np.zeros((1, 1, *SPEC.observation_shape))),
        (np.uint8, np.full((2, *SPEC.observation_shape), 0.5)),
        (np.uint8, np.full((2, *SPEC.observation_shape), -300)),
        (np.float32, np.zeros((3, *SPEC.observation_shape))),  # another batch size than before
    ],
)
def test_wrong_observations_are_refused(dtype, wrong):
    act = vx.Actor(counting(), (), SPEC._replace(observation_dtype=dtype))
    act(np.full((2, *SPEC.observation_shape), 255, np.int64))
    with pytest.raises(ValueError, match="observation"):
        act(wrong)


BETWEEN = spaces.Box(np.array([0.1, -0.3]), np.array([0.7, 0.9]), dtype=np.float64)  # bounds between float32 numbers
OBSERVATION = np.float32([0.5, -0.2, 1.0])


class Records(gymnasium.Env):
    """Shows one observation, and records the actions that it receives."""

    observation_space = spaces.Box(-1.0, 1.0, (3,))

    def __init__(self, action_space, received):
        self.action_space, self.received = action_space, received

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return OBSERVATION, {}

    def step(self, action):
        self.received.append(action)
        return OBSERVATION, 0.0, False, False, {}


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=-1),
        spaces.MultiBinary([3, 2]),
        spaces.MultiDiscrete([2, 3], start=[4, -2]),
        BETWEEN,
        spaces.Box(-1, 1, ()),
    ],
    ids=["discrete", "multi-binary", "multi-discrete", "box", "number"],
)
def test_an_actor_and_an_exported_policy_answer_with_the_actions_of_an_evaluation(space, tmp_path):
    received = []
    env = vx.envs.gymnasium(Records, num_envs=1, max_episode_steps=1, action_space=space, received=received)
    genotype = vx.networks.genotype(vx.networks.MLP(env.spec.num_outputs, ()), env.spec)
    variables = genotype.prepare(jax.tree.map(lambda x: 9 * x, jax.jit(genotype.policy.init)(jax.random.key(0))))
    vx.play(env, genotype.policy, variables, num_episodes=1)
    export(tmp_path / "policy.stablehlo", genotype.policy, variables, env.spec, config=env.config)
    for act in (vx.Actor(genotype.policy, variables, env.spec), vx.load(tmp_path / "policy.stablehlo")):
        action = act(OBSERVATION)
        assert space.contains(action)
        assert np.asarray(action).dtype == space.dtype
        np.testing.assert_array_equal(action, received[0])
        act.reset()
        batch = act(np.stack([-OBSERVATION, OBSERVATION]).astype(np.float64))
        assert batch.shape == (2, *space.shape)
        assert batch.dtype == space.dtype
        np.testing.assert_array_equal(batch[1], action)


def test_an_actor_takes_observations_as_the_environment_gives_them():
    spec = SPEC._replace(observation_shape=(5, 6, 2), observation_dtype=np.dtype(np.float32))
    network = vx.networks.genotype(vx.networks.MLP(2, ()), spec)
    act = vx.Actor(network.policy, network.prepare(jax.jit(network.policy.init)(jax.random.key(0))), spec)
    images = np.random.default_rng(0).standard_normal((4, 2, 5, 6))  # float64, channels first
    np.testing.assert_array_equal(act(images), act(images.transpose(0, 2, 3, 1).astype(np.float32)))
