"""Novelty search with evolution strategies: NS-ES, NSR-ES, NSRA-ES (Conti et al. 2018, arXiv 1712.06560).

A small meta-population takes turns; fitness is wholly or partly the distance of a behaviour to those in an archive.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from volvox._checks import integer
from volvox.evolution import archive as archives
from volvox.evolution.archive import Archive, check_archive, novelty_in
from volvox.evolution.es import Guide, guided
from volvox.evolution.schedules import Schedule
from volvox.evolution.scores import fitness, mean_over_episodes
from volvox.evolution.shaping import Shaping
from volvox.evolution.strategy import Strategy
from volvox.loop.behaviors import Behavior
from volvox.types import Array, Evaluation


class Novelty(NamedTuple):
    """The state of novelty search with M parameter vectors.

    Attributes:
      behaviors: float32 `[M, D]`: of each when it was last validated.
      reward_weight: float32: the share of returns in what is followed; the rest is novelty.
      best_score: float32.
      stagnant: int32: generations since the best score or the weight last changed.
    """

    archive: Archive
    behaviors: Array
    reward_weight: Array
    best_score: Array
    stagnant: Array


def novelty_es(
    *,
    kind: Literal["ns_es", "nsr_es", "nsra_es"],
    behavior: Behavior,
    population_size: int,
    num_bases: int = 5,
    num_neighbors: int = 10,
    archive_size: int = 10_000,
    reward_weight_step: float = 0.05,
    patience: int = 50,
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
    """Novelty search with evolution strategies.

    Published settings: meta-population 3 (Atari) or 5, ten neighbours, weight steps of 0.05 after 50 generations.

    Args:
      kind: what is followed: `ns_es` novelty alone; `nsr_es` novelty and fitness, evenly; `nsra_es` fitness at first,
        then more novelty where the best score stagnates, and more fitness where it improves.
      behavior: what episodes are compared by.
      population_size: as in `es`.
      num_bases: M, members of the meta-population. Each generation moves one, drawn in proportion to its novelty.
      num_neighbors: k; novelty is the mean distance to the k nearest behaviours of the archive.
      archive_size: behaviours the archive holds; then the oldest make way. Each validation adds one.
      reward_weight_step: how much `nsra_es` changes the weight of fitness at once.
      patience: generations without a better score after which `nsra_es` lowers that weight.
      noise_std: as in `es`.
      learning_rate: as in `es`; a schedule counts the updates of each member of the meta-population apart.
      optimizer: as in `es`.
      optimizer_options: as in `es`.
      l2_coefficient: as in `es`.
      fitness_shaping: as in `es`, of fitness and of novelty.
      num_episodes: as in `es`; novelty is that of each episode, averaged.
      num_validation_episodes: as in `es`; the first of them gives the behaviour.
      num_test_episodes: as in `es`.

    Returns:
      `Strategy`.

    Raises:
      ValueError: as `es`; an archive that cannot hold k behaviours, a behaviour of size 0, an unknown kind.
    """
    if kind not in ("ns_es", "nsr_es", "nsra_es"):
        raise ValueError(f"kind={kind!r} is unknown; there are ns_es, nsr_es and nsra_es.")
    if not 0 < reward_weight_step <= 1:
        raise ValueError(f"reward_weight_step={reward_weight_step}: give a number above 0 and up to 1.")
    check_archive(behavior, archive_size, num_neighbors, at_least=integer("num_bases", num_bases, low=1))
    integer("patience", patience, low=1)
    guide = _novelty(kind, behavior, num_bases, num_neighbors, archive_size, float(reward_weight_step), patience)
    return guided(
        guide,
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


def _novelty(
    kind: str,
    behavior: Behavior,
    num_bases: int,
    num_neighbors: int,
    archive_size: int,
    reward_weight_step: float,
    patience: int,
) -> Guide:
    adaptive = kind == "nsra_es"
    reward_weight = {"ns_es": 0.0, "nsr_es": 0.5, "nsra_es": 1.0}[kind]

    def init() -> Novelty:
        return Novelty(
            archive=archives.empty(archive_size, behavior.size),
            behaviors=jnp.zeros((num_bases, behavior.size)),
            reward_weight=jnp.float32(reward_weight),
            best_score=jnp.float32(-jnp.inf),
            stagnant=jnp.int32(0),
        )

    def select(key: Array, state: Novelty) -> Array:
        novelty = jnp.maximum(novelty_in(state.archive, state.behaviors, num_neighbors), 0.0)
        # Evenly where nothing is novel.
        return jax.random.categorical(key, jnp.where(novelty.sum() > 0, jnp.log(novelty), 0.0)).astype(jnp.int32)

    def objective(state: Novelty, evaluation: Evaluation, shape: Shaping) -> Array:
        novelty = mean_novelty(state.archive, evaluation, num_neighbors)
        return state.reward_weight * shape(fitness(evaluation)) + (1 - state.reward_weight) * shape(novelty)

    def observe(state: Novelty, played: Array, scores: Array, evaluation: Evaluation):
        behaviors = jnp.where(played[:, None], evaluation.behaviors[:, 0], state.behaviors)
        improved = scores.max() > state.best_score
        stagnant = jnp.where(improved, 0, state.stagnant + 1)
        weight = state.reward_weight
        if adaptive:
            lower = stagnant >= patience
            weight = weight + reward_weight_step * (improved.astype(jnp.float32) - lower)
            weight = jnp.clip(weight, 0.0, 1.0)
            stagnant = jnp.where(lower, 0, stagnant)
        state = Novelty(
            archive=archives.add(state.archive, behaviors, played),
            behaviors=behaviors,
            reward_weight=weight,
            best_score=jnp.maximum(scores.max(), state.best_score),
            stagnant=stagnant,
        )
        return state, {
            "novelty_mean": jnp.maximum(novelty_in(state.archive, behaviors, num_neighbors), 0.0).mean(),
            "archive_size": archives.held(state.archive).sum(),
            "reward_weight": weight,
        }

    config = {
        "kind": kind,
        "behavior": dict(behavior.config),
        "num_bases": int(num_bases),
        "num_neighbors": int(num_neighbors),
        "archive_size": int(archive_size),
        **({"reward_weight_step": reward_weight_step, "patience": int(patience)} if adaptive else {}),
    }
    return Guide(num_bases, behavior, init, select, objective, observe, config)


def mean_novelty(archive: Archive, evaluation: Evaluation, num_neighbors: int) -> Array:
    """Novelty of each member's episodes in an archive, averaged: float32 `[N]`, -inf where nothing was played."""
    n, e, size = evaluation.behaviors.shape
    novelty = novelty_in(archive, evaluation.behaviors.reshape(n * e, size), num_neighbors)
    return mean_over_episodes(novelty.reshape(n, e), evaluation.valid)
