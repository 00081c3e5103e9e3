"""Advantage actor-critic on the pipeline: one network, many environments, learning while emulators step.

Mnih et al. 2016 (arXiv 1602.01783) in the form of GA3C (Babaeizadeh et al. 2017, arXiv 1611.06256), with a fixed
schedule in place of its queues (`schedule`).
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from volvox.actor_critic import schedule as schedules
from volvox.actor_critic.distributions import distribution
from volvox.actor_critic.learner import LearnerState, LossSettings, learner, no_sums
from volvox.actor_critic.schedule import Episodes, Schedule, no_episodes
from volvox.networks.actor_critic import ActorCriticNetwork, actor_critic
from volvox.rollout import pipeline
from volvox.types import Algorithm, Array, ArrayTree, Env, EnvGroup, Interrupted, Policy
from volvox.validation import group_size, integer

_MICRO_BATCH_TRANSITIONS = 64
"""Micro-batches of 32 to 64 transitions stay in a CPU's cache."""


class A3CState(NamedTuple):
    """A run between two steps."""

    key: Array
    learner: LearnerState
    draws: Array
    """int32: how often actions were drawn."""
    episodes: Episodes
    frames: int
    """Emulator frames played, resets not counted."""


class _Live:
    """Pools, the compiled loop, and what is in flight: never part of the state."""

    def __init__(self):
        self.groups: tuple[EnvGroup, ...] = ()
        self.chunk: pipeline.Chunk | None = None
        self.loop: tuple[ArrayTree, Any] | None = None
        """(environment states, carry) where the last step ended."""
        self.follows: LearnerState | None = None
        """The state that goes on from there."""
        self.rounds = 4
        """In a chunk, so that it lasts about as long as asked."""

    def close(self):
        for group in self.groups:
            group.close()
        self.__init__()


