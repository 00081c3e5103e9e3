"""What the host does for learners side by side in one program, whose arrays have a leading axis S.

variables = variables_of(state, learner=1)
table_of(state, learner=1)[-1]["compression"]
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import number
from volvox.data import metrics, normalization
from volvox.data.metrics import Episodes
from volvox.data.normalization import Rewards
from volvox.data.replay import Batch
from volvox.sparsity import compression, is_sparse, masks_of, pruned, table
from volvox.sparsity.masks import is_grouped
from volvox.types import Array, ArrayTree, Axis, Env, TimeStep

MOST_CREDIT = 2**30
"""Largest credit that timesteps can build up before updates are made for them; far below the largest int32."""


def setting(settings: Any, name: str, **limits: float) -> np.ndarray:
    """Returns a setting that is one number, or one for each learner, as float32 `[S]`; 1 where it is None.

    Raises:
      ValueError: It has another number of entries, or one of them is out of the limits of `_checks.number`.
    """
    given, count = getattr(settings, name), settings.num_learners
    values = (
        list(given)
        if isinstance(given, Sequence) and not isinstance(given, str)
        else [1.0 if given is None else given] * count
    )
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} entries for num_learners={count}; give one each, or a number.")
    return np.array([number(name, value, **limits) for value in values], np.float32)


def update_ratio(settings: Any, group: int, num_devices: int = 1) -> Fraction:
    """Returns the updates for each timestep of an environment; a beat of a group makes a whole number of updates.

    Args:
      settings: They have `num_learners`, `updates_per_timestep` and `random_timesteps`, of each learner.
      group: Environments in a group, on all devices.
      num_devices: Devices, among which a group is divided.

    Raises:
      ValueError: Learners do not share the group evenly, the updates of a beat are no whole number of at least 1, or
        there are more random timesteps than can be counted.
    """
    num_learners, wanted = settings.num_learners, settings.updates_per_timestep
    if (own := group // num_devices) % num_learners:
        raise ValueError(f"num_learners={num_learners} do not share a group of {own} environments evenly.")
    updates = wanted * (group // num_learners)
    if not (np.isfinite(updates) and round(updates) >= 1 and abs(updates - round(updates)) < 1e-6):
        raise ValueError(
            f"updates_per_timestep={wanted} times {group // num_learners} environments of a learner in a "
            f"group are {updates:g} updates a beat; it must be a whole number of at least 1."
        )
    ratio = Fraction(round(updates), group)
    most = MOST_CREDIT // (num_learners * ratio.numerator)
    if settings.random_timesteps > most:
        raise ValueError(f"random_timesteps={settings.random_timesteps}: with the other settings take at most {most}.")
    return ratio


def kept(params: ArrayTree, optimizer: ArrayTree) -> ArrayTree:
    """Returns each learner's parameters, 0 where a sparse optimizer masks them."""
    return jax.vmap(pruned)(params, optimizer) if is_sparse(optimizer) else params


def over_devices(gradient: ArrayTree, valid: Array, axis: Axis) -> ArrayTree:
    """Returns gradients of each learner's mean loss over the valid transitions of all devices.

    Args:
      gradient: Those of the means over this device's valid transitions, leaves `[S, ...]`.
      valid: bool `[S, N]`: Whether this device's transitions are learned from.
      axis: What is known of the other devices.
    """
    if axis.name is None:
        return gradient
    count = valid.sum(axis=1, dtype=jnp.float32)
    share = count / jnp.maximum(axis.sum(count), 1.0)
    return axis.sum(jax.tree.map(lambda g: jax.vmap(jnp.multiply)(share.astype(g.dtype), g), gradient))


def pick(tree: ArrayTree, learner: int) -> ArrayTree:
    """Returns one learner's part of a tree.

    Raises:
      ValueError: There is no such learner.
    """
    if not 0 <= learner < (count := len(jax.tree.leaves(tree)[0])):
        raise ValueError(f"learner={learner}: there are {count}, counted from 0.")
    return jax.tree.map(lambda x: x[learner], tree)


