"""Types that all layers share.

Arrays are documented by shape: `B` environments of one group, `N` members of a population, `E` episodes of a
member, `P` bases. Counts are named by what they count: *frames* (emulator frames), *timesteps* (decisions of one
environment), *episodes*.
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
"""Settings as JSON values. They are written to `config.json` and compared when a run is resumed."""


def zeros(like: ArrayTree, *batch: int) -> Any:
    """Returns zeros `[*batch, ...]` with the shapes and dtypes of a tree's leaves, such as those of `EnvSpec`."""
    return jax.tree.map(lambda x: jnp.zeros((*batch, *x.shape), x.dtype), like)


def replaced(items: tuple[Any, ...], i: int, new: Any) -> tuple[Any, ...]:
    """Returns a tuple with another item `i`, such as what belongs to group `i` of the environments."""
    return (*items[:i], new, *items[i + 1 :])


class EnvSpec(NamedTuple):
    """What an environment offers, the same for each of its copies.

    Actions are of one of three kinds: one of `num_actions` (the only field of these that is not None); one choice in
    each of several components (`num_choices`, and `action_shape` is their number); or continuous within bounds
    (`action_shape`, `action_low` and `action_high`).

    Attributes:
      name: What reports call the environment, such as "Frostbite".
      observation_shape: Shape of one observation, channels last. Where an observation is a dict or a tuple of arrays,
        it is a dict or a tuple of shapes; `observation` has shapes and dtypes together.
      observation_dtype: Dtype of observations, a numpy dtype or scalar type; of several arrays a dict or a tuple.
      num_actions: Number of discrete actions; actions are then int32 `[B]`.
      action_shape: Shape of one action of several components or of a continuous one; actions are then
        `[B, *action_shape]`, int32 or float32.
      action_low: `float32 [*action_shape]`: smallest allowed values of a continuous action; None if discrete.
      action_high: `float32 [*action_shape]`: largest allowed values of a continuous action; None if discrete.
      max_episode_steps: Timesteps after which an episode is truncated.
      frame_skip: Emulator frames of a timestep.
      extras: Names in `TimeStep.extras`.
      num_choices: Of actions with several discrete components the number of choices of each; None otherwise.
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

        def described(dtype: Any, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, dtype)

        return jax.tree.map(described, self.observation_dtype, self.observation_shape)

    @property
    def action(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one action."""
        return jax.ShapeDtypeStruct(self.action_shape or (), np.float32 if self.continuous else np.int32)

    @property
    def continuous(self) -> bool:
        """Whether actions are continuous; they are discrete otherwise, of one component or of several."""
        return self.num_actions is None and self.num_choices is None

    @property
    def num_outputs(self) -> int:
        """Size of a network's output: one for each discrete action or choice, or for each continuous component."""
        if self.num_choices is not None:
            return sum(self.num_choices)
        return math.prod(self.action_shape or ()) if self.num_actions is None else self.num_actions


class TimeStep(NamedTuple):
    """What `B` environments report after one timestep.

    Where `first` holds, the observation begins an episode: the action sent before was discarded, the reward is 0,
    and nothing of this timestep may be scored or trained on. It may hold several times in a row; then the last of them
    begins the episode.

    Attributes:
      observation: `[B, *observation_shape]`, or a dict or a tuple of such arrays.
      reward: `float32 [B]`, unclipped.
      first: `bool [B]`: this observation begins an episode.
      terminated: `bool [B]`: the episode ended by the rules of the environment.
      truncated: `bool [B]`: the episode was cut by its time limit.
      extras: What else the environment reports, each `[B, ...]`: `ram`, `lives`, `elapsed_steps`.
    """

    observation: Any
    reward: Array
    first: Array
    terminated: Array
    truncated: Array
    extras: dict[str, Array]


