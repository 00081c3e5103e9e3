"""Records spoken on every floor.

Arrays are documented by shape: `B` environments of one group, `N` members of a population, `E` episodes of a
member, `P` bases. Counts are named by what they count: *frames* (emulator frames), *steps* (agent decisions),
*episodes*.
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
    """

    name: str
    observation_shape: tuple[int, ...]
    """Shape of one observation, channels last."""
    observation_dtype: Any
    num_actions: int | None
    """Number of discrete actions; actions are then int32 `[B]`."""
    action_shape: tuple[int, ...] | None
    """Shape of one continuous action; actions are then float32 `[B, *action_shape]`."""
    action_low: float
    """Smallest allowed value of a continuous action (unused if discrete)."""
    action_high: float
    """Largest allowed value of a continuous action (unused if discrete)."""
    max_episode_steps: int
    """Steps after which an episode is truncated."""
    frame_skip: int
    """Emulator frames per step."""
    extras: tuple[str, ...] = ()
    """Names in `TimeStep.extras`."""


class TimeStep(NamedTuple):
    """What `B` environments report after one step.

    Where `first` holds, the observation begins an episode: the action sent before was discarded, the reward is 0,
    and nothing of this step may be scored or trained on. It may hold several times in a row; then the last of them
    begins the episode.
    """

    observation: Array
    """`[B, *observation_shape]`."""
    reward: Array
    """float32 `[B]`, unclipped."""
    first: Array
    """bool `[B]`: this observation begins an episode."""
    terminated: Array
    """bool `[B]`: the episode ended by the rules of the environment."""
    truncated: Array
    """bool `[B]`: the episode was cut by its time limit."""
    extras: dict[str, Array]
    """What else the environment tells, each `[B, ...]`: `ram`, `lives`, `elapsed_steps`."""


class EnvGroup(NamedTuple):
    """`num_envs` environments that step together; natively batched, never vmapped.

    A group alternates strictly: `recv`, `send`, `recv`, ... With `traceable`, `recv` and `send` may be called
    inside `jit`; otherwise only from Python. The state is threaded through: it orders the calls.
    """

    spec: EnvSpec
    num_envs: int
    traceable: bool
    init: Callable[[], ArrayTree]
    """() -> state. Starts the first episode of every environment; called once, from Python. `recv` comes next."""
    recv: Callable[[ArrayTree], tuple[ArrayTree, TimeStep]]
    """state -> (state, TimeStep). Waits for the environments."""
    send: Callable[[ArrayTree, Array | np.ndarray], ArrayTree]
    """(state, action `[B, ...]`) -> state. Returns at once."""
    restart: Callable[..., ArrayTree]
    """(state, seed=None) -> state. Drops every episode and starts new ones. Only from Python, and only when `recv` was
    the last call (nothing in flight); `recv` comes next and reports `first` everywhere. With an int `seed`, what
    follows depends on it alone where the environment can be seeded anew: pure-JAX ones can, envpool cannot."""
    close: Callable[[], None]
    """Frees what the group holds, actions in flight or not. No compiled function that uses the group may be called
    afterwards."""


class Env(NamedTuple):
    """A recipe for groups of environments: what to make, not yet made."""

    spec: EnvSpec
    num_envs: int
    """Environments in all groups together."""
    num_groups: int
    make: Callable[..., tuple[EnvGroup, ...]]
    """make(seed, *, max_episode_steps=None, num_envs=None, num_groups=None, host=False) -> groups.
    `seed` (int) fixes every environment's random numbers; `host=True` gives groups that are driven from Python."""
    config: Config


class Policy(NamedTuple):
    """A network as pure functions. Any flax module becomes one by `volvox.networks.policy`."""

    init: Callable[[Array], ArrayTree]
    """key -> params, in the layout in which they are mutated and logged."""
    prepare: Callable[[ArrayTree], ArrayTree]
    """params -> variables: what can be computed once per genome (layouts, reference statistics)."""
    initial_state: Callable[[int], ArrayTree]
    """batch size -> recurrent state with leaves `[B, ...]`; () without recurrence."""
    apply: Callable[[ArrayTree, Array, ArrayTree, Array | None], tuple[Array, ArrayTree]]
    """(variables, observation `[B, ...]`, state, key) -> (output `[B, ...]`, state). Without a key the output describes
    the policy; with one it is drawn: the largest entry, or the continuous action, is a sample."""
    from_noise: Callable[[ArrayTree], ArrayTree]
    """Standard normal noise shaped as params -> params of the first generation."""
    config: Config
    low_rank: frozenset[tuple[str, ...]] = frozenset()
    """Paths of the kernels in whose place `prepare` and `apply` take a `volvox.ops.low_rank.LowRank` as well."""


class Population(NamedTuple):
    """Few bases and many seeds: member i is `bases[parent[i]] + scale[i] * noise(seed[i])`.

    Kilobytes a member: parameters of all members never exist at once.
    """

    bases: ArrayTree
    """Parameters, leaves `[P, ...]`."""
    parent: Array
    """int32 `[N]`: index of the member's base."""
    seed: Array
    """int32 `[N]`: names the member's noise."""
    scale: Array
    """float32 `[N]`: signed noise power; 0 plays the base itself."""
    initial: Array
    """bool `[N]`: a member of the first generation: its parameters are its initialiser's scaled noise alone."""
    episodes: Array
    """int32 `[N]`: episodes to play; 0 leaves the member out."""
    priority: Array
    """float32 `[N]`: higher starts earlier; the expected episode length in steps."""


class Evaluation(NamedTuple):
    """What came of playing a population. Entries that are not `valid` are 0."""

    returns: Array
    """float32 `[N, E]`: undiscounted sums of unclipped rewards."""
    lengths: Array
    """int32 `[N, E]`: steps played."""
    valid: Array
    """bool `[N, E]`: the episode was asked for and played."""
    behaviors: Array
    """float32 `[N, E, D]`: what each episode was like; D is 0 where nothing was recorded."""


class Algorithm(NamedTuple):
    """Something that learns; `volvox.train` runs them all. State is host data and device arrays, opaque to callers."""

    init: Callable[[Array], Any]
    """key -> state."""
    step: Callable[..., tuple[Any, dict[str, Any]]]
    """(state, *, monitor=None) -> (state, metrics). One generation or one round. `monitor`, if given, is called
    about once a second with a dict of progress figures; if it returns True, the step is abandoned by raising
    `Interrupted`, and the state passed in stays valid for `save`."""
    policy: Callable[[Any], ArrayTree]
    """state -> params to act with: the best so far, or the latest where nothing ranks them."""
    genome: Callable[[Any], Any] | None
    """state -> the same individual as a lineage in JSON form; None if the algorithm keeps none."""
    save: Callable[[Any], ArrayTree]
    """state -> pytree of numpy arrays, all that is needed to go on."""
    restore: Callable[[ArrayTree], Any]
    """What `save` gave -> state."""
    close: Callable[[], None]
    """Frees pools and their threads."""
    env: Env
    network: Policy
    config: Config
    log: Callable[[Any], dict[str, np.ndarray]] | None = None
    """state after a step -> arrays that say more of it than its metrics; None if there are none."""
    step_name: str = "generation"
    """What a step is called, in rows of metrics and in the progress display."""


class Interrupted(Exception):
    """A step was abandoned because its monitor asked for it."""
