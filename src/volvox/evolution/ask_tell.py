"""Strategies of other libraries: those of evosax, and Python objects with `ask` and `tell`.

    strategy = from_ask_tell(evosax.algorithms.CMA_ES, population_size=32, params={"std_init": 0.5})
    algorithm = vx.evolve(strategy, vx.networks.MLP(2, hidden=(8,)), vx.envs.cartpole(num_envs=32))

All members exist at once, so networks are small: a generation takes N times the parameters, and CMA-ES their square.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import INT32, integers, nearest
from volvox.evolution.elitism import AskTell, Elitism
from volvox.evolution.strategy import Metrics, fitness, raw, rows
from volvox.population.decoding import Encoding, decode_many, draw_seeds, first_ancestors
from volvox.population.vectors import explicit, from_vectors, to_vectors
from volvox.types import Array, ArrayTree, Evaluation, Population


def from_ask_tell(
    algorithm: Any,
    *,
    population_size: int | None = None,
    settings: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    save: Callable[[Any], bytes] | None = None,
    restore: Callable[[bytes], Any] | None = None,
    state_bytes: int | None = None,
    **validation: int,
) -> Elitism:
    """Makes a strategy of whatever asks and tells, and keeps its best policy (`Elitism`).

    Example:
      >>> from evosax.algorithms import CMA_ES
      >>> strategy = vx.evolution.from_ask_tell(CMA_ES, population_size=32, params={"std_init": 0.5})
      >>> algorithm = vx.evolve(strategy, vx.networks.MLP(2, hidden=(8,)), vx.envs.cartpole(num_envs=32))

    There are no lineages: bases do not descend from single members, so there is no `elite.json`, and checkpoints hold
    the whole state.

    Args:
      algorithm: A class of evosax, such as `evosax.algorithms.CMA_ES` (see `Evosax`); settings with `init`, `ask` and
        `tell` of this package's form (`AskTell`); or a function that makes a Python object with `ask` and `tell` on
        NumPy arrays (see `Hosted`).
      population_size: N, members of a generation; not with settings, which have their own.
      settings: Further arguments of an evosax class.
      params: What differs from the default parameters of an evosax class, such as `{"std_init": 0.5}`.
      save: Python object -> bytes; with a function that makes such objects.
      restore: The inverse of `save`.
      state_bytes: The most bytes that `save` may return; by default 2**20.
      **validation: Further fields of `Elitism`: `num_episodes`, `num_elite_candidates`, `num_validation_episodes`,
        `num_test_episodes`.

    Returns:
      `Elitism`, a strategy.

    Raises:
      TypeError: `algorithm` does not ask and tell, or the arguments do not fit what it is.
      ValueError: A setting is out of range.
    """
    given: dict[str, Any] = {"population_size": population_size, "settings": settings, "params": params, "save": save}
    given |= {"restore": restore, "state_bytes": state_bytes}
    given = {name: value for name, value in given.items() if value is not None}
    make: Callable[..., AskTell]
    if hasattr(algorithm, "default_params") and not isinstance(algorithm, type):
        raise TypeError(
            f"{algorithm!r} was made for one network already: give its class, "
            f"from_ask_tell({type(algorithm).__name__}, population_size=...); evolve makes it for its network."
        )
    if isinstance(algorithm, type) and hasattr(algorithm, "default_params"):
        make, allowed = partial(Evosax, algorithm=algorithm), {"population_size", "settings", "params"}
        if population_size is None:
            raise TypeError(f"from_ask_tell({algorithm.__name__}, ...) needs population_size: members of a generation.")
    elif hasattr(algorithm, "ask") and not isinstance(algorithm, type):
        make, allowed = lambda: algorithm, set()
    elif callable(algorithm):
        needed = {"population_size", "save", "restore"}
        make, allowed = partial(Hosted, make=algorithm), needed | {"state_bytes"}
        if missing := needed - set(given):
            raise TypeError(
                f"from_ask_tell({algorithm!r}, ...) needs {', '.join(sorted(missing))}: a Python object is saved after "
                "each call, so that checkpoints hold its state and an interrupted generation can be repeated."
            )
    else:
        raise TypeError(
            "from_ask_tell takes a class of evosax, an object with init, ask and tell (volvox.evolution.AskTell), or a "
            f"function that makes a Python object with ask and tell; got {algorithm!r}"
        )
    if others := set(given) - allowed:
        raise TypeError(f"from_ask_tell: {', '.join(sorted(others))} cannot be given with {algorithm!r}.")
    return Elitism(inner=make(**given), **validation)


class EvosaxState(NamedTuple):
    """The state of an algorithm of evosax.

    Attributes:
      algorithm: Its own state.
      begun: bool: The first population has been told.
    """

    algorithm: Any
    begun: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evosax:
    """An algorithm of evosax (0.3), made for the network that evolves.

    The mean of a distribution begins with a network as the initialiser draws it, and its spread with the parameter
    `std_init`, which is 1 in most classes: wide for networks. A population begins with N networks as they are drawn,
    which the first generation plays. evosax minimises: it is told minus the mean return, and where a member has none,
    minus the lowest of the others.

    Attributes:
      algorithm: A class of `evosax.algorithms`.
      population_size: N, members of a generation.
      settings: Further arguments of the class. An optimiser is given as a function without arguments that makes it
        (`functools.partial(optax.adam, 0.01)`), so that `volvox.load` can make it again, or ready-made.
      params: What differs from the class's default parameters.
    """

    algorithm: Callable[..., Any]
    population_size: int
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError for a setting out of range, TypeError for what is no algorithm of evosax."""
        integers(self, "population_size", low=1)
        if not isinstance(self.algorithm, type) or not self._begins_with & {"mean", "population"}:
            raise TypeError(
                f"algorithm={self.algorithm!r}: give a class with ask, tell and init(key, mean, params) or init(key, "
                "population, fitness, params), such as evosax.algorithms.CMA_ES."
            )

    def init(self, key: Array, encoding: Encoding) -> EvosaxState:
        """See `AskTell`; raises ValueError for settings that the algorithm does not take, and for low-rank noise."""
        algorithm, params = self._made(encoding)
        count = 1 if self._has_mean else self.population_size
        key_networks, key = jax.random.split(key)
        first = _initial(key_networks, encoding, count)
        if self._has_mean:
            state = algorithm.init(key, rows(first, 0), params)
        else:
            state = algorithm.init(key, first, jnp.full(count, jnp.inf), params)
        return EvosaxState(state, jnp.bool_(False))

    def ask(self, key: Array, state: EvosaxState, encoding: Encoding) -> tuple[Population, EvosaxState]:
        """See `AskTell`."""
        algorithm, params = self._made(encoding)
        asked, after = algorithm.ask(key, state.algorithm, params)
        if not self._has_mean:  # the first population is played as it is
            best = getattr(state.algorithm, "population_best", state.algorithm.population)  # PSO's are not where it is
            first = algorithm.get_population(state.algorithm.replace(population=best)), state.algorithm
            asked, after = _where(state.begun, (asked, after), first)
        return explicit(asked), state._replace(algorithm=after)

    def tell(
        self, key: Array, state: EvosaxState, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> tuple[EvosaxState, Metrics]:
        """See `AskTell`."""
        algorithm, params = self._made(encoding)
        loss = -raw(fitness(evaluation))
        key_tell, key_init = jax.random.split(key)
        new, _ = algorithm.tell(key_tell, population.bases, loss, state.algorithm, params)
        if not self._has_mean:
            new = _where(state.begun, new, algorithm.init(key_init, population.bases, loss, params))
        metrics = {"noise_std": jnp.mean(new.std)} if hasattr(new, "std") else {}
        return EvosaxState(new, jnp.bool_(True)), metrics

    def mean(self, state: EvosaxState, encoding: Encoding) -> ArrayTree | None:
        """The mean of a distribution; None for a population."""
        return self._made(encoding)[0].get_mean(state.algorithm) if self._has_mean else None

    def forget_scores(self, state: EvosaxState) -> EvosaxState:
        """Forgets the fitness that a distribution compares with; a population is played again, and begins anew."""
        if not self._has_mean:
            return state._replace(begun=jnp.bool_(False))
        kept = state.algorithm
        scores = ("best_fitness", "best_fitness_shaped", "fitness", "epoch_best_fitness")
        names = [name for name in scores if hasattr(kept, name)]
        return state._replace(algorithm=kept.replace(**{n: jnp.full_like(getattr(kept, n), jnp.inf) for n in names}))

    @property
    def _begins_with(self) -> set[str]:
        return set(inspect.signature(getattr(self.algorithm, "init", lambda: None)).parameters)

    @property
    def _has_mean(self) -> bool:
        return "mean" in self._begins_with

    def _made(self, encoding: Encoding) -> tuple[Any, Any]:
        """The algorithm for a network, and its parameters."""
        given = {
            name: value() if name == "optimizer" and callable(value) else value for name, value in self.settings.items()
        }
        solution = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), encoding.like)
        name = self.algorithm.__name__
        # What it computes of its settings are constants, and no part of a function that is being compiled.
        with jax.ensure_compile_time_eval():
            try:
                algorithm = self.algorithm(
                    population_size=self.population_size, solution=solution, metrics_fn=_no_metrics, **given
                )
            except (TypeError, AssertionError) as error:
                raise ValueError(
                    f"{name} does not take population_size={self.population_size}, {given}: {error}"
                ) from error
            params = algorithm.default_params
        known = {field.name for field in dataclasses.fields(params)}
        for unknown in set(self.params) - known:
            raise ValueError(
                f"params: {name} has no {unknown!r}; it has {', '.join(sorted(known))}{nearest(unknown, known)}"
            )
        return algorithm, params.replace(**self.params)


