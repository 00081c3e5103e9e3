"""Settings of the strategies on Atari that belong together."""

from typing import Any, Literal, NamedTuple


class GAPreset(NamedTuple):
    """Everything about a run but the game, the seed and the directory.

    Attributes:
      max_episode_steps: A cutoff: steps, or `"adaptive:start,fraction,ratio,max"`.
      minutes: No further generation begins after so many minutes; None: no such limit.
    """

    population_size: int
    num_parents: int
    mutation_std: float
    num_elite_candidates: int
    num_validation_episodes: int
    num_test_episodes: int
    network: Literal["large", "small"]
    num_envs: int
    max_episode_steps: str
    test_max_episode_steps: int
    generations: int
    minutes: float | None

    @property
    def strategy(self) -> dict[str, Any]:
        """The arguments of `ga`."""
        names = ("population_size", "num_parents", "mutation_std", "num_elite_candidates", "num_validation_episodes")
        return {name: getattr(self, name) for name in (*names, "num_test_episodes")}


def paper() -> GAPreset:
    """Such et al. 2017 (arXiv 1712.06567), the large network, 1 500 generations; weeks on a desktop's CPU."""
    return GAPreset(
        population_size=1_000,
        num_parents=20,
        mutation_std=0.002,
        num_elite_candidates=10,
        num_validation_episodes=30,
        num_test_episodes=200,
        network="large",
        num_envs=128,
        max_episode_steps="5000",
        test_max_episode_steps=100_000,
        generations=1_500,
        minutes=None,
    )


def desktop() -> GAPreset:
    """What two cores can do in an hour: the large network, fewer members, larger steps, shorter episodes."""
    return GAPreset(
        population_size=128,
        num_parents=10,
        mutation_std=0.005,
        num_elite_candidates=4,
        num_validation_episodes=8,
        num_test_episodes=0,
        network="large",
        num_envs=32,
        max_episode_steps="600",
        test_max_episode_steps=27_000,
        generations=100,
        minutes=60.0,
    )


def quick() -> GAPreset:
    """What two cores can show in five minutes: the small network, a small population, short episodes."""
    return GAPreset(
        population_size=64,
        num_parents=8,
        mutation_std=0.01,
        num_elite_candidates=3,
        num_validation_episodes=6,
        num_test_episodes=0,
        network="small",
        num_envs=32,
        max_episode_steps="700",
        test_max_episode_steps=27_000,
        generations=1_000,
        minutes=5.0,
    )


class ESPreset(NamedTuple):
    """Everything about a run of evolution strategies but the game, the seed and the directory.

    Attributes:
      noise_std: A number or a schedule.
      learning_rate: A number or a schedule.
      max_episode_steps: A cutoff: steps, or `"adaptive:start,fraction,ratio,max"`.
      minutes: No further generation begins after so many minutes; None: no such limit.
    """

    population_size: int
    noise_std: str
    learning_rate: str
    l2_coefficient: float
    num_validation_episodes: int
    num_test_episodes: int
    network: Literal["vbn", "large", "small"]
    num_envs: int
    max_episode_steps: str
    test_max_episode_steps: int
    generations: int
    minutes: float | None


def es_paper() -> ESPreset:
    """Salimans et al. 2017 (arXiv 1703.03864) as Such et al. ran it: 5 000 members, 250 million steps."""
    return ESPreset(
        population_size=5_000,
        noise_std="0.02",
        learning_rate="0.01",
        l2_coefficient=0.005,
        num_validation_episodes=30,
        num_test_episodes=200,
        network="vbn",
        num_envs=128,
        max_episode_steps="5000",
        test_max_episode_steps=100_000,
        generations=200,
        minutes=None,
    )


def es_desktop() -> ESPreset:
    """What two cores can do in an hour: fewer members, shorter episodes."""
    return ESPreset(
        population_size=128,
        noise_std="0.02",
        learning_rate="0.01",
        l2_coefficient=0.005,
        num_validation_episodes=8,
        num_test_episodes=0,
        network="vbn",
        num_envs=32,
        max_episode_steps="600",
        test_max_episode_steps=27_000,
        generations=200,
        minutes=60.0,
    )


class NoveltyPreset(NamedTuple):
    """Everything about a run of novelty search but the game, the strategy, the seed and the directory.

    `noise_std`, `learning_rate`, `l2_coefficient` and `num_bases` are those of `novelty_es`; `mutation_std`,
    `num_parents`, `num_elite_candidates` and `num_archived` those of `novelty_ga`.

    Attributes:
      max_episode_steps: A cutoff: steps, or `"adaptive:start,fraction,ratio,max"`.
      minutes: No further generation begins after so many minutes; None: no such limit.
    """

    population_size: int
    noise_std: str
    learning_rate: str
    l2_coefficient: float
    num_bases: int
    mutation_std: str
    num_parents: int
    num_elite_candidates: int
    num_archived: int
    num_neighbors: int
    archive_size: int
    num_validation_episodes: int
    num_test_episodes: int
    num_envs: int
    max_episode_steps: str
    test_max_episode_steps: int
    generations: int
    minutes: float | None


def novelty_paper() -> NoveltyPreset:
    """A meta-population of 3 and ten neighbours, as Conti et al. 2018 (arXiv 1712.06560) on Atari.

    Population, episodes and generations are those of `es_paper` for all strategies; the genetic algorithm's power and
    parents those of `paper`; a hundredth of each of its generations is archived.
    """
    return NoveltyPreset(
        population_size=5_000,
        noise_std="0.02",
        learning_rate="0.01",
        l2_coefficient=0.005,
        num_bases=3,
        mutation_std="0.002",
        num_parents=20,
        num_elite_candidates=10,
        num_archived=50,
        num_neighbors=10,
        archive_size=10_000,
        num_validation_episodes=30,
        num_test_episodes=200,
        num_envs=128,
        max_episode_steps="5000",
        test_max_episode_steps=100_000,
        generations=200,
        minutes=None,
    )


def novelty_desktop() -> NoveltyPreset:
    """What two cores can do in an hour: fewer members, shorter episodes."""
    return NoveltyPreset(
        population_size=128,
        noise_std="0.02",
        learning_rate="0.01",
        l2_coefficient=0.005,
        num_bases=3,
        mutation_std="0.005",
        num_parents=10,
        num_elite_candidates=4,
        num_archived=2,
        num_neighbors=10,
        archive_size=10_000,
        num_validation_episodes=8,
        num_test_episodes=0,
        num_envs=32,
        max_episode_steps="600",
        test_max_episode_steps=27_000,
        generations=200,
        minutes=60.0,
    )
