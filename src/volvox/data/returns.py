"""Returns of one trajectory, as pure, unbatched functions: `jax.vmap` them over environments.

Suffixes are rlax's: `x_tm1` belongs to the timestep in which the action was chosen, `x_t` to the one after it, so that
`r_t` is the reward of that action, and `v_t` the value of the observation to which it led.

    target = jax.vmap(lambda_returns, in_axes=1, out_axes=1)(r_t, discount_t, v_t, lambda_t)  # all [T, B]
"""

import chex
import jax
import jax.numpy as jnp

from volvox.types import Array


def lambda_returns(r_t: Array, discount_t: Array, v_t: Array, lambda_t: Array) -> Array:
    """λ-returns: `G[t] = r[t] + discount[t] * ((1 - lambda[t]) * v[t] + lambda[t] * G[t + 1])`.

    `G[T]` is `v[T - 1]`. With `lambda_t` 1 everywhere this is the n-step return, with 0 the one-step target. A timestep
    with `lambda_t` 0 bootstraps from `v_t`: this expresses a time limit, and a discount of 0 expresses a termination.

    Args:
      r_t: `[T]`: Rewards.
      discount_t: `[T]`: Discounts of the next timestep: 0 where the episode terminated.
      v_t: `[T]`: Values of the observations that follow.
      lambda_t: `[T]`: Trace decays.

    Returns:
      `[T]`. (Sutton and Barto, Reinforcement Learning, 2nd edition, section 12.8.)
    """
    chex.assert_rank([r_t, discount_t, v_t, lambda_t], 1)
    chex.assert_equal_shape([r_t, discount_t, v_t, lambda_t])

    def backwards(g_t: Array, x: tuple[Array, Array, Array, Array]):
        r_t, discount_t, v_t, lambda_t = x
        g_tm1 = r_t + discount_t * ((1 - lambda_t) * v_t + lambda_t * g_t)
        return g_tm1, g_tm1

    _, returns = jax.lax.scan(backwards, v_t[-1], (r_t, discount_t, v_t, lambda_t), reverse=True)
    return returns


def vtrace(
    v_tm1: Array,
    v_t: Array,
    r_t: Array,
    discount_t: Array,
    rho_tm1: Array,
    lambda_t: Array,
    *,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> tuple[Array, Array]:
    """Returns V-trace's targets and advantages of one trajectory.

    These are equations 1 and 4 of Espeholt et al. 2018 (arXiv 1802.01561):
    `vs[t] = v_tm1[t] + delta[t] + discount[t] * c[t] * (vs[t + 1] - v[t])`, with
    `delta[t] = rho[t] * (r[t] + discount[t] * v[t] - v_tm1[t])`, `rho = min(rho_clip, rho_tm1)` and
    `c = lambda * min(c_clip, rho_tm1)`; `vs[T]` is `v[T - 1]`. A timestep with `lambda_t` 0 bootstraps, and nothing
    after it counts.

    Args:
      v_tm1: `[T]`: Values of the observations at which actions were chosen.
      v_t: `[T]`: Values of the next observations; `v_t[t]` is `v_tm1[t + 1]`, except at the end.
      r_t: `[T]`: Rewards.
      discount_t: `[T]`: Discounts of the next timestep: 0 where the episode terminated.
      rho_tm1: `[T]`: Ratios of the probabilities of the actions under the learned and the acting policy.
      lambda_t: `[T]`: Trace decays: 0 at a time limit.
      rho_clip: Largest weight of a timestep.
      c_clip: Largest weight of the trace.

    Returns:
      (value targets `vs` `[T]`, advantages `[T]`, by which the policy's gradient is weighed). An advantage is `rho[t] *
      (r[t] + discount[t] * (lambda[t] * vs[t + 1] + (1 - lambda[t]) * v[t]) - v_tm1[t])`. Gradients flow through
      `v_tm1`, `v_t` and `rho_tm1`: stop them where they are not wanted.
    """
    arguments = [v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_t]
    chex.assert_rank(arguments, 1)
    chex.assert_equal_shape(arguments)
    rho = jnp.minimum(rho_clip, rho_tm1)
    c = lambda_t * jnp.minimum(c_clip, rho_tm1)
    delta = rho * (r_t + discount_t * v_t - v_tm1)

    def backwards(error_t: Array, x: tuple[Array, Array, Array]):
        delta, discount_t, c = x
        error_tm1 = delta + discount_t * c * error_t
        return error_tm1, error_tm1

    _, error = jax.lax.scan(backwards, jnp.zeros_like(delta[0]), (delta, discount_t, c), reverse=True)
    target_t = v_t + lambda_t * jnp.append(error[1:], 0.0)
    return v_tm1 + error, rho * (r_t + discount_t * target_t - v_tm1)
