"""Learners made of a few pure functions; `docs/extending.md` says how to write one.

    class QLearning:  # a frozen dataclass of settings
        def bind(self, network, env):
            ...
            return vx.learners.from_functions(policy, env, init=init, act=act, work=work)

    algorithm = vx.learn(QLearning(), network, env)

The algorithms of this folder are written on `protocol.Learner` itself, which `from_functions` fills in: what groups of
environments, keys, metrics, scores of episodes and the length of an iteration need is the same for most learners.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from volvox._arguments import said
from volvox._checks import group_size, integer, takes
from volvox.data import metrics, transitions
from volvox.data.metrics import Episodes, Metrics, RunningEpisodes
from volvox.learners.protocol import Learner, Made, Progress, timesteps_progress
from volvox.networks.distributions import clip_action
from volvox.types import Array, ArrayTree, Env, EnvGroup, Policy, TimeStep, replaced, zeros

_WORK, _FINISH = 2**31, 2**31 + 1  # names of the keys of `work` and of `finish`; those of `act` are named by counts
_TIMED_BEATS = 20
_NAMES = ("update", "frames", "timesteps", "episodes", "episode_length", "seconds", "step_seconds", "iteration")
_PREFIXES, _SUFFIXES = ("training_", "evaluation_", "share_", "speed_"), ("_per_second",)
"""Names of metrics that every learner's rows have, and how others begin and end."""

Learned = TypeVar("Learned")
Collected = TypeVar("Collected")


class Collector(NamedTuple):
    """What one group of environments is doing.

    Attributes:
      collected: What `act` of the learner collects.
      running: Episodes that have not ended.
    """

    collected: Any
    running: RunningEpisodes


class Acting(NamedTuple):
    """What acting changes.

    Attributes:
      draws: int32: Calls of `act` so far; it makes the keys of the next calls.
      timesteps: int32: Timesteps of all environments, without those that begin an episode.
      begun: bool: Such a timestep was seen since the pools were made.
      episodes: Scores of the episodes that have ended.
      collectors: One a group; () between pools.
    """

    draws: Array
    timesteps: Array
    begun: Array
    episodes: Episodes
    collectors: tuple[Collector, ...]


class Learning(NamedTuple):
    """What learning changes.

    Attributes:
      learned: What the learner learns.
      update: int32: Calls of `work` and `finish` so far.
      metrics: Metrics of this iteration.
    """

    learned: Any
    update: Array
    metrics: Metrics


