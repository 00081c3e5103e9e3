"""Types that all packages share.

Shapes use these letters: `B` environments of a group, `N` members of a population, `E` episodes of a member, `P` bases.
*Frames* are emulator frames, and *timesteps* are decisions of an environment.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
ArrayTree = Any
"""Any pytree of arrays."""
Config = Mapping[str, Any]
"""A call as data: the public path of a function (`type`) and its keyword arguments. `config.json` holds it as JSON."""


def zeros(like: ArrayTree, *batch: int) -> Any:
    """Returns zeros `[*batch, ...]` with the shapes and dtypes of a tree's leaves."""
    return jax.tree.map(lambda x: jnp.zeros((*batch, *x.shape), x.dtype), like)


def pick(tree: ArrayTree, index: Any) -> Any:
    """Returns `x[index]` of each leaf; the index may be an integer, a slice or an array."""
    return jax.tree.map(lambda x: x[index], tree)


def replaced(items: tuple[Any, ...], i: int, new: Any) -> tuple[Any, ...]:
    """Returns a copy of a tuple in which item `i` is `new`."""
    return (*items[:i], new, *items[i + 1 :])


@dataclasses.dataclass(frozen=True, eq=False)
class ByValue:
    """A function with equality by value, so that equal functions share one compiled program.

    Attributes:
      value: Tuple that determines what the function computes. Its first item is hashable.
      function: The function.
    """

    value: tuple[Any, ...]
    function: Callable[..., Any]

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Calls the function."""
        return self.function(*args, **options)

    def __eq__(self, other: object) -> bool:
        try:
            return isinstance(other, ByValue) and self.value == other.value
        except (TypeError, ValueError):  # arrays cannot be compared
            return self is other

    def __hash__(self) -> int:
        return hash(self.value[0])


class EnvSpec(NamedTuple):
    """Observations, actions and limits of an environment.

    There are three kinds of actions. A discrete action sets only `num_actions`. An action of several discrete parts
    sets `num_choices`, and `action_shape` is the number of parts. A continuous action sets `action_shape`,
    `action_low` and `action_high`.

    Attributes:
      name: Name of the environment in reports, such as "Frostbite".
      observation_shape: Shape of one observation, channels last. For observations that are a dict or a tuple of arrays,
        a dict or a tuple of shapes. The entry `action_mask` of a dict masks discrete actions; see `split_mask`.
      observation_dtype: Dtype of observations, or a dict or a tuple of dtypes.
      num_actions: Number of discrete actions; actions are then int32 `[B]`.
      action_shape: Shape of an action of several components or of a continuous action; actions are then
        `[B, *action_shape]`, int32 or float32.
      action_low: `float32 [*action_shape]`: smallest allowed values of a continuous action; None if discrete.
      action_high: `float32 [*action_shape]`: largest allowed values of a continuous action; None if discrete.
      max_episode_steps: Timesteps after which an episode is truncated.
      frame_skip: Emulator frames of a timestep.
      extras: Names in `TimeStep.extras`.
      num_choices: Number of choices of each discrete component; None for other actions.
      action_range: `(lowest, highest)` action of the environment's own space, arrays of its shape and dtype, if that
        space differs from the above: index 0 is then the lowest action. `volvox.envs.groups.environment_action`
        converts to it. None if actions need no conversion.
    """

    name: str
    observation_shape: Any
    observation_dtype: Any
    num_actions: int | None
    action_shape: tuple[int, ...] | None
    action_low: np.ndarray | None
    action_high: np.ndarray | None
    max_episode_steps: int
    frame_skip: int
    extras: tuple[str, ...] = ()
    num_choices: tuple[int, ...] | None = None
    action_range: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def observation(self) -> Any:
        """Shape and dtype of one observation: a `jax.ShapeDtypeStruct`, or a dict or a tuple of them."""
        dtypes, shapes = self.observation_dtype, self.observation_shape
        return jax.tree.map(lambda dtype, shape: jax.ShapeDtypeStruct(shape, dtype), dtypes, shapes)

    @property
    def action(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one action."""
        return jax.ShapeDtypeStruct(self.action_shape or (), np.float32 if self.continuous else np.int32)

    @property
    def continuous(self) -> bool:
        """Whether actions are continuous."""
        return self.num_actions is None and self.num_choices is None

    @property
    def num_outputs(self) -> int:
        """Size of a network's output: the number of discrete actions, of all choices, or of continuous components."""
        if self.num_choices is not None:
            return sum(self.num_choices)
        return math.prod(self.action_shape or ()) if self.num_actions is None else self.num_actions

    def split_mask(self, observation: Any) -> tuple[Any, Any]:
        """Separates the action mask from the network's observations.

        Args:
          observation: Observations with any leading dimensions, or their shapes (`EnvSpec.observation`).

        Returns:
          (network's observations, mask). The network's observations are the entry `observation` of the dict, or a dict
          of all entries except the mask if there are several. The mask is nonzero for allowed actions, or for allowed
          choices of each component. Without an entry `action_mask` of `num_outputs` numbers: (observations, None).
        """
        shapes = self.observation_shape if isinstance(self.observation_shape, dict) else {}
        if self.continuous or math.prod(shapes.get("action_mask", (0,))) != self.num_outputs:
            return observation, None
        rest = {name: x for name, x in observation.items() if name != "action_mask"}
        return rest["observation"] if list(rest) == ["observation"] else rest, observation["action_mask"]


