"""Single networks: scores over whole episodes by a named protocol, and actors for use outside of JAX.

print(play(env, algorithm.policy, algorithm.variables(state)))
print(play(env, algorithm.policy, algorithm.variables(state), protocol="exact"))
print(play_randomly(env))
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import check_type, integer
from volvox.envs.envpool_tasks import STICKINESS, Protocol, atari_game, evaluation_options, human_normalized
from volvox.envs.groups import convert_observation, environment_action
from volvox.networks.distributions import distribution, mask_logits
from volvox.ops.batching import where_rows
from volvox.rollout.loop import seed_of
from volvox.types import Array, ArrayTree, Env, EnvGroup, EnvSpec, Policy, TimeStep

UNUSED_SEED = 1_000_003
"""Default seed of scores; training is unlikely to use it."""
_MAX_ENVS = 1_000
"""Default limit of environments; an Atari emulator takes about 0.2 MB."""
_NO_LIMIT = 2**30
"""A time limit of at least so many timesteps counts as none."""
_LONGEST = 100_000
"""Timesteps after which episodes without a limit are cut."""
_WAVES = 2**31  # offset of the waves' numbers in keys; the numbers of timesteps are smaller


class Score(NamedTuple):
    """Returns of episodes, and how they were played; `print` shows a summary.

    Attributes:
      returns: float32 `[E]`.
      lengths: int32 `[E]`, timesteps.
      mean: Mean of the returns.
      low: Lower end of a 95% bootstrap interval of the mean over episodes; None with the protocol "exact".
      high: Upper end of the interval; None with the protocol "exact".
      protocol: "sticky", "exact" or "fresh"; see `play`.
      about: Description of the protocol.
      human_normalized: (mean - random) / (human - random) on the 57 Atari games that have it; None elsewhere,
        and if each life is an episode.
    """

    returns: np.ndarray
    lengths: np.ndarray
    mean: float
    low: float | None
    high: float | None
    protocol: Protocol
    about: str
    human_normalized: float | None

    def __str__(self) -> str:
        size = abs(self.mean)
        digits = 1 if size >= 100 else 2 if size >= 1 or size == 0 else 4
        interval = "" if self.low is None else f", 95% interval [{self.low:.{digits}f}, {self.high:.{digits}f}]"
        normalized = "" if self.human_normalized is None else f"; human-normalised {self.human_normalized:.1%}"
        return f"mean return {self.mean:z.{digits}f}{interval} ({self.about}{normalized})"


def play(
    env: Env,
    policy: Policy,
    variables: ArrayTree,
    *,
    protocol: Protocol | None = None,
    num_episodes: int | None = None,
    max_episode_steps: int | None = None,
    num_envs: int | None = None,
    sampled: bool = False,
    seed: int = 0,
) -> Score:
    """Scores one network by whole episodes.

    An Atari game without sticky actions has no more episodes than no-op starts, 30 as a rule, so that random episodes
    of a deterministic policy repeat each other. It has two protocols:

    - "sticky": the emulator repeats the last action with a probability of 0.25 (Machado et al. 2018, arXiv
      1709.06009), so that all episodes differ; with an interval over episodes.
    - "exact": every no-op start once, without sticky actions; a mean without an interval. Publications before 2018
      average over random no-op starts; the exact mean is the limit of such averages.

    Both play whole games, even if the environment ends episodes with a life. "fresh" plays the environment as it is,
    from random starts.

    Args:
      env: The environment.
      policy: The policy.
      variables: The variables of `policy.apply`, for example `algorithm.variables(state)`.
      protocol: "sticky", "exact" or "fresh"; None: "sticky" for Atari games and "fresh" for all other environments.
      num_episodes: Number of episodes; each is played to its end, so short ones are not favoured. None: 100, or with
        "exact" the number of starts.
      max_episode_steps: Cutoff in timesteps; None: the environment's own, or 100 000 if it has none.
      num_envs: Environments that exist at a time. None: one for each episode, up to the larger of 1 000 and
        `env.num_envs`. With "exact" there is one for each start.
      sampled: Draw actions from the policy's distribution, instead of taking the likeliest.
      seed: Seed of the environments and the actions. With another seed than the run's, episodes are new.

    Raises:
      ValueError: No episodes are asked for, `sampled` with a policy that has no distribution, a protocol that does not
        suit the environment, or "exact" with `sampled` or a number of episodes.
    """
    check_type("env", env, Env, "a function of vx.envs, such as vx.envs.atari(...)")
    check_type("policy", policy, Policy, "an algorithm (algorithm.policy)")
    if protocol == "exact" and sampled:
        raise ValueError("protocol='exact' plays each start once, so actions cannot be drawn: use protocol='sticky'")
    act_jit, key = jax.jit(partial(act, policy, sampled)), jax.random.key(seed)

    def choose(wave: int, number: int, timestep: TimeStep, state: ArrayTree) -> tuple[Array, ArrayTree]:
        drawn = jax.random.fold_in(jax.random.fold_in(key, _WAVES + wave) if wave else key, number)
        return act_jit(drawn, variables, jax.tree.map(jnp.asarray, timestep), state)

    return _play(env, policy.initial_state, choose, protocol, num_episodes, max_episode_steps, num_envs, seed)


def play_randomly(
    env: Env,
    *,
    protocol: Protocol | None = None,
    num_episodes: int | None = None,
    max_episode_steps: int | None = None,
    num_envs: int | None = None,
    seed: int = 0,
) -> Score:
    """Scores uniformly random actions; see `play`.

    Args:
      env: The environment.
      protocol: As in `play`, but not "exact".
      num_episodes: Number of episodes; None: 100.
      max_episode_steps: As in `play`.
      num_envs: As in `play`.
      seed: Seed of the environments and the actions.

    Raises:
      ValueError: No episodes are asked for, or a protocol does not suit the environment or random actions.
    """
    check_type("env", env, Env, "a function of vx.envs, such as vx.envs.atari(...)")
    if protocol == "exact":
        raise ValueError("protocol='exact' plays each start once, which says little about random actions: leave it out")
    rng = np.random.default_rng(seed)

    def choose(wave: int, number: int, timestep: TimeStep, state: ArrayTree) -> tuple[np.ndarray, ArrayTree]:
        return _random_actions(env.spec, timestep, rng), state

    return _play(env, lambda size: (), choose, protocol, num_episodes, max_episode_steps, num_envs, seed)


def reference_batch(env: Env, *, size: int = 128, seed: int = 0) -> Any:
    """Observations of uniformly random play, for virtual batch normalisation.

    Eight environments play side by side, and each of their observations is taken with a probability of 1%, so that the
    batch is spread over some 1 600 timesteps. With the same seed it is the same batch, on envpool too.

    Args:
      env: The environment.
      size: R, number of observations.
      seed: Seed of the environments, the actions and the choice.

    Returns:
      `[R, *observation_shape]`, or a dict or a tuple of such arrays.

    Raises:
      ValueError: `size` is not positive.
    """
    integer("size", size, low=1)
    num_envs, chance, rng = 8, np.random.default_rng([seed, 1]), np.random.default_rng(seed)
    (group,) = env.make(seed, num_envs=num_envs, num_groups=1, host=True)
    taken: list[Any] = []
    try:
        state, timestep = group.recv(group.init())
        while len(taken) < size:
            chosen = np.flatnonzero(chance.random(num_envs) < 0.01)
            taken += [jax.tree.map(lambda x, i=i: np.array(x[i]), timestep.observation) for i in chosen]
            state, timestep = group.recv(group.send(state, _random_actions(env.spec, timestep, rng)))
    finally:
        group.close()
    return jax.tree.map(lambda *x: np.stack(x), *taken[:size])


def act(
    policy: Policy, sampled: bool, key: Any, variables: ArrayTree, timestep: TimeStep, state: ArrayTree
) -> tuple[Array, ArrayTree]:
    """Returns the policy's actions `[B, ...]` at a timestep and its next state, which begins anew with an episode."""
    state = where_rows(timestep.first, policy.initial_state(timestep.first.shape[0]), state)
    output, state = policy.apply(variables, timestep.observation, state)
    return policy.sample(key, output) if sampled else policy.mode(output), state


