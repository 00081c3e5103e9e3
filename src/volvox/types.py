"""Types that all layers share.

Arrays are documented by shape: `B` environments of one group, `N` members of a population, `E` episodes of a
member, `P` bases. Counts are named by what they count: *frames* (emulator frames), *timesteps* (decisions of one
environment), *episodes*.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

Array = jax.Array
ArrayTree = Any
"""Any pytree of arrays."""
Config = Mapping[str, Any]
"""The settings a record was made with: JSON values only. Written to `config.json` and compared on resume."""


class EnvSpec(NamedTuple):
    """What an environment offers, the same for each of its copies.

    Exactly one of `num_actions` (discrete) and `action_shape` (continuous) is not None.

    Attributes:
      name: What reports call the environment, such as "Frostbite".
      observation_shape: Shape of one observation, channels last.
      observation_dtype: Dtype of observations: a numpy dtype or scalar type.
      num_actions: Number of discrete actions; actions are then int32 `[B]`.
      action_shape: Shape of one continuous action; actions are then float32 `[B, *action_shape]`.
      action_low: `float32 [*action_shape]`: smallest allowed values of a continuous action; None if discrete.
      action_high: `float32 [*action_shape]`: largest allowed values of a continuous action; None if discrete.
      max_episode_steps: Steps after which an episode is truncated.
      frame_skip: Emulator frames per step.
      extras: Names in `TimeStep.extras`.
    """

    name: str
    observation_shape: tuple[int, ...]
    observation_dtype: Any
    num_actions: int | None
    action_shape: tuple[int, ...] | None
    action_low: np.ndarray | None
    action_high: np.ndarray | None
    max_episode_steps: int
    frame_skip: int
    extras: tuple[str, ...] = ()


class TimeStep(NamedTuple):
    """What `B` environments report after one step.

    Where `first` holds, the observation begins an episode: the action sent before was discarded, the reward is 0,
    and nothing of this step may be scored or trained on. It may hold several times in a row; then the last of them
    begins the episode.

    Attributes:
      observation: `[B, *observation_shape]`.
      reward: `float32 [B]`, unclipped.
      first: `bool [B]`: this observation begins an episode.
      terminated: `bool [B]`: the episode ended by the rules of the environment.
      truncated: `bool [B]`: the episode was cut by its time limit.
      extras: What else the environment reports, each `[B, ...]`: `ram`, `lives`, `elapsed_steps`.
    """

    observation: Array
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
    """

    spec: EnvSpec
    num_envs: int
    traceable: bool
    init: Callable[[], ArrayTree]
    recv: Callable[[ArrayTree], tuple[ArrayTree, TimeStep]]
    send: Callable[[ArrayTree, Array | np.ndarray], ArrayTree]
    restart: Callable[..., ArrayTree]
    close: Callable[[], None]


class Env(NamedTuple):
    """A recipe for groups of environments: what to make, not yet made.

    Attributes:
      spec: What the environment offers.
      num_envs: Environments in all groups together.
      num_groups: Groups they are divided into, all of one size.
      make: `(seed, *, max_episode_steps=None, num_envs=None, num_groups=None, host=False, **options) -> groups`. `seed`
        (int) fixes every environment's random numbers; `host=True` gives groups that are driven from Python; `options`
        are those of the kind of environment (`volvox.envs.envpool_task` has some).
      config: What describes the environment: JSON values.
    """

    spec: EnvSpec
    num_envs: int
    num_groups: int
    make: Callable[..., tuple[EnvGroup, ...]]
    config: Config


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
    apply: Callable[[ArrayTree, Array, ArrayTree], tuple[Array, ArrayTree]]
    sample: Callable[[Array, Array], Array]
    mode: Callable[[Array], Array]
    config: Config


class Genotype(NamedTuple):
    """What evolves: a policy whose parameters are drawn from noise, mutated, and prepared once for each genome.

    Attributes:
      policy: What acts with the variables that `prepare` makes.
      prepare: `params -> variables`: what can be computed once for each genome (layouts, reference statistics).
      from_noise: `noise -> params`: standard normal noise, shaped as params, to params of the first generation.
      low_rank: Paths of the kernels in whose place `prepare` and `policy.apply` also take a
        `volvox.ops.low_rank.LowRank`.
    """

    policy: Policy
    prepare: Callable[[ArrayTree], ArrayTree]
    from_noise: Callable[[ArrayTree], ArrayTree]
    low_rank: frozenset[tuple[str, ...]] = frozenset()


class Population(NamedTuple):
    """Few bases and many seeds: member i is `bases[parent[i]] + scale[i] * noise(seed[i])`.

    Kilobytes a member: parameters of all members never exist at once.

    Attributes:
      bases: Parameters, leaves `[P, ...]`.
      parent: `int32 [N]`: index of the member's base.
      seed: `int32 [N]`: names the member's noise.
      scale: `float32 [N]`: signed noise power; 0 plays the base itself.
      initial: `bool [N]`: a member of the first generation: its parameters are its initialiser's scaled noise alone.
      episodes: `int32 [N]`: episodes to play; 0 leaves the member out.
      priority: `float32 [N]`: higher starts earlier; the expected episode length in steps.
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
      lengths: `int32 [N, E]`: steps played.
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
      init: `key -> state`, a pytree of arrays, keys and Python numbers.
      step: `(state, *, monitor=None) -> (state, metrics)`: one generation, or one iteration of a learner. `monitor`, if
        given, is called about once a second with a dict of progress figures; if it returns True, the step is abandoned
        by raising `Interrupted`, and the state passed in stays valid.
      variables: `state -> variables` for `policy.apply`: the best so far, or the latest where nothing ranks them.
      policy: What acts with these variables.
      env: The environments.
      config: The settings: JSON values. Written to `config.json`, and compared when a run is resumed.
      close: Frees pools and their threads.
      genome: `state -> lineage` of the same individual, in JSON form; None if the algorithm keeps none.
      save: `state -> pytree` with all that is needed to go on; None if that is the state itself.
      restore: `pytree -> state`, the inverse of `save`; None if what was saved is the state.
      last_variables: `state -> variables` of the last policy, where `variables` gives the best; None if there is only
        one.
      log: `state -> arrays` that describe the last step in more detail than its metrics; None if there are none.
      step_name: What a step is called, in rows of metrics and in the progress display.
    """

    init: Callable[[Array], Any]
    step: Callable[..., tuple[Any, dict[str, Any]]]
    variables: Callable[[Any], ArrayTree]
    policy: Policy
    env: Env
    config: Config
    close: Callable[[], None]
    genome: Callable[[Any], Any] | None = None
    save: Callable[[Any], ArrayTree] | None = None
    restore: Callable[[ArrayTree], Any] | None = None
    last_variables: Callable[[Any], ArrayTree] | None = None
    log: Callable[[Any], dict[str, np.ndarray]] | None = None
    step_name: str = "generation"


class Interrupted(Exception):
    """A step was abandoned because its monitor asked for it."""
