"""The deep genetic algorithm, the same with novelty, and random search (Such et al. 2017, arXiv 1712.06567).

A generation is all new offspring: each copies a parent drawn uniformly and adds noise. The best of them play
validation episodes against the elite so far; parents of the next generation are the best of training, the elite among
them; or, with novelty, the most novel.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from volvox._checks import integer
from volvox.evolution import archive as archives
from volvox.evolution.archive import Archive, check_archive, novelty
from volvox.evolution.schedules import Schedule, at, schedule
from volvox.evolution.scores import fitness, mean_length, num_nan, standard_error, summary
from volvox.evolution.strategy import Round, Strategy, play_test
from volvox.loop.behaviors import Behavior, nothing
from volvox.population.decoding import Encoding, Member, decode_many, draw_seeds
from volvox.types import Array, ArrayTree, Evaluation, Population


class MostNovel(NamedTuple):
    """What the genetic algorithm keeps for novelty; T parents.

    Attributes:
      parents: The most novel of training, most novel first, each field `[T]`.
      lengths: float32 `[T]`: their mean episode lengths, steps.
    """

    archive: Archive
    parents: Member
    lengths: Array


class GAState(NamedTuple):
    """T parents, the elite behind them, and what one round leaves for the next. K = max(T, elite candidates).

    Attributes:
      bases: Parameters, leaves `[T + 1, ...]`; the last is the elite.
      expected_length: float32 `[T + 1]`: mean episode length of each base in training, steps.
      generation: int32: generations completed.
      elite_score: float32: the elite's mean validation return; -inf before there is one.
      top: The best of training, best first, each field `[K]`.
      top_length: float32 `[K]`: their mean episode lengths, steps.
      survivors: How each base `[T + 1]` came from the bases before.
    """

    bases: ArrayTree
    expected_length: Array
    generation: Array
    elite_score: Array
    top: Member
    top_length: Array
    survivors: Member
    novel: MostNovel | tuple[()]


def ga(
    *,
    population_size: int,
    num_parents: int,
    mutation_std: float | str | Schedule,
    num_elite_candidates: int = 10,
    num_validation_episodes: int = 30,
    num_test_episodes: int = 0,
    num_episodes: int = 1,
) -> Strategy:
    """The deep genetic algorithm with truncation selection.

    Published settings: population 1 000, 20 parents, power 0.002, 10 candidates, 30 validation and 200 test episodes.

    Args:
      population_size: N, offspring in each generation.
      num_parents: T, the best of a generation, from which the next descends.
      mutation_std: power of the noise added to every parameter, or a schedule of it (`volvox.evolution.schedule`).
      num_elite_candidates: how many play for elite: the elite so far, and the best of training; at least 2.
      num_validation_episodes: episodes of each candidate; the best mean return is the elite.
      num_test_episodes: episodes the elite then plays in the test environments; 0 for no test.
      num_episodes: training episodes of each offspring; fitness is their mean.

    Returns:
      `Strategy`.

    Raises:
      ValueError: a setting out of range, or more parents or candidates than members.
    """
    integer("num_parents", num_parents, low=1)
    return _make(
        kind="ga",
        population_size=population_size,
        num_parents=num_parents,
        mutation_std=schedule("mutation_std", mutation_std),
        num_elite_candidates=num_elite_candidates,
        num_validation_episodes=num_validation_episodes,
        num_test_episodes=num_test_episodes,
        num_episodes=num_episodes,
    )


def novelty_ga(
    *,
    behavior: Behavior,
    population_size: int,
    num_parents: int,
    mutation_std: float | str | Schedule,
    num_neighbors: int = 10,
    archive_size: int = 10_000,
    num_archived: int = 1,
    num_elite_candidates: int = 10,
    num_validation_episodes: int = 30,
    num_test_episodes: int = 0,
    num_episodes: int = 1,
) -> Strategy:
    """Novelty search with the deep genetic algorithm (GA-NS): parents are the most novel members, whatever they score.

    Novelty is the mean distance to the nearest behaviours of the archive and of the generation itself. The elite, which
    is the result, is chosen by returns as in `ga`, but it is no parent for that.

    Args:
      behavior: what episodes are compared by.
      population_size: as in `ga`.
      num_parents: T, the most novel of a generation, from which the next descends.
      mutation_std: as in `ga`.
      num_neighbors: k, of the nearest behaviours.
      archive_size: behaviours the archive holds; then the oldest make way.
      num_archived: members of each generation, drawn at random, whose behaviour is archived; about a hundredth of the
        population where it was published.
      num_elite_candidates: as in `ga`.
      num_validation_episodes: as in `ga`.
      num_test_episodes: as in `ga`.
      num_episodes: as in `ga`; behaviours are those of the first.

    Returns:
      `Strategy`.

    Raises:
      ValueError: as `ga`; an archive that cannot hold k behaviours, fewer than k other members, a behaviour of size 0.
    """
    integer("num_parents", num_parents, low=1)
    check_archive(behavior, archive_size, num_neighbors, at_least=integer("num_archived", num_archived, low=1))
    for name, value in (("num_neighbors", num_neighbors), ("num_archived", num_archived)):
        if value >= population_size:
            raise ValueError(
                f"{name}={value} must be below population_size={population_size}: neighbours are other members of a "
                "generation, and only some of its members are archived."
            )
    return _make(
        kind="novelty_ga",
        behavior=behavior,
        num_neighbors=num_neighbors,
        archive_size=archive_size,
        num_archived=num_archived,
        population_size=population_size,
        num_parents=num_parents,
        mutation_std=schedule("mutation_std", mutation_std),
        num_elite_candidates=num_elite_candidates,
        num_validation_episodes=num_validation_episodes,
        num_test_episodes=num_test_episodes,
        num_episodes=num_episodes,
    )


def random_search(
    *,
    population_size: int,
    num_elite_candidates: int = 10,
    num_validation_episodes: int = 30,
    num_test_episodes: int = 0,
    num_episodes: int = 1,
) -> Strategy:
    """Random search: the genetic algorithm's loop without selection; every member is a fresh initialisation.

    Args:
      population_size: N, members of each generation.
      num_elite_candidates: as in `ga`.
      num_validation_episodes: as in `ga`.
      num_test_episodes: as in `ga`.
      num_episodes: as in `ga`.

    Returns:
      `Strategy`.

    Raises:
      ValueError: a setting out of range.
    """
    return _make(
        kind="random_search",
        population_size=population_size,
        num_parents=0,
        mutation_std=None,
        num_elite_candidates=num_elite_candidates,
        num_validation_episodes=num_validation_episodes,
        num_test_episodes=num_test_episodes,
        num_episodes=num_episodes,
    )


def _take(tree, index):
    return jax.tree.map(lambda x: x[index], tree)


def _append(tree, last):
    return jax.tree.map(lambda x, y: jnp.concatenate([x, jnp.asarray(y, x.dtype)[None]]), tree, last)


def _make(*, kind: str, behavior: Behavior | None = None, **settings) -> Strategy:
    lowest = {"num_parents": 0, "num_elite_candidates": 2, "num_test_episodes": 0}
    for name, value in settings.items():
        if name != "mutation_std":
            settings[name] = integer(name, value, low=lowest.get(name, 1))
    n, t, std = settings["population_size"], settings["num_parents"], settings["mutation_std"]
    c, e = settings["num_elite_candidates"], settings["num_episodes"]
    num_validation, num_test = settings["num_validation_episodes"], settings["num_test_episodes"]
    if t > n:
        raise ValueError(f"num_parents={t} exceeds population_size={n}; parents are the best members of a generation.")
    if c > n:
        raise ValueError(f"num_elite_candidates={c} exceeds population_size={n}; candidates are members of it.")
    k = max(t, c)
    elite = t  # its place among the bases
    carried = Member(jnp.int32(elite), jnp.int32(0), jnp.float32(0), jnp.bool_(False))

    def no_member(shape):
        return Member(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32), jnp.zeros(shape), jnp.ones(shape, bool))

    def init(key: Array, encoding: Encoding) -> GAState:
        bases = jax.tree.map(lambda x: jnp.zeros((t + 1, *x.shape), x.dtype), encoding.like)
        survivors = no_member(t + 1)
        if encoding.rank is not None:
            if t == 0:
                raise ValueError(
                    f"{kind} knows first ancestors only, which share no base: low-rank noise has no use for it."
                )
            # Children share bases from the first generation on.
            survivors = survivors._replace(seed=draw_seeds(encoding, key, (t + 1,)))
            bases = decode_many(encoding, bases, survivors)
        return GAState(
            bases=bases,
            expected_length=jnp.zeros(t + 1),
            generation=jnp.int32(0),
            elite_score=jnp.float32(-jnp.inf),
            top=no_member(k),
            top_length=jnp.zeros(k),
            survivors=survivors,
            novel=()
            if behavior is None
            else MostNovel(archives.empty(settings["archive_size"], behavior.size), no_member(t), jnp.zeros(t)),
        )

    def ask_offspring(key: Array, state: GAState, encoding: Encoding) -> Population:
        key_parent, key_seed = jax.random.split(key)
        initial = jnp.full(n, t == 0) | ((state.generation == 0) & (encoding.rank is None))
        parent = jax.random.randint(key_parent, (n,), 0, max(t, 1), jnp.int32)
        return Population(
            bases=state.bases,
            parent=parent,
            seed=draw_seeds(encoding, key_seed, (n,)),
            scale=jnp.full(n, 0.0 if std is None else at(std, state.generation), jnp.float32),
            initial=initial,
            episodes=jnp.full(n, e, jnp.int32),
            priority=jnp.where(initial, 0.0, state.expected_length[parent]),
        )

    def tell_offspring(state: GAState, population: Population, evaluation: Evaluation, encoding: Encoding):
        del encoding
        scores, lengths = fitness(evaluation), mean_length(evaluation)
        best = jnp.argsort(-scores, stable=True)[:k]
        members = Member(population.parent, population.seed, population.scale, population.initial)
        metrics = summary(evaluation) | {"parents_mean": scores[best[: max(t, 1)]].mean()}
        state = state._replace(top=_take(members, best), top_length=lengths[best])
        if not isinstance(state.novel, MostNovel):
            return state, metrics
        most_novel, told = tell_novelty(state.novel, members, lengths, evaluation)
        return state._replace(novel=most_novel), metrics | told

    def tell_novelty(state: MostNovel, members: Member, lengths: Array, evaluation: Evaluation):
        archive, behaviors, played = state.archive, evaluation.behaviors[:, 0], evaluation.valid[:, 0]
        others = jnp.concatenate([archive.behaviors, behaviors])
        in_archive = jnp.broadcast_to(archives.held(archive), (n, settings["archive_size"]))
        held = jnp.concatenate([in_archive, played & ~jnp.eye(n, dtype=bool)], axis=1)
        values = jnp.where(played, novelty(behaviors, others, held, settings["num_neighbors"]), -jnp.inf)
        best = jnp.argsort(-values, stable=True)[:t]
        # Seeds are drawn at random, so the lowest are a random choice.
        archived = jnp.argsort(members.seed)[: settings["num_archived"]]
        archive = archives.add(archive, behaviors[archived], played[archived])
        metrics = {
            "parents_mean": fitness(evaluation)[best].mean(),
            "novelty_best": values[best[0]],
            "novelty_mean": jnp.where(jnp.isfinite(values), values, 0.0).mean(),
            "archive_size": archives.held(archive).sum(),
        }
        return MostNovel(archive, _take(members, best), lengths[best]), metrics

    def candidates(state: GAState) -> tuple[Member, Array]:
        """`[C]`: the elite, once there is one, and the best of training behind it; and their expected lengths."""

        def behind(old, new):
            later = jnp.concatenate([jnp.asarray(old, new.dtype)[None], new[: c - 1]])
            return jnp.where(state.generation > 0, later, new[:c])

        return (
            jax.tree.map(behind, carried, state.top),
            behind(state.expected_length[elite], state.top_length),
        )

    def ask_candidates(key: Array, state: GAState, encoding: Encoding) -> Population:
        del key, encoding
        members, length = candidates(state)
        return Population(state.bases, *members, episodes=jnp.full(c, num_validation, jnp.int32), priority=length)

    def tell_candidates(state: GAState, population: Population, evaluation: Evaluation, encoding: Encoding):
        del population
        scores = fitness(evaluation)
        winner = jnp.argmax(scores)  # the first of equals: the elite gives way only to a better one
        had_elite = state.generation > 0
        remains = had_elite & (winner == 0)
        rank = winner - had_elite  # the winner's place in training
        members, member_lengths = candidates(state)
        elite_member, elite_length = _take(members, winner), member_lengths[winner]
        if isinstance(state.novel, MostNovel):
            survivors = _append(state.novel.parents, elite_member)
            lengths = jnp.concatenate([state.novel.lengths, elite_length[None]])
        elif t > 0:
            parents, lengths = _take(state.top, slice(0, t)), state.top_length[:t]
            # The elite takes the last parent's place unless it is one of the parents.
            outside = remains | (rank >= t)
            last = (jnp.arange(t) == t - 1) & outside
            parents = jax.tree.map(lambda one, all_: jnp.where(last, one, all_), elite_member, parents)
            lengths = jnp.where(last, elite_length, lengths)
            survivors = _append(parents, elite_member)
            lengths = jnp.concatenate([lengths, elite_length[None]])
        else:
            survivors = jax.tree.map(lambda x: x[None], elite_member)
            lengths = elite_length[None]
        metrics = {
            "elite_score": scores[winner],
            "elite_standard_error": standard_error(evaluation.returns[winner]),
            "elite_is_new": ~remains,
            "candidates_mean": jnp.where(jnp.isfinite(scores), scores, 0.0).mean(),
            "validation_num_nan": num_nan(evaluation),
        }
        state = state._replace(
            bases=decode_many(encoding, state.bases, survivors),
            expected_length=lengths,
            generation=state.generation + 1,
            elite_score=scores[winner],
            survivors=survivors,
        )
        return state, metrics

    rounds = [
        Round("training", n, e, ask_offspring, tell_offspring),
        Round("validation", c, num_validation, ask_candidates, tell_candidates),
    ]
    if num_test:
        rounds.append(play_test(num_test, lambda state: jnp.int32(elite)))
    return Strategy(
        init=init,
        rounds=tuple(rounds),
        num_bases=t + 1,
        survivors=lambda state: state.survivors,
        split=lambda state: (state.bases, state._replace(bases=())),
        join=lambda bases, rest: rest._replace(bases=bases),
        elite=elite,
        score=lambda state: state.elite_score,
        behavior=nothing() if behavior is None else behavior,
        config={
            "kind": kind,
            **settings,
            "mutation_std": None if std is None else list(std),
            **({} if behavior is None else {"behavior": dict(behavior.config)}),
        },
    )