def _random_actions(spec: EnvSpec, timestep: TimeStep, rng: np.random.Generator) -> np.ndarray:
    shape, mask = (timestep.reward.size, *spec.action.shape), spec.split_mask(timestep.observation)[1]
    if mask is not None:  # the largest of uniform numbers is at any place with equal probability
        drawn = jnp.asarray(rng.random((len(mask), spec.num_outputs), np.float32))
        return np.asarray(distribution(spec).mode(mask_logits(drawn, mask)))
    if spec.action_low is None or spec.action_high is None:
        return rng.integers(spec.num_choices or spec.num_actions or 1, size=shape).astype(np.int32)
    if not (np.isfinite(spec.action_low).all() and np.isfinite(spec.action_high).all()):
        raise ValueError(f"{spec.name}: uniformly random actions need bounds, and some of its actions have none.")
    return rng.uniform(spec.action_low, spec.action_high, shape).astype(np.float32)


def _play(
    env: Env,
    initial_state: Callable[[int], ArrayTree],
    choose: Callable[[int, int, TimeStep, Any], tuple[Any, Any]],
    protocol: Protocol | None,
    num_episodes: int | None,
    max_episode_steps: int | None,
    num_envs: int | None,
    seed: int,
) -> Score:
    """Plays in waves, each until the first episode of every environment has ended.

    `initial_state`: size of the batch -> state of the policy.
    `choose`: (wave, number of the timestep, timestep, state of the policy) -> (action, state of the policy).
    """
    protocol, options = evaluation_options(env, protocol)
    starts = options.get("seeds", ())
    if starts and num_episodes is not None:
        raise ValueError(f"protocol='exact' plays {len(starts)} episodes, each start once: leave num_episodes out")
    count = len(starts) or integer("num_episodes", 100 if num_episodes is None else num_episodes, low=1)
    limit = max(env.num_envs, _MAX_ENVS) if num_envs is None else integer("num_envs", num_envs, low=1)
    size = len(starts) or min(count, limit)
    made = {"num_envs": size, "num_groups": 1, "host": True, **options}
    (group,) = env.make(seed, max_episode_steps=max_episode_steps, **made)
    played: list[tuple[np.ndarray, np.ndarray]] = []
    try:
        state = group.init()
        for wave in range(-(-count // size)):  # all environments play the last wave too, and its first episodes count
            if wave:
                state = group.restart(state, seed_of(jax.random.key(seed), wave))
            state, returns, lengths = first_episodes(group, state, partial(choose, wave), initial_state(size))
            played.append((returns, lengths))
    finally:
        group.close()
    returns, lengths = (np.concatenate(parts)[:count] for parts in zip(*played, strict=True))
    mean, low, high = float(returns.mean(dtype=np.float64)), None, None
    if protocol != "exact":
        low, high = _interval(returns)
    about = {
        "sticky": f"sticky actions {STICKINESS}, {count} episodes",
        "exact": f"exact: {count} no-op starts, each once",
        "fresh": f"{count} episodes",
    }[protocol]
    if options:  # an Atari game
        about += f", preprocessing {env.config.get('preprocessing', 'envpool')!r}"
        about += ", all 18 actions" if env.config.get("full_action_space") else ""
    limited = group.spec.max_episode_steps < _NO_LIMIT
    if limited or (lengths >= _LONGEST).any():
        about += f", cut at {group.spec.max_episode_steps if limited else _LONGEST} timesteps"
    lives = protocol == "fresh" and env.config.get("episodic_life")  # each life is an episode
    human = None if lives else human_normalized(atari_game(env.config), mean)
    return Score(returns, lengths, mean, low, high, protocol, about, human)


def first_episodes(
    group: EnvGroup, state: ArrayTree, choose: Callable[[int, TimeStep, Any], tuple[Any, Any]], acting: ArrayTree
) -> tuple[ArrayTree, np.ndarray, np.ndarray]:
    """Plays until the first episode of every environment has ended; one without a limit is cut after 100 000 timesteps.

    Args:
      group: The environments, driven from Python.
      state: Their state, from `init` or `restart`.
      choose: (number of the timestep, timestep, state of the policy) -> (action, state of the policy).
      acting: The first state of the policy.

    Returns:
      (state of the environments after a last `recv`, returns float32 `[B]`, which are summed in float64, lengths int32
      `[B]`).
    """
    returns, lengths = np.zeros(group.num_envs, np.float64), np.zeros(group.num_envs, np.int32)
    playing, number = np.ones(group.num_envs, bool), 0
    state, timestep = group.recv(state)
    limited = group.spec.max_episode_steps < _NO_LIMIT  # the environments cut their episodes
    while playing.any() and (limited or number < _LONGEST):
        action, acting = choose(number, timestep, acting)
        state, timestep = group.recv(group.send(state, np.asarray(action)))
        returns += np.where(playing, timestep.reward, 0)
        lengths += playing & ~np.asarray(timestep.first)
        playing &= ~np.asarray(timestep.terminated | timestep.truncated)
        number += 1
    return state, returns.astype(np.float32), lengths


def _interval(returns: np.ndarray) -> tuple[float, float]:
    """95% bootstrap interval of the mean; the mean itself if all returns are equal."""
    if (returns == returns[0]).all():
        return float(returns[0]), float(returns[0])
    import scipy.stats  # takes half a second

    resampled = scipy.stats.bootstrap(
        (returns,), np.mean, n_resamples=10_000, batch=1_000, method="percentile", rng=np.random.default_rng(0)
    )
    low, high = map(float, resampled.confidence_interval)
    return low, high


class Actor:
    """Plays a policy greedily: NumPy observations in, NumPy actions out, recurrent state inside.

        act = vx.load("runs/pong").actor()
        action = act(observation)  # the first call begins an episode
        act.reset()  # before the next episode

    Attributes:
      spec: The environment's spec.
    """

    def __init__(self, policy: Policy, variables: ArrayTree, spec: EnvSpec):
        self.spec = spec
        self._initial_state, self._variables = policy.initial_state, variables
        self._act = jax.jit(partial(act, policy, False, None))
        self._state: ArrayTree | None = None

    def __call__(self, observation: Any, first: np.ndarray | bool | None = None) -> np.ndarray:
        """Returns the likeliest actions.

        Args:
          observation: One observation as the environment gives it, or a batch `[B, ...]`; a dict or a tuple of arrays
            if the environment's are. See `volvox.envs.groups.convert_observation`.
          first: Whether an episode begins with it, `[B]` or one for all; None: only in the first call after `reset`.
            Only recurrent policies use it.

        Returns:
          An action of the environment's action space: a NumPy scalar or an array, `[B, ...]` for a batch.

        Raises:
          ValueError: An observation has another shape or kind of numbers, or numbers do not fit into its dtype. With a
            recurrent policy also if the batch size has changed without a call of `reset`.
        """
        like, name = self.spec.observation, self.spec.name
        batch = convert_observation(observation, like, name)
        pairs = zip(jax.tree.leaves(batch), jax.tree.leaves(like), strict=True)
        leading = {x.shape[: x.ndim - len(one.shape)] for x, one in pairs}
        if len(leading) != 1 or len(shape := leading.pop()) > 1:
            raise ValueError(f"observations of {name} must have one batch dimension or none, the same for all arrays")
        if not shape:
            batch = jax.tree.map(lambda x: x[None], batch)
        size = shape[0] if shape else 1
        if self._state is None:
            self._state, first = self._initial_state(size), True
        elif any(leaf.shape[0] != size for leaf in jax.tree.leaves(self._state)):
            raise ValueError(f"a batch of {size} observations follows one of another size: call reset() before")
        begins = jnp.broadcast_to(jnp.asarray(False if first is None else first, bool), (size,))
        missing: Any = None  # a policy reads no rewards
        timestep = TimeStep(batch, missing, begins, missing, missing, {})
        action, self._state = self._act(self._variables, timestep, self._state)
        action = environment_action(self.spec, np.asarray(action))
        action = action.reshape(shape + action.shape[1:])
        return action if self.spec.continuous else action[()]

    def reset(self) -> None:
        """Forgets the recurrent state: episodes begin with the next call."""
        self._state = None
