"""Observations of several arrays, and every kind of action, in each algorithm."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import volvox as vx

LOW, HIGH = np.float32([-2, 0]), np.float32([4, 1])


def env_of(reward, **actions):
    """One timestep whose observation is two signs, as a dict with a tuple of arrays of two dtypes."""

    def observe(signs):
        return {"first": signs[0], "others": (signs[1:], jnp.uint8(signs[0] > 0))}

    return vx.envs.from_functions(
        lambda key: jax.random.rademacher(key, (2,), jnp.float32),
        lambda signs, action, key: (signs, reward(signs, action), True),
        observe,
        name="signs",
        num_envs=8,
        groups=2,
        max_episode_steps=2,
        **actions,
    )


def both_match(signs, action):
    """Action 1 of 2 where the first sign is positive, else 0; action 2 of 3 where the second is, else 1."""
    return jnp.mean((action == jnp.array([0, 1]) + (signs > 0)).astype(jnp.float32))


def closeness(signs, action):
    return -jnp.mean((action - jnp.where(signs > 0, HIGH, LOW)) ** 2)


CHOICES, BOX = {"num_choices": (2, 3)}, {"action_shape": (2,), "action_low": LOW, "action_high": HIGH}


def test_the_spec_describes_a_tree():
    spec = env_of(both_match, **CHOICES).spec
    first, other, flag = (jax.ShapeDtypeStruct(*x) for x in (((), np.float32), ((1,), np.float32), ((), np.uint8)))
    assert spec.observation == {"first": first, "others": (other, flag)}
    assert (spec.num_choices, spec.action_shape, spec.action.dtype, spec.continuous) == ((2, 3), (2,), np.int32, False)
    assert env_of(closeness, **BOX).spec.continuous


@pytest.mark.optimized
def test_a3c_learns_a_choice_in_each_component():
    """Random choices earn 5/12 on average, and the right ones 1."""
    network, env = vx.networks.CategoricalMLP(5, (32,)), env_of(both_match, **CHOICES)
    settings = vx.A3C(segment_length=2, learning_rate=1e-2, updates_per_iteration=400)
    algorithm = vx.learn(settings, network, env)
    state, row = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    assert row["training_mean"] > 0.9
    act = vx.Actor(algorithm.policy, algorithm.variables(state), env.spec)
    seen = {"first": np.float32([-1, 1]), "others": (np.float32([[1], [-1]]), np.uint8([0, 1]))}
    assert act(seen).tolist() == [[0, 2], [1, 1]]
    assert act(jax.tree.map(lambda x: x[0], seen)).tolist() == [0, 2]
    with pytest.raises(ValueError, match="observations of signs are PyTreeDef"):
        act(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"have shape \[\], \[1\], \[\], or \[B, ...\] as a batch; got"):
        act(seen | {"first": np.zeros((2, 2), np.float32)})
    with pytest.raises(ValueError, match="signs has observations of several arrays"):
        vx.exporting.export("signs.onnx", algorithm.policy, algorithm.variables(state), env.spec, config={})


@pytest.mark.slow
@pytest.mark.optimized
def test_td3_reaches_the_bounds_of_each_component():
    networks = vx.networks.ActorAndCritic(vx.networks.MLP(2, (32,)), vx.networks.QNetwork((32,)))
    td3 = {"random_timesteps": 200, "replay_size": 2_000, "batch_size": 64, "timesteps_per_iteration": 1_500}
    env = env_of(closeness, **BOX)
    algorithm = vx.learn(vx.TD3(learning_rate=3e-3, normalize_observations=True, **td3), networks, env)
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    act = vx.Actor(algorithm.policy, algorithm.variables(state), env.spec)
    seen = {"first": np.float32([-1, 1]), "others": (np.float32([[1], [-1]]), np.uint8([0, 1]))}
    np.testing.assert_allclose(act(seen), [[LOW[0], HIGH[1]], [HIGH[0], LOW[1]]], atol=0.5)
    with pytest.raises(ValueError, match="no continuous actions"):
        vx.learn(vx.TD3(**td3), networks, env_of(both_match, **CHOICES))


# Rows are the inputs, which are the first sign, the second, and whether the first is positive. The first two outputs of
# CHOICES belong to the first component. Continuous actions are cut at their bounds.
RIGHT = {
    "choices": [[0, 1, 0, 0, 0], [0, 0, 0, -1, 1], [0, 0, 0, 0, 0]],
    "box": [[100, 0], [0, 100], [0, 0]],
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByHand:
    """Every member is right."""

    kind: str
    population_size: int = 8

    def init(self, key, encoding):
        return jnp.int32(0)

    def ask(self, key, state, encoding):
        kernel = jnp.broadcast_to(jnp.float32(RIGHT[self.kind]), (self.population_size, 3, len(RIGHT[self.kind][0])))
        members = encoding.zeros(self.population_size)
        return vx.population.explicit(members | {"Dense_0": members["Dense_0"] | {"kernel": kernel}}), state

    def tell(self, key, state, population, evaluation, encoding):
        return state + 1, {}


@pytest.mark.parametrize(
    ("kind", "reward", "actions", "right"),
    [("choices", both_match, CHOICES, 1.0), ("box", closeness, BOX, 0.0)],
    ids=["choices", "box"],
)
def test_a_population_plays_any_actions(kind, reward, actions, right):
    env = env_of(reward, **actions)
    strategy = vx.evolution.from_ask_tell(ByHand(kind=kind), num_validation_episodes=4)
    network = vx.networks.MLP(env.spec.num_outputs, hidden=())
    algorithm = vx.evolve(strategy, network, env, noise=vx.population.Table(size=10_000))
    state, row = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    assert row["training_mean"] == row["validation_mean"] == pytest.approx(right, abs=1e-6)
    seen = jax.tree.map(lambda x: np.ones((4, *x.shape), x.dtype), env.spec.observation)
    action = vx.Actor(algorithm.policy, algorithm.variables(state), env.spec)(seen)
    assert action.shape == (4, 2)
    low, high = (LOW, HIGH) if env.spec.continuous else (0, np.array([1, 2]))
    assert ((action >= low) & (action <= high)).all()


def test_random_play_and_networks_of_another_size():
    env = env_of(both_match, **CHOICES)
    assert vx.play_randomly(env, num_episodes=200).mean == pytest.approx(5 / 12, abs=0.1)
    with pytest.raises(ValueError, match=r"requires \[B, 5\], one for each choice of the components, \[2, 3\]"):
        vx.evolve(vx.GA(), vx.networks.MLP(3, hidden=()), env)
    features = vx.networks.NextObservationNetwork((4,), (4,))
    networks = vx.networks.ActorAndCritic(vx.networks.MLP(2, (4,)), vx.networks.QNetwork((4,)), features)
    with pytest.raises(ValueError, match="signs has observations of several arrays; a representation predicts one"):
        vx.learn(vx.TD3(), networks, env_of(closeness, **BOX))
    with pytest.raises(ValueError, match="exactly one of num_actions, num_choices and action_shape"):
        env_of(both_match, num_actions=2, **CHOICES)
