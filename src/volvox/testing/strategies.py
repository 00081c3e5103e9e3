"""What every strategy promises, checked on any of them."""

import dataclasses
import tempfile
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox import checkpoint
from volvox.envs import from_functions
from volvox.evolution import HostedState, Phase, compiled_phases, evolve
from volvox.networks import MLP, genotype
from volvox.ops.flat import by_path
from volvox.population import Encoding, Member, Noise, Table, decode_many, encoding
from volvox.types import Array, ArrayTree, Env, Evaluation, Population

_MEMBERS = ("phases", "behavior", "elite", "init", "forget_scores")
_GENERATIONS = 8
_GAIN = 0.02


def check_strategy(
    strategy: Any, *, noise: Noise | None = None, env: Env | None = None, improves: bool = True, runs: bool = True
) -> None:
    """Checks that a strategy is what `volvox.evolve` needs, on a small network.

    Its settings can be written to `config.json`; its state keeps its shapes and dtypes; populations fit their phases;
    the same key gives the same run; compiled it does what it does in Python; returns that are NaN do no harm; the score
    that it reports is that of the policy that it returns; bases follow from their lineage, where there is one; and a
    run resumed from a checkpoint goes on with the same bits.

    Example:
      >>> volvox.testing.check_strategy(vx.GA(population_size=12, num_parents=3, num_elite_candidates=2))

    Args:
      strategy: What `evolve` takes; small ones are checked in seconds.
      noise: Where noise comes from; None: a small table.
      env: Where runs are played, two actions wide; None: a probe whose extras are `elapsed_steps`. Give one that has
        the extras the strategy's behaviour reads; without them no run is played.
      improves: Demand that the elite becomes better where the return is one of the network's parameters. A search for
        novelty alone promises no such thing.
      runs: Also play two short runs, one of them resumed from a checkpoint, which takes most of the time.

    Raises:
      AssertionError: It is not; the message says what to mend.
    """
    _check_settings(strategy)
    shared = from_functions(
        lambda key: jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0),
        lambda goal, action, key: (goal, -jnp.mean((action - goal) ** 2), False),
        lambda goal: goal,
        name="target",
        num_envs=8,
        groups=2,
        max_episode_steps=3,
        action_shape=(2,),
    )
    noise = Table(size=5_000) if noise is None else noise
    code = encoding(genotype(MLP(2, hidden=()), shared.spec), noise)
    check = _Check(strategy, strategy.phases, compiled_phases(strategy), code)
    state = check.first_state()
    check.generations(state)
    check.compiled_is_eager(state)
    check.same_key_same_run()
    check.missing_returns(state)
    check.scores(state, improves)
    env = shared if env is None else env
    if runs and set(strategy.behavior.extras) <= set(env.spec.extras):
        _check_resume(strategy, env, noise)


def _require(right: Any, message: str) -> None:
    if not right:
        raise AssertionError(message)


def _check_settings(strategy: Any) -> None:
    name = type(strategy).__name__
    _require(not isinstance(strategy, type), f"{strategy!r} is a class: check an object of it.")
    hint = "; volvox.evolution.from_ask_tell makes a strategy of init, ask and tell" if hasattr(strategy, "ask") else ""
    for member in _MEMBERS:
        _require(hasattr(strategy, member), f"{name} has no {member} (see volvox.evolution.Strategy){hint}.")
    for part in (strategy, getattr(strategy, "inner", strategy)):
        frozen = dataclasses.is_dataclass(part) and type(part).__dataclass_params__.frozen  # pyright: ignore
        _require(
            frozen,
            f"{type(part).__name__} is no frozen dataclass: config.json would not hold its settings, and a run could "
            "be resumed with others; decorate it with @dataclasses.dataclass(frozen=True, kw_only=True).",
        )
    roles = [phase.role for phase in strategy.phases]
    _require(set(roles) <= {"training", "validation", "test"}, f"{name} has phases of the roles {roles}.")
    _require(set(roles) - {"test"}, f"{name} has no phase of training or validation, so nothing would learn.")