class HostedState(NamedTuple):
    """The state of a Python object.

    Attributes:
      start: float32 `[D]`: Where it begins, as a flat vector.
      saved: uint8 `[B]`: The bytes of the object.
      size: int32: How many of them are in use; 0 before the object is made.
    """

    start: Array
    saved: Array
    size: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hosted:
    """A Python object with `ask() -> vectors [N, D]` and `tell(vectors, losses)`, both of NumPy, lower losses better.

    The object is made anew from its bytes before each call and saved after it, so it must save all that it goes on
    from, its random generator included. Then checkpoints hold it, an interrupted generation can be repeated, and a
    resumed run has the same bits. volvox itself never unpickles; if `restore` does, go on only with runs of people you
    trust.

    Attributes:
      make: (start float64 `[D]`, seed) -> object.
      population_size: N, members of a generation.
      save: object -> bytes.
      restore: The inverse.
      state_bytes: B, the most bytes that `save` may return; a checkpoint holds so many.
    """

    make: Callable[[np.ndarray, int], Any]
    population_size: int
    save: Callable[[Any], bytes]
    restore: Callable[[bytes], Any]
    state_bytes: int = 2**20
    traceable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Raises ValueError for a setting out of range."""
        integers(self, "population_size", "state_bytes", low=1)

    def init(self, key: Array, encoding: Encoding) -> HostedState:
        """See `AskTell`; raises ValueError for low-rank noise."""
        start = to_vectors(_initial(key, encoding, 1))[0]
        return HostedState(start, jnp.zeros(self.state_bytes, jnp.uint8), jnp.int32(0))

    def ask(self, key: Array, state: HostedState, encoding: Encoding) -> tuple[Population, HostedState]:
        """See `AskTell`; raises ValueError for vectors of another shape, or a state of too many bytes."""
        if int(state.size):
            made = self._restored(state)
        else:
            made = self.make(np.asarray(state.start, np.float64), int(jax.random.randint(key, (), 0, INT32)))
        vectors = np.asarray(made.ask(), np.float32)
        wanted = (self.population_size, encoding.num_parameters)
        if vectors.shape != wanted:
            raise ValueError(
                f"{type(made).__name__}.ask() gave shape {vectors.shape}; {wanted} is wanted, members by parameters."
            )
        return explicit(from_vectors(encoding, jnp.asarray(vectors))), self._saved(state, made)

    def tell(
        self, key: Array, state: HostedState, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> tuple[HostedState, Metrics]:
        """See `AskTell`."""
        made = self._restored(state)
        made.tell(np.asarray(to_vectors(population.bases)), -np.asarray(raw(fitness(evaluation))))
        return self._saved(state, made), {}

    def _restored(self, state: HostedState) -> Any:
        return self.restore(np.asarray(state.saved)[: int(state.size)].tobytes())

    def _saved(self, state: HostedState, made: Any) -> HostedState:
        data = self.save(made)
        if not 0 < len(data) <= self.state_bytes:
            raise ValueError(
                f"{type(made).__name__} saved {len(data)} bytes, and state_bytes={self.state_bytes} are kept; give "
                "from_ask_tell state_bytes=... for more."
            )
        saved = np.zeros(self.state_bytes, np.uint8)
        saved[: len(data)] = np.frombuffer(data, np.uint8)
        return state._replace(saved=jnp.asarray(saved), size=jnp.int32(len(data)))


def _initial(key: Array, encoding: Encoding, count: int) -> ArrayTree:
    """Networks as their initialiser draws them, leaves `[count, ...]`."""
    if encoding.rank is not None:
        raise ValueError(
            f"rank={encoding.rank}: members with explicit parameters share no base, so low-rank noise has no use; "
            "leave noise out."
        )
    return decode_many(encoding, encoding.zeros(1), first_ancestors(draw_seeds(encoding, key, (count,))))


def _where(condition: Array, one: ArrayTree, other: ArrayTree) -> ArrayTree:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), one, other)


def _no_metrics(*args: Any) -> dict[str, Any]:
    return {}
