"""Advantage actor-critic on the pipeline: one network, many environments, learning while emulators step.

Mnih et al. 2016 (arXiv 1602.01783) in the form of GA3C (Babaeizadeh et al. 2017, arXiv 1611.06256), with a fixed
schedule in place of its queues (`schedule`).
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from volvox._checks import group_size, integer
from volvox.actor_critic import schedule as schedules
from volvox.actor_critic.learner import LearnerState, LossSettings, learner, no_sums
from volvox.actor_critic.options import annealed, check_rates, micro_batch_size
from volvox.actor_critic.schedule import Carry, Schedule
from volvox.actor_critic.summary import summary
from volvox.data.episode_statistics import Episodes, no_episodes
from volvox.loop.balance import shares
from volvox.loop.driver import Counts, Plan, runner
from volvox.networks.actor_critic import ActorCriticNetwork, actor_critic
from volvox.networks.distributions import distribution
from volvox.networks.policies import perturbed
from volvox.optimizers import described, gradient_transformation
from volvox.trees import from_named, named
from volvox.types import Algorithm, Array, Env, Policy


class A3CState(NamedTuple):
    """A run between two steps.

    Attributes:
      draws: int32: how often actions were drawn.
      frames: Emulator frames played, resets not counted.
    """

    key: Array
    learner: LearnerState
    draws: Array
    episodes: Episodes
    frames: int


def a3c(
    network: nn.Module,
    env: Env,
    *,
    segment_length: int = 20,
    learning_rate: float = 6e-4,
    optimizer: str | optax.GradientTransformation = "adam",
    optimizer_options: Mapping[str, Any] | None = None,
    max_gradient_norm: float | None = 0.5,
    loss_reduction: Literal["sum", "mean"] = "mean",
    anneal_frames: int | None = None,
    discount: float = 0.99,
    trace_decay: float = 1.0,
    entropy_coefficient: float = 0.01,
    value_coefficient: float = 0.5,
    log_epsilon: float = 0.0,
    reward_bound: float | None = 1.0,
    episodic_life: bool = False,
    lag: int = 1,
    rounds_per_update: int = 1,
    vtrace: bool = True,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    micro_batch: int | None = None,
    updates_per_step: int = 250,
    chunk_seconds: float = 1.0,
    host: bool = False,
) -> Algorithm:
    """Makes the learner; one step of the algorithm is `updates_per_step` updates.

    The defaults are those of `modern`, but for options of the optimiser.

    Args:
      network: a flax module with a policy's output and a value, e.g. `volvox.networks.GA3C` (see
        `volvox.networks.actor_critic`).
      env: the environments, in groups that take turns.
      segment_length: T, steps of a segment; all groups collect one in each round.
      learning_rate: of an optimiser given by name.
      optimizer: the name of one of optax's, or any `optax.GradientTransformation`; the latter brings its own rates.
      optimizer_options: what else the named optimiser takes, JSON values.
      max_gradient_norm: to which the gradient is clipped; None leaves it.
      loss_reduction: over the transitions of an update; GA3C sums.
      anneal_frames: emulator frames after which learning rate and entropy coefficient have fallen to 0, linearly.
      discount: γ.
      trace_decay: λ of the returns; 1 gives n-step returns.
      entropy_coefficient: weight of the policy's entropy.
      value_coefficient: weight of half the squared error of values.
      log_epsilon: added to probabilities before their logarithm is taken, in the loss.
      reward_bound: learned rewards are clipped to it on either side; None leaves them.
      episodic_life: learn as if the loss of a life ended the game; scores are of whole games.
      lag: rounds between acting and learning, exactly; 0 gives up the overlap.
      rounds_per_update: rounds that share an update, of `rounds_per_update * num_envs * segment_length` steps. The lag
        in updates is `lag / rounds_per_update` on average.
      vtrace: correct returns for the lag (`actor_critic.vtrace`).
      rho_clip: V-trace's largest weight of a step.
      c_clip: V-trace's largest weight of a trace.
      micro_batch: environments whose segments are learned at once; a divisor of a group's size. Default: about 64
        transitions.
      updates_per_step: updates in one step, so in one row of metrics.
      chunk_seconds: how often progress and interrupts are looked at.
      host: drive the loop from Python, for platforms where it cannot be compiled whole.

    Returns:
      `Algorithm`. Its metrics: `training_mean`, `training_std`, `training_best` and `episode_length` over the latest
      100 episodes, `update`, losses, `entropy`, `gradient_norm`, `lag_mean` and `lag_max` in updates, `frames` and
      `episodes` so far, `predictions_per_second`, `trainings_per_second` (updates) and `frames_per_second`. In
      the second step and every tenth from there also `share_emulators`, `share_inference`, `share_learning` and
      `speed_over_turns`, of a few rounds with a stopwatch (`rollout.balance`), which the rates leave out. Its `policy`
      is the latest, not the best.

    Raises:
      ValueError: a number out of range, a micro-batch that does not divide, options that contradict, an optimiser that
        is none or draws random numbers, or a network that does not fit.
    """
    b = group_size(env.num_envs, env.num_groups)
    lengths = {
        "segment_length": segment_length,
        "rounds_per_update": rounds_per_update,
        "updates_per_step": updates_per_step,
    }
    for name, value in lengths.items():
        integer(name, value, low=1)
    integer("lag", lag, low=0)
    if segment_length > env.spec.max_episode_steps:
        raise ValueError(
            f"segment_length={segment_length} is longer than an episode of {env.spec.name} can be "
            f"({env.spec.max_episode_steps} steps); take a shorter segment."
        )
    if vtrace and lag == 0:
        raise ValueError("vtrace=True corrects for a lag, and lag=0 leaves none; take lag=1 or vtrace=False.")
    if not vtrace and (rho_clip, c_clip) != (1.0, 1.0):
        raise ValueError(f"rho_clip={rho_clip}, c_clip={c_clip}: these are V-trace's; leave them out, or vtrace=True.")
    if vtrace and not 0 < c_clip <= rho_clip < float("inf"):
        raise ValueError(f"rho_clip={rho_clip}, c_clip={c_clip}: V-trace needs finite rho_clip >= c_clip > 0.")
    if vtrace and log_epsilon:
        raise ValueError(f"vtrace=True and log_epsilon={log_epsilon} are two cures for one thing; take one of them.")
    if episodic_life and "lives" not in env.spec.extras:
        raise ValueError(f"episodic_life=True needs an environment that tells lives; {env.spec.name} does not.")
    if loss_reduction not in ("sum", "mean"):
        raise ValueError(f"loss_reduction={loss_reduction!r}: take 'sum' or 'mean'.")
    check_rates(learning_rate, discount, trace_decay, entropy_coefficient, value_coefficient, log_epsilon, reward_bound)
    micro_batch = micro_batch_size(micro_batch, b, segment_length)
    actions = distribution(env.spec)
    net = actor_critic(network, env.spec, output_size=actions.size)
    when = Schedule(segment_length, micro_batch, lag, rounds_per_update)

    updates = None
    if anneal_frames is not None:
        steps_per_update = env.num_envs * when.beats * rounds_per_update
        frames = integer("anneal_frames", anneal_frames, low=1)
        updates = max(frames // (steps_per_update * env.spec.frame_skip), 1)
    learn = learner(
        net,
        actions,
        settings=LossSettings(discount, trace_decay, vtrace, rho_clip, c_clip, log_epsilon, value_coefficient),
        entropy_coefficient=annealed(entropy_coefficient, updates),
        optimizer=gradient_transformation(
            optimizer,
            annealed(learning_rate, updates),
            optimizer_options or {},
            max_gradient_norm,
            like=jax.eval_shape(net.init, jax.random.key(0)),
        ),
        loss_reduction=loss_reduction,
    )
    continuous = env.spec.num_actions is None
    stages = schedules.stages(
        net,
        actions,
        learn,
        when,
        num_groups=env.num_groups,
        group_size=b,
        action_bounds=(env.spec.action_low, env.spec.action_high) if continuous else None,
        reward_bound=reward_bound,
        episodic_life=episodic_life,
    )
    loop = runner(
        stages,
        env,
        beats_per_round=when.beats,
        timed_rounds=1 + rounds_per_update,
        chunk_seconds=chunk_seconds,
        host=host,
    )

    def seed_of(state: A3CState) -> int:
        # Depends on the updates made, so that a resumed run does not repeat its no-op starts.
        entropy = [*np.asarray(jax.random.key_data(state.key)).ravel().tolist(), int(state.learner.update)]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)

    def init(key: Array) -> A3CState:
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        init_key, run_key = jax.random.split(key)
        return A3CState(run_key, jax.jit(learn.init)(init_key), jnp.int32(0), no_episodes(), 0)

    def prepare(carry: Carry, memory: LearnerState) -> tuple[Carry, LearnerState]:
        memory = memory._replace(sums=no_sums(), gradient_norm=jnp.float32(0))
        return carry._replace(steps=jnp.int32(0)), memory

    def last_round(carry: Carry) -> int:
        # Updates end whole rounds, counted since the environments were started; the first ones have nothing to learn.
        updates_before = max(int(carry.round) - lag, 0) // rounds_per_update
        return lag + (updates_before + updates_per_step) * rounds_per_update

    def step(state: A3CState, *, monitor=None) -> tuple[A3CState, dict[str, Any]]:
        first_update = int(state.learner.update)

        def progress(before: Counts, now: Counts, seconds: float) -> dict[str, Any]:
            return {
                "phase": "training",
                "done": now["updates"] - first_update,
                "total": updates_per_step,
                "stepped": now["steps"],
                "frames_per_second": (now["steps"] - before["steps"]) * env.spec.frame_skip / seconds,
            }

        plan = Plan(
            seed=lambda: seed_of(state),
            begin=lambda groups: schedules.start(groups, net, when, state.key, state.draws, state.episodes),
            prepare=prepare,
            goal=last_round,
            rounds_left=lambda carry, goal: goal - int(carry.round),
            counts=lambda carry, memory: {"steps": int(carry.steps), "updates": int(memory.update)},
            progress=progress,
            unit="updates",
            check=lambda memory: _check_finite(memory, first_update),
        )
        ran = loop.run(state.learner, plan, monitor)
        carry, memory = ran.carry, ran.memory
        frames = ran.after["steps"] * env.spec.frame_skip
        new = A3CState(state.key, memory, carry.draws, carry.episodes, state.frames + frames)
        steps, updates = (ran.after[name] - ran.before[name] for name in ("steps", "updates"))
        rates = {
            "predictions_per_second": ran.rounds * when.beats * env.num_envs / ran.seconds,
            "trainings_per_second": updates / ran.seconds,
            "frames_per_second": steps * env.spec.frame_skip / ran.seconds,
        }
        if ran.times is not None:
            rates |= shares(ran.times, rates["predictions_per_second"], working="learning")
        return new, summary(new.learner, new.episodes, frames=new.frames, updates=updates_per_step) | rates

    def save(state: A3CState) -> dict[str, Any]:
        kept = {"params": state.learner.params, "optimizer": state.learner.optimizer}
        return {
            "key": np.asarray(jax.random.key_data(state.key)),
            "key_impl": str(jax.random.key_impl(state.key)),
            "learner": {name: np.asarray(leaf) for name, leaf in named(kept).items()},
            "progress": np.array([state.learner.update, state.draws, state.frames], np.int64),
            "episodes": {name: np.asarray(value) for name, value in state.episodes._asdict().items()},
        }

    def restore(saved: dict[str, Any]) -> A3CState:
        like = jax.eval_shape(learn.init, jax.random.key(0))
        wanted = {"params": like.params, "optimizer": like.optimizer}
        kept = from_named(saved["learner"], wanted, what="network or optimiser")
        update, draws, frames = (int(value) for value in saved["progress"])
        fresh = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
        return A3CState(
            key=jax.random.wrap_key_data(jnp.asarray(saved["key"]), impl=saved["key_impl"]),
            learner=fresh._replace(**kept, update=jnp.int32(update)),
            draws=jnp.int32(draws),
            episodes=Episodes(**{name: jnp.asarray(value) for name, value in saved["episodes"].items()}),
            frames=frames,
        )

    return Algorithm(
        init=init,
        step=step,
        policy=lambda state: state.learner.params,
        genome=None,
        step_name="iteration",
        save=save,
        restore=restore,
        close=loop.close,
        env=env,
        network=_acting(net, env),
        config={
            "algorithm": "a3c",
            "network": dict(net.config),
            "env": dict(env.config),
            "schedule": when._asdict(),
            "updates_per_step": updates_per_step,
            "optimizer": described(optimizer),
            "optimizer_options": dict(optimizer_options or {}),
            "learning_rate": learning_rate if isinstance(optimizer, str) else None,
            "max_gradient_norm": max_gradient_norm,
            "loss_reduction": loss_reduction,
            "anneal_frames": anneal_frames,
            "discount": discount,
            "trace_decay": trace_decay,
            "entropy_coefficient": entropy_coefficient,
            "value_coefficient": value_coefficient,
            "log_epsilon": log_epsilon,
            "reward_bound": reward_bound,
            "episodic_life": episodic_life,
            "vtrace": [rho_clip, c_clip] if vtrace else None,
        },
    )


def _acting(net: ActorCriticNetwork, env: Env) -> Policy:
    """The policy's half of the network: logits, or means; with a key, drawn."""
    discrete = env.spec.num_actions is not None
    actions = distribution(env.spec)
    size = env.spec.num_actions or int(np.prod(env.spec.action_shape or ()))

    def apply(params, observation, state, key):
        output, _, state = net.apply(params, observation, state)
        if key is not None:
            drawn = perturbed(key, output) if discrete else actions.sample(key, output)
            return drawn.reshape(output.shape[0], size), state
        return output[..., :size], state

    # No first generation is drawn from noise here, but decoders ask for one.
    return Policy(net.init, lambda params: params, net.initial_state, apply, lambda noise: noise, net.config)


def _check_finite(memory: LearnerState, first_update: int) -> None:
    looked_at = (memory.sums, memory.gradient_norm, memory.params)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(looked_at)):
        raise FloatingPointError(
            f"the loss, its gradient or the parameters are no longer finite, between updates {first_update} and "
            f"{int(memory.update)}: nothing of this step is kept; lower the learning rate, or clip the gradient "
            "(max_gradient_norm)"
        )