class TimeStep(NamedTuple):
    """Observations, rewards and ends of `B` environments after one timestep.

    `first[i]` marks the first observation of an episode. The action that was sent before it is discarded and its reward
    is 0, so that it must not be scored or trained on. If `first` is repeated, the last one begins the episode.

    Attributes:
      observation: `[B, *observation_shape]`, or a dict or a tuple of such arrays.
      reward: `float32 [B]`, unclipped.
      first: `bool [B]`: this observation begins an episode.
      terminated: `bool [B]`: the episode ended by the rules of the environment.
      truncated: `bool [B]`: the episode was cut by its time limit.
      extras: Further arrays `[B, ...]` by name, such as `ram`, `lives` and `elapsed_steps`.
    """

    observation: Any
    reward: Array
    first: Array
    terminated: Array
    truncated: Array
    extras: dict[str, Array]


class EnvGroup(NamedTuple):
    """A batch of environments that step together.

    Calls alternate: `recv`, `send`, `recv`, ... Each call takes the state that the previous call returned.

    Attributes:
      spec: Observations, actions and limits.
      num_envs: Environments in this group.
      traceable: Whether `recv` and `send` may be called inside `jit`; otherwise they are called from Python.
      init: `() -> state`. Starts the first episode of every environment. Called once, from Python, before `recv`.
      recv: `state -> (state, TimeStep)`. Waits for the environments.
      send: `(state, action [B, ...]) -> state`. Returns at once.
      restart: `(state, seed=None) -> state`. Drops all episodes and starts new ones. Called from Python after a `recv`;
        the next `recv` reports `first` everywhere. An int `seed` determines all that follows in environments that can
        be seeded again (pure-JAX environments, not envpool).
      close: Frees the environments, also while actions are in flight. The group cannot be used afterwards.
      resumable: Whether the state is a complete pytree of arrays: if so, it can be saved, and a new group can continue
        from it.
      rekey: `(state, where bool [B], keys [B]) -> state`. Called before a `recv` in which the environments `where`
        begin an episode: all random numbers of that episode then come from its key. None if the environments cannot be
        seeded one by one, as in envpool.
      render: `state -> uint8 [B, height, width, 3]`: pictures of the environments after `recv`, called from Python.
        None if the environments cannot be drawn, or need `render_mode="rgb_array"` and were made without.
    """

    spec: EnvSpec
    num_envs: int
    traceable: bool
    init: Callable[[], ArrayTree]
    recv: Callable[[ArrayTree], tuple[ArrayTree, TimeStep]]
    send: Callable[[ArrayTree, Array | np.ndarray], ArrayTree]
    restart: Callable[..., ArrayTree]
    close: Callable[[], None]
    resumable: bool = False
    rekey: Callable[[ArrayTree, Array, Array], ArrayTree] | None = None
    render: Callable[[ArrayTree], np.ndarray] | None = None


@dataclasses.dataclass(frozen=True)
class Axis:
    """The device axis for collective operations inside `shard_map`.

    Attributes:
      name: Name of the axis; None outside `shard_map`, where sums are the identity.
      size: Number of devices.
    """

    name: str | None = None
    size: int = 1

    def number(self) -> Any:
        """Returns the index of this device."""
        return 0 if self.name is None else jax.lax.axis_index(self.name)

    def sum(self, tree: ArrayTree) -> ArrayTree:
        """Returns the sums of the leaves over all devices."""
        return tree if self.name is None else jax.lax.psum(tree, self.name)


