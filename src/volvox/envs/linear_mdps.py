"""Sparse linear Markov decision processes of finite horizon, on which learning can be compared with exact values.

Hao, Lattimore, Szepesvári & Wang 2020 (arXiv 2011.04018). Rewards and transition probabilities are linear in features
φ(x, a) `[d]`, of which only s matter; it is not known which. There are few states; the number of actions grows with d
(here: exponentially), so that actions are arrays rather than numbers.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from volvox._checks import integer, number
from volvox.types import Array


class LinearMDP(NamedTuple):
    """A Markov decision process with features.

    Attributes:
      horizon: H, timesteps of an episode.
      initial: float32 `[X]`: probabilities of states to begin with.
      feature: (state, action) -> float32 `[d]`.
      reward: (state, action) -> float32, linear in the feature.
      transition: (state, action) -> float32 `[X]`: probabilities of the next state, linear in the feature.
      greedy: (weights `[d]`, state) -> the action whose feature has the largest product with the weights.
      explore: (key, state) -> action of a policy that visits features in all directions.
      optimal: state -> an optimal action.
    """

    horizon: int
    initial: Array
    feature: Callable[[Array, Array], Array]
    reward: Callable[[Array, Array], Array]
    transition: Callable[[Array, Array], Array]
    greedy: Callable[[Array, Array], Array]
    explore: Callable[[Array, Array], Array]
    optimal: Callable[[Array], Array]


class Episodes(NamedTuple):
    """Episodes of a linear MDP.

    Attributes:
      feature: float32 `[E, H, d]`: of state and action.
      reward: float32 `[E, H]`.
      next_state: int32 `[E, H]`.
    """

    feature: Array
    reward: Array
    next_state: Array


def explore(mdp: LinearMDP, key: Array, num_episodes: int) -> Episodes:
    """Plays so many episodes with the policy that explores."""

    def step(state: Array, key: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        act_key, next_key = jax.random.split(key)
        action = mdp.explore(act_key, state)
        after = jax.random.choice(next_key, mdp.initial.size, p=mdp.transition(state, action)).astype(jnp.int32)
        return after, (mdp.feature(state, action), mdp.reward(state, action), after)

    def one(key: Array) -> Episodes:
        first_key, key = jax.random.split(key)
        first = jax.random.choice(first_key, mdp.initial.size, p=mdp.initial).astype(jnp.int32)
        return Episodes(*jax.lax.scan(step, first, jax.random.split(key, mdp.horizon))[1])

    return jax.vmap(one)(jax.random.split(key, num_episodes))


def expected_return(mdp: LinearMDP, act: Callable[[Array, Array], Array]) -> Array:
    """The expected return of a deterministic policy, (step, state) -> action, by backward induction."""
    states = jnp.arange(mdp.initial.size)

    def backwards(values: Array, h: Array) -> tuple[Array, None]:
        def one(state: Array) -> Array:
            action = act(h, state)
            return mdp.reward(state, action) + mdp.transition(state, action) @ values

        return jax.vmap(one)(states), None

    values, _ = jax.lax.scan(backwards, jnp.zeros(states.size), jnp.arange(mdp.horizon), reverse=True)
    return mdp.initial @ values


def costly_exploration(*, dimension: int, sparsity: int, signal: float | Array, horizon: int = 3) -> LinearMDP:
    """Two states, and informative actions that cost more than they earn.

    The construction of Hao, Lattimore & Wang 2020 (arXiv 2011.04020, sparse linear bandits), in which only costly
    actions tell much, with states and a horizon. An action is (e, a): informative with e = 1 and a in {-1, 1}^m, or not
    with e = 0 and a in {-1, 0, 1}^m of which at most `sparsity` entries are not 0. Features are `(1, x, e, a)` with
    d = m + 3, where x is -1 or 1. The reward is `(1 + x) / 4 + (1 - e) / 2`. The next x is 1 with probability
    `1/2 + signal * sum(a[:sparsity])`; nothing that learns may use that these entries come first.

    `explore` plays an informative action with probability 3/4, drawn evenly, and otherwise the action 0. The covariance
    of the features then has eigenvalues that do not fall with d.

    Args:
      dimension: d.
      sparsity: s, entries of a that matter.
      signal: What each of them adds to the probability, at most 1 / (2 s); not checked if it is an array.
      horizon: H.

    Raises:
      ValueError: A number out of range.
    """
    integer("sparsity", sparsity, low=1)
    integer("horizon", horizon, low=1)
    size = integer("dimension", dimension, low=3 + sparsity) - 3
    if not isinstance(signal, jax.Array):
        number("signal", signal, low=0, high=1 / (2 * sparsity))

    def transition(state: Array, action: Array) -> Array:
        up = 0.5 + signal * action[1 : 1 + sparsity].sum()
        return jnp.stack([1 - up, up])

    def greedy(weights: Array, state: Array) -> Array:
        of_e, of_a = weights[2], weights[3:]
        informative = jnp.where(of_a < 0, -1.0, 1.0)
        largest, places = jax.lax.top_k(jnp.abs(of_a), sparsity)
        plain = jnp.zeros(size).at[places].set(jnp.sign(of_a[places]))
        better = of_e + jnp.abs(of_a).sum() > largest.sum()
        return jnp.where(better, jnp.append(1.0, informative), jnp.append(0.0, plain))

    def explore(key: Array, state: Array) -> Array:
        e_key, a_key = jax.random.split(key)
        signs = jnp.append(1.0, jax.random.rademacher(a_key, (size,), jnp.float32))
        return jnp.where(jax.random.bernoulli(e_key, 0.75), signs, 0.0)

    return LinearMDP(
        horizon=horizon,
        initial=jnp.array([0.5, 0.5]),
        feature=lambda state, action: jnp.concatenate([jnp.array([1.0, 2.0 * state - 1.0]), action]),
        reward=lambda state, action: 0.5 * state + 0.5 * (1 - action[0]),
        transition=transition,
        greedy=greedy,
        explore=explore,
        optimal=lambda state: jnp.zeros(1 + size).at[1 : 1 + sparsity].set(1.0),
    )


def hidden_laboratory(*, dimension: int, door: int | Array, horizon: int = 3, door_known: bool = True) -> LinearMDP:
    """Only one of d actions leads to the state in which anything can be learned: unless it is known, regret is linear.

    The hardness of arXiv 2011.04018 in three states: start, laboratory, and a dull state without reward. Features are
    `(1, [x is the laboratory], a)`. At the start, a is one of the m = d - 2 unit vectors, and only that of the `door`
    leads to the laboratory; all others lead to the dull state, which is never left. In the laboratory, where each
    timestep is rewarded 1, a is in {-1/2, 1/2}^m, and its entry `door` says whether one stays: features of all
    directions, so there is a policy that collects well-conditioned data. It begins with the one action that has to be
    found.

    Args:
      dimension: d.
      door: The entry that matters, from 0.
      horizon: H, at least 2.
      door_known: `explore` begins with the right action; otherwise with any, drawn evenly.

    Raises:
      ValueError: A number out of range.
    """
    size = integer("dimension", dimension, low=3) - 2
    integer("horizon", horizon, low=2)
    if not isinstance(door, jax.Array) and integer("door", door, low=0) >= size:
        raise ValueError(f"door={door}: with dimension={dimension} there are {size} entries, counted from 0.")

    def of_state(state: Array, at_start: Array, in_laboratory: Array) -> Array:
        return jnp.select([state == 0, state == 1], [at_start, in_laboratory], jnp.zeros(size))

    def transition(state: Array, action: Array) -> Array:
        inside = 0.5 * (state == 1) + action[door]
        return jnp.stack([jnp.zeros(()), inside, 1 - inside])

    def explore(key: Array, state: Array) -> Array:
        first_key, key = jax.random.split(key)
        first = door if door_known else jax.random.randint(first_key, (), 0, size)
        return of_state(state, jax.nn.one_hot(first, size), 0.5 * jax.random.rademacher(key, (size,), jnp.float32))

    return LinearMDP(
        horizon=horizon,
        initial=jnp.array([1.0, 0.0, 0.0]),
        feature=lambda state, action: jnp.concatenate([jnp.stack([1.0, 1.0 * (state == 1)]), action]),
        reward=lambda state, action: 1.0 * (state == 1),
        transition=transition,
        greedy=lambda weights, state: of_state(
            state, jax.nn.one_hot(weights[2:].argmax(), size), jnp.where(weights[2:] < 0, -0.5, 0.5)
        ),
        explore=explore,
        optimal=lambda state: of_state(state, jax.nn.one_hot(door, size), 0.5 * jnp.ones(size)),
    )
