"""Linear Markov decision processes: that they are ones, and what their episodes are worth, in NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from volvox.envs.linear_mdps import costly_exploration, hidden_laboratory

from volvox.envs import linear_mdps

D, S = 9, 2
COSTLY = costly_exploration(dimension=D, sparsity=S, signal=0.2, horizon=3)
HIDDEN = hidden_laboratory(dimension=7, door=3, horizon=3)


def costly_actions():
    for a in itertools.product([-1, 0, 1], repeat=D - 3):
        yield from [[0, *a]] if sum(map(abs, a)) <= S else []
        yield from [[1, *a]] if all(a) else []


def hidden_actions(state):
    signs = [0.5 * np.array(a) for a in itertools.product([-1, 1], repeat=5)]
    return [list(np.eye(5)), signs, [np.zeros(5)]][state]


def pairs(mdp):
    """All states and actions: (state, action)."""
    for state in range(mdp.initial.size):
        actions = costly_actions() if mdp is COSTLY else hidden_actions(state)
        yield from ((state, jnp.asarray(action, jnp.float32)) for action in actions)


@pytest.mark.parametrize("mdp", [COSTLY, HIDDEN], ids=["costly", "hidden"])
def test_rewards_and_transitions_are_linear_and_sparse(mdp):
    states, actions = zip(*pairs(mdp), strict=True)
    given = (jnp.array(states), jnp.stack(actions))
    features, rewards, after = (np.asarray(jax.vmap(f)(*given)) for f in (mdp.feature, mdp.reward, mdp.transition))
    assert ((after >= 0) & (after <= 1)).all()
    np.testing.assert_allclose(after.sum(axis=1), 1, atol=1e-6)
    assert ((rewards >= 0) & (rewards <= 1)).all()
    truth = np.zeros((features.shape[1], 1 + after.shape[1]))
    if mdp is COSTLY:  # 1, x, e, a
        truth[:3, 0] = 3 / 4, 1 / 4, -1 / 2
        truth[0, 1:], truth[3 : 3 + S, 1], truth[3 : 3 + S, 2] = 0.5, -0.2, 0.2
    else:  # 1, in the laboratory, a
        truth[1, 0] = 1
        truth[0, 3], truth[1, 2:], truth[2 + 3, 2:] = 1, (0.5, -0.5), (1, -1)
    np.testing.assert_allclose(features @ truth, np.column_stack([rewards, after]), atol=1e-6)


@pytest.mark.parametrize("mdp", [COSTLY, HIDDEN], ids=["costly", "hidden"])
def test_greedy_actions_are_the_best_of_all(mdp):
    every = list(pairs(mdp))
    for seed in range(6):
        weights = np.random.default_rng(seed).normal(size=D if mdp is COSTLY else 7).astype(np.float32)
        if seed % 2 and mdp is COSTLY:
            weights[2] -= 5  # or informative actions are always best
        for state in range(mdp.initial.size):
            action = mdp.greedy(weights, state)
            assert any(there == state and (action == one).all() for there, one in every)
            best = max(float(mdp.feature(there, one) @ weights) for there, one in every if there == state)
            assert mdp.feature(state, action) @ weights == pytest.approx(best, rel=1e-5)


def test_optimal_returns_are_known():
    def value(mdp):
        return float(linear_mdps.expected_return(mdp, lambda h, state: mdp.optimal(state)))

    # x is 1 with probability 1/2 at first, then 0.9; it earns 1/2, and to leave e out 1/2.
    assert value(COSTLY) == pytest.approx(0.5 * (0.5 + 0.9 + 0.9) + 1.5)
    assert value(HIDDEN) == pytest.approx(2)


def test_expected_returns_are_those_of_episodes():
    def explore(h, state):  # one of the actions that exploration may draw
        return jnp.append(1.0, jnp.tile(jnp.array([1.0, -1.0, -1.0]), 2))

    fixed = COSTLY._replace(explore=lambda key, state: explore(0, state))
    episodes = linear_mdps.explore(fixed, jax.random.key(0), 20_000)
    assert episodes.feature.shape == (20_000, 3, D)
    mean = episodes.reward.sum(axis=1).mean()
    assert linear_mdps.expected_return(fixed, explore) == pytest.approx(float(mean), abs=0.02)
    assert mean == pytest.approx(0.75, abs=0.02)  # the signs of the two entries that matter cancel


@pytest.mark.parametrize("mdp", [COSTLY, HIDDEN], ids=["costly", "hidden"])
def test_exploration_is_well_conditioned(mdp):
    episodes = linear_mdps.explore(mdp, jax.random.key(1), 4_000)
    features = np.concatenate(np.asarray(episodes.feature))
    assert np.linalg.eigvalsh(features.T @ features / len(features)).min() > 0.02


def test_without_the_door_exploration_opens_it_seldom():
    known = linear_mdps.explore(HIDDEN, jax.random.key(0), 2_000)
    unknown = linear_mdps.explore(hidden_laboratory(dimension=7, door=3, door_known=False), jax.random.key(0), 2_000)
    assert (known.next_state[:, 0] == 1).all()
    assert (unknown.next_state[:, 0] == 1).mean() == pytest.approx(1 / 5, abs=0.03)
    assert unknown.feature[:, 0, 2:].sum(axis=1).tolist() == [1.0] * 2_000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: costly_exploration(dimension=9, sparsity=2, signal=0.3), "signal=0.3: give a number from 0 to 0.25"),
        (lambda: costly_exploration(dimension=4, sparsity=2, signal=0.1), "dimension must be an integer of at least 5"),
        (lambda: hidden_laboratory(dimension=7, door=5), "there are 5 entries"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
