"""Fresh episodes of one network, or of no network at all: what a score is compared with.

score = play(env, algorithm.policy, algorithm.variables(state), num_episodes=100)
print(score.mean, score.low, score.high, play_randomly(env).mean)
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from volvox._checks import integer
from volvox.ops.batching import where_rows
from volvox.types import Array, ArrayTree, Env, EnvGroup, EnvSpec, Policy, TimeStep


class Score(NamedTuple):
    """Returns of independent episodes.

    Attributes:
      returns: float32 `[E]`.
      lengths: int32 `[E]`, timesteps.
      mean: Of the returns.
      low: Lower end of a 95% bootstrap interval of the mean.
      high: Upper end.
    """

    returns: np.ndarray
    lengths: np.ndarray
    mean: float
    low: float
    high: float


def play(
    env: Env,
    policy: Policy,
    variables: ArrayTree,
    *,
    num_episodes: int = 30,
    max_episode_steps: int | None = None,
    sampled: bool = False,
    seed: int = 0,
) -> Score:
    """Plays fresh episodes with one network, one environment an episode.

    Args:
      env: The environment.
      policy: What acts.
      variables: What `policy.apply` takes, for example `algorithm.variables(state)`.
      num_episodes: Episodes; each is played to its end, so short ones are not favoured.
      max_episode_steps: Cutoff in timesteps; default: the environment's own.
      sampled: Draw actions from the policy's distribution, instead of taking the likeliest.
      seed: Of the environments and the actions. Take another than the run's for episodes it has not seen.

    Returns:
      `Score`.

    Raises:
      ValueError: no episodes are asked for, or `sampled` with a policy that has no distribution.
    """
    act_jit, key = jax.jit(partial(act, policy, sampled)), jax.random.key(seed)

    def choose(number: int, timestep: TimeStep, state: ArrayTree) -> tuple[Array, ArrayTree]:
        return act_jit(jax.random.fold_in(key, number), variables, jax.tree.map(jnp.asarray, timestep), state)

    return _play(env, choose, policy.initial_state(num_episodes), num_episodes, max_episode_steps, seed)


def play_randomly(env: Env, *, num_episodes: int = 30, max_episode_steps: int | None = None, seed: int = 0) -> Score:
    """Plays fresh episodes with uniformly random actions, one environment an episode.

    Args:
      env: The environment.
      num_episodes: Episodes.
      max_episode_steps: Cutoff in timesteps; default: the environment's own.
      seed: Of the environments and the actions.

    Returns:
      `Score`.

    Raises:
      ValueError: no episodes are asked for.
    """
    rng = np.random.default_rng(seed)

    def choose(number: int, timestep: TimeStep, state: ArrayTree) -> tuple[np.ndarray, ArrayTree]:
        del number, timestep
        return _random_actions(env.spec, num_episodes, rng), state

    return _play(env, choose, (), num_episodes, max_episode_steps, seed)


def reference_batch(env: Env, *, size: int = 128, seed: int = 0) -> np.ndarray:
    """Observations of uniformly random play, for virtual batch normalisation.

    Eight environments play side by side, and each of their observations is taken with a probability of 1%, so that the
    batch is spread over some 1 600 timesteps. With the same seed it is the same batch, on envpool too.

    Args:
      env: The environment.
      size: R, observations.
      seed: Of the environments, the actions and the choice.

    Returns:
      `[R, *observation_shape]`.

    Raises:
      ValueError: `size` is not positive.
    """
    integer("size", size, low=1)
    num_envs, chance, rng = 8, np.random.default_rng([seed, 1]), np.random.default_rng(seed)
    (group,) = env.make(seed, num_envs=num_envs, num_groups=1, host=True)
    taken: list[np.ndarray] = []
    try:
        state, timestep = group.recv(group.init())
        while len(taken) < size:
            taken += [np.array(seen) for seen in np.asarray(timestep.observation)[chance.random(num_envs) < 0.01]]
            state, timestep = group.recv(group.send(state, _random_actions(env.spec, num_envs, rng)))
    finally:
        group.close()
    return np.stack(taken[:size])


def act(
    policy: Policy, sampled: bool, key: Array, variables: ArrayTree, timestep: TimeStep, state: ArrayTree
) -> tuple[Array, ArrayTree]:
    """Returns the policy's actions `[B, ...]` at a timestep and its next state, which begins anew with an episode."""
    state = where_rows(timestep.first, policy.initial_state(timestep.first.shape[0]), state)
    output, state = policy.apply(variables, timestep.observation, state)
    return policy.sample(key, output) if sampled else policy.mode(output), state


def _random_actions(spec: EnvSpec, num_envs: int, rng: np.random.Generator) -> np.ndarray:
    if spec.num_actions is not None:
        return rng.integers(spec.num_actions, size=num_envs).astype(np.int32)
    assert spec.action_low is not None
    assert spec.action_high is not None
    return rng.uniform(spec.action_low, spec.action_high, (num_envs, *(spec.action_shape or ()))).astype(np.float32)


def _play(
    env: Env,
    choose: Callable[[int, TimeStep, Any], tuple[Any, Any]],
    acting: ArrayTree,
    num_episodes: int,
    max_episode_steps: int | None,
    seed: int,
) -> Score:
    """Plays until the first episode of every environment has ended.

    Args:
      env: The environment.
      choose: (number, timestep, state of the policy) -> (action, state of the policy).
      acting: The state of the policy to begin with.
      num_episodes: Episodes.
      max_episode_steps: Cutoff in timesteps.
      seed: Of the environments.
    """
    integer("num_episodes", num_episodes, low=1)
    (group,) = env.make(seed, max_episode_steps=max_episode_steps, num_envs=num_episodes, num_groups=1, host=True)
    try:
        _, returns, lengths = first_episodes(group, group.init(), choose, acting)
    finally:
        group.close()
    return _score(returns, lengths)


def first_episodes(
    group: EnvGroup, state: ArrayTree, choose: Callable[[int, TimeStep, Any], tuple[Any, Any]], acting: ArrayTree
) -> tuple[ArrayTree, np.ndarray, np.ndarray]:
    """Plays until the first episode of every environment has ended.

    Args:
      group: The environments, driven from Python.
      state: Their state, from `init` or `restart`.
      choose: (number, timestep, state of the policy) -> (action, state of the policy).
      acting: The state of the policy to begin with.

    Returns:
      (state of the environments after a last `recv`, returns float32 `[B]`, lengths int32 `[B]`).
    """
    returns, lengths = np.zeros(group.num_envs, np.float32), np.zeros(group.num_envs, np.int32)
    playing, number = np.ones(group.num_envs, bool), 0
    state, timestep = group.recv(state)
    while playing.any():
        action, acting = choose(number, timestep, acting)
        state, timestep = group.recv(group.send(state, np.asarray(action)))
        returns += np.where(playing, timestep.reward, 0)
        lengths += playing & ~np.asarray(timestep.first)
        playing &= ~np.asarray(timestep.terminated | timestep.truncated)
        number += 1
    return state, returns, lengths


def _score(returns: np.ndarray, lengths: np.ndarray) -> Score:
    mean = low = high = float(returns.mean())
    if returns.size > 1:  # of one return there is nothing to resample
        resampled = scipy.stats.bootstrap(
            (returns,), np.mean, n_resamples=10_000, batch=1_000, method="percentile", rng=np.random.default_rng(0)
        )
        low, high = map(float, resampled.confidence_interval)
    return Score(returns, lengths, mean, low, high)