def from_functions(
    policy: Policy,
    env: Env,
    *,
    init: Callable[[Array], Learned],
    collect: Callable[[int], Collected] | None = None,
    act: Callable[[Collected, Learned, Array, TimeStep], tuple[Collected, Array]],
    work: Callable[[Collected, Learned, Array], tuple[Learned, dict[str, Array]]] | None = None,
    finish: Callable[[tuple[Collected, ...], Learned, Array], tuple[Learned, dict[str, Array]]] | None = None,
    variables: Callable[[Learned], ArrayTree] = lambda learned: learned.params,  # pyright: ignore
    beats_per_round: int = 1,
    timesteps_per_iteration: int = 10_000,
) -> Learner:
    """Makes a learner of pure functions; what the method `bind` of its settings returns.

    In every beat each group of environments takes one timestep: `act` chooses its actions, and `work` learns while the
    emulators step. After `beats_per_round` beats `finish` learns from all groups. The functions are compiled into the
    loop: they are traced by JAX, take and return pytrees of arrays, and keep their shapes and dtypes.

    Args:
      policy: What acts when the network is played, filmed, evaluated or exported, with `variables`.
      env: The environments. B are in a group, `env.num_envs // env.num_groups`.
      init: key -> what is learned at the beginning of a run: parameters, the optimiser's state, counts. A NamedTuple or
        another pytree.
      collect: B -> what `act` keeps of a group at first: transitions, a segment, a replay, recurrent states. None:
        transitions (`volvox.data.transitions`), which are what learners of one step need.
      act: (collected, learned, key, timestep) -> (collected, action). The `TimeStep` has leaves `[B, ...]`, and so has
        the action that answers it: int32 `[B]`, or float32 `[B, *action_shape]`, which is then clipped to the bounds.
      work: (collected, learned, key) -> (learned, metrics): learns from what one group collected, after its actions
        were sent. Metrics are scalars by name, which rows have as means over an iteration. None: nothing is done then.
      finish: (collected of all groups, learned, key) -> (learned, metrics), likewise, at the end of each round.
      variables: learned -> what `policy.apply` takes. The default is its field `params`.
      beats_per_round: Beats of a round, such as the length of a segment.
      timesteps_per_iteration: Timesteps of all environments in an iteration, and so in one row of metrics.

    Returns:
      The learner. Its rows also have `timesteps`, `episodes` and the scores of the latest 100 episodes; `update` counts
      the calls of `work` and `finish`. `work` is first called after a timestep that does not begin an episode.

    Raises:
      ValueError: A number is not positive, neither `work` nor `finish` is given, or a function returns something that
        does not fit: `volvox.learn` finds it, and where it is `act`, the first iteration.
      TypeError: A function takes other arguments.
    """
    if work is None and finish is None:
        raise ValueError("from_functions: give work, finish or both; otherwise nothing would be learned")
    takes("init", init, "key")
    takes("act", act, "collected", "learned", "key", "timestep")
    takes("variables", variables, "learned")
    for name, given, arguments in (
        ("collect", collect, ("num_envs",)),
        ("work", work, ("collected", "learned", "key")),
        ("finish", finish, ("collected", "learned", "key")),
    ):
        if given is not None:
            takes(name, given, *arguments)
    beats = integer("beats_per_round", beats_per_round, low=1)
    integer("timesteps_per_iteration", timesteps_per_iteration, low=1)
    collect_any: Callable[[int], Any] = collect or functools.partial(transitions.init, env.spec)
    parts = _Functions(init, collect_any, act, work, finish, variables)
    return _Functional(parts, policy, env, timesteps_per_iteration, beats, timed_rounds=max(2, _TIMED_BEATS // beats))


class _Functions(NamedTuple):
    """The functions that `from_functions` was given."""

    init: Callable[..., Any]
    collect: Callable[..., Any]
    act: Callable[..., Any]
    work: Callable[..., Any] | None
    finish: Callable[..., Any] | None
    variables: Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class _Functional:
    """The learner, see `protocol.Learner`."""

    functions: _Functions
    policy: Policy
    env: Env
    timesteps_per_iteration: int
    beats_per_round: int
    timed_rounds: int
    unsaved: tuple[str, ...] = ()

    def act(self, acting: Acting, learning: Learning, key: Array, g: int, timestep: TimeStep) -> tuple[Acting, Array]:
        me = acting.collectors[g]
        episodes, running = metrics.update_episodes(acting.episodes, me.running, timestep)
        key = jax.random.fold_in(key, acting.draws)
        result = self.functions.act(me.collected, learning.learned, key, timestep)
        collected, action = _two("act must return (collected, action)", result)
        _check_kept("act: what is collected", me.collected, collected)
        self.check_action(action, timestep)
        acting = Acting(
            draws=acting.draws + 1,
            timesteps=acting.timesteps + (~timestep.first).sum(dtype=jnp.int32),
            begun=acting.begun | (~timestep.first).any(),
            episodes=episodes,
            collectors=replaced(acting.collectors, g, Collector(collected, running)),
        )
        return acting, clip_action(action, self.env.spec)

    def check_action(self, action: Any, timestep: TimeStep) -> None:
        """Raises ValueError unless the actions have the environment's shape and kind of numbers."""
        spec, shape = self.env.spec, (*timestep.first.shape, *(self.env.spec.action_shape or ()))
        kind = jnp.floating if spec.continuous else jnp.integer
        if jnp.shape(action) != shape or not jnp.issubdtype(jnp.result_type(action), kind):
            wanted = f"{'float32' if kind is jnp.floating else 'int32'} {list(shape)}"
            raise ValueError(f"act must return actions {wanted} for {spec.name}; it returned {_shown(action)}")

    def work(self, acting: Acting, learning: Learning, key: Array, g: int) -> tuple[Acting, Learning]:
        if self.functions.work is None:
            return acting, learning
        return acting, self.learn(self.functions.work, acting.collectors[g].collected, acting, learning, key, _WORK)

    @property
    def finish(self) -> Callable[[Any, Any, Array], tuple[Any, Any]] | None:
        function = self.functions.finish
        if function is None:
            return None

        def finish(acting: Acting, learning: Learning, key: Array) -> tuple[Acting, Learning]:
            collected = tuple(collector.collected for collector in acting.collectors)
            return acting, self.learn(function, collected, acting, learning, key, _FINISH)

        return finish

    def learn(
        self, function: Callable[..., Any], collected: Any, acting: Acting, learning: Learning, key: Array, name: int
    ) -> Learning:
        """Calls `work` or `finish` once, but not before the first timestep of new pools."""
        key = jax.random.fold_in(jax.random.fold_in(key, name), acting.draws)

        def once(_: Array, learning: Learning) -> Learning:
            what = "work" if name == _WORK else "finish"
            learned, found = _two(f"{what} must return (learned, metrics)", function(collected, learning.learned, key))
            _check_kept(f"{what}: what is learned", learning.learned, learned)
            gathered = metrics.add(learning.metrics, metrics.means(_floats(found)))
            return Learning(learned, learning.update + 1, gathered)

        # A trip count that depends on a counter: learning waits for `send`, and parameters stay in place.
        return jax.lax.fori_loop(0, acting.begun.astype(jnp.int32), once, learning)

    def init(self, key: Array) -> tuple[Acting, Learning]:
        learned, zero = self.functions.init(key), jnp.int32(0)
        self.check_variables(learned)
        found = _metrics(self.functions, learned, key, self.env)
        return Acting(zero, zero, jnp.array(False), metrics.init_episodes(), ()), Learning(
            learned, zero, metrics.zeros(found)
        )

    def check_variables(self, learned: Any) -> None:
        """Raises ValueError unless the policy can be applied to what `variables` gives."""
        try:
            variables = self.functions.variables(learned)
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"variables(learned) fails ({_first_line(error)}); it must give what policy.apply takes, and takes "
                f"learned.params by default. Give variables=; learned is of the type {type(learned).__name__}"
            ) from error
        seen = zeros(self.env.spec.observation, 1)
        try:
            jax.eval_shape(self.policy.apply, variables, seen, self.policy.initial_state(1))
        except Exception as error:  # whatever the network raises
            given = jax.tree.map(_shown, variables)
            raise ValueError(
                "variables(learned) must give what policy.apply takes, such as policy.init(key) makes; it gives "
                f"{given}, and the network says: {_first_line(error)}"
            ) from error

    def begin(self, acting: Acting, groups: tuple[EnvGroup, ...]) -> Acting:
        sizes = [group.num_envs for group in groups]
        collectors = tuple(Collector(self.functions.collect(b), metrics.init_running(b)) for b in sizes)
        return acting._replace(begun=jnp.array(False), collectors=collectors)

    def progress(self, start: Acting, acting: Acting, made: Made) -> Progress:
        return timesteps_progress(made, self.timesteps_per_iteration, self.env, beats_per_round=self.beats_per_round)

    def watched(self, learning: Learning) -> dict[str, ArrayTree]:
        return {"the policy's variables": self.functions.variables(learning.learned)}

    def row(self, acting: Acting, learning: Learning, timesteps: int) -> dict[str, Any]:
        counts = {"timesteps": timesteps, "episodes": int(acting.episodes.total)}
        return counts | metrics.scores(jax.device_get(acting.episodes))

    def candidates(self, learning: Learning) -> list[ArrayTree]:
        return [self.functions.variables(learning.learned)]


def _floats(found: Any) -> dict[str, Array]:
    """Metrics as float32; raises ValueError unless they are scalars by names that are free."""
    if not isinstance(found, dict):
        raise ValueError(f"metrics must be a dict of scalars by name; got {said(found)}")
    if wrong := {name: jnp.shape(value) for name, value in found.items() if jnp.shape(value) != ()}:
        raise ValueError(f"metrics must be a dict of scalars by name; got arrays of shapes {wrong}")
    if taken := [n for n in found if n in _NAMES or n.startswith(_PREFIXES) or n.endswith(_SUFFIXES)]:
        raise ValueError(f"metrics cannot be named {', '.join(taken)}: rows have these already; take other names")
    return {name: jnp.asarray(value, jnp.float32) for name, value in found.items()}


def _metrics(functions: _Functions, learned: Any, key: Array, env: Env) -> Metrics:
    """Returns shapes and dtypes of the metrics of `work` and `finish`."""

    def found(learned: Any, key: Array) -> Metrics:
        collected, gathered = functions.collect(group_size(env.num_envs, env.num_groups)), {}
        for function, of in ((functions.work, collected), (functions.finish, (collected,) * env.num_groups)):
            if function is not None:
                what = "work" if function is functions.work else "finish"
                result = _two(f"{what} must return (learned, metrics)", function(of, learned, key))
                gathered |= metrics.means(_floats(result[1]))
        return gathered

    return jax.eval_shape(found, learned, key)


def _check_kept(what: str, before: Any, after: Any) -> None:
    """Raises ValueError where a function, named in `what`, does not keep the structure, shapes and dtypes of a tree."""
    old, new = ({path: _shown(x) for path, x in jax.tree.leaves_with_path(tree)} for tree in (before, after))
    for path in [*old, *new]:
        if old.get(path) != new.get(path):
            place = jax.tree_util.keystr(path) or "it"
            told = f"{place} was {old.get(path, 'not there')}, and became {new.get(path, 'nothing')}"
            raise ValueError(f"{what} must keep its structure, shapes and dtypes: {told}")


def _shown(x: Any) -> str:
    return f"{jnp.result_type(x)} {list(jnp.shape(x))}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _two(what: str, result: Any) -> tuple[Any, Any]:
    if type(result) is not tuple or len(result) != 2:  # a NamedTuple of two fields is what is learned alone
        given = f"a tuple of {len(result)}" if type(result) is tuple else type(result).__name__
        given = f"one array, {_shown(result)}" if isinstance(result, jax.Array) else given
        raise ValueError(f"{what}, two items; it returned {given}")
    return result
