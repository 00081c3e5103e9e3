import chex
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

import volvox as vx
from volvox.types import Policy

SPEC = probes.corridor(num_envs=1).spec


def counting():
    """Answers how many observations there were since the episode began."""
    return Policy(
        init=lambda key: jnp.float32(0),
        initial_state=lambda batch_size: jnp.zeros(batch_size),
        apply=lambda variables, observation, state: (state + 1, state + 1),
        sample=lambda key, output: output,
        mode=lambda output: output.astype(jnp.int32),
        config={},
    )


def test_an_actor_answers_as_its_policy():
    env = probes.corridor(num_envs=1)
    genotype = vx.networks.genotype(vx.networks.MLP(env.spec.num_actions, (4,)), env.spec)
    variables = genotype.prepare(genotype.policy.init(jax.random.key(0)))
    act = vx.Actor(genotype.policy, variables, env.spec)
    batch = np.random.default_rng(0).standard_normal((5, *env.spec.observation_shape)).astype(np.float32)
    output, _ = genotype.policy.apply(variables, jnp.asarray(batch), ())
    actions = act(batch)
    assert isinstance(actions, np.ndarray)
    chex.assert_trees_all_equal(actions, np.asarray(genotype.policy.mode(output)))
    assert act(batch[0]).shape == ()
    assert act(batch[0]) == actions[0]


def test_recurrent_state_is_kept_and_begins_anew():
    act = vx.Actor(counting(), (), SPEC)
    observation = np.zeros((3, *SPEC.observation_shape), np.float32)
    assert [act(observation).tolist() for _ in range(2)] == [[1, 1, 1], [2, 2, 2]]
    assert act(observation, first=np.array([False, True, False])).tolist() == [3, 1, 3]
    act.reset()
    assert act(observation).tolist() == [1, 1, 1]
    assert act(observation, first=True).tolist() == [1, 1, 1]


def test_wrong_observations_are_named():
    act = vx.Actor(counting(), (), SPEC)
    with pytest.raises(ValueError, match=r"have shape .*got \[3, 3, 3\]"):
        act(np.zeros((3, 3, 3)))
    act(np.zeros((2, *SPEC.observation_shape)))
    with pytest.raises(ValueError, match="call reset"):
        act(np.zeros((3, *SPEC.observation_shape)))


@pytest.mark.parametrize(("wrong", "message"), [(0.5, "got float64: do not scale"), (-300, "do not fit")])
def test_observations_that_a_cast_would_change_are_refused(wrong, message):
    act = vx.Actor(counting(), (), SPEC._replace(observation_dtype=np.uint8))
    act(np.full((1, *SPEC.observation_shape), 255, np.int64))
    with pytest.raises(ValueError, match=message):
        act(np.full((1, *SPEC.observation_shape), wrong))
