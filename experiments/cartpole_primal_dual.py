"""Primal-dual π learning and the one-step actor-critic on CartPole-v1 (Cho & Wang 2017, arXiv 1712.02467).

    python experiments/cartpole_primal_dual.py primal-dual --penalty 10 --name "primal-dual c 10" --rates 1e-3
    python experiments/cartpole_primal_dual.py actor-critic --name actor-critic --rates 3e-4 1e-3

The optimal values of a Markov decision process solve a linear program: they are the smallest v, weighted by any
distribution ξ of states, with `v(s) >= r(s, a) + γ E[v(s')]` for all states and actions. With a multiplier λ(s, a) for
each of these inequalities, the Lagrangian is

    L(v, λ) = Σ_s (1 - γ) ξ(s) v(s) + Σ_(s, a) λ(s, a) A(s, a),    A(s, a) = r(s, a) + γ E[v(s')] - v(s),

which the values minimise and the multipliers maximise. Two changes let networks take the place of tables:

- *Relaxed Lagrangian*: the multipliers are `λ(s, a) = ξ(s) π(a | s)`, where ξ is the distribution of visited states.
  Otherwise each update would need another distribution over all states.
- *Advantage penalty*: the values also minimise `c A(s, a)²`, without which nothing bounds a nonlinear v.

The gradient of the policy is then that of the one-step actor-critic, `A ∇ log π(a | s)`. The two learners differ only
in how values are learned. The minimum of the relaxed Lagrangian is no exact solution of Bellman's equation: after t
timesteps of an episode, the mean advantage is `-γ^(t + 1) / (2 c)`.

The script writes one JSON file for each learning rate. Its `curves` `[seeds, iterations]` are mean returns of the
latest 100 training episodes.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import linen as nn
from launch import exit_code

import volvox as vx
from volvox.envs.classic_control import cartpole_step

WINDOW = 100
"""Episodes over which returns are averaged."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """One learner on CartPole, with several seeds at each learning rate.

    Attributes:
      learner: How values are learned. primal-dual: they minimise the relaxed Lagrangian with the advantage penalty.
        actor-critic: they follow one-step targets.
      name: Name of the learner in files and reports.
      penalty: c, the weight of the squared advantage. Only for primal-dual.
      discount: γ, below 1.
      rates: Learning rates of Adam.
      seeds: Runs at each rate; they are trained side by side.
      iterations: Points of a learning curve.
      timesteps_per_iteration: Timesteps of each environment between two points.
      num_envs: Environments whose transitions share an update.
      run_dir: Directory for the results.
    """

    learner: tyro.conf.Positional[Literal["primal-dual", "actor-critic"]] = "primal-dual"
    name: str = "primal-dual"
    penalty: float = 1.0
    discount: float = 0.99
    rates: tuple[float, ...] = (3e-3, 1e-3, 3e-4, 1e-4)
    seeds: int = 10
    iterations: int = 30
    timesteps_per_iteration: int = 2_000
    num_envs: int = 1
    run_dir: str = "runs/cartpole"


class Environment(NamedTuple):
    """An environment as functions; its state is its observation.

    Attributes:
      reset: key -> state.
      step: (state, action) -> (state, reward, terminated).
      max_episode_steps: Timesteps after which an episode is truncated.
    """

    reset: Callable[[jax.Array], jax.Array]
    step: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
    max_episode_steps: int


CARTPOLE = Environment(lambda key: jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05), cartpole_step, 500)


class Transition(NamedTuple):
    """Transitions of B environments.

    Attributes:
      state: `[B, ...]`.
      action: int32 `[B]`.
      reward: float32 `[B]`.
      discount: float32 `[B]`: γ, or 0 where the episode terminated. A time limit does not set it to 0.
      next_state: `[B, ...]`, before a new episode begins.
    """

    state: jax.Array
    action: jax.Array
    reward: jax.Array
    discount: jax.Array
    next_state: jax.Array


class Training(NamedTuple):
    """State of training with B environments.

    Attributes:
      params: Parameters of the network.
      optimizer: State of the optimiser.
      state: `[B, ...]`: States of the environments.
      action: int32 `[B]`: Actions chosen in these states.
      returns: float32 `[B]`: Returns of the current episodes.
      lengths: int32 `[B]`: Lengths of the current episodes.
    """

    params: Any
    optimizer: Any
    state: jax.Array
    action: jax.Array
    returns: jax.Array
    lengths: jax.Array


def loss(settings: Settings, module: nn.Module, params: Any, batch: Transition) -> jax.Array:
    """Returns the mean loss of transitions.

    The policy ascends and the values descend the relaxed Lagrangian `E[(1 - γ) v(s) + A]`. One transition gives an
    unbiased sample of it, because its action was drawn from π.
    """
    network: Callable[..., Any] = module.apply
    logits, v_tm1 = network({"params": params}, batch.state)
    _, v_t = network({"params": params}, batch.next_state)
    advantage = batch.reward + batch.discount * v_t - v_tm1
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), batch.action[:, None], axis=1)[:, 0]
    policy_loss = -log_prob * jax.lax.stop_gradient(advantage)
    if settings.learner == "primal-dual":
        # The gradient flows through both values, because a multiplier weighs the whole inequality.
        value_loss = (1 - settings.discount) * v_tm1 + advantage + settings.penalty * advantage**2
    else:
        value_loss = 0.5 * (jax.lax.stop_gradient(batch.reward + batch.discount * v_t) - v_tm1) ** 2
    return (policy_loss + value_loss).mean()


def train(
    settings: Settings, module: nn.Module, env: Environment, rate: jax.Array | float, key: jax.Array
) -> tuple[Any, jax.Array]:
    """Trains one network.

    Args:
      settings: All but the learning rate.
      module: Network from states `[B, ...]` to (logits `[B, A]`, values `[B]`).
      env: The environment.
      rate: Learning rate of Adam.
      key: Random key.

    Returns:
      (parameters, returns `[T, B]` of the episodes that end at each timestep; NaN where none ends).
    """
    optimizer, network = optax.adam(rate), cast("Callable[..., Any]", module.apply)

    def reset(key: jax.Array) -> jax.Array:
        return jax.vmap(env.reset)(jax.random.split(key, settings.num_envs))

    def act(params: Any, state: jax.Array, key: jax.Array) -> jax.Array:
        return jax.random.categorical(key, network({"params": params}, state)[0])

    def timestep(x: Training, key: jax.Array) -> tuple[Training, jax.Array]:
        k_reset, k_action = jax.random.split(key)
        next_state, reward, terminated = jax.vmap(env.step)(x.state, x.action)
        batch = Transition(x.state, x.action, reward, settings.discount * (1.0 - terminated), next_state)
        returns, lengths = x.returns + reward, x.lengths + 1
        ended = terminated | (lengths >= env.max_episode_steps)
        state = jnp.where(ended[:, None], reset(k_reset), next_state)
        # The next action is chosen before this transition is learned, as if environments and learner ran in parallel.
        action = act(x.params, state, k_action)
        gradient = jax.grad(partial(loss, settings, module))(x.params, batch)
        changes, optimizer_state = optimizer.update(gradient, x.optimizer)
        params = optax.apply_updates(x.params, changes)
        zero = jnp.zeros_like
        x = Training(
            params,
            optimizer_state,
            state,
            action,
            returns=jnp.where(ended, zero(returns), returns),
            lengths=jnp.where(ended, zero(lengths), lengths),
        )
        return x, jnp.where(ended, returns, jnp.nan)

    k_params, k_state, k_action, k_steps = jax.random.split(key, 4)
    state = reset(k_state)
    params = module.init(k_params, state)["params"]
    counts = jnp.zeros(settings.num_envs), jnp.zeros(settings.num_envs, jnp.int32)
    start = Training(params, optimizer.init(params), state, act(params, state, k_action), *counts)
    keys = jax.random.split(k_steps, settings.iterations * settings.timesteps_per_iteration)
    end, returns = jax.lax.scan(timestep, start, keys)
    return end.params, returns


def learning_curve(returns: np.ndarray, iterations: int) -> list[float]:
    """Returns the mean of the latest 100 returns after each iteration; NaN before the first episode ends."""
    curve, ended = [], np.zeros(0)
    for part in np.split(returns, iterations):
        ended = np.concatenate([ended, part[~np.isnan(part)]])[-WINDOW:]
        curve.append(round(float(ended.mean()), 1) if len(ended) else float("nan"))
    return curve


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    if settings.learner == "actor-critic" and settings.penalty != Settings.penalty:
        raise ValueError("penalty belongs to primal-dual; leave it out")
    run_dir, diverged = Path(settings.run_dir), False
    run_dir.mkdir(parents=True, exist_ok=True)
    keys = jax.vmap(jax.random.key)(jnp.arange(settings.seeds))
    run = jax.jit(jax.vmap(partial(train, settings, vx.networks.CategoricalMLP(2), CARTPOLE), in_axes=(None, 0)))
    for rate in settings.rates:
        params, returns = jax.device_get(run(rate, keys))
        curves = [learning_curve(x, settings.iterations) for x in returns]
        finite = np.all([np.isfinite(x).all() for x in jax.tree.leaves(params)])
        diverged |= not finite
        ends = " ".join(str(curve[-1]) for curve in curves)
        print(f"{settings.name}, rate {rate:g}: {ends}{'' if finite else ' (a seed diverged)'}", flush=True)
        text = json.dumps({"name": settings.name, "settings": dataclasses.asdict(settings), "curves": curves})
        path = run_dir / f"{settings.name}_rate_{rate:g}.json".replace(" ", "_")
        path.write_text(text + "\n")
    return int(diverged)


if __name__ == "__main__":
    sys.exit(exit_code(main))
