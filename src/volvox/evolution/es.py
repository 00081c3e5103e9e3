"""Evolution strategies with antithetic noise (OpenAI-ES; Salimans et al. 2017, arXiv 1703.03864).

A generation first plays the current parameters (validation), then pairs of members on either side of them, and moves
them along the noise, weighted by shaped fitness. What is followed, and which of several parameter vectors is moved, a
`Guide` says: returns here, novelty in `novelty.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from volvox._checks import integer
from volvox.evolution.schedules import Schedule, at, schedule
from volvox.evolution.scores import fitness, mean_length, num_nan, standard_error, summary
from volvox.evolution.shaping import Shaping, shaping
from volvox.evolution.strategy import Round, Strategy, play_test, unchanged
from volvox.loop.behaviors import Behavior, nothing
from volvox.optimizers import described, gradient_transformation
from volvox.population.combination import weighted_noise
from volvox.population.decoding import Encoding, Member, decode, draw_seeds
from volvox.types import Array, ArrayTree, Config, Evaluation, Population


class Guide(NamedTuple):
    """What an evolution strategy follows. Its functions are pure; its state is its own.

    Attributes:
      num_bases: M: parameter vectors, of which each generation moves one.
      behavior: What is recorded of each episode.
      init: () -> state.
      select: (key, state) -> int32: which of the M is moved next.
      objective: (state, evaluation of the pairs, shaping) -> shaped fitness float32 `[N]`.
      observe: (state, played bool `[M]`, mean returns `[M]`, evaluation of the M) -> (state, metrics).
    """

    num_bases: int
    behavior: Behavior
    init: Callable[[], ArrayTree]
    select: Callable[[Array, ArrayTree], Array]
    objective: Callable[[ArrayTree, Evaluation, Shaping], Array]
    observe: Callable[[ArrayTree, Array, Array, Evaluation], tuple[ArrayTree, dict[str, Array]]]
    config: Config


class ESState(NamedTuple):
    """M parameter vectors, and the best so far behind them.

    Attributes:
      bases: Parameters, leaves `[M + 1, ...]`; the last is the best.
      optimizer: The optimiser's state of each, leaves `[M, ...]`.
      expected_length: float32 `[M + 1]`: mean episode length of each in validation, steps.
      generation: int32: generations completed.
      moved: int32: the one that was moved last.
      elite: int32: the one with the best mean validation return of this generation.
      score: float32: that return.
      best_score: float32: the best of all generations; -inf before there is one.
    """

    bases: ArrayTree
    optimizer: ArrayTree
    expected_length: Array
    generation: Array
    moved: Array
    elite: Array
    score: Array
    best_score: Array
    guide: ArrayTree


def es(
    *,
    population_size: int,
    noise_std: float | str | Schedule = 0.02,
    learning_rate: float | str | Schedule = 0.01,
    optimizer: str | optax.GradientTransformation = "adam",
    optimizer_options: Mapping[str, Any] | None = None,
    l2_coefficient: float = 0.005,
    fitness_shaping: str = "centered_ranks",
    num_episodes: int = 1,
    num_validation_episodes: int = 30,
    num_test_episodes: int = 0,
) -> Strategy:
    """Evolution strategies with antithetic noise (OpenAI-ES).

    Published settings: population 5 000, noise 0.02, Adam with 0.01, L2 0.005, centred ranks.

    Args:
      population_size: N, members of a generation: N/2 pairs.
      noise_std: standard deviation of the noise, or a schedule of it (`volvox.evolution.schedule`).
      learning_rate: of an optimiser given by name, or a schedule of it, which counts updates.
      optimizer: name of an optimiser in `optax`, or one.
      optimizer_options: further arguments of an optimiser given by name.
      l2_coefficient: parameters times this are added to the gradient.
      fitness_shaping: centered_ranks, z_scores or raw.
      num_episodes: training episodes of each member; fitness is their mean.
      num_validation_episodes: episodes the parameters play before each update; their mean return is the score, and the
        parameters with the best score are the result.
      num_test_episodes: episodes the same parameters then play in the test environments; 0 for no test.

    Returns:
      `Strategy`.

    Raises:
      ValueError: a setting out of range, an odd population, an unknown shaping or optimiser.
    """
    return guided(
        returns_alone(),
        population_size=population_size,
        noise_std=noise_std,
        learning_rate=learning_rate,
        optimizer=optimizer,
        optimizer_options=optimizer_options,
        l2_coefficient=l2_coefficient,
        fitness_shaping=fitness_shaping,
        num_episodes=num_episodes,
        num_validation_episodes=num_validation_episodes,
        num_test_episodes=num_test_episodes,
    )


def returns_alone() -> Guide:
    """One parameter vector that follows returns."""
    return Guide(
        num_bases=1,
        behavior=nothing(),
        init=lambda: (),
        select=lambda key, state: jnp.int32(0),
        objective=lambda state, evaluation, shape: shape(fitness(evaluation)),
        observe=lambda state, played, scores, evaluation: (state, {}),
        config={"kind": "es"},
    )


def guided(
    guide: Guide,
    *,
    population_size: int,
    noise_std: float | str | Schedule,
    learning_rate: float | str | Schedule,
    optimizer: str | optax.GradientTransformation,
    optimizer_options: Mapping[str, Any] | None,
    l2_coefficient: float,
    fitness_shaping: str,
    num_episodes: int,
    num_validation_episodes: int,
    num_test_episodes: int,
) -> Strategy:
    """Evolution strategies that follow a guide; for the other arguments and errors see `es`."""
    n, e = integer("population_size", population_size, low=2), integer("num_episodes", num_episodes, low=1)
    num_validation = integer("num_validation_episodes", num_validation_episodes, low=1)
    num_test = integer("num_test_episodes", num_test_episodes, low=0)
    if n % 2:
        raise ValueError(
            f"population_size={n} is odd: noise is antithetic, members come in pairs; take {n - 1} or {n + 1}."
        )
    if not 0 <= l2_coefficient < float("inf"):
        raise ValueError(f"l2_coefficient={l2_coefficient}: give a finite number of at least 0.")
    shape, std, rate = (
        shaping(fitness_shaping),
        schedule("noise_std", noise_std),
        schedule("learning_rate", learning_rate),
    )
    m, best = guide.num_bases, guide.num_bases
    made = gradient_transformation(optimizer, lambda updates: at(rate, updates), dict(optimizer_options or {}))

    def row(tree: ArrayTree, i: Array | int | slice) -> ArrayTree:
        return jax.tree.map(lambda x: x[i], tree)

    def put(tree: ArrayTree, i: Array | int, value: ArrayTree) -> ArrayTree:
        return jax.tree.map(lambda x, new: x.at[i].set(new), tree, value)

    def init(key: Array, encoding: Encoding) -> ESState:
        seeds = draw_seeds(encoding, key, (m,))
        zeros = jax.tree.map(lambda x: jnp.zeros((1, *x.shape), x.dtype), encoding.like)

        def first(seed):
            return decode(encoding, zeros, Member(jnp.int32(0), seed, jnp.float32(0), jnp.bool_(True)))

        bases = jax.lax.map(first, jnp.concatenate([seeds, seeds[:1]]))
        return ESState(
            bases=bases,
            optimizer=jax.vmap(made.init)(row(bases, slice(0, m))),
            expected_length=jnp.zeros(m + 1),
            generation=jnp.int32(0),
            moved=jnp.int32(0),
            elite=jnp.int32(0),
            score=jnp.float32(-jnp.inf),
            best_score=jnp.float32(-jnp.inf),
            guide=guide.init(),
        )

    def validated(state: ESState) -> Array:
        """Which are played, bool `[M]`: all at first, then the one that was moved."""
        return (state.generation == 0) | (jnp.arange(m) == state.moved)

    def ask_current(key: Array, state: ESState, encoding: Encoding) -> Population:
        del key, encoding
        episodes = jnp.where(validated(state), jnp.int32(num_validation), 0)
        return unchanged(state.bases, jnp.arange(m, dtype=jnp.int32), episodes, state.expected_length)

    def tell_current(state: ESState, population: Population, evaluation: Evaluation, encoding: Encoding):
        del population, encoding
        played, scores, lengths = validated(state), fitness(evaluation), mean_length(evaluation)
        winner = jnp.argmax(scores)
        better = scores[winner] > state.best_score
        lengths = jnp.where(played, lengths, state.expected_length[:m])
        best_length = jnp.where(better, lengths[winner], state.expected_length[best])
        bases = jax.lax.cond(
            better, lambda bases: put(bases, best, row(bases, winner)), lambda bases: bases, state.bases
        )
        guide_state, metrics = guide.observe(state.guide, played, scores, evaluation)
        metrics |= {
            "elite_score": scores[winner],
            "elite_standard_error": standard_error(evaluation.returns[winner]),
            "elite_is_new": better,
            "validation_num_nan": num_nan(evaluation),
        }
        state = state._replace(
            bases=bases,
            expected_length=jnp.append(lengths, best_length),
            elite=winner.astype(jnp.int32),
            score=scores[winner],
            best_score=jnp.maximum(scores[winner], state.best_score),
            guide=guide_state,
        )
        return state, metrics

    def ask_pairs(key: Array, state: ESState, encoding: Encoding) -> Population:
        key_select, key_seed = jax.random.split(key)
        base = guide.select(key_select, state.guide)
        seeds = jnp.repeat(draw_seeds(encoding, key_seed, (n // 2,)), 2)
        return Population(
            bases=state.bases,
            parent=jnp.full(n, base, jnp.int32),
            seed=seeds,
            scale=at(std, state.generation) * jnp.tile(jnp.array([1.0, -1.0]), n // 2),
            initial=jnp.zeros(n, bool),
            episodes=jnp.full(n, e, jnp.int32),
            priority=jnp.full(n, state.expected_length[base]),
        )

    def tell_pairs(state: ESState, population: Population, evaluation: Evaluation, encoding: Encoding):
        base = population.parent[0]
        shaped = guide.objective(state.guide, evaluation, shape)
        params = row(state.bases, base)
        ascent = weighted_noise(encoding, population.seed[::2], (shaped[::2] - shaped[1::2]) / n)
        gradient = jax.tree.map(lambda up, x: l2_coefficient * x - up, ascent, params)
        updates, optimizer_state = made.update(gradient, row(state.optimizer, base), params)
        moved = optax.apply_updates(params, updates)
        metrics = summary(evaluation) | {
            "gradient_norm": optax.tree.norm(gradient),
            "update_norm": optax.tree.norm(updates),
            "parameter_norm": optax.tree.norm(moved),
            "noise_std": at(std, state.generation),
        }
        state = state._replace(
            bases=put(state.bases, base, moved),
            optimizer=put(state.optimizer, base, optimizer_state),
            generation=state.generation + 1,
            moved=base,
        )
        return state, metrics

    rounds = (
        Round("validation", m, num_validation, ask_current, tell_current),
        # Before what was validated is moved.
        *((play_test(num_test, lambda state: state.elite),) if num_test else ()),
        Round("training", n, e, ask_pairs, tell_pairs),
    )
    named = isinstance(optimizer, str)
    return Strategy(
        init=init,
        rounds=rounds,
        num_bases=m + 1,
        survivors=None,
        split=lambda state: (state.bases, state._replace(bases=())),
        join=lambda bases, rest: rest._replace(bases=bases),
        elite=best,
        score=lambda state: state.score,
        behavior=guide.behavior,
        config={
            **guide.config,
            "population_size": n,
            "noise_std": list(std),
            "optimizer": described(optimizer),
            "optimizer_options": dict(optimizer_options or {}),
            "learning_rate": list(rate) if named else None,
            "l2_coefficient": float(l2_coefficient),
            "fitness_shaping": fitness_shaping,
            "num_episodes": e,
            "num_validation_episodes": num_validation,
            "num_test_episodes": num_test,
        },
    )