@dataclasses.dataclass(frozen=True)
class _Check:
    """A strategy, played with made-up returns: the return of a member is its first weight, in all of its episodes."""

    strategy: Any
    phases: tuple[Phase, ...]
    compiled: tuple[Phase, ...]
    code: Encoding

    def first_state(self) -> Any:
        """The state before the first generation, whose fields are checked."""
        name = type(self.strategy).__name__
        state = jax.jit(self.strategy.init)(jax.random.key(0), self.code)
        for field in ("bases", "score", "survivors"):
            _require(hasattr(state, field), f"the state of {name} has no field {field}.")
        _check_bases(state.bases, self.code, f"the state of {name}")
        (size,) = {leaf.shape[0] for leaf in jax.tree.leaves(state.bases)}
        _require(
            0 <= self.strategy.elite < size, f"elite={self.strategy.elite} is no index of the {size} bases of {name}."
        )
        if state.survivors is not None:
            shapes = [x.shape for x in state.survivors]
            _require(shapes == [(size,)] * 4, f"survivors of {name} have shapes {shapes}; a Member [{size}] is wanted.")
        return state

    def generations(self, state: Any) -> None:
        """Two generations: populations fit their phases, the state keeps its form, bases follow from their lineage."""
        for number in range(2):
            before = state.bases
            for i, phase in enumerate(self.compiled):
                answer = self.phases[i].ask(jax.random.key(10 * number + i), state, self.code)
                _require(
                    isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Population),
                    f"ask of the {phase.role} phase must return (Population, state); it returned "
                    f"{type(answer).__name__}.",
                )
                _check_population(answer[0], phase, self.code, f"ask of the {phase.role} phase")
                state = self._phase(jax.random.key(10 * number + i), i, state)
            if state.survivors is not None:
                _same(
                    _decoded(self.code, before, state.survivors),
                    state.bases,
                    "bases are not what survivors say: base i is bases[parent] + scale * noise(seed) of the bases "
                    "before the generation, as volvox.population.decode computes it",
                )
        _check_form(self.strategy.forget_scores(state), state, "forget_scores")

    def _phase(self, key: Array, number: int, state: Any) -> Any:
        phase = self.compiled[number]
        where = f"ask of the {phase.role} phase"
        asked, after = phase.ask(key, state, self.code)
        _check_form(after, state, where)
        if state.survivors is not None:
            _same(asked.bases, state.bases, f"{where}: with lineages, a population's bases are those of the state")
        played = self.play(phase, asked)
        if phase.traceable:  # before it is compiled, where another message would come first
            for name, value in self.phases[number].tell(key, after, asked, played, self.code)[1].items():
                right = isinstance(name, str) and jnp.shape(value) == ()
                _require(right, f"the metric {name!r} has shape {jnp.shape(value)}, not (): give numbers by name.")
        state, _ = phase.tell(key, after, asked, played, self.code)
        _check_form(state, after, f"tell of the {phase.role} phase")
        return state

    def compiled_is_eager(self, state: Any) -> None:
        """In Python and compiled, twice over: the same up to rounding."""
        if not all(phase.traceable for phase in self.phases):
            return
        eager = jitted = state
        for number in range(2):
            eager, _ = self.generation(self.phases, jax.random.key(number), eager)
            jitted, _ = self.generation(self.compiled, jax.random.key(number), jitted)
        _same(jitted, eager, "compiled, a generation gives another state than in Python", rtol=1e-3, atol=1e-5)

    def same_key_same_run(self) -> None:
        """The key decides, and nothing else."""

        def run(seed: int) -> Any:
            state = jax.jit(self.strategy.init)(jax.random.key(seed), self.code)
            for number in range(2):
                state, _ = self.generation(self.compiled, jax.random.key(seed + number), state)
            return state

        first = run(3)
        told = "the same key gives another run: draw all random numbers from the keys that are passed"
        _same(_without_objects(first), _without_objects(run(3)), told)
        others = zip(jax.tree.leaves(first.bases), jax.tree.leaves(run(4).bases), strict=True)
        _require(
            any(not np.array_equal(a, b) for a, b in others),
            "another key gives the same run: ask does not use its key.",
        )

    def missing_returns(self, state: Any) -> None:
        """Some returns of a generation are NaN, those of candidates in validation too, and all of the next."""
        for missing in ("some", "all"):
            state, _ = self.generation(self.compiled, jax.random.key(1), state, missing)
            finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.bases))
            _require(
                finite,
                "where returns are NaN, the bases are not finite: weigh members by volvox.evolution.fitness, which is "
                "-inf there, shaped by ranks or by the lowest of the others.",
            )
            _require(
                np.isfinite(state.score.selecting),
                "where some returns are NaN, a candidate without a return is chosen as elite: rank candidates by "
                "volvox.evolution.fitness, which is -inf there.",
            )

    def scores(self, state: Any, improves: bool) -> None:
        """What is claimed is what is returned, and it gets no worse."""
        returned: list[float] = []
        for number in range(_GENERATIONS):
            state, _ = self.generation(self.compiled, jax.random.key(number), state)
            returned.append(float(_first_weight(state.bases)[self.strategy.elite]))
            for name in ("selecting", "mean"):
                claimed = float(getattr(state.score, name))
                _require(
                    np.isnan(claimed) or np.isclose(claimed, returned[-1], atol=1e-5),
                    f"the state says the elite scored {claimed:g} ({name}), and the policy that is returned, "
                    f"bases[elite], scores {returned[-1]:g}.",
                )
        _require(not np.isnan(state.score.selecting), f"no elite was chosen in {_GENERATIONS} generations.")
        worse = [i for i in range(1, len(returned)) if returned[i] < returned[i - 1] - 1e-6]
        _require(not worse, f"the elite became worse, though returns are exact: by generation {returned}.")
        if improves:
            _require(
                returned[-1] > returned[0] + _GAIN,
                f"the elite does not become better where the return is one of its parameters: {returned} by "
                "generation; higher returns are better.",
            )

    def generation(
        self, phases: tuple[Phase, ...], key: Array, state: Any, missing: str = "none"
    ) -> tuple[Any, dict[str, Any]]:
        """Plays a generation; with `missing` some returns, or all of training, are NaN."""
        metrics: dict[str, Any] = {}
        for i, phase in enumerate(phases):
            ask_key, tell_key = jax.random.split(jax.random.fold_in(key, i))
            asked, state = phase.ask(ask_key, state, self.code)
            result = self.play(phase, asked, "none" if missing == "all" and phase.role != "training" else missing)
            state, told = phase.tell(tell_key, state, asked, result, self.code)
            metrics |= told
        return state, metrics

    def play(self, phase: Phase, asked: Population, missing: str = "none") -> Evaluation:
        """What the members would have played; behaviours are like the returns."""
        members = Member(asked.parent, asked.seed, asked.scale, asked.initial)
        values = _first_weight(_decoded(self.code, asked.bases, members))
        if missing != "none":
            broken = np.arange(values.shape[0]) % 5 == 2 if missing == "some" else np.full(values.shape, True)
            values = jnp.where(broken, jnp.nan, values)
        valid = jnp.arange(phase.num_episodes) < asked.episodes[:, None]
        returns = jnp.where(valid, values[:, None], 0.0)
        behaviors = jnp.broadcast_to(returns[:, :, None], (*returns.shape, self.strategy.behavior.size))
        return Evaluation(returns, jnp.where(valid, 3, 0), valid, behaviors)


