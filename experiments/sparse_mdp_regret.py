"""Regret of explore-then-commit by Lasso fitted Q-iteration (Hao et al. 2020, arXiv 2011.04018).

    python experiments/sparse_mdp_regret.py --run-dir runs/regret                           # against N
    python experiments/sparse_mdp_regret.py --episodes 8_000 --sparsities 1 2 4 8 --run-dir runs/regret_s
    python experiments/sparse_mdp_regret.py --model hidden --episodes 500 1_000 2_000 4_000 --run-dir runs/hidden

In a sparse linear Markov decision process, rewards and transition probabilities are linear in features φ(x, a) `[d]`,
of which only s matter, and it is not known which. A policy that collects well-conditioned data plays N₁ episodes.
Fitted Q-iteration on these, with the Lasso for a regression, gives the policy that plays all other episodes. With N₁ of
order (s N)^(2/3), the regret over N episodes is of order (s N)^(2/3) too. The number d of features enters through its
logarithm alone, so that d may be larger than N.

costly: the worst regret over a grid of signals, because the bound is one for all models. hidden: the model in which one
action has to be found first, with and without a policy that knows it. The script writes `regret.json`, with the slope
of the worst regret against N or s in logarithms if there are several values of N or s.
"""

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from launch import exit_code


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
    initial: jax.Array
    feature: Callable[[jax.Array, jax.Array], jax.Array]
    reward: Callable[[jax.Array, jax.Array], jax.Array]
    transition: Callable[[jax.Array, jax.Array], jax.Array]
    greedy: Callable[[jax.Array, jax.Array], jax.Array]
    explore: Callable[[jax.Array, jax.Array], jax.Array]
    optimal: Callable[[jax.Array], jax.Array]


class Episodes(NamedTuple):
    """Episodes of a linear MDP.

    Attributes:
      feature: float32 `[E, H, d]`: of state and action.
      reward: float32 `[E, H]`.
      next_state: int32 `[E, H]`.
    """

    feature: jax.Array
    reward: jax.Array
    next_state: jax.Array


