"""Population-based training (Jaderberg et al. 2017, arXiv 1711.09846): learners copy better ones.

Learners of one program differ in some of their settings.

    pbt = vx.PBT(every=50_000, explore={"learning_rate": vx.space.log(1e-5, 1e-2)})
    algorithm = vx.learn(vx.PPO(), network, env, num_learners=16, evaluate_every=50_000, pbt=pbt)
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from volvox._checks import integer, number
from volvox.learners.space import Range, check_space
from volvox.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class PBT:
    """Settings of population-based training.

    After every interval, the learners with the lowest scores copy parameters, state of the optimiser, moments of
    observations and rewards, and settings of others with the highest scores, drawn at random. The copied settings are
    then multiplied by `factor` or divided by it, or drawn anew. Environments, segments and replays stay. The score is
    the mean return of the evaluation at the end of the interval. Without `evaluate_every`, it is the mean return of the
    latest episodes of training, which are dropped when a learner is replaced; until all learners have episodes, none
    is replaced. A run ends if numbers of one learner are not finite.

    Rows have the settings of each learner in the iteration, such as `pbt_learning_rate_each`, and `pbt_parent_each`:
    the learner whose state each of them has after it.

    Attributes:
      every: Timesteps of each learner in an interval, a multiple of `evaluate_every`.
      explore: Settings to vary, by name, and their ranges, from which the first values are drawn. They are numbers that
        the settings name in `traced`.
      fraction: Fraction of the learners that is replaced. Equally many, the best, are copied. At least one learner is
        replaced.
      factor: Settings are multiplied or divided by this number, and then clipped to their range.
      resample: Probability that a setting is drawn from its range instead.
    """

    every: int
    explore: Mapping[str, Range]
    fraction: float = 0.2
    factor: float = 1.25
    resample: float = 0.25

    def __post_init__(self):
        """Checks the settings."""
        integer("every", self.every, low=1, high=None)
        check_space("explore", self.explore, Range)
        number("fraction", self.fraction, above=0, high=0.5)
        number("factor", self.factor, above=1)
        number("resample", self.resample, low=0, high=1)

    def draw(self, key: Array, num_learners: int) -> dict[str, Array]:
        """Returns settings from their ranges, float32 `[S]`."""

        def one(key: Array, values: Range) -> Array:
            low, high = (jnp.log(x) if values.log else x for x in (values.low, values.high))
            drawn = jax.random.uniform(key, (num_learners,), minval=low, maxval=high)
            return jnp.exp(drawn) if values.log else drawn

        keys = jax.random.split(key, len(self.explore))
        return {name: one(k, values) for k, (name, values) in zip(keys, self.explore.items(), strict=True)}

    def exchange(self, key: Array, scores: Array, numbers: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Chooses the learners to copy.

        Args:
          key: Key of this exchange.
          scores: float32 `[S]`: Scores of the learners.
          numbers: Explored settings of the learners, `[S]`.

        Returns:
          (int32 `[S]`: the learner that each copies, itself for most; the new settings `[S]`).
        """
        size, itself = len(scores), jnp.arange(len(scores))
        count, order = max(1, int(self.fraction * size)), jnp.argsort(-scores)  # NaN is last
        choice_key, draw_key, key = jax.random.split(key, 3)
        parents = itself.at[order[-count:]].set(jax.random.choice(choice_key, order[:count], (count,)))
        drawn, numbers = self.draw(draw_key, size), {name: x[parents] for name, x in numbers.items()}
        for i, (name, values) in enumerate(self.explore.items()):
            up, anew = jax.random.uniform(jax.random.fold_in(key, i), (2, size))
            varied = numbers[name] * jnp.where(up < 0.5, self.factor, 1 / self.factor)
            varied = jnp.where(anew < self.resample, drawn[name], jnp.clip(varied, values.low, values.high))
            numbers[name] = jnp.where(parents == itself, numbers[name], varied)
        return parents, numbers