_decoded = jax.jit(decode_many)


def _without_objects(state: Any) -> Any:
    """Leaves out what Python objects were saved as, which may hold times."""

    def is_object(x: Any) -> bool:
        return isinstance(x, HostedState)

    return jax.tree.map(lambda x: x.start if is_object(x) else x, state, is_leaf=is_object)


def _first_weight(params: ArrayTree) -> Array:
    return params["Dense_0"]["kernel"][:, 0, 0]


def _same(one: Any, other: Any, message: str, rtol: float = 0.0, atol: float = 0.0) -> None:
    found, wanted = by_path(one), by_path(other)
    _require(set(found) == set(wanted), f"{message} (other leaves: {sorted(set(found) ^ set(wanted))[:1]}).")
    for place, value in found.items():
        same = np.allclose(value, wanted[place], rtol=rtol, atol=atol, equal_nan=True)
        _require(same, f"{message} (first at {'/'.join(place)}).")


def _check_form(new: Any, old: Any, where: str) -> None:
    """Checks that a state has the same leaves, shapes and dtypes."""
    _require(
        jax.tree.structure(new) == jax.tree.structure(old),
        f"{where}: the state must keep its structure; it was {jax.tree.structure(old)}, and is "
        f"{jax.tree.structure(new)}.",
    )
    has = by_path(old)
    for place, leaf in by_path(new).items():
        forms = [(jnp.shape(x), jnp.result_type(x), bool(getattr(x, "weak_type", False))) for x in (has[place], leaf)]
        _require(
            forms[0] == forms[1],
            f"{where}: {'/'.join(place)} of the state was {_shown(forms[0])}, and is {_shown(forms[1])}; shapes and "
            "dtypes must stay (a Python number has a weak type: write jnp.int32(0), jnp.float32(0)).",
        )


