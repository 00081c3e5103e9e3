"""V-trace: value targets and policy-gradient advantages for data of another policy (Espeholt et al. 2018)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


class VTrace(NamedTuple):
    """What V-trace makes of one trajectory.

    Attributes:
      target: `[T]`: value targets `vs`.
      advantage: `[T]`: `rho[t] * (reward[t] + discount[t] * (decay[t] * vs[t + 1] + (1 - decay[t]) * next_value[t]) -
        value[t])`.
    """

    target: Array
    advantage: Array


def vtrace(
    value: Array,
    next_value: Array,
    reward: Array,
    discount: Array,
    ratio: Array,
    decay: Array,
    *,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> VTrace:
    """V-trace of one trajectory (arXiv 1802.01561, equations 1 and 4).

    `vs[t] = value[t] + delta[t] + discount[t] * c[t] * (vs[t + 1] - next_value[t])`, with
    `delta[t] = rho[t] * (reward[t] + discount[t] * next_value[t] - value[t])`, `rho = min(rho_clip, ratio)` and
    `c = decay * min(c_clip, ratio)`; `vs[T]` is `next_value[T - 1]`. A step with decay 0 bootstraps, and nothing behind
    it counts.

    Args:
      value: `[T]`, of the observation at t.
      next_value: `[T]`, of the observation that follows; `value[t + 1]` but at the end.
      reward: `[T]`, of the step taken at t.
      discount: `[T]`: 0 where the episode terminated.
      ratio: `[T]`, probability of the action under the learner's policy over that under the one that acted.
      decay: λ, `[T]`; 0 at a time limit.
      rho_clip: largest weight of a step.
      c_clip: largest weight of the trace.

    Returns:
      `VTrace`. Gradients flow through `value`, `next_value` and `ratio`: stop them where they are not wanted.
    """
    rho = jnp.minimum(rho_clip, ratio)
    c = decay * jnp.minimum(c_clip, ratio)
    delta = rho * (reward + discount * next_value - value)

    def backwards(following: Array, step: tuple[Array, Array, Array]):
        delta, discount, c = step
        correction = delta + discount * c * following
        return correction, correction

    _, correction = jax.lax.scan(backwards, jnp.zeros_like(delta[0]), (delta, discount, c), reverse=True)
    next_target = next_value + decay * jnp.append(correction[1:], 0.0)
    return VTrace(value + correction, rho * (reward + discount * next_target - value))
