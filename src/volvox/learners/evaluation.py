"""Evaluations of learners during training.

An evaluation plays whole episodes with the likeliest actions, in its own environments. On Atari it plays whole games,
even if a lost life ends an episode of training. The best policy so far plays again in each evaluation, so that it is
not kept for a few lucky episodes: it gives way to a policy whose mean return is larger than its own, both in this
evaluation and over all its episodes.

Rows have `evaluation_mean`; its `evaluation_standard_error` over episodes; `evaluation_best`, the mean return of the
best policy over `evaluation_best_episodes` episodes; `evaluation_best_timesteps`, at which it was the latest policy;
`evaluation_timesteps`, the timesteps of each learner so far; `evaluation_frames`, the emulator frames of all
evaluations, which `frames` does not count; and `evaluation_seconds`, which no rate counts. With several learners the
mean is over all of them, `evaluation_mean_each` has the mean of each, and one policy is the best of all.
`evaluation_best` is still too high just after its policy was chosen; play new episodes for an unbiased score.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import integer
from volvox.data import metrics
from volvox.envs.envpool_tasks import whole_games
from volvox.rollout.loop import Monitor
from volvox.rollout.scoring import act, first_episodes
from volvox.types import Array, ArrayTree, Env, EnvGroup, Interrupted, Policy, TimeStep


class Evaluated(NamedTuple):
    """Results of the evaluations of a run.

    Attributes:
      variables: Variables of the best policy.
      best: float32: Its mean return over all evaluations in which it played; -inf before the first.
      episodes: Episodes in this mean.
      timesteps: Timesteps of each learner when the policy was chosen.
      latest: float32 `[S]`: Mean returns of the latest evaluation, one for each learner; -inf before the first.
      frames: Emulator frames of all evaluations.
    """

    variables: ArrayTree
    best: Array
    episodes: int
    timesteps: int
    latest: Array
    frames: int


def add_evaluation(
    evaluated: Evaluated,
    policy_of: Callable[[int], ArrayTree],
    returns: np.ndarray,
    best_returns: np.ndarray,
    *,
    timesteps: int,
    frames: int,
) -> tuple[Evaluated, dict[str, Any]]:
    """Adds one evaluation.

    Args:
      evaluated: Results so far.
      policy_of: i -> variables of the policy of learner i.
      returns: float32 `[S, E]`: Returns of their episodes.
      best_returns: float32 `[1, E]`: Returns of new episodes of the best policy; empty before the first evaluation.
      timesteps: Timesteps of each learner so far.
      frames: Emulator frames of this evaluation.

    Returns:
      (`Evaluated`, metrics). The mean is over learners; its standard error is over episodes of the same policies.
    """
    means = returns.mean(axis=1)
    if best_returns.size:
        episodes = evaluated.episodes + best_returns.size
        mean = (evaluated.best * evaluated.episodes + best_returns.sum()) / episodes
        evaluated = evaluated._replace(best=jnp.float32(mean), episodes=episodes)
    i = int(means.argmax())
    if means[i] > max(evaluated.best, best_returns.mean() if best_returns.size else -np.inf):
        chosen = {"variables": policy_of(i), "best": jnp.float32(means[i]), "episodes": returns.shape[1]}
        evaluated = evaluated._replace(**chosen, timesteps=timesteps)
    evaluated = evaluated._replace(latest=jnp.asarray(means), frames=evaluated.frames + frames)
    row = {"evaluation_mean": float(means.mean()), "evaluation_best": float(evaluated.best)}
    row |= {"evaluation_best_episodes": evaluated.episodes, "evaluation_best_timesteps": evaluated.timesteps}
    if returns.shape[1] > 1:
        row["evaluation_standard_error"] = float(np.sqrt(returns.var(axis=1, ddof=1).sum() / returns.size / len(means)))
    if len(means) > 1:
        row["evaluation_mean" + metrics.EACH] = means.tolist()
    return evaluated, row | {"evaluation_timesteps": timesteps, "evaluation_frames": evaluated.frames}


class PolicyEvaluator:
    """Plays episodes with the likeliest actions of several policies, in environments of its own.

    The environments are made by the first evaluation and stay open until `close`. Pure-JAX environments are seeded anew
    for each evaluation; envpool continues with its own random numbers.

    Attributes:
      every: Timesteps of each learner between two evaluations.
    """

    def __init__(self, policy: Policy, env: Env, num_learners: int, every: int, episodes: int, num_envs: int | None):
        """Prepares the evaluation of S policies side by side; the last three arguments are those of `learn`."""
        self._policy, self._env = policy, env
        self.every = integer("evaluate_every", every, low=1, high=None)
        self._num_episodes = integer("num_evaluation_episodes", episodes, low=1)
        num_envs = env.num_envs * num_learners if num_envs is None else num_envs
        num_envs = integer("num_evaluation_envs", num_envs, low=num_learners)
        num_waves = -(-episodes // (num_envs // num_learners))
        self._num_envs = num_learners * -(-episodes // num_waves)
        self._act = jax.jit(self._act_all, static_argnums=0)
        self._group: EnvGroup | None = None
        self._state: Any = None

    def play(self, variables: ArrayTree, num_policies: int, *, seed: int, monitor: Monitor) -> tuple[np.ndarray, int]:
        """Plays the episodes of all policies, in waves of one episode for each environment.

        Args:
          variables: Variables of all learners' policies, leaves `[S, ...]`, or of one policy.
          num_policies: Their number S.
          seed: Seed of the environments.
          monitor: Called about once a second with a dict of progress figures; True stops the evaluation.

        Returns:
          (returns float32 `[S, E]`, timesteps of all episodes).

        Raises:
          Interrupted: The monitor returned True.
        """
        num_envs = self._num_envs
        wave = num_envs // num_policies  # episodes of a policy that are played at once
        num_waves = -(-self._num_episodes // wave)
        if self._group is None:
            options = {"num_envs": num_envs, "num_groups": 1, "host": True, **whole_games(self._env)}
            (self._group,) = self._env.make(seed, **options)
            self._state, _ = self._group.recv(self._group.init())
        parts, timesteps, checked = [], 0, -np.inf

        def choose(number: int, timestep: TimeStep, states: ArrayTree) -> tuple[Array, ArrayTree]:
            nonlocal checked
            if time.monotonic() - checked > 1.0:
                checked = time.monotonic()
                if monitor({"phase": "evaluation", "done": len(parts) * num_envs, "total": num_waves * num_envs}):
                    raise Interrupted("the evaluation was not finished, and its iteration is dropped")
            return self._act(num_policies, variables, jax.tree.map(jnp.asarray, timestep), states)

        for number in range(num_waves):
            self._state = self._group.restart(self._state, (seed + number * num_envs) % 2**31)
            states = self._policy.initial_state(wave)
            if num_policies > 1:
                states = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_policies, *x.shape)), states)
            self._state, returns, lengths = first_episodes(self._group, self._state, choose, states)
            parts.append(returns.reshape(num_policies, -1))
            timesteps += int(lengths.sum())
        return np.concatenate(parts, axis=1)[:, : self._num_episodes], timesteps

    def close(self) -> None:
        """Frees the environments; the next evaluation makes others."""
        if self._group is not None:
            self._group.close()
        self._group = self._state = None

    def _act_all(
        self, num_policies: int, variables: ArrayTree, timestep: TimeStep, states: ArrayTree
    ) -> tuple[Array, ArrayTree]:
        play = functools.partial(act, self._policy, False, jax.random.key(0))
        if num_policies == 1:
            return play(variables, timestep, states)
        split = jax.tree.map(lambda x: x.reshape(num_policies, -1, *x.shape[1:]), timestep)
        actions, states = jax.vmap(play)(variables, split, states)
        return actions.reshape(-1, *actions.shape[2:]), states
