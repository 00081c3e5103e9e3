"""Fresh episodes of one network, or of no network at all: what a score is compared with."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox.population.decoding import Member, encoding
from volvox.population.noise import generator
from volvox.rollout.evaluate import SlotMemory, evaluator
from volvox.types import ArrayTree, Env, Policy, Population


class Score(NamedTuple):
    """Returns of independent episodes."""

    returns: np.ndarray
    """float32 `[E]`."""
    lengths: np.ndarray
    """int32 `[E]`, steps."""
    mean: float
    low: float
    """Lower end of a 95% bootstrap interval of the mean."""
    high: float
    """Upper end."""


def play(
    env: Env,
    policy: Policy,
    params: ArrayTree,
    *,
    num_episodes: int = 30,
    max_episode_steps: int | None = None,
    seed: int = 0,
) -> Score:
    """Plays fresh episodes with one network, greedily.

    Args:
      env: the environment.
      policy: the network.
      params: its parameters, e.g. `run.policy()`.
      num_episodes: episodes; each is played to its end, so short ones are not favoured.
      max_episode_steps: cutoff in steps; default: the environment's own.
      seed: of the environments. Take another than the run's for episodes it has not seen.

    Returns:
      `Score`.

    Raises:
      ValueError: no episodes are asked for.
    """
    _check(num_episodes)
    code = encoding(policy, generator())
    size = min(env.num_envs // env.num_groups, num_episodes)
    memory = SlotMemory(policy, code, 1, size)
    groups = env.make(seed, max_episode_steps=max_episode_steps, num_envs=size, num_groups=1, host=True)
    played = evaluator(policy, groups, memory, capacity=num_episodes)
    one = Member(jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32), jnp.zeros(1), jnp.zeros(1, bool))
    population = Population(
        jax.tree.map(lambda x: x[None], params), *one, episodes=jnp.array([num_episodes]), priority=jnp.zeros(1)
    )
    evaluation, _ = played.evaluate(population, num_episodes, code)
    played.close()
    return _score(np.asarray(evaluation.returns[0]), np.asarray(evaluation.lengths[0]))


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
    _check(num_episodes)
    (group,) = env.make(seed, max_episode_steps=max_episode_steps, num_envs=num_episodes, num_groups=1, host=True)
    random = np.random.default_rng(seed)
    returns, lengths = np.zeros(num_episodes, np.float32), np.zeros(num_episodes, np.int32)
    playing = np.ones(num_episodes, bool)
    state, _ = group.recv(group.init())
    while playing.any():
        if env.spec.num_actions is not None:
            action = random.integers(env.spec.num_actions, size=num_episodes).astype(np.int32)
        else:
            shape = (num_episodes, *(env.spec.action_shape or ()))
            action = random.uniform(env.spec.action_low, env.spec.action_high, shape).astype(np.float32)
        state, step = group.recv(group.send(state, action))
        returns += np.where(playing, step.reward, 0)
        lengths += playing
        playing &= ~np.asarray(step.terminated | step.truncated)
    group.close()
    return _score(returns, lengths)


def _check(num_episodes: int) -> None:
    if num_episodes < 1:
        raise ValueError(f"num_episodes={num_episodes}: at least one episode is needed.")


def _score(returns: np.ndarray, lengths: np.ndarray) -> Score:
    resampled = np.random.default_rng(0).choice(returns, (10_000, returns.size)).mean(axis=1)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Score(returns, lengths, float(returns.mean()), float(low), float(high))
