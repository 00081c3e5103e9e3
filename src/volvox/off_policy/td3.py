"""Twin delayed deep deterministic policy gradients on the pipeline (Fujimoto et al. 2018, arXiv 1802.09477).

Several learners, with seeds or settings of their own, learn side by side in one program, each from its share of the
environments.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from volvox._checks import group_size, integer
from volvox.data.episode_statistics import Episodes
from volvox.data.replay import Replay, empty
from volvox.loop.balance import shares
from volvox.loop.driver import Counts, Plan, runner
from volvox.networks.off_policy import ActorAndCritics, actor_and_critics
from volvox.off_policy import schedule as schedules
from volvox.off_policy.learner import LearnerState, LossSettings, Normalizer, learner, no_sums, normalized
from volvox.off_policy.schedule import Carry, Exploration, Sampling, no_episodes
from volvox.off_policy.summary import check_finite, networks_of, scores_of, summary
from volvox.optimizers import described, gradient_transformation
from volvox.sparsity import table
from volvox.trees import from_named, named
from volvox.types import Algorithm, Array, ArrayTree, Env, Policy


class TD3State(NamedTuple):
    """A run between two steps.

    Attributes:
      replays: One a group.
      draws: int32: how often actions were drawn.
      steps: int32: steps taken by all environments, resets not counted.
      episodes: Leaves `[S, ...]`.
    """

    key: Array
    learner: LearnerState
    replays: tuple[Replay, ...]
    draws: Array
    steps: Array
    episodes: Episodes


def td3(
    actor: nn.Module,
    critic: nn.Module,
    env: Env,
    *,
    representation: nn.Module | None = None,
    num_learners: int = 1,
    learning_rate: float | Sequence[float] = 3e-4,
    optimizer: str | optax.GradientTransformation = "adam",
    optimizer_options: Mapping[str, Any] | None = None,
    batch_size: int = 256,
    discount: float = 0.99,
    target_rate: float = 0.005,
    exploration_noise: float | Sequence[float] = 0.1,
    target_noise: float | Sequence[float] = 0.2,
    target_noise_clip: float = 0.5,
    policy_delay: int = 2,
    random_steps: int = 25_000,
    replay_size: int = 1_000_000,
    updates_per_env_step: float = 1.0,
    num_steps: int = 1,
    normalize_observations: bool = False,
    steps_per_iteration: int = 5_000,
    save_replay: bool = True,
    chunk_seconds: float = 1.0,
    host: bool = False,
) -> Algorithm:
    """Makes the learner; one step of the algorithm is an iteration of `steps_per_iteration` steps.

    All counts are of each learner. Where a setting takes a sequence, it has one entry a learner.

    Args:
      actor: a flax module, observations `[B, ...]` -> `[B, A]`; the hyperbolic tangent of its output is the action.
      critic: a flax module, (observations, actions `[B, A]` in [-1, 1]) -> values `[B]`; two of it are made.
      env: the environments, in groups that take turns, with continuous actions. Learners share them evenly.
      representation: a flax module whose features actor and critics see in place of observations, and which learns by
        itself, with the same optimiser, to predict the next one (`networks.NextObservationNetwork`); None: none.
      num_learners: S.
      learning_rate: of actor and critics, for an optimiser given by name; a sequence needs one that is linear in it.
        One number is of no use beside an optimiser that is made, and a sequence is refused.
      optimizer: the name of one of optax's, or any `optax.GradientTransformation`; the latter brings its own rates.
        With `volvox.sparsity.sparse` actor, critics and targets are sparse, and metrics tell the `compression`. Of what
        it is, a resumed run notices the `config` it may have, and the shapes of its state.
      optimizer_options: what else the named optimiser takes, JSON values.
      batch_size: transitions of an update; a multiple of the number of groups.
      discount: γ.
      target_rate: τ.
      exploration_noise: standard deviation of what is added to actions scaled to [-1, 1].
      target_noise: standard deviation of what is added to target actions.
      target_noise_clip: to which that is clipped.
      policy_delay: updates of the critics for one of the actor and the targets.
      random_steps: steps with uniform actions, before anything is learned.
      replay_size: steps that are remembered, rounded down to whole rows of the environments.
      updates_per_env_step: updates for each step of an environment, resets not counted; times the learner's
        environments in a group it must be a whole number, so that fewer updates than one a beat take more environments.
      num_steps: n, of n-step targets.
      normalize_observations: show actor and critics observations with running mean 0 and variance 1.
      steps_per_iteration: steps in one row of metrics, which ends at the first multiple of it or some steps after.
      save_replay: keep the replay in checkpoints; without it, a resumed run gathers `random_steps` anew before it
        learns on.
      chunk_seconds: how often progress and interrupts are looked at.
      host: drive the loop from Python.

    Returns:
      `Algorithm`. Its metrics: `training_mean`, `training_std`, `training_best` and `episode_length` over the latest
      100 episodes, with exploration noise, averaged over learners; `recent_mean` over fewer (`recent.latest_mean`;
      with several learners also `recent_mean_0` and so on, and `training_mean_0`);
      `update`, `steps` and `frames` so far, `episodes`, `critic_loss`, `actor_loss`, `representation_loss`, `value`,
      `updates_per_second` (each of all learners), `frames_per_second`; shares of the time now and then, as in
      `actor_critic.a3c`. Its `policy` is that of the learner with the best `training_mean`.

    Raises:
      ValueError: a number out of range, sizes that do not divide, discrete actions, an optimiser that is none, or
        modules that do not fit.
    """
    b = group_size(env.num_envs, env.num_groups)
    counts = {"num_learners": num_learners, "batch_size": batch_size, "policy_delay": policy_delay}
    counts |= {"replay_size": replay_size, "num_steps": num_steps, "steps_per_iteration": steps_per_iteration}
    for name, value in counts.items():
        integer(name, value, low=1)
    integer("random_steps", random_steps, low=0)
    if b % num_learners:
        raise ValueError(f"num_learners={num_learners} do not share a group of {b} environments evenly.")
    if batch_size % env.num_groups:
        raise ValueError(f"batch_size={batch_size} must be a multiple of the number of groups, {env.num_groups}.")
    for name, value in (("discount", discount), ("target_rate", target_rate)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value}: give a number from 0 to 1.")
    if not target_noise_clip >= 0:
        raise ValueError(f"target_noise_clip={target_noise_clip}: give a number of at least 0.")
    updates = updates_per_env_step * (b // num_learners)
    if not (np.isfinite(updates) and round(updates) >= 1 and abs(updates - round(updates)) < 1e-6):
        raise ValueError(
            f"updates_per_env_step={updates_per_env_step} times {b // num_learners} environments of a learner in a "
            f"group are {updates:g} updates a beat; it must be a whole number of at least 1."
        )
    per_learner = env.num_envs // num_learners
    num_rows = replay_size // per_learner
    least = max(-(-batch_size // per_learner), num_steps + 1) * per_learner
    if replay_size < least:
        raise ValueError(
            f"replay_size={replay_size} is too small: in whole rows of a learner's {per_learner} environments a batch "
            f"of {batch_size} and targets of {num_steps} steps need {least}."
        )
    rate = _each("learning_rate", learning_rate, num_learners, positive=True)
    by_name = isinstance(optimizer, str)
    if not by_name and isinstance(learning_rate, Sequence):
        raise ValueError(
            f"learning_rate={list(learning_rate)} is for an optimiser given by name; this one is made, and all "
            "learners have its rate."
        )
    low, high = env.spec.action_low, env.spec.action_high
    if env.spec.num_actions is None and not (np.isfinite([low, high]).all() and low < high):
        raise ValueError(f"{env.spec.name} has actions from {low} to {high}; TD3 scales its own to finite bounds.")
    if representation is not None and num_steps != 1:
        raise ValueError(f"num_steps={num_steps}: a representation predicts what is observed one step later; take 1.")
    network = actor_and_critics(actor, critic, env.spec, representation)
    learn = learner(
        network,
        settings=LossSettings(
            _each("target_noise", target_noise, num_learners), target_noise_clip, policy_delay, target_rate
        ),
        optimizer=_transformation(optimizer, optimizer_options or {}, network),
        learning_rate=rate if by_name else jnp.ones(num_learners),
        observation_shape=env.spec.observation_shape,
    )
    stages = schedules.stages(
        network,
        learn,
        Exploration(_each("exploration_noise", exploration_noise, num_learners), random_steps),
        Sampling(batch_size, discount, num_steps, round(updates)),
        num_learners=num_learners,
        action_bounds=(low, high),
        normalize=normalize_observations,
    )
    loop = runner(stages, env, beats_per_round=1, timed_rounds=20, chunk_seconds=chunk_seconds, host=host)
    steps_of_all = steps_per_iteration * num_learners

    def no_replays() -> tuple[Replay, ...]:
        return tuple(empty(num_rows, b, env.spec) for _ in range(env.num_groups))

    def init(key: Array) -> TD3State:
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        init_key, run_key = jax.random.split(key)
        state = jax.jit(learn.init)(jax.random.split(init_key, num_learners))
        return TD3State(run_key, state, no_replays(), jnp.int32(0), jnp.int32(0), no_episodes(num_learners))

    def seed_of(state: TD3State) -> int:
        # Depends on the steps taken, so that a resumed run does not repeat its starts.
        entropy = [*np.asarray(jax.random.key_data(state.key)).ravel().tolist(), int(state.steps)]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)

    def step(state: TD3State, *, monitor=None) -> tuple[TD3State, dict[str, Any]]:
        first_step = int(state.steps)

        def progress(before: Counts, now: Counts, seconds: float) -> dict[str, Any]:
            return {
                "phase": "training",
                "done": (now["steps"] - first_step) // num_learners,
                "total": steps_per_iteration,
                "stepped": now["steps"] - first_step,
                "frames_per_second": (now["steps"] - before["steps"]) * env.spec.frame_skip / seconds,
            }

        plan = Plan(
            seed=lambda: seed_of(state),
            begin=lambda groups: schedules.begin(
                groups, state.replays, state.key, state.draws, state.steps, state.episodes
            ),
            prepare=lambda carry, memory: (carry, memory._replace(sums=no_sums(num_learners))),
            goal=lambda carry: (int(carry.steps) // steps_of_all + 1) * steps_of_all,
            # Resets are no steps, so that this many rounds may not be enough, and some follow.
            rounds_left=lambda carry, goal: -(-(goal - int(carry.steps)) // env.num_envs),
            counts=lambda carry, memory: {"steps": int(carry.steps), "updates": int(memory.update)},
            progress=progress,
            unit="steps",
            check=check_finite,
        )
        ran = loop.run(state.learner, plan, monitor)
        carry: Carry = ran.carry
        replays = tuple(collector.replay for collector in carry.collectors)
        new = TD3State(state.key, ran.memory, replays, carry.draws, carry.steps, carry.episodes)
        steps, made = (ran.after[name] - ran.before[name] for name in ("steps", "updates"))
        rates = {
            "updates_per_second": made / ran.seconds,
            "frames_per_second": steps * env.spec.frame_skip / ran.seconds,
        }
        if ran.times is not None:
            rates |= shares(ran.times, ran.rounds * env.num_envs / ran.seconds, working="learning")
        of_step = int(new.learner.update) - int(state.learner.update)
        return new, summary(new.learner, new.episodes, int(new.steps), of_step, policy_delay, env) | rates

    def best(state: TD3State) -> dict[str, ArrayTree]:
        each = scores_of(jax.device_get(state.episodes))
        return policy_of(state, int(np.argmax([one.get("training_mean", -np.inf) for one in each])))

    def save(state: TD3State) -> dict[str, Any]:
        kept = state.learner._replace(sums=no_sums(num_learners))
        return {
            "key": np.asarray(jax.random.key_data(state.key)),
            "key_impl": str(jax.random.key_impl(state.key)),
            "learner": {name: np.asarray(leaf) for name, leaf in named(kept).items()},
            "replays": {name: np.asarray(leaf) for name, leaf in named(state.replays if save_replay else ()).items()},
            "progress": np.array([state.draws, state.steps], np.int64),
            "episodes": {name: np.asarray(value) for name, value in state.episodes._asdict().items()},
        }

    def restore(saved: dict[str, Any]) -> TD3State:
        like = jax.eval_shape(learn.init, jax.random.split(jax.random.key(0), num_learners))
        draws, steps = (int(value) for value in saved["progress"])
        return TD3State(
            key=jax.random.wrap_key_data(jnp.asarray(saved["key"]), impl=saved["key_impl"]),
            learner=from_named(saved["learner"], like, what="network or optimiser"),
            replays=from_named(saved["replays"], jax.eval_shape(no_replays), what="replay")
            if save_replay
            else no_replays(),
            draws=jnp.int32(draws),
            steps=jnp.int32(steps),
            episodes=Episodes(**{name: jnp.asarray(value) for name, value in saved["episodes"].items()}),
        )

    return Algorithm(
        init=init,
        step=step,
        policy=best,
        genome=None,
        step_name="iteration",
        save=save,
        restore=restore,
        close=loop.close,
        env=env,
        network=_acting(network, env),
        config={
            "algorithm": "td3",
            **dict(network.config),
            "env": dict(env.config),
            "num_learners": num_learners,
            "learning_rate": rate.tolist() if by_name else None,
            "optimizer": described(optimizer),
            "optimizer_options": dict(optimizer_options or {}),
            "batch_size": batch_size,
            "discount": discount,
            "target_rate": target_rate,
            "exploration_noise": _each("exploration_noise", exploration_noise, num_learners).tolist(),
            "target_noise": _each("target_noise", target_noise, num_learners).tolist(),
            "target_noise_clip": target_noise_clip,
            "policy_delay": policy_delay,
            "random_steps": random_steps,
            "replay_size": replay_size,
            "updates_per_env_step": updates_per_env_step,
            "num_steps": num_steps,
            "normalize_observations": normalize_observations,
            "steps_per_iteration": steps_per_iteration,
            "save_replay": save_replay,
        },
    )


def policy_of(state: TD3State, learner: int = 0) -> dict[str, ArrayTree]:
    """Variables of one learner's policy, which `algorithm.network` plays; `algorithm.policy` takes the best's.

    Raises:
      ValueError: there is no such learner.
    """
    _check_learner(state, learner)
    kept = {
        "actor": state.learner.actor,
        "representation": state.learner.representation,
        "normalizer": state.learner.normalizer._asdict(),
    }
    return jax.tree.map(lambda x: x[learner], kept)


def table_of(state: TD3State, learner: int = 0) -> list[dict[str, Any]]:
    """What is stored of one learner's actor, critics and representation, layer by layer: `volvox.sparsity.table`.

    Raises:
      ValueError: there is no such learner.
    """
    _check_learner(state, learner)
    return table(*networks_of(state.learner)[learner])


def _check_learner(state: TD3State, learner: int) -> None:
    if not 0 <= learner < (count := len(state.episodes.total)):
        raise ValueError(f"learner={learner}: there are {count}, counted from 0.")


def _transformation(
    given: str | optax.GradientTransformation, options: Mapping[str, Any], network: ActorAndCritics
) -> optax.GradientTransformation:
    """The optimiser, with a learning rate of 1 if it is named; it must suit the parameters of every network."""
    actor, critics, representation = jax.eval_shape(network.init, jax.random.key(0))
    made = gradient_transformation(given, 1.0, options, like=actor)
    for name, shapes in (("critics", critics), ("representation", representation)):
        try:
            if jax.tree.leaves(shapes):
                jax.eval_shape(made.init, shapes)
        except ValueError as error:
            raise ValueError(f"the optimiser does not suit the {name}: {error}") from error
    return made


def _each(name: str, value: float | Sequence[float], num_learners: int, *, positive: bool = False) -> Array:
    """One number for each learner, float32 `[S]`."""
    values = list(value) if isinstance(value, Sequence) else [value] * num_learners
    if len(values) != num_learners:
        raise ValueError(
            f"{name} has {len(values)} entries for num_learners={num_learners}; give one each, or a number."
        )
    for one in values:
        if not isinstance(one, int | float | np.number):
            raise ValueError(
                f"{name}={one}: give numbers; a rate that changes belongs into an optimiser that you make."
            )
        if not 0 <= one < float("inf") or (positive and one == 0):
            raise ValueError(f"{name}={one}: give a finite number {'above' if positive else 'of at least'} 0.")
    return jnp.asarray(values, jnp.float32)


def _acting(network: ActorAndCritics, env: Env) -> Policy:
    """The actor alone: continuous actions, in the environment's bounds."""
    low, high = env.spec.action_low, env.spec.action_high

    def init(key: Array) -> dict[str, ArrayTree]:
        moments = jnp.zeros(env.spec.observation_shape)
        actor, _, representation = network.init(key)
        normalizer = Normalizer(jnp.float32(0), moments, moments)._asdict()
        return {"actor": actor, "representation": representation, "normalizer": normalizer}

    def apply(params, observation, state, key):
        del key  # nothing is drawn
        seen = normalized(Normalizer(**params["normalizer"]), observation.astype(jnp.float32))
        seen = network.observed(params["representation"], seen)
        return low + (network.act(params["actor"], seen) + 1.0) * ((high - low) / 2), state

    # No first generation is drawn from noise here, but decoders ask for one.
    return Policy(init, lambda params: params, lambda batch: (), apply, lambda noise: noise, network.config)
