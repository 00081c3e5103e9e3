"""A learner from outside of the package, on the base of on-policy learners."""

import probes
import reinforce

import volvox as vx


def test_reinforce_learns_what_to_do():
    """Random answers earn 0 on average, the right ones 1."""
    env, network = probes.matched_reward(num_envs=16, groups=2), vx.networks.CategoricalMLP(2, (16,))
    algorithm = vx.learn(reinforce.Reinforce(updates_per_iteration=150), network, env)
    state, row = algorithm.step(algorithm.init(0))
    algorithm.close()
    assert row["training_mean"] > 0.9
    assert row["update"] == 150
    assert vx.play(env, algorithm.policy, algorithm.variables(state), num_episodes=8).mean == 1.0