def init_rewards(settings: Any, env: Env) -> Rewards | tuple[()]:
    """Returns what rewards are scaled by, leaves `[S, ...]`; () unless the settings normalise them."""
    if not settings.normalize_rewards:
        return ()
    made = normalization.init_rewards(env.num_groups, env.num_envs // env.num_groups // settings.num_learners)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (settings.num_learners, *x.shape)), made)


def update_rewards(
    rewards: Rewards | tuple[()], g: int, timestep: TimeStep, discount: float, axis: Axis
) -> Rewards | tuple[()]:
    """Adds the rewards `[S, B / S]` of group `g`, if rewards are scaled; see `normalization.update_rewards`."""
    if not isinstance(rewards, Rewards):
        return ()
    return jax.vmap(lambda old, x: normalization.update_rewards(old, g, x, discount, axis))(rewards, timestep)


def scaled(batches: Batch, rewards: Rewards | tuple[()]) -> Batch:
    """Returns batches `[U, S, N, ...]` with the rewards scaled."""
    if not isinstance(rewards, Rewards):
        return batches
    return batches._replace(reward=batches.reward * jax.vmap(normalization.reward_scale)(rewards)[:, None])


def each(parts: Mapping[str, ArrayTree], num_learners: int) -> dict[str, ArrayTree]:
    """Returns each learner's parts, by name."""
    host = {name: jax.device_get(part) for name, part in parts.items() if jax.tree.leaves(part)}
    return {f"{name} of learner {i}": pick(part, i) for name, part in host.items() for i in range(num_learners)}


def scores(episodes: Episodes) -> list[dict[str, float]]:
    """Returns the scores of each learner's latest episodes."""
    episodes = jax.device_get(episodes)
    return [metrics.scores(pick(episodes, i)) for i in range(len(episodes.total))]


def score_row(episodes: Episodes, num_envs: int) -> dict[str, float]:
    """Returns the scores of all learners: means, the best, `recent_mean` (`latest_mean`), and those of each of several.

    There are none before an episode of each learner has ended. `num_envs` is that of one learner.
    """
    by_learner = scores(episodes)
    if not all(by_learner):
        return {}
    latest = [metrics.latest_mean(pick(episodes, i), num_envs=num_envs) for i in range(len(by_learner))]
    recent = np.asarray(latest, np.float32)
    row = {name: float(np.mean([one[name] for one in by_learner])) for name in by_learner[0]}
    row |= {"training_best": max(one["training_best"] for one in by_learner), "recent_mean": float(recent.mean())}
    if len(by_learner) > 1:
        row |= {f"training_mean_{i}": one["training_mean"] for i, one in enumerate(by_learner)}
        row |= {f"recent_mean_{i}": float(value) for i, value in enumerate(recent)}
    return row


def compression_row(
    params: Mapping[str, ArrayTree], optimizer: Mapping[str, ArrayTree], num_learners: int | None = None
) -> dict[str, float]:
    """Returns the `compression` of networks by name, the mean over learners; {} where nothing could be saved.

    Args:
      params: Parameters of each network.
      optimizer: State of each network's optimizer.
      num_learners: Number S of learners, where leaves are `[S, ...]`. None: there is one, without that axis.
    """
    if not is_sparse(optimizer) and not is_grouped(params):
        return {}
    stored = _stored(params, optimizer)
    each = [stored] if num_learners is None else [pick(stored, i) for i in range(num_learners)]
    shares = [share for one in each if (share := compression(*one)) is not None]
    return {"compression": float(np.mean(shares))}


def _stored(params: Mapping[str, ArrayTree], optimizer: Mapping[str, ArrayTree]) -> tuple[ArrayTree, ArrayTree]:
    """Returns (parameters, masks or None) of networks by name, on the host."""
    params = {name: part for name, part in params.items() if jax.tree.leaves(part)}
    masks = {name: masks_of(optimizer[name]) for name in params} if is_sparse(optimizer) else None
    return jax.device_get((params, masks))


def table_of(state: Any, learner: int = 0) -> list[dict[str, Any]]:
    """Returns what is stored of one learner's networks, layer by layer; see `volvox.sparsity.table`.

    Args:
      state: State of an algorithm whose learners are side by side, such as `TD3`.
      learner: Number of the learner, from 0.

    Raises:
      ValueError: There is no such learner.
    """
    learning = state.learning
    return table(*pick(_stored(learning.params._asdict(), learning.optimizer._asdict()), learner))