def a3c(
    network: nn.Module,
    env: Env,
    *,
    segment_length: int = 5,
    learning_rate: float = 7e-4,
    optimizer: str | optax.GradientTransformation = "rmsprop",
    optimizer_options: Mapping[str, Any] | None = None,
    max_gradient_norm: float | None = None,
    average: bool = True,
    anneal_frames: int | None = None,
    discount: float = 0.99,
    decay: float = 1.0,
    entropy_coefficient: float = 0.01,
    value_coefficient: float = 0.5,
    log_epsilon: float = 0.0,
    reward_bound: float | None = 1.0,
    episodic_life: bool = False,
    lag: int = 1,
    merge: int = 1,
    vtrace: bool = False,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    micro_batch: int | None = None,
    updates_per_step: int = 250,
    chunk_seconds: float = 1.0,
    host: bool = False,
) -> Algorithm:
    """Makes the learner; one step of the algorithm is `updates_per_step` updates.

    Args:
      network: a flax module with a policy's output and a value, e.g. `volvox.networks.GA3C` (see
        `volvox.networks.actor_critic`).
      env: the environments, in groups that take turns.
      segment_length: T, steps between updates.
      learning_rate: of the optimiser.
      optimizer: the name of one of optax's, or any `optax.GradientTransformation`; the latter brings its own rates.
      optimizer_options: what else the named optimiser takes, JSON values.
      max_gradient_norm: to which the gradient is clipped; None leaves it.
      average: divide the gradient by the number of transitions; False sums it, as GA3C does.
      anneal_frames: emulator frames after which learning rate and entropy coefficient have fallen to 0, linearly.
      discount: γ.
      decay: λ of the returns; 1 gives n-step returns.
      entropy_coefficient: weight of the policy's entropy.
      value_coefficient: weight of half the squared error of values.
      log_epsilon: added to probabilities before their logarithm is taken, in the loss.
      reward_bound: learned rewards are clipped to it on either side; None leaves them.
      episodic_life: learn as if the loss of a life ended the game; scores are of whole games.
      lag: updates between acting and learning, exactly; 0 gives up the overlap.
      merge: rounds that share an update: the minimum training batch is `merge * num_envs * segment_length`.
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
      `episodes` so far, `predictions_per_second`, `trainings_per_second` (updates) and `frames_per_second`.

    Raises:
      ValueError: a number out of range, a micro-batch that does not divide, options that contradict, an unknown
        optimiser, or a network that does not fit.
    """
    b = group_size(env.num_envs, env.num_groups)
    lengths = {"segment_length": segment_length, "merge": merge, "updates_per_step": updates_per_step}
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
    if vtrace and log_epsilon:
        raise ValueError(f"vtrace=True and log_epsilon={log_epsilon} are two cures for one thing; take one of them.")
    if episodic_life and env.config.get("environment") != "envpool":
        raise ValueError(f"episodic_life=True needs an environment that tells lives; {env.spec.name} does not.")
    _check_rates(learning_rate, discount, decay, entropy_coefficient, value_coefficient, log_epsilon, reward_bound)
    micro_batch = _micro_batch(micro_batch, b, segment_length)
    actions = distribution(env.spec)
    net = actor_critic(network, env.spec, output_size=actions.size)
    when = Schedule(segment_length, micro_batch, lag, merge)

    steps_per_update = env.num_envs * segment_length * merge
    updates = (
        None
        if anneal_frames is None
        else max(integer("anneal_frames", anneal_frames, low=1) // (steps_per_update * env.spec.frame_skip), 1)
    )
    learn = learner(
        net,
        actions,
        settings=LossSettings(discount, decay, vtrace, rho_clip, c_clip, log_epsilon, value_coefficient),
        entropy_coefficient=_annealed(entropy_coefficient, updates),
        optimizer=_optimizer(optimizer, _annealed(learning_rate, updates), optimizer_options or {}, max_gradient_norm),
        average=average,
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
    live = _Live()

    def seed_of(state: A3CState) -> int:
        # Depends on the updates made, so that a resumed run does not repeat its no-op starts.
        entropy = [*np.asarray(jax.random.key_data(state.key)).ravel().tolist(), int(state.learner.update)]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)

    def init(key: Array) -> A3CState:
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        init_key, run_key = jax.random.split(key)
        return A3CState(run_key, jax.jit(learn.init)(init_key), jnp.int32(0), no_episodes(), 0)

    def start(state: A3CState) -> tuple[list[ArrayTree], Any]:
        """Environments and carry to go on with: where the last step ended, or new episodes."""
        if live.loop is not None and live.follows is state.learner:
            envs, carry = live.loop
            return list(envs), carry._replace(steps=jnp.int32(0))
        live.close()  # envpool's emulators cannot be seeded anew, and may have actions in flight
        live.groups = env.make(seed_of(state), host=host)
        form = pipeline.driven if host else pipeline.traced
        live.chunk = form(stages, live.groups, beats_per_round=when.beats)
        carry = schedules.start(live.groups, net, when, state.key, state.draws, state.episodes)
        return [group.init() for group in live.groups], carry

    def step(state: A3CState, *, monitor=None) -> tuple[A3CState, dict[str, Any]]:
        if monitor is not None and live.chunk is None and monitor({"phase": "compiling"}):
            raise Interrupted("before the loop was compiled")
        try:
            return advance(state, monitor)
        except BaseException:
            live.close()  # donated buffers and pools in flight cannot be trusted any more
            raise

    def advance(state: A3CState, monitor) -> tuple[A3CState, dict[str, Any]]:
        envs, carry = start(state)
        assert live.chunk is not None
        live.loop = None
        # The loop donates what it is given; the state must outlive it. So must what `start` passed on from it.
        memory, carry = jax.tree.map(jnp.copy, (state.learner, carry))
        memory = memory._replace(sums=no_sums(), gradient_norm=jnp.float32(0))
        first_update = int(memory.update)
        began, rounds = time.perf_counter(), 0
        while (done := int(memory.update) - first_update) < updates_per_step:
            chunk_began = time.perf_counter()
            left = (updates_per_step - done) * merge
            if int(carry.round) < lag:
                left += lag - int(carry.round)
            count = min(live.rounds, left)
            loop, _ = live.chunk(pipeline.LoopState(tuple(envs), carry, memory), (), count)
            envs, carry, memory = list(loop.envs), loop.carry, loop.memory
            _check_finite(memory, first_update)
            now = time.perf_counter()
            rounds += count
            if count == live.rounds:
                factor = chunk_seconds / max(now - chunk_began, 1e-6)
                live.rounds = max(1, int(live.rounds * min(max(factor, 0.5), 2.0)))
            if monitor is not None:
                progress = {
                    "phase": "training",
                    "done": int(memory.update) - first_update,
                    "total": updates_per_step,
                    "frames_per_second": int(carry.steps) * env.spec.frame_skip / (now - began),
                }
                if monitor(progress) and int(memory.update) - first_update < updates_per_step:
                    raise Interrupted(f"{progress['done']} of {updates_per_step} updates were made and are dropped")
        seconds = time.perf_counter() - began
        frames = int(carry.steps) * env.spec.frame_skip
        new = A3CState(state.key, memory, carry.draws, carry.episodes, state.frames + frames)
        live.loop, live.follows = (tuple(envs), carry), memory
        rates = {
            "predictions_per_second": rounds * when.beats * env.num_envs / seconds,
            "trainings_per_second": updates_per_step / seconds,
            "frames_per_second": frames / seconds,
        }
        return new, _metrics(new, updates_per_step) | rates

    def save(state: A3CState) -> dict[str, Any]:
        kept = (state.learner.params, state.learner.optimizer)
        return {
            "key": np.asarray(jax.random.key_data(state.key)),
            "key_impl": str(jax.random.key_impl(state.key)),
            "learner": [np.asarray(leaf) for leaf in jax.tree.leaves(kept)],
            "progress": np.array([state.learner.update, state.draws, state.frames], np.int64),
            "episodes": {name: np.asarray(value) for name, value in state.episodes._asdict().items()},
        }

    def restore(saved: dict[str, Any]) -> A3CState:
        like = jax.eval_shape(learn.init, jax.random.key(0))
        structure = jax.tree.structure((like.params, like.optimizer))
        params, inner = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in saved["learner"]])
        expected = jax.tree.map(jnp.shape, like.params)
        if (got := jax.tree.map(jnp.shape, params)) != expected:
            raise ValueError(f"the checkpoint holds another network: parameters {got}, but this one has {expected}")
        update, draws, frames = (int(value) for value in saved["progress"])
        fresh = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
        return A3CState(
            key=jax.random.wrap_key_data(jnp.asarray(saved["key"]), impl=saved["key_impl"]),
            learner=fresh._replace(params=params, optimizer=inner, update=jnp.int32(update)),
            draws=jnp.int32(draws),
            episodes=Episodes(**{name: jnp.asarray(value) for name, value in saved["episodes"].items()}),
            frames=frames,
        )

    return Algorithm(
        init=init,
        step=step,
        policy=lambda state: state.learner.params,
        genome=None,
        save=save,
        restore=restore,
        close=live.close,
        env=env,
        network=_acting(net, env),
        config={
            "algorithm": "a3c",
            "network": dict(net.config),
            "env": dict(env.config),
            "schedule": when._asdict(),
            "updates_per_step": updates_per_step,
            "optimizer": optimizer if isinstance(optimizer, str) else "custom",
            "optimizer_options": dict(optimizer_options or {}),
            "learning_rate": learning_rate,
            "max_gradient_norm": max_gradient_norm,
            "average": average,
            "anneal_frames": anneal_frames,
            "discount": discount,
            "decay": decay,
            "entropy_coefficient": entropy_coefficient,
            "value_coefficient": value_coefficient,
            "log_epsilon": log_epsilon,
            "reward_bound": reward_bound,
            "episodic_life": episodic_life,
            "vtrace": [rho_clip, c_clip] if vtrace else None,
        },
    )