def _shown(form: tuple[Any, Any, bool]) -> str:
    return f"{'weak ' if form[2] else ''}{form[1]}{list(form[0])}"


def _check_bases(bases: ArrayTree, code: Encoding, where: str) -> None:
    has, wanted = by_path(bases), by_path(code.like)
    _require(
        set(has) == set(wanted),
        f"{where}: bases have other leaves than the network's parameters, as encoding.like has.",
    )
    for place, leaf in has.items():
        right = leaf.shape[1:] == wanted[place].shape and leaf.dtype == jnp.float32
        _require(
            right,
            f"{where}: {'/'.join(place)} of the bases is {leaf.dtype}{list(leaf.shape)}; float32 [P, ...] is wanted, "
            f"of rows {list(wanted[place].shape)}.",
        )
    _require(len({leaf.shape[0] for leaf in has.values()}) == 1, f"{where}: leaves differ in the number of bases.")


def _check_population(asked: Population, phase: Phase, code: Encoding, where: str) -> None:
    dtypes = {"parent": jnp.int32, "seed": jnp.int32, "scale": jnp.float32, "initial": jnp.bool_, "episodes": jnp.int32}
    for name, dtype in (dtypes | {"priority": jnp.float32}).items():
        value = getattr(asked, name)
        form = (jnp.shape(value), jnp.result_type(value), bool(getattr(value, "weak_type", False)))
        wanted = ((phase.num_members,), jnp.dtype(dtype), False)
        _require(form == wanted, f"{where}: {name} is {_shown(form)}; {_shown(wanted)} is wanted.")
    _check_bases(asked.bases, code, where)
    episodes, size = np.asarray(asked.episodes), jax.tree.leaves(asked.bases)[0].shape[0]
    _require(
        episodes.min() >= 0 and episodes.max() <= phase.num_episodes and episodes.sum() > 0,
        f"{where}: episodes are {episodes.min()} to {episodes.max()}; 0 to {phase.num_episodes} are right, not all 0.",
    )
    parents, seeds = np.asarray(asked.parent), np.asarray(asked.seed)
    _require(parents.min() >= 0 and parents.max() < size, f"{where}: parents are no indices of the {size} bases.")
    last = code.data.size - code.num_drawn if code.data.size else np.iinfo(np.int32).max
    _require(
        seeds.min() >= 0 and seeds.max() <= last,
        f"{where}: draw seeds by volvox.population.draw_seeds, 0 to {last} here.",
    )


def _check_resume(strategy: Any, env: Env, noise: Noise) -> None:
    """Two generations in one go, and with a checkpoint between them."""
    make = partial(evolve, strategy, MLP(2, hidden=()), env, noise=noise)
    straight, resumed = make(), make()
    try:
        half, _ = straight.step(straight.init(jax.random.key(0)))
        assert straight.save is not None
        with tempfile.TemporaryDirectory() as folder:
            checkpoint.save(folder, 1, straight.save(half))
            assert resumed.restore is not None
            again = resumed.restore(checkpoint.restore(folder, 1))
        results = []
        for algorithm, state in ((straight, half), (resumed, again)):
            state, row = algorithm.step(state)
            results.append((algorithm.variables(state), {k: v for k, v in row.items() if not k.endswith(_TIMES)}))
        message = (
            "resumed from a checkpoint, the next generation is another: all that it depends on belongs to the state"
        )
        _same(results[1][0], results[0][0], message)
        for name, value in results[0][1].items():
            _require(_equal(results[1][1][name], value), f"{message} (metric {name}).")
    finally:
        straight.close()
        resumed.close()


_TIMES = ("seconds", "per_second", "emulators", "inference", "decoding", "over_turns")
"""How names of metrics end that measure time."""


def _equal(one: Any, other: Any) -> bool:
    return one == other or (one != one and other != other)