ALONE = Axis()


class Env(NamedTuple):
    """A description of environments, from which groups are made.

    Attributes:
      spec: Observations, actions and limits.
      num_envs: Number of environments in all groups together.
      num_groups: Number of groups, all of one size.
      make: `(seed, *, max_episode_steps=None, num_envs=None, num_groups=None, host=False, first_group=0,
        render_mode=None, **options) -> groups`. `seed` (int) determines the random numbers of all environments; groups
        made with `host=True` are driven from Python; `first_group` is the index of the first group on this device;
        `render_mode="rgb_array"` asks for `EnvGroup.render`; `options` depend on the kind of environment.
      config: The call that made this description.
      axis: The device axis; each device has such groups.
    """

    spec: EnvSpec
    num_envs: int
    num_groups: int
    make: Callable[..., tuple[EnvGroup, ...]]
    config: Config
    axis: Axis = ALONE

    def keys(self, key: Array, number: Array, g: int) -> Array:
        """Returns keys `[B]` for the environments of group `g`; they depend on an environment's index over all devices.

        Args:
          key: Key of the run.
          number: Integer scalar: how often keys have been made before.
          g: Index of the group.
        """
        b = self.num_envs // self.num_groups
        first = (self.axis.number() * self.num_groups + g) * b
        return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, number), first + jnp.arange(b))

    @property
    def all_envs(self) -> int:
        """Number of environments on all devices."""
        return self.num_envs * self.axis.size


class Policy(NamedTuple):
    """A network and the distribution over actions that its output parametrises, as pure functions.

    Attributes:
      init: `key -> params`.
      initial_state: `batch size -> state`: the recurrent state at the start of an episode, leaves `[B, ...]`; () if the
        network is not recurrent.
      apply: `(variables, observation [B, ...], state) -> (output [B, ...], state)`. The output parametrises a
        distribution over actions. Variables are params, or the result of a genotype's `prepare`.
      sample: `(key, output [B, ...]) -> action [B, ...]`. Raises ValueError if the policy is deterministic.
      mode: `output [B, ...] -> action [B, ...]`: the most likely action, within the bounds.
      config: The network as the user gave it.
    """

    init: Callable[[Array], ArrayTree]
    initial_state: Callable[[int], ArrayTree]
    apply: Callable[[ArrayTree, Any, ArrayTree], tuple[Array, ArrayTree]]
    sample: Callable[[Array, Array], Array]
    mode: Callable[[Array], Array]
    config: Any


class Genotype(NamedTuple):
    """A policy whose parameters evolve: they are drawn from noise, mutated, and prepared once for each member.

    Attributes:
      policy: The policy; it acts with the variables that `prepare` returns.
      prepare: `params -> variables`: computes once what all timesteps share, such as memory layouts.
      from_noise: `noise -> params`: turns standard normal noise, shaped as params, into initial parameters.
      low_rank: Paths of the kernels that may be a `volvox.ops.low_rank.LowRankKernel`.
    """

    policy: Policy
    prepare: Callable[[ArrayTree], ArrayTree]
    from_noise: Callable[[ArrayTree], ArrayTree]
    low_rank: frozenset[tuple[str, ...]] = frozenset()


class Population(NamedTuple):
    """A few bases and many seeds: member i is `bases[parent[i]] + scale[i] * noise(seed[i])`.

    A member is a few numbers, so that the parameters of all members never exist at once. `volvox.population.explicit`
    makes a population of explicit parameters, with one base for each member and no noise.

    Attributes:
      bases: Parameters, leaves `[P, ...]`.
      parent: `int32 [N]`: index of the member's base.
      seed: `int32 [N]`: seed of the member's noise.
      scale: `float32 [N]`: signed scale of the noise; 0 gives the base itself.
      initial: `bool [N]`: whether the member is of the first generation, so that its parameters are scaled noise alone.
      episodes: `int32 [N]`: number of episodes to play; 0 leaves the member out.
      priority: `float32 [N]`: expected episode length in timesteps; longer episodes start earlier.
    """

    bases: ArrayTree
    parent: Array
    seed: Array
    scale: Array
    initial: Array
    episodes: Array
    priority: Array


