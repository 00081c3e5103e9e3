"""Any optimiser that needs gradients and parameters alone behaves alike in all learners."""

import functools

import jax
import numpy as np
import optax
import probes
import pytest

from volvox import A3C, PPO, TD3, learn
from volvox.networks import MLP, ActorAndCritic, CategoricalMLP, QNetwork
from volvox.sparsity import Dynamic, sparse

RATE = 1e-3
ONE_UPDATE = {
    A3C: {"segment_length": 4, "updates_per_iteration": 1},
    PPO: {"segment_length": 4, "num_epochs": 1, "num_minibatches": 1, "rounds_per_iteration": 1},
    TD3: {"batch_size": 8, "random_timesteps": 8, "replay_size": 256, "timesteps_per_iteration": 16, "policy_delay": 1},
}
ONE_UPDATE[TD3]["updates_per_timestep"] = 0.25
RULE = Dynamic(sparsity=0.5, every=1_000)


def make(kind, **options):
    if kind is TD3:
        network, env = ActorAndCritic(MLP(1, (8,)), QNetwork((8,))), probes.target(size=1, num_envs=4)
    else:
        network, env = CategoricalMLP(2, (8,)), probes.corridor(num_envs=4)
    return learn(kind(**ONE_UPDATE[kind] | options), network, env)


INJECTED = optax.inject_hyperparams(optax.adam)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (A3C, {"optimizer": functools.partial(optax.adamw, weight_decay=0.0), "learning_rate": RATE}),
        pytest.param(TD3, {"optimizer": sparse(INJECTED, RULE), "learning_rate": RATE}, marks=pytest.mark.slow),
    ],
    ids=["partial", "sparse"],
)
def test_the_first_update_of_adam_is_the_learning_rate(kind, options):
    algorithm = make(kind, **options)
    before = algorithm.init(0)
    after, row = algorithm.step(before)
    algorithm.close()
    changes = jax.tree.map(lambda new, old: np.abs(new - old).max(), after.learning.params, before.learning.params)
    assert max(jax.tree.leaves(changes)) == pytest.approx(RATE * row["update"], rel=0.05)


def test_a_rate_in_the_state_follows_the_schedule_of_the_settings():
    options = {"optimizer": optax.inject_hyperparams(optax.adam), "learning_rate": RATE, "rounds_per_iteration": 3}
    algorithm = make(PPO, **options, anneal_timesteps=4 * 4 * 4)
    state, row = algorithm.step(algorithm.init(0))
    algorithm.close()
    kept = optax.tree.get(state.learning.optimizer, "learning_rate")
    assert row["learning_rate"] == pytest.approx(RATE * 0.5)
    assert float(kept) == pytest.approx(RATE * 0.5)
