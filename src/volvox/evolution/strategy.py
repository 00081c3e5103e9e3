"""What an evolutionary strategy is: rounds of ask, evaluate, tell."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from volvox.population.decoding import Encoding, Member
from volvox.types import Array, ArrayTree, Config, Evaluation, Population

Role = Literal["training", "validation", "test"]
"""In which environments a round is played: training and validation share a cutoff, test has its own."""


class Round(NamedTuple):
    """One `ask -> evaluate -> tell` of a generation. Both functions are pure and jittable."""

    role: Role
    num_members: int
    """N, of the asked population."""
    num_episodes: int
    """E, the most episodes of a member."""
    ask: Callable[[Array, ArrayTree, Encoding], Population]
    """(key, state, encoding) -> Population."""
    tell: Callable[[ArrayTree, Population, Evaluation, Encoding], tuple[ArrayTree, dict[str, Array]]]
    """(state, population, evaluation, encoding) -> (state, metrics). Higher returns are better."""


class Strategy(NamedTuple):
    """An evolutionary strategy as pure functions over a population of few bases and many seeds."""

    init: Callable[[Array, Encoding], ArrayTree]
    """(key, encoding) -> state."""
    rounds: tuple[Round, ...]
    num_bases: int
    """P."""
    survivors: Callable[[ArrayTree], Member]
    """state after a generation -> how each base `[P]` came from the bases before; the lineage's next row."""
    split: Callable[[ArrayTree], tuple[ArrayTree, ArrayTree]]
    """state -> (bases, the rest). Checkpoints hold the rest; bases are rebuilt from lineages."""
    join: Callable[[ArrayTree, ArrayTree], ArrayTree]
    """(bases, the rest) -> state."""
    elite: int
    """Index of the base that is the elite."""
    score: Callable[[ArrayTree], Array]
    """state after a generation -> the elite's score, float32; the best of all generations is the reported solution."""
    config: Config