class Evaluation(NamedTuple):
    """Returns, lengths and behaviours of a population's episodes. Entries that are not `valid` are 0.

    Attributes:
      returns: `float32 [N, E]`: undiscounted sums of unclipped rewards.
      lengths: `int32 [N, E]`: timesteps played.
      valid: `bool [N, E]`: the episode was asked for and played.
      behaviors: `float32 [N, E, D]`: behaviour characterisation of each episode; D is 0 if none is recorded.
    """

    returns: Array
    lengths: Array
    valid: Array
    behaviors: Array


class Budget(NamedTuple):
    """Limits of a run that end an iteration of a learner early.

    Attributes:
      frames: Emulator frames of the whole run, by the metric `frames`.
      timesteps: Timesteps of the whole run, by the metric `timesteps`.
      deadline: Time (`time.monotonic()`, seconds) at which the iteration ends.
    """

    frames: float = math.inf
    timesteps: float = math.inf
    deadline: float = math.inf


UNLIMITED = Budget()


class Algorithm(NamedTuple):
    """A training algorithm, made by `volvox.evolve` or `volvox.learn` and run by `volvox.train`.

    Attributes:
      init: `key -> state`, a pytree of arrays, keys and Python numbers. An int is accepted as the key.
      step: `(state, *, monitor=None, budget=Budget()) -> (state, metrics)`: one generation, or one iteration of a
        learner. `monitor` is called about once a second with a dict of progress figures; if it returns True, the step
        raises `Interrupted`, and the state that was passed in stays valid. An iteration ends in the round that uses up
        the budget; generations are always whole. A learner continues its episodes from the state that it returned
        last; from other states it begins new episodes, unless environments are resumable and on one device.
      variables: `state -> variables` for `policy.apply`: the best policy so far, or the latest if nothing ranks them.
      policy: The policy.
      env: The environments.
      config: The call that made the algorithm; on resume it is compared with the saved one.
      close: Frees the environments.
      genome: `state -> lineage` of the best individual as JSON values; None if the algorithm keeps no lineages.
      from_genome: `lineage -> variables`, the inverse of `genome`; None if the algorithm keeps no lineages.
      save: `state -> tree` for a checkpoint, without arrays that can be computed again; None: the state itself.
      restore: `tree -> state`, the inverse of `save`; takes nested dictionaries. None: the tree is the state.
      last_variables: `state -> variables` of the latest policy; None if `variables` gives it.
      learners: `state -> variables` of the latest policy of each learner; () for a population.
      parents: `state -> variables [P, ...]` of the P - 1 parents of the next generation and of the elite, which is
        last; None if the algorithm keeps no lineages.
      log: `state -> arrays` that describe the members of the last generation; None if there are none.
      profile: `(state, seconds) -> times`: runs the loop without overlap for some seconds and measures its parts
        (`volvox.rollout.loop.time_parts`); None if the algorithm cannot be profiled.
      remake: `(settings, **options) -> Algorithm` with other settings, or another strategy, and otherwise the same
        arguments of `learn` or `evolve` except `options`; None if neither made the algorithm.
      step_name: Name of a step in metrics and progress.
      max_over_processes: Maximum of a number over all processes, if several train together; otherwise None.
    """

    init: Callable[[Any], Any]
    step: Callable[..., tuple[Any, dict[str, Any]]]
    variables: Callable[[Any], ArrayTree]
    policy: Policy
    env: Env
    config: Config
    close: Callable[[], None]
    genome: Callable[[Any], Any] | None = None
    from_genome: Callable[[Any], ArrayTree] | None = None
    save: Callable[[Any], ArrayTree] | None = None
    restore: Callable[[ArrayTree], Any] | None = None
    last_variables: Callable[[Any], ArrayTree] | None = None
    learners: tuple[Callable[[Any], ArrayTree], ...] = ()
    parents: Callable[[Any], ArrayTree] | None = None
    log: Callable[[Any], dict[str, np.ndarray]] | None = None
    profile: Callable[[Any, float], tuple[float, float, float]] | None = None
    remake: Callable[..., "Algorithm"] | None = None
    step_name: str = "generation"
    max_over_processes: Callable[[float], float] | None = None


class Interrupted(Exception):
    """A step was abandoned because its monitor returned True."""
