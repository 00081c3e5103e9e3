"""Returns of one trajectory: pure, unbatched functions; `jax.vmap` them over environments."""

import jax

Array = jax.Array


def lambda_returns(reward: Array, discount: Array, next_value: Array, decay: Array) -> Array:
    """λ-returns: `G[t] = reward[t] + discount[t] * ((1 - decay[t]) * next_value[t] + decay[t] * G[t + 1])`.

    `G[T]` is `next_value[T - 1]`. With `decay` 1 everywhere this is the n-step return, with 0 the one-step target. A
    step with decay 0 bootstraps whatever follows it: that is how a time limit is put, while a termination is a
    discount of 0.

    Args:
      reward: `[T]`, of the step taken at t.
      discount: `[T]`, of what follows it: 0 where the episode terminated.
      next_value: `[T]`, the value of the observation that follows.
      decay: λ, `[T]`.

    Returns:
      `[T]`. (Sutton and Barto, Reinforcement Learning, 2nd edition, section 12.8.)
    """

    def backwards(following: Array, step: tuple[Array, Array, Array, Array]):
        reward, discount, value, decay = step
        target = reward + discount * ((1 - decay) * value + decay * following)
        return target, target

    _, targets = jax.lax.scan(backwards, next_value[-1], (reward, discount, next_value, decay), reverse=True)
    return targets