def explore(mdp: LinearMDP, key: jax.Array, num_episodes: int) -> Episodes:
    """Plays episodes with the policy that explores."""

    def step(state: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
        act_key, next_key = jax.random.split(key)
        action = mdp.explore(act_key, state)
        after = jax.random.choice(next_key, mdp.initial.size, p=mdp.transition(state, action)).astype(jnp.int32)
        return after, (mdp.feature(state, action), mdp.reward(state, action), after)

    def one(key: jax.Array) -> Episodes:
        first_key, key = jax.random.split(key)
        first = jax.random.choice(first_key, mdp.initial.size, p=mdp.initial).astype(jnp.int32)
        return Episodes(*jax.lax.scan(step, first, jax.random.split(key, mdp.horizon))[1])

    return jax.vmap(one)(jax.random.split(key, num_episodes))


def expected_return(mdp: LinearMDP, act: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """The expected return of a deterministic policy, (step, state) -> action, by backward induction."""
    states = jnp.arange(mdp.initial.size)

    def backwards(values: jax.Array, h: jax.Array) -> tuple[jax.Array, None]:
        def one(state: jax.Array) -> jax.Array:
            action = act(h, state)
            return mdp.reward(state, action) + mdp.transition(state, action) @ values

        return jax.vmap(one)(states), None

    values, _ = jax.lax.scan(backwards, jnp.zeros(states.size), jnp.arange(mdp.horizon), reverse=True)
    return mdp.initial @ values


def costly_exploration(*, dimension: int, sparsity: int, signal: float | jax.Array, horizon: int = 3) -> LinearMDP:
    """Two states, and informative actions that cost more than they earn.

    The construction of Hao, Lattimore & Wang 2020 (arXiv 2011.04020, sparse linear bandits), in which only costly
    actions tell much, with states and a horizon. An action is (e, a): informative with e = 1 and a in {-1, 1}^m, or not
    with e = 0 and a in {-1, 0, 1}^m of which at most `sparsity` entries are not 0. Features are `(1, x, e, a)` with
    d = m + 3, where x is -1 or 1. The reward is `(1 + x) / 4 + (1 - e) / 2`. The next x is 1 with probability
    `1/2 + signal * sum(a[:sparsity])`; learners must not use the position of these entries.

    `explore` plays an informative action with probability 3/4, drawn evenly, and otherwise the action 0. The covariance
    of the features then has eigenvalues that do not fall with d.

    Args:
      dimension: d.
      sparsity: s, entries of a that matter.
      signal: Probability that each of them adds, at most 1 / (2 s).
      horizon: H.
    """
    size = dimension - 3

    def transition(state: jax.Array, action: jax.Array) -> jax.Array:
        up = 0.5 + signal * action[1 : 1 + sparsity].sum()
        return jnp.stack([1 - up, up])

    def greedy(weights: jax.Array, state: jax.Array) -> jax.Array:
        of_e, of_a = weights[2], weights[3:]
        informative = jnp.where(of_a < 0, -1.0, 1.0)
        largest, places = jax.lax.top_k(jnp.abs(of_a), sparsity)
        plain = jnp.zeros(size).at[places].set(jnp.sign(of_a[places]))
        better = of_e + jnp.abs(of_a).sum() > largest.sum()
        return jnp.where(better, jnp.append(1.0, informative), jnp.append(0.0, plain))

    def explore(key: jax.Array, state: jax.Array) -> jax.Array:
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


def hidden_laboratory(*, dimension: int, door: int | jax.Array, horizon: int = 3, door_known: bool = True) -> LinearMDP:
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
      door_known: Whether `explore` begins with the action of the door; otherwise it draws an action uniformly.
    """
    size = dimension - 2

    def of_state(state: jax.Array, at_start: jax.Array, in_laboratory: jax.Array) -> jax.Array:
        return jnp.select([state == 0, state == 1], [at_start, in_laboratory], jnp.zeros(size))

    def transition(state: jax.Array, action: jax.Array) -> jax.Array:
        inside = 0.5 * (state == 1) + action[door]
        return jnp.stack([jnp.zeros(()), inside, 1 - inside])

    def explore(key: jax.Array, state: jax.Array) -> jax.Array:
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


def lasso(
    features: jax.Array,
    targets: jax.Array,
    penalty: jax.Array | float,
    *,
    tolerance: float = 1e-4,
    max_passes: int = 1_000,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Minimises `||y - X w||² / (2 n) + penalty ||w||_1` over w `[d]`, without an intercept.

    Each coordinate in turn moves to where it is best while the others stay: `w_j = S(x_jᵀ r_j / n) / (||x_j||² / n)`,
    with r_j the residual without feature j and S the soft threshold at `penalty` (Friedman, Hastie & Tibshirani 2010,
    "Regularization Paths for Generalized Linear Models via Coordinate Descent", section 2). A pass leaves out those
    that would stay at 0 when it begins, which are nearly all where d is large. A column of zeros keeps the weight 0.

    Args:
      features: `[n, d]`, X; d may be far larger than n.
      targets: `[n]`, y.
      penalty: Weight of the L1 norm, at least 0.
      tolerance: Ends once the duality gap is at most this share of `||y||² / (2 n)`, the objective of w = 0.
      max_passes: Largest number of passes.

    Returns:
      (weights `[d]`; duality gap, by which the objective is at most above its minimum; passes over the coordinates).
    """
    n = targets.shape[0]
    features, targets = jnp.asarray(features), jnp.asarray(targets)
    columns = features.T  # so that a coordinate is one contiguous row
    squares = (columns**2).sum(axis=1) / n
    null = (targets**2).sum() / (2 * n)

    def move(j: jax.Array, weights: jax.Array, residual: jax.Array) -> tuple[jax.Array, jax.Array]:
        column, old = columns[j], weights[j]
        correlation = column @ residual / n + squares[j] * old
        shrunk = jnp.sign(correlation) * jnp.maximum(jnp.abs(correlation) - penalty, 0.0)
        new = jnp.where(squares[j] > 0, shrunk / squares[j], 0.0)
        return weights.at[j].set(new), residual + (old - new) * column

    def gap_of(weights: jax.Array, residual: jax.Array, correlation: jax.Array) -> jax.Array:
        """Primal objective minus that of the dual point to which the residual is scaled."""
        scale = jnp.minimum(1.0, penalty / jnp.maximum(jnp.abs(correlation).max(), 1e-30))
        primal = (residual**2).sum() / (2 * n) + penalty * jnp.abs(weights).sum()
        return primal - null + ((targets - scale * residual) ** 2).sum() / (2 * n)

    def state_of(weights: jax.Array, residual: jax.Array, passes: jax.Array) -> tuple[jax.Array, ...]:
        correlation = columns @ residual / n
        return weights, residual, correlation, gap_of(weights, residual, correlation), passes

    def unfinished(state: tuple[jax.Array, ...]) -> jax.Array:
        _, _, _, gap, passes = state
        return (gap > tolerance * null) & (passes < max_passes)

    def one_pass(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        weights, residual, correlation, _, passes = state
        moving = (weights != 0) | (jnp.abs(correlation) > penalty)
        (places,) = jnp.nonzero(moving, size=moving.size)
        weights, residual = jax.lax.fori_loop(0, moving.sum(), lambda i, x: move(places[i], *x), (weights, residual))
        return state_of(weights, residual, passes + 1)

    start = jnp.zeros(columns.shape[0], jnp.result_type(columns, targets))
    weights, _, _, gap, passes = jax.lax.while_loop(unfinished, one_pass, state_of(start, targets, jnp.int32(0)))
    return weights, gap, passes


def fitted_q_iteration(
    mdp: LinearMDP, episodes: Episodes, penalty: float = 0.3, tolerance: float = 1e-4, max_passes: int = 200
) -> jax.Array:
    """Weights `[H, d]` of Q-functions, from the last step of an episode to the first.

    Each step h has its own fold of the episodes, so that the targets `r + max_a φ(x', a)ᵀ w_(h+1)` do not depend on the
    noise of the transitions that are fitted to them; their values are clipped to [0, H]. As rewards and transitions are
    the same in each step, all H timesteps of a fold's episodes are used.

    Args:
      mdp: The decision process.
      episodes: As many as a multiple of the horizon.
      penalty: The Lasso's weight of the L1 norm is `penalty * sqrt(log(2 d) / n)` for n transitions. The horizon is
        always enough for rewards in [0, 1]; the standard deviation of the targets' noise suffices, and finds more.
      tolerance: Largest duality gap of the Lasso, relative to the objective at weights 0.
      max_passes: Largest number of passes of coordinate descent.
    """
    states = jnp.arange(mdp.initial.size)
    folds = jax.tree.map(lambda x: x.reshape(mdp.horizon, -1, *x.shape[2:]), episodes)
    _, n, d = folds.feature.shape
    norm_weight = penalty * jnp.sqrt(jnp.log(2 * d) / n)

    def backwards(values: jax.Array, fold: Episodes) -> tuple[jax.Array, jax.Array]:
        targets = fold.reward + values[fold.next_state]
        weights, _, _ = lasso(fold.feature, targets, norm_weight, tolerance=tolerance, max_passes=max_passes)
        best = jax.vmap(lambda state: mdp.feature(state, mdp.greedy(weights, state)) @ weights)(states)
        return jnp.clip(best, 0.0, mdp.horizon), weights

    return jax.lax.scan(backwards, jnp.zeros(states.size), folds, reverse=True)[1]


def explore_then_commit(
    mdp: LinearMDP, key: jax.Array, num_episodes: int, exploration: int, **options: Any
) -> tuple[jax.Array, jax.Array]:
    """Explores, fits, and commits to the greedy policy.

    Args:
      mdp: The decision process, with the policy that explores.
      key: Key of the episodes of exploration.
      num_episodes: N, including exploration.
      exploration: N₁, a multiple of the horizon.
      **options: Options of `fitted_q_iteration`.

    Returns:
      (regret of exploration, by its rewards; expected regret of the other episodes, computed from the true model).
    """
    episodes = explore(mdp, key, exploration)
    weights = fitted_q_iteration(mdp, episodes, **options)
    best = expected_return(mdp, lambda h, state: mdp.optimal(state))
    committed = expected_return(mdp, lambda h, state: mdp.greedy(weights[h], state))
    return exploration * best - episodes.reward.sum(), (num_episodes - exploration) * (best - committed)


_HORIZON = 3  # timesteps of an episode, of both models


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Regret in one kind of model.

    Attributes:
      model: The kind.
      episodes: N, one or several; each more than its exploration.
      sparsities: s, one or several; only of costly models.
      dimension: d, above all N.
      exponent: Exploration is (s M)^(2/3) (N / M)^exponent episodes, where M is the geometric mean of all N. The hidden
        model takes s = 2.
      signals: Number of signals: 1 / (2 s), and each the fourth root of 2 smaller than the one before; only of costly
        models.
      seeds: Runs of each model. There are no directories `seed-N`: one file has the regrets of all seeds.
      run_dir: Where the result goes.
    """

    model: Literal["costly", "hidden"] = "costly"
    episodes: tuple[int, ...] = (1_000, 2_000, 4_000, 8_000, 16_000)
    sparsities: tuple[int, ...] = (2,)
    dimension: int = 20_000
    exponent: float = 2 / 3
    signals: int = 9
    seeds: int = 10
    run_dir: str = "runs/regret"

    def __post_init__(self):
        if self.model == "hidden" and self.sparsities != (2,):
            raise ValueError(f"sparsities={self.sparsities} belong to model='costly'; leave them out")
        for n, s in itertools.product(self.episodes, self.sparsities):
            if not self.exploration(n, s) < n < self.dimension:
                raise ValueError(
                    f"episodes={n}: give more than the {self.exploration(n, s)} of exploration, and fewer than "
                    f"dimension={self.dimension}"
                )

    def exploration(self, n: int, s: int) -> int:
        """Episodes of exploration, of N: a multiple of the horizon."""
        middle = np.exp(np.mean(np.log(self.episodes)))
        wanted = max(round((s * middle) ** (2 / 3) * (n / middle) ** self.exponent), 1)
        return -(-wanted // _HORIZON) * _HORIZON


def regrets(settings: Settings, n: int, s: int) -> dict[str, list[float]]:
    """Regrets of N episodes, one a seed, for each signal, or with the door known and unknown."""
    d, exploration = settings.dimension, settings.exploration(n, s)

    def costly(key, signal):
        model = costly_exploration(dimension=d, sparsity=s, signal=signal, horizon=_HORIZON)
        return sum(explore_then_commit(model, key, n, exploration))

    def hidden(key, known):
        key, of_door = jax.random.split(key)
        door = jax.random.randint(of_door, (), 0, d - 2)
        model = hidden_laboratory(dimension=d, door=door, horizon=_HORIZON, door_known=known)
        return sum(explore_then_commit(model, key, n, exploration))

    if settings.model == "costly":
        signals = 2 ** (-np.arange(settings.signals) / 4) / (2 * s)
        run, cases = jax.jit(costly), {f"{x:.4f}": jnp.float32(x) for x in signals}
    else:
        run, cases = jax.jit(hidden, static_argnums=1), {"known": True, "unknown": False}
    keys = [jax.random.key(i) for i in range(settings.seeds)]
    return {name: [round(float(run(key, case)), 1) for key in keys] for name, case in cases.items()}


def slope(points: list[dict[str, Any]], along: str, cases: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The slope of the worst regret in logarithms, with a 95% bootstrap interval that resamples seeds.

    A seed is the same at all points, which makes their regrets alike, so a resample has the same seeds at each of them.
    With fewer than three seeds there is no interval. Where a point has no positive regret there is no slope, and where
    that is so in a resample there is no interval.

    Args:
      points: As in `regret.json`.
      along: N or s.
      cases: Names of the cases of which the worst is taken; default: all.
    """
    # Of each point: regrets [cases, seeds].
    found = [np.array([x for name, x in p["regrets"].items() if cases is None or name in cases]) for p in points]
    logs, rng = np.log([p[along] for p in points]), np.random.default_rng(0)

    def fitted(tables: list[np.ndarray]) -> float | None:
        worst = [table.mean(axis=1).max() for table in tables]
        return None if min(worst) <= 0 else float(np.polyfit(logs, np.log(worst), 1)[0])

    if (value := fitted(found)) is None:
        return {"slope": None, "interval_95": None}
    interval, (seeds,) = None, {table.shape[1] for table in found}
    resamples = [fitted([x[:, rows] for x in found]) for rows in rng.integers(seeds, size=(2_000, seeds))]
    drawn = [slope for slope in resamples if slope is not None]
    if seeds >= 3 and len(drawn) == len(resamples):
        interval = [round(float(x), 3) for x in np.percentile(drawn, [2.5, 97.5])]
    return {"slope": round(value, 3), "interval_95": interval}


def slopes(points: list[dict[str, Any]]) -> dict[str, Any]:
    """Slopes against N or s, whichever there are several of, and in the hidden model for each case by itself.

    Where there are several of both, or one of each, there is none.
    """
    along = [name for name in ("N", "s") if len({p[name] for p in points}) > 1]
    if len(along) != 1:
        return {}
    if "known" not in points[0]["regrets"]:
        return {along[0]: slope(points, along[0])}
    return {f"{along[0]}, {case}": slope(points, along[0], (case,)) for case in points[0]["regrets"]}


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    path, found, fitted = Path(settings.run_dir) / "regret.json", [], {}
    if path.exists():
        raise FileExistsError(f"{path} exists: give another --run-dir, or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    for n in settings.episodes:
        for s in settings.sparsities:
            found.append({"N": n, "s": s, "regrets": regrets(settings, n, s)})
            print(n, s, {name: round(np.mean(x)) for name, x in found[-1]["regrets"].items()}, flush=True)
            fitted = slopes(found)
            text = json.dumps({"settings": dataclasses.asdict(settings), "points": found, "slopes": fitted})
            path.write_text(text + "\n")
    print(fitted)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
