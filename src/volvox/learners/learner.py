"""The learner interface, and functions of learners' updates.

An algorithm is one file beside this one: its settings and the `Learner` that they make. Settings are a frozen dataclass
with two methods: `bind(network, env)` returns the learner, and raises ValueError if network or environment do not fit;
`schedule(env)` returns its `Schedule`. `volvox.learn` in `training.py` makes the runs.

A class attribute `traced` of the settings names numbers that do not affect shapes. They are arguments of compiled
programs, so configurations that differ only in them share a program, and learners of one program may differ in them.
`bind` is also called with traced values, so `bind` and the learner must not branch on them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from volvox.types import Array, ArrayTree, Policy, TimeStep, zeros


class Turn(NamedTuple):
    """The turn of a group in the loop.

    Attributes:
      group: Index of the group, a Python int; in `finish` the index of the last group.
      round: int32: Rounds completed since the environments were made.
      beat: int32: Beats completed in this round.
      mean_return: float32: Mean return of the latest episodes, NaN before the first.
    """

    group: int
    round: Array
    beat: Array
    mean_return: Array


class Learner:
    """A learning algorithm in an environment: a policy, and pure functions of one learner's state.

    Several learners are one `jax.vmap` over these functions, in which all numbers of `Turn` but `mean_return` are
    common. A loop or condition that depends on the state runs for all learners if it must for one;
    `volvox.ops.batching.min_over_rows` makes a count that is equal in all of them a common one.

    The state has two parts. `learning` is learned: a NamedTuple with the fields `update` (int32, the number of updates)
    and `metrics` (`volvox.data.metrics.Metrics`); rows have the compression of its fields `params` and `optimizer`.
    `collected` is changed by acting: segments, a replay, recurrent states, moments of observations. Its field
    `collectors`, if it has one, belongs to the environments and begins anew with them. Its field `replays` is not saved
    before anything was played, if the settings have `save_replay=False`, or if there are several devices, on which a
    learner sums its gradients over `env.axis`.

    Attributes:
      policy: Policy that acts with `variables`.
      due: bool `[beats_per_round, groups]`: The turns of a round in which `work` may change anything. A loop that is
        driven from Python makes no other calls. None: all turns.
    """

    policy: Policy
    due: np.ndarray | None = None

    def init(self, key: Array) -> tuple[Any, Any]:
        """Returns (collected, learning) at the beginning of a run."""
        raise NotImplementedError

    def act(self, collected: Any, learning: Any, keys: Array, turn: Turn, timestep: TimeStep) -> tuple[Any, Array]:
        """Returns (collected, actions `[B, ...]`) of a group, given a key for each of its environments."""
        raise NotImplementedError

    def work(self, collected: Any, learning: Any, key: Array, turn: Turn) -> tuple[Any, Any]:
        """Learns while a group steps; returns (collected, learning). `key` is the same in all calls of a run."""
        return collected, learning

    def finish(self, collected: Any, learning: Any, key: Array, turn: Turn) -> tuple[Any, Any]:
        """Learns at the end of a round; returns (collected, learning)."""
        return collected, learning

    def variables(self, collected: Any, learning: Any) -> ArrayTree:
        """Returns the variables for `policy.apply`.

        They must not depend on the fields `collectors` and `replays`, which may be ().
        """
        raise NotImplementedError


class Schedule(NamedTuple):
    """The rounds of a learner, and the length of its iterations: exactly one of the two lengths is given.

    Attributes:
      beats_per_round: Beats of a round; in each beat, every group takes one timestep.
      rounds_per_iteration: Rounds in an iteration.
      timesteps_per_iteration: Timesteps of each learner in an iteration, which ends in the round that reaches a
        multiple of this number.
      delay: Rounds after which the data of a round have been learned from.
    """

    beats_per_round: int = 1
    rounds_per_iteration: int | None = None
    timesteps_per_iteration: int | None = None
    delay: int = 0


def with_metrics(learning: Any, update: Callable[[Any], Any]) -> Any:
    """Returns the state of learning with the metrics that an update adds, all zero."""
    return learning._replace(metrics=zeros(jax.eval_shape(update, learning).metrics))


def apply_gradient(
    optimizer: optax.GradientTransformationExtraArgs,
    gradient: ArrayTree,
    state: ArrayTree,
    params: ArrayTree,
    step: Array,
    mean_return: Array,
    learning_rate: Any = None,
) -> tuple[ArrayTree, ArrayTree]:
    """Returns (parameters, state of the optimiser) after an update by a gradient.

    Args:
      optimizer: Optimiser that needs gradients and parameters only, sparse or not.
      gradient: Gradient of the loss, as `params`.
      state: State of the optimiser.
      params: Parameters.
      step: int32: Number of this update, from 1; sparse optimisers use it.
      mean_return: float32: Recent mean return; sparse optimisers use it.
      learning_rate: Learning rate of this update; None if the optimiser has a schedule or a rate of its own. It
        replaces all numbers of that name in the state, such as in the state of `optax.inject_hyperparams`.
    """
    is_rate = lambda path, value: hasattr(value, "dtype")  # noqa: E731  # not the state of a schedule
    kept = optax.tree.get_all_with_path(state, "learning_rate", is_rate)
    if learning_rate is not None and kept:
        state = optax.tree.set(state, is_rate, learning_rate=jnp.asarray(learning_rate, kept[0][1].dtype))
    updates, state = optimizer.update(gradient, state, params, step=step, mean_return=mean_return)
    return optax.apply_updates(params, updates), state