def _metrics(state: A3CState, updates: int) -> dict[str, Any]:
    sums, episodes = jax.device_get((state.learner.sums, state.episodes))
    transitions = max(float(sums.transitions), 1.0)
    recent = min(int(episodes.total), schedules.RECENT)
    figures: dict[str, Any] = {
        "update": int(state.learner.update),
        "frames": state.frames,
        "episodes": int(episodes.total),
    }
    if recent:
        returns, lengths = episodes.returns[:recent], episodes.lengths[:recent]
        figures |= {
            "training_mean": float(returns.mean()),
            "training_std": float(returns.std()),
            "training_best": float(returns.max()),
            "episode_length": float(lengths.mean()),
        }
    return figures | {
        "policy_loss": float(sums.policy_loss) / transitions,
        "value_loss": float(sums.value_loss) / transitions,
        "entropy": float(sums.entropy) / transitions,
        "gradient_norm": float(state.learner.gradient_norm) / updates,
        "lag_mean": float(sums.lag) / transitions,
        "lag_max": int(sums.lag_max),
    }


def _acting(net: ActorCriticNetwork, env: Env) -> Policy:
    """The policy's half of the network, greedy: logits, or means."""
    size = env.spec.num_actions or int(np.prod(env.spec.action_shape or ()))

    def apply(params, observation, state, key):
        del key
        output, _, state = net.apply(params, observation, state)
        return output[..., :size], state

    def from_noise(noise):
        raise ValueError("an actor-critic is initialised by its module, not by noise")

    return Policy(net.init, lambda params: params, net.initial_state, apply, from_noise, net.config)


