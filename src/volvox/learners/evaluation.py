"""Evaluation of policies while their learners learn, and the best policy so far.

An evaluation plays whole episodes with the likeliest actions, in environments of its own; on Atari whole games, even if
a lost life ends an episode of training. Rows then have `evaluation_mean`; its `evaluation_standard_error` over
episodes; `evaluation_best`, the largest mean so far; `evaluation_timesteps`, those of each learner so far;
`evaluation_frames`, the emulator frames of all evaluations, which `frames` does not count; and `evaluation_seconds`,
which no rate counts. With several learners there is an `evaluation_mean_0` and so on for each, and the mean is over all
of them. As a maximum, `evaluation_best` is higher than the mean return of its policy: play fresh episodes to know that.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import integer
from volvox.envs.envpool_tasks import whole_games
from volvox.learners.reporting import require_finite
from volvox.learners.state import Evaluated, LearnState
from volvox.rollout.loop import Monitor, seed_of
from volvox.rollout.scoring import act, first_episodes
from volvox.types import Array, ArrayTree, Env, EnvGroup, Interrupted, Policy, TimeStep

_SECONDS_BETWEEN_CHECKS = 1.0
_MOST_AT_ONCE = 10_000
"""Episodes of a policy, each in an environment of its own; an Atari emulator takes some 0.2 MB."""


def update(
    evaluated: Evaluated, candidates: Sequence[ArrayTree], returns: np.ndarray, *, timesteps: int, frames: int
) -> tuple[Evaluated, dict[str, Any]]:
    """Adds one evaluation.

    Args:
      evaluated: Results so far.
      candidates: Variables of the policies of S learners.
      returns: float32 `[S, E]`: Returns of their episodes.
      timesteps: Timesteps of each learner so far.
      frames: Emulator frames of this evaluation.

    Returns:
      (`Evaluated`, metrics). The mean is over learners; its standard error is over episodes of the same policies.
    """
    means = returns.mean(axis=1)
    best, frames = int(means.argmax()), evaluated.frames + frames
    if means[best] > evaluated.best:
        evaluated = Evaluated(candidates[best], jnp.float32(means[best]), timesteps, evaluated.latest, frames)
    evaluated = evaluated._replace(latest=jnp.asarray(means), frames=frames)
    row = {"evaluation_mean": float(means.mean()), "evaluation_best": float(evaluated.best)}
    if returns.shape[1] > 1:
        row["evaluation_standard_error"] = float(np.sqrt(returns.var(axis=1, ddof=1).sum() / returns.size / len(means)))
    if len(means) > 1:
        row |= {f"evaluation_mean_{i}": float(mean) for i, mean in enumerate(means)}
    return evaluated, row | {"evaluation_timesteps": timesteps, "evaluation_frames": frames}


class PolicyEvaluator:
    """Plays episodes with the likeliest actions of several policies, in environments of its own.

    The environments are made by the first evaluation and stay open until `close`. Pure-JAX environments are seeded anew
    for each evaluation; envpool continues with its own random numbers.
    """

    def __init__(self, policy: Policy, env: Env, num_learners: int, num_episodes: int, every: int):
        """Prepares the evaluation.

        Args:
          policy: The policy.
          env: The environment.
          num_learners: Number S of policies that are evaluated side by side.
          num_episodes: Episodes E of each policy, at most 10,000.
          every: Timesteps of each learner between two evaluations.
        """
        self._policy, self._env, self._num_learners = policy, env, num_learners
        self._num_episodes = integer("num_evaluation_episodes", num_episodes, low=1, high=_MOST_AT_ONCE)
        self._every = integer("evaluate_every", every, low=1, high=None)
        self._act = jax.jit(self._act_all)
        self._group: EnvGroup | None = None
        self._state: Any = None

    def evaluate(
        self, state: LearnState, candidates: Sequence[ArrayTree], before: int, monitor: Monitor
    ) -> tuple[LearnState, dict[str, Any]]:
        """Evaluates the policies of a state if that is due; `before` are the timesteps before its iteration."""
        timesteps, earlier = (count // self._num_learners for count in (state.timesteps, before))
        if timesteps // self._every == earlier // self._every:
            return state, {}
        began = time.perf_counter()
        # Another seed than that of the environments of training.
        returns, played = self.play(candidates, seed=seed_of(state.key, state.timesteps, 1), monitor=monitor)
        require_finite({"the returns of the evaluation": returns}, self._env.spec.name)
        counts = {"timesteps": timesteps, "frames": played * self._env.spec.frame_skip}
        evaluated, row = update(state.evaluated, candidates, returns, **counts)
        return state._replace(evaluated=evaluated), row | {"evaluation_seconds": time.perf_counter() - began}

    def play(self, candidates: Sequence[ArrayTree], *, seed: int, monitor: Monitor) -> tuple[np.ndarray, int]:
        """Plays the episodes of all policies, one environment for each episode.

        Args:
          candidates: Variables of each policy.
          seed: Seed of the environments.
          monitor: Called about once a second with a dict of progress figures; True stops the evaluation.

        Returns:
          (returns float32 `[S, E]`, timesteps of all episodes).

        Raises:
          Interrupted: The monitor returned True.
        """
        num_envs, candidates = self._num_learners * self._num_episodes, tuple(candidates)
        if self._group is None:
            options = {"num_envs": num_envs, "num_groups": 1, "host": True, **whole_games(self._env)}
            (self._group,) = self._env.make(seed, **options)
            self._state, _ = self._group.recv(self._group.init())
        states = tuple(self._policy.initial_state(self._num_episodes) for _ in candidates)

        def choose(number: int, timestep: TimeStep, acting: tuple[Any, np.ndarray, float]) -> Any:
            del number
            states, ended, checked = acting
            ended, now = ended | np.asarray(timestep.terminated | timestep.truncated), time.monotonic()
            if now - checked > _SECONDS_BETWEEN_CHECKS:
                checked = now
                if monitor({"phase": "evaluation", "done": int(ended.sum()), "total": len(ended)}):
                    raise Interrupted("the evaluation was not finished, and its iteration is dropped")
            action, states = self._act(candidates, jax.tree.map(jnp.asarray, timestep), states)
            return action, (states, ended, checked)

        self._state = self._group.restart(self._state, seed)
        acting = (states, np.zeros(num_envs, bool), -np.inf)
        self._state, returns, lengths = first_episodes(self._group, self._state, choose, acting)
        return returns.reshape(self._num_learners, -1), int(lengths.sum())

    def close(self) -> None:
        """Frees the environments; the next evaluation makes others."""
        if self._group is not None:
            self._group.close()
        self._group = self._state = None

    def _act_all(self, candidates: tuple, timestep: TimeStep, states: tuple) -> tuple[Array, tuple]:
        split = jax.tree.map(lambda x: x.reshape(len(candidates), -1, *x.shape[1:]), timestep)
        parts = [jax.tree.map(lambda x, i=i: x[i], split) for i in range(len(candidates))]
        play = partial(act, self._policy, False, jax.random.key(0))
        actions, states = zip(*map(play, candidates, parts, states), strict=True)
        return jnp.concatenate(actions), states
