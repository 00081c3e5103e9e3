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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import integer
from volvox.envs.envpool_tasks import whole_games
from volvox.rollout.loop import Monitor
from volvox.rollout.scoring import act, first_episodes
from volvox.types import Array, ArrayTree, Env, EnvGroup, Interrupted, Policy, TimeStep

_SECONDS_BETWEEN_CHECKS = 1.0


class Evaluated(NamedTuple):
    """Results of the evaluations of a run.

    Attributes:
      variables: Variables of the best policy.
      best: float32: Its mean return, the largest of all evaluations and learners; -inf before the first evaluation.
      latest: float32 `[S]`: Mean returns of the latest evaluation, one for each learner; -inf before the first.
      frames: Emulator frames of all evaluations.
    """

    variables: ArrayTree
    best: Array
    latest: Array
    frames: int


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
        evaluated = Evaluated(candidates[best], jnp.float32(means[best]), evaluated.latest, frames)
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

    def __init__(self, policy: Policy, env: Env, num_learners: int, every: int, episodes: int, num_envs: int | None):
        """Prepares the evaluation of S policies side by side; the last three arguments are those of `learn`."""
        self._policy, self._env, self._num_learners = policy, env, num_learners
        self._every = integer("evaluate_every", every, low=1, high=None)
        self._num_episodes = integer("num_evaluation_episodes", episodes, low=1)
        num_envs = integer("num_evaluation_envs", env.num_envs if num_envs is None else num_envs, low=num_learners)
        self._num_waves = -(-episodes // (num_envs // num_learners))
        self._wave = -(-episodes // self._num_waves)  # episodes of a policy that are played at once
        self._act = jax.jit(self._act_all)
        self._group: EnvGroup | None = None
        self._state: Any = None

    def evaluate(
        self, evaluated: Evaluated, candidates: Sequence[ArrayTree], *, seed: int, timesteps: Any, monitor: Monitor
    ) -> tuple[Evaluated, dict[str, Any]]:
        """Evaluates policies if that is due; `timesteps` are each learner's (before, after) the iteration."""
        before, after = timesteps
        if after // self._every == before // self._every:
            return evaluated, {}
        began = time.perf_counter()
        returns, played = self.play(candidates, seed=seed, monitor=monitor)
        require_finite({"the returns of the evaluation": returns}, self._env.spec.name)
        counts = {"timesteps": after, "frames": played * self._env.spec.frame_skip}
        evaluated, row = update(evaluated, candidates, returns, **counts)
        return evaluated, row | {"evaluation_seconds": time.perf_counter() - began}

    def play(self, candidates: Sequence[ArrayTree], *, seed: int, monitor: Monitor) -> tuple[np.ndarray, int]:
        """Plays the episodes of all policies, in waves of one episode for each environment.

        Args:
          candidates: Variables of each policy.
          seed: Seed of the environments.
          monitor: Called about once a second with a dict of progress figures; True stops the evaluation.

        Returns:
          (returns float32 `[S, E]`, timesteps of all episodes).

        Raises:
          Interrupted: The monitor returned True.
        """
        num_envs, candidates = self._num_learners * self._wave, tuple(candidates)
        if self._group is None:
            options = {"num_envs": num_envs, "num_groups": 1, "host": True, **whole_games(self._env)}
            (self._group,) = self._env.make(seed, **options)
            self._state, _ = self._group.recv(self._group.init())
        parts, timesteps, checked = [], 0, -np.inf

        def choose(number: int, timestep: TimeStep, states: tuple[ArrayTree, ...]) -> tuple[Array, tuple]:
            nonlocal checked
            if time.monotonic() - checked > _SECONDS_BETWEEN_CHECKS:
                checked = time.monotonic()
                if monitor({"phase": "evaluation", "done": len(parts) * num_envs, "total": self._num_waves * num_envs}):
                    raise Interrupted("the evaluation was not finished, and its iteration is dropped")
            return self._act(candidates, jax.tree.map(jnp.asarray, timestep), states)

        for wave in range(self._num_waves):
            self._state = self._group.restart(self._state, (seed + wave * num_envs) % 2**31)
            states = tuple(self._policy.initial_state(self._wave) for _ in candidates)
            self._state, returns, lengths = first_episodes(self._group, self._state, choose, states)
            parts.append(returns.reshape(self._num_learners, -1))
            timesteps += int(lengths.sum())
        return np.concatenate(parts, axis=1)[:, : self._num_episodes], timesteps

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


def require_finite(trees: dict[str, ArrayTree], env_name: str) -> None:
    """Raises FloatingPointError, which names the trees that are not finite."""
    wrong = [name for name, tree in trees.items() if not all(np.isfinite(x).all() for x in jax.tree.leaves(tree))]
    if wrong:
        raise FloatingPointError(
            f"not finite: {', '.join(wrong)}; this iteration is dropped. First make sure that all rewards and "
            f"observations of {env_name} are finite. If they are, lower the learning rate, or clip the gradient; in a "
            "loss of your own, look for a mean over nothing."
        )