def _micro_batch(given: int | None, group: int, segment_length: int) -> int:
    divisors = [m for m in range(1, group + 1) if group % m == 0]
    if given is None:
        return max((m for m in divisors if m * segment_length <= _MICRO_BATCH_TRANSITIONS), default=1)
    if integer("micro_batch", given, low=1) not in divisors:
        raise ValueError(
            f"micro_batch={given} does not divide a group of {group} environments; take one of {divisors}."
        )
    return given


def _check_rates(learning_rate, discount, decay, entropy_coefficient, value_coefficient, log_epsilon, reward_bound):
    for name, value in (("learning_rate", learning_rate), ("reward_bound", reward_bound)):
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{name}={value}: give a positive finite number.")
    for name, value in (("discount", discount), ("decay", decay)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value}: give a number from 0 to 1.")
    for name, value in (
        ("entropy_coefficient", entropy_coefficient),
        ("value_coefficient", value_coefficient),
        ("log_epsilon", log_epsilon),
    ):
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name}={value}: give a finite number of at least 0.")


def _check_finite(memory: LearnerState, first_update: int) -> None:
    looked_at = (*memory.sums, memory.gradient_norm)
    if not all(np.isfinite(float(value)) for value in looked_at):
        raise FloatingPointError(
            f"the loss or its gradient is no longer finite, between updates {first_update} and {int(memory.update)}: "
            "nothing of this step is kept; lower the learning rate, or clip the gradient (max_gradient_norm)"
        )


def _annealed(value: float, updates: int | None) -> Callable[[Array], Array]:
    if updates is None:
        return lambda update: jnp.float32(value)
    return lambda update: value * jnp.maximum(0.0, 1.0 - update / updates)


def _optimizer(
    given: Any, learning_rate: Any, options: Mapping[str, Any], max_gradient_norm
) -> optax.GradientTransformation:
    if isinstance(given, str):
        factory: Any = getattr(optax, given, None)
        if not callable(factory):
            raise ValueError(f"optimizer={given!r} is not one of optax's; take e.g. 'rmsprop' or 'adam'.")
        try:
            given = factory(learning_rate, **options)
        except TypeError as error:
            raise ValueError(f"optax.{given} does not take {dict(options)}: {error}") from error
    elif options:
        raise ValueError(f"optimizer_options={dict(options)} are for an optimiser given by name; this one is made.")
    if max_gradient_norm is None:
        return given
    if not max_gradient_norm > 0:
        raise ValueError(f"max_gradient_norm={max_gradient_norm}: give a positive number, or None.")
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), given)
