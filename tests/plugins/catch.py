"""A pure-JAX environment: a ball falls down a board, and the paddle in the last row is to catch it (bsuite's Catch)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import volvox as vx

ROWS, COLUMNS = 10, 5


class State(NamedTuple):
    ball: jax.Array
    row: jax.Array
    paddle: jax.Array


def reset(key: jax.Array) -> State:
    return State(jax.random.randint(key, (), 0, COLUMNS), jnp.int32(0), jnp.int32(COLUMNS // 2))


def step(state: State, action: jax.Array, key: jax.Array):
    paddle, row = jnp.clip(state.paddle + action - 1, 0, COLUMNS - 1), state.row + 1
    reward = jnp.where(row < ROWS - 1, 0.0, jnp.where(paddle == state.ball, 1.0, -1.0))
    return State(state.ball, row, paddle), reward, row == ROWS - 1


def observe(state: State) -> jax.Array:
    return jnp.zeros((ROWS, COLUMNS)).at[state.row, state.ball].set(1.0).at[-1, state.paddle].set(1.0)


def catch(*, num_envs: int, groups: int = 1) -> vx.Env:
    return vx.envs.from_functions(
        reset, step, observe, name="catch", num_envs=num_envs, groups=groups, num_actions=3, max_episode_steps=ROWS
    )
