"""Fresh episodes of one network, or of no network at all: what a score is compared with."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import integer
from volvox.loop.evaluator import greedy_action
from volvox.ops.batching import where_rows
from volvox.types import Array, ArrayTree, Env, Policy, TimeStep


class Score(NamedTuple):
    """Returns of independent episodes.

    Attributes:
      returns: float32 `[E]`.
      lengths: int32 `[E]`, steps.
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
    params: ArrayTree,
    *,
    num_episodes: int = 30,
    max_episode_steps: int | None = None,
    sampled: bool = False,
    seed: int = 0,
) -> Score:
    """Plays fresh episodes with one network, one environment an episode.

    Args:
      env: the environment.
      policy: the network.
      params: its parameters, e.g. `run.policy()`.
      num_episodes: episodes; each is played to its end, so short ones are not favoured.
      max_episode_steps: cutoff in steps; default: the environment's own.
      sampled: draw actions as the policy's distribution has it, instead of taking the likeliest.
      seed: of the environments and the actions. Take another than the run's for episodes it has not seen.

    Returns:
      `Score`.

    Raises:
      ValueError: no episodes are asked for, or `sampled` with a policy that has no distribution.
    """
    variables = jax.jit(policy.prepare)(params)
    greedy = greedy_action(env.spec)

    @jax.jit
    def act(variables: ArrayTree, step: TimeStep, state: ArrayTree, key: Array | None):
        state = where_rows(step.first, policy.initial_state(num_episodes), state)
        output, state = policy.apply(variables, step.observation, state, key)
        return greedy(output), state

    state = policy.initial_state(num_episodes)
    key = jax.random.key(seed)

    def choose(number: int, step: TimeStep) -> np.ndarray:
        nonlocal state
        draw = jax.random.fold_in(key, number) if sampled else None
        action, state = act(variables, jax.tree.map(jnp.asarray, step), state, draw)
        return np.asarray(action)

    return _episodes(env, choose, num_episodes, max_episode_steps, seed)


def play_randomly(env: Env, *, num_episodes: int = 30, max_episode_steps: int | None = None, seed: int = 0) -> Score:
    """Plays fresh episodes with uniformly random actions, one environment an episode.

    Args:
      env: the environment.
      num_episodes: episodes.
      max_episode_steps: cutoff in steps; default: the environment's own.
      seed: of the environments and the actions.

    Returns:
      `Score`.

    Raises:
      ValueError: no episodes are asked for.
    """
    return _episodes(env, _at_random(env, num_episodes, seed), num_episodes, max_episode_steps, seed)


def reference_batch(env: Env, *, size: int = 128, seed: int = 0) -> np.ndarray:
    """Observations of uniformly random play, for virtual batch normalisation.

    Eight environments play side by side, and each of their observations is taken with a probability of 1%, so that the
    batch is spread over some 1 600 steps. With the same seed it is the same batch, on envpool too.

    Args:
      env: the environment.
      size: R, observations.
      seed: of the environments, the actions and the choice.

    Returns:
      `[R, *observation_shape]`.

    Raises:
      ValueError: `size` is not positive.
    """
    integer("size", size, low=1)
    num_envs, chance = 8, np.random.default_rng([seed, 1])
    choose = _at_random(env, num_envs, seed)
    (group,) = env.make(seed, num_envs=num_envs, num_groups=1, host=True)
    taken: list[np.ndarray] = []
    try:
        state, step = group.recv(group.init())
        while len(taken) < size:
            taken += [np.array(seen) for seen in np.asarray(step.observation)[chance.random(num_envs) < 0.01]]
            state, step = group.recv(group.send(state, choose(0, step)))
    finally:
        group.close()
    return np.stack(taken[:size])


def _at_random(env: Env, num_envs: int, seed: int) -> Callable[[int, TimeStep], np.ndarray]:
    """(number, time step) -> uniformly random actions."""
    random = np.random.default_rng(seed)

    def choose(number: int, step: TimeStep) -> np.ndarray:
        del number, step
        if env.spec.num_actions is not None:
            return random.integers(env.spec.num_actions, size=num_envs).astype(np.int32)
        shape = (num_envs, *(env.spec.action_shape or ()))
        return random.uniform(env.spec.action_low, env.spec.action_high, shape).astype(np.float32)

    return choose


def _episodes(
    env: Env,
    choose: Callable[[int, TimeStep], np.ndarray],
    num_episodes: int,
    max_episode_steps: int | None,
    seed: int,
) -> Score:
    """Plays until the first episode of every environment has ended; `choose`: (number, time step) -> action."""
    if num_episodes < 1:
        raise ValueError(f"num_episodes={num_episodes}: at least one episode is needed.")
    (group,) = env.make(seed, max_episode_steps=max_episode_steps, num_envs=num_episodes, num_groups=1, host=True)
    returns, lengths = np.zeros(num_episodes, np.float32), np.zeros(num_episodes, np.int32)
    playing = np.ones(num_episodes, bool)
    try:
        state, step = group.recv(group.init())
        number = 0
        while playing.any():
            state, step = group.recv(group.send(state, choose(number, step)))
            returns += np.where(playing, step.reward, 0)
            lengths += playing & ~np.asarray(step.first)
            playing &= ~np.asarray(step.terminated | step.truncated)
            number += 1
    finally:
        group.close()
    return _score(returns, lengths)


def _score(returns: np.ndarray, lengths: np.ndarray) -> Score:
    resampled = np.random.default_rng(0).choice(returns, (10_000, returns.size)).mean(axis=1)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Score(returns, lengths, float(returns.mean()), float(low), float(high))