class EnvGroup(NamedTuple):
    """`num_envs` environments that step together; natively batched, never vmapped.

    A group alternates strictly: `recv`, `send`, `recv`, ... With `traceable`, `recv` and `send` may be called
    inside `jit`; otherwise only from Python. The state is threaded through: it orders the calls.

    Attributes:
      spec: What the environment offers.
      num_envs: Environments in this group.
      traceable: `recv` and `send` may be called inside `jit`.
      init: `() -> state`. Starts the first episode of every environment; called once, from Python. `recv` comes next.
      recv: `state -> (state, TimeStep)`. Waits for the environments.
      send: `(state, action [B, ...]) -> state`. Returns at once.
      restart: `(state, seed=None) -> state`. Drops every episode and starts new ones. Only from Python, and only when
        `recv` was the last call (nothing in flight); `recv` comes next and reports `first` everywhere. With an int
        `seed`, what follows depends on it alone where the environment can be seeded anew: pure-JAX ones can, envpool
        cannot.
      close: Frees what the group holds, actions in flight or not. No compiled function that uses the group may be
        called afterwards.
      resumable: Whether the state, a pytree of arrays, is complete, so that it can be saved and another group made in
        the same way can continue from it.
      rekey: `(state, where bool [B], keys [B]) -> state`. Before a `recv` in which the environments `where` begin an
        episode: all random numbers of that episode come from its key, whichever environment plays it. None where an
        environment cannot be seeded while others play, as in envpool.
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


@dataclasses.dataclass(frozen=True)
class Axis:
    """The devices that learn together, as the program of one of them sees the others.

    Attributes:
      name: Name of the axis for `jax.lax`; None outside of their program: nothing is summed then.
      size: Number of devices.
    """

    name: str | None = None
    size: int = 1

    def number(self) -> Any:
        """Returns the number of this device, from 0."""
        return 0 if self.name is None else jax.lax.axis_index(self.name)

    def sum(self, tree: ArrayTree) -> ArrayTree:
        """Returns the sums of the leaves over all devices, by one exchange for each dtype."""
        if self.name is None:
            return tree
        leaves, structure = jax.tree.flatten(tree)
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
            places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
            joined = jax.lax.psum(jnp.concatenate([leaves[i].ravel() for i in places]), self.name)
            ends = np.cumsum([leaves[i].size for i in places])[:-1]
            for i, part in zip(places, jnp.split(joined, ends), strict=True):
                leaves[i] = part.reshape(leaves[i].shape)
        return jax.tree.unflatten(structure, leaves)

    def mean(self, tree: ArrayTree) -> ArrayTree:
        """Returns the means of the leaves, of floating-point numbers, over all devices."""
        return tree if self.name is None else jax.tree.map(lambda x: x / self.size, self.sum(tree))


ALONE = Axis()


class Env(NamedTuple):
    """A recipe for groups of environments: what to make, not yet made.

    Attributes:
      spec: What the environment offers.
      num_envs: Environments in all groups together.
      num_groups: Groups they are divided into, all of one size.
      make: `(seed, *, max_episode_steps=None, num_envs=None, num_groups=None, host=False, **options) -> groups`. `seed`
        (int) fixes every environment's random numbers; `host=True` gives groups that are driven from Python; `options`
        are those of the kind of environment (`volvox.envs.envpool` has some), and `first_group`, the number of the
        first group, where there are others before it on other devices.
      config: What describes the environment: JSON values.
      axis: The devices that each have such groups, and learn from all of them together.
    """

    spec: EnvSpec
    num_envs: int
    num_groups: int
    make: Callable[..., tuple[EnvGroup, ...]]
    config: Config
    axis: Axis = ALONE

    def keys(self, key: Array, number: Array, g: int) -> Array:
        """Returns keys `[B]` for the environments of group `g`, each by its number among those of all devices.

        Args:
          key: The key of all environments' random numbers.
          number: Integer scalar: how often keys were made before for each environment.
          g: Index of the group.
        """
        b = self.num_envs // self.num_groups
        first = (self.axis.number() * self.num_groups + g) * b
        return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, number), first + jnp.arange(b))

    @property
    def all_envs(self) -> int:
        """Environments of all devices."""
        return self.num_envs * self.axis.size


class Policy(NamedTuple):
    """What acts: a network and what its output says about actions, as pure functions.

    Attributes:
      init: `key -> params`.
      initial_state: `batch size -> state`: the recurrent state in which episodes begin, leaves `[B, ...]`; () without
        recurrence.
      apply: `(variables, observation [B, ...], state) -> (output [B, ...], state)`. The output describes a
        distribution over actions. Variables are params, or what a genotype's `prepare` makes of them.
      sample: `(key, output [B, ...]) -> action [B, ...]`, drawn from the distribution. Raises ValueError where the
        output is one action and not a distribution.
      mode: `output [B, ...] -> action [B, ...]`, the likeliest, within the environment's bounds.
      config: What describes the network: JSON values.
    """

    init: Callable[[Array], ArrayTree]
    initial_state: Callable[[int], ArrayTree]
    apply: Callable[[ArrayTree, Any, ArrayTree], tuple[Array, ArrayTree]]
    sample: Callable[[Array, Array], Array]
    mode: Callable[[Array], Array]
    config: Config


class Genotype(NamedTuple):
    """What evolves: a policy whose parameters are drawn from noise, mutated, and prepared once for each network.

    Attributes:
      policy: What acts with the variables that `prepare` makes.
      prepare: `params -> variables`: what can be computed once for each network (layouts, reference statistics).
      from_noise: `noise -> params`: standard normal noise, shaped as params, to params of the first generation.
      low_rank: Paths of the kernels in whose place `prepare` and `policy.apply` also take a
        `volvox.ops.low_rank.LowRankKernel`.
    """

    policy: Policy
    prepare: Callable[[ArrayTree], ArrayTree]
    from_noise: Callable[[ArrayTree], ArrayTree]
    low_rank: frozenset[tuple[str, ...]] = frozenset()


class Population(NamedTuple):
    """Few bases and many seeds: member i is `bases[parent[i]] + scale[i] * noise(seed[i])`.

    A member is a few numbers; the parameters of all members never exist at once. For small networks they may: members
    are then explicit parameters, with one base for each and no noise (`volvox.population.explicit`).

    Attributes:
      bases: Parameters, leaves `[P, ...]`.
      parent: `int32 [N]`: index of the member's base.
      seed: `int32 [N]`: names the member's noise.
      scale: `float32 [N]`: signed noise power; 0 plays the base itself.
      initial: `bool [N]`: a member of the first generation: its parameters are its initialiser's scaled noise alone.
      episodes: `int32 [N]`: episodes to play; 0 leaves the member out.
      priority: `float32 [N]`: higher starts earlier; the expected episode length in timesteps.
    """

    bases: ArrayTree
    parent: Array
    seed: Array
    scale: Array
    initial: Array
    episodes: Array
    priority: Array


class Evaluation(NamedTuple):
    """Returns, lengths and behaviours of the episodes that a population played. Entries that are not `valid` are 0.

    Attributes:
      returns: `float32 [N, E]`: undiscounted sums of unclipped rewards.
      lengths: `int32 [N, E]`: timesteps played.
      valid: `bool [N, E]`: the episode was asked for and played.
      behaviors: `float32 [N, E, D]`: what each episode was like; D is 0 where nothing was recorded.
    """

    returns: Array
    lengths: Array
    valid: Array
    behaviors: Array


class Algorithm(NamedTuple):
    """Something that learns; `volvox.train` runs them all.

    Attributes:
      init: `key -> state`, a pytree of arrays, keys and Python numbers. Those of `volvox.evolve`
        and `volvox.learn` take an int for the key.
      step: `(state, *, monitor=None) -> (state, metrics)`: one generation, or one iteration of a learner. `monitor`, if
        given, is called about once a second, and once at least, with a dict of progress figures; if it returns True,
        the step is abandoned by raising `Interrupted`, and the state passed in stays valid. A learner's episodes go on
        only from the very state that was returned last; from any other, equal ones included, it begins new episodes.
      variables: `state -> variables` for `policy.apply`: the best so far, or the latest where nothing ranks them.
      policy: What acts with these variables.
      env: The environments.
      config: The settings: JSON values. Written to `config.json`, and compared when a run is resumed.
      close: Frees pools and their threads.
      genome: `state -> lineage` of the same individual, in JSON form; None if the algorithm keeps none.
      from_genome: `lineage -> variables`, from such a lineage; None if the algorithm keeps none.
      save: `state -> pytree` with all that is needed to go on; None if that is the state itself.
      restore: `pytree -> state`, the inverse of `save`; None if what was saved is the state.
      last_variables: `state -> variables` of the last policy, where `variables` gives the best; None if there is only
        one.
      log: `state -> arrays` that describe the last step in more detail than its metrics; None if there are none.
      step_name: What a step is called, in rows of metrics and in the progress display.
      lock: A `threading.RLock` that is held while the algorithm runs, so that a second thread is refused; None where
        threads may share it.
      largest: `number -> the largest number of all processes`, if several processes make each step together. All of
        them call it at the same points of a run; only process 0 writes files. None if there is one process.
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
    log: Callable[[Any], dict[str, np.ndarray]] | None = None
    step_name: str = "generation"
    lock: Any = None
    max_over_processes: Callable[[float], float] | None = None
    profile: Callable[..., Any] | None = None


class Interrupted(Exception):
    """A step was abandoned because its monitor asked for it."""
