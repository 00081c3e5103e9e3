"""The algorithms of evosax (0.3) as strategies.

    strategy = Evosax(evosax.algorithms.CMA_ES, population_size=32, params={"std_init": 0.5})
    algorithm = vx.evolve(strategy, vx.networks.MLP(2, hidden=(8,)), vx.envs.cartpole(num_envs=32))

All members exist at once, so networks are small: a generation takes N times the parameters, and CMA-ES their square.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from volvox._checks import integers
from volvox.evolution.strategy import Scalars, fitness, raw
from volvox.population.decoding import Encoding, decode_many, explicit, first_ancestors
from volvox.types import Array, Evaluation, Population, pick

_INIT = 2**31  # apart from the numbers of generations, which derive the keys of `ask` and `tell`
_SCORES = dict.fromkeys(("best_fitness", "best_fitness_shaped", "fitness", "epoch_best_fitness"), jnp.inf)
_SCORES |= {"fitness_elites_sorted": -jnp.inf}
"""Fields of the states of distributions that hold scores, and their first values."""


State = tuple[Any, Array]
"""(state of the algorithm, bool: whether `tell` was called)"""


@dataclasses.dataclass(frozen=True)
class Evosax:
    """An algorithm of evosax (0.3), made for the network that evolves.

    The mean of a distribution begins with a network as the initialiser draws it, and its spread with the parameter
    `std_init`, which is 1 in most classes: wide for networks. A population begins with N networks as the initialiser
    draws them, which the first generation plays. evosax minimises: it gets minus the mean return, and for a member
    without one minus the lowest of the others. The mean of a distribution and the best member are the challengers in
    validation.

    Example:
      >>> from evosax.algorithms import CMA_ES
      >>> strategy = vx.evolution.Evosax(CMA_ES, population_size=32, params={"std_init": 0.5})

    Attributes:
      algorithm: A class of `evosax.algorithms`, but for those with several means (`SV_CMA_ES`, `SV_Open_ES`).
      population_size: N, members of a generation.
      settings: Further arguments of the class. An optimiser is given as a function without arguments
        (`functools.partial(optax.adam, 0.01)`), or ready-made.
      params: Values that replace the class's default parameters.
      num_episodes: Training episodes of each member; fitness is their mean return.
    """

    algorithm: type[Any]
    _: dataclasses.KW_ONLY
    population_size: int
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_episodes: int = 1

    def __post_init__(self) -> None:
        integers(self, "population_size", "num_episodes", low=1)
        if not (isinstance(self.algorithm, type) and hasattr(self.algorithm, "tell")):
            raise TypeError(f"algorithm={self.algorithm!r}: give a class of evosax.algorithms, such as CMA_ES.")

    def init(self, key: Array, encoding: Encoding) -> State:
        """Returns the first state; raises ValueError for low-rank noise."""
        if encoding.rank is not None:
            raise ValueError("members with explicit parameters share no base: low-rank noise has no use, leave it out.")
        algorithm, params = self._made(encoding)
        count = 1 if self._has_mean else self.population_size
        key_networks, key = jax.random.split(jax.random.fold_in(key, _INIT))
        seeds = encoding.draw_seeds(key_networks, (count,))
        first = decode_many(encoding, encoding.zeros(1), first_ancestors(seeds))
        if self._has_mean:
            state = algorithm.init(key, pick(first, 0), params)
        else:
            state = algorithm.init(key, first, jnp.full(count, jnp.inf), params)
        return state, jnp.bool_(False)

    def ask(self, key: Array, state: State, encoding: Encoding) -> tuple[Population, State]:
        """Returns the members that the algorithm asks for."""
        algorithm, params = self._made(encoding)
        current, begun = state
        asked, after = algorithm.ask(key, current, params)
        if not self._has_mean:  # the first population is played as it is
            best = getattr(current, "population_best", current.population)  # PSO moves on from its best
            first = algorithm.get_population(current.replace(population=best)), current
            asked, after = optax.tree.where(begun, (asked, after), first)
        return explicit(asked), (after, begun)

    def tell(
        self, key: Array, state: State, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> tuple[State, Scalars]:
        """Tells the algorithm minus the mean returns."""
        (algorithm, params), (current, begun) = self._made(encoding), state
        loss = -raw(fitness(evaluation))
        key_tell, key_init = jax.random.split(key)
        new, _ = algorithm.tell(key_tell, population.bases, loss, current, params)
        if not self._has_mean:
            new = optax.tree.where(begun, new, algorithm.init(key_init, population.bases, loss, params))
        metrics = {"noise_std": jnp.mean(new.std)} if hasattr(new, "std") else {}
        return (new, jnp.bool_(True)), metrics

    def candidates(
        self, state: State, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> Population | None:
        """Returns the mean of a distribution and the best member; None, the default, for a population."""
        if not self._has_mean:
            return None
        mean, best = self._made(encoding)[0].get_mean(state[0]), jnp.argmax(fitness(evaluation))
        return explicit(jax.tree.map(lambda x, members: jnp.stack([x, members[best]]), mean, population.bases))

    def forget_scores(self, state: State) -> State:
        """Drops the fitness that a distribution compares with; a population is played again, and begins anew."""
        kept, begun = state
        if not self._has_mean:
            return kept, jnp.bool_(False)
        scores = {name: jnp.full_like(getattr(kept, name), x) for name, x in _SCORES.items() if hasattr(kept, name)}
        return kept.replace(**scores), begun

    @property
    def _has_mean(self) -> bool:
        return "mean" in inspect.signature(self.algorithm.init).parameters

    def _made(self, encoding: Encoding) -> tuple[Any, Any]:
        """The algorithm for a network, and its parameters."""
        settings = {
            name: value() if name == "optimizer" and callable(value) else value for name, value in self.settings.items()
        }
        # Arrays that the constructor computes are constants, and must not be traced.
        with jax.ensure_compile_time_eval():
            algorithm = self.algorithm(
                population_size=self.population_size, solution=encoding.zeros(), metrics_fn=lambda *_: {}, **settings
            )
            return algorithm, algorithm.default_params.replace(**self.params)
