"""What a learning algorithm is: its settings, and the learner that these make of networks and an environment."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from volvox.types import Array, ArrayTree, Env, EnvGroup, Policy, TimeStep


class Progress(NamedTuple):
    """How far an iteration is.

    Attributes:
      done: Number of `unit` done so far.
      total: Number of `unit` in the iteration.
      unit: What is counted, e.g. "updates".
      rounds_left: Rounds of the loop that may still be run; the iteration ends when there are none.
    """

    done: int
    total: int
    unit: str
    rounds_left: int


class Made(NamedTuple):
    """What was made so far.

    Attributes:
      before: Timesteps of the run before this iteration.
      timesteps: Timesteps of this iteration.
      updates: Updates of this iteration.
    """

    before: int
    timesteps: int
    updates: int


class Learner(Protocol):
    """A learning algorithm in an environment: pure functions of what acting and what learning changes.

    `volvox.learners.from_functions` makes one of the few functions in which most learners differ; this is all of it.

    The two are the loop's `carry` and `memory`, and `key` is its constant. `acting` has the fields `timesteps`, int32,
    which `act` increases and which may overflow (`LearnState.timesteps` cannot), and `collectors`, which belong to the
    environments' states and are () without them. `learning` has the fields `update`, int32, the number of updates,
    and `metrics` (see `volvox.data.metrics`), which is set to zero before each iteration.

    A learner that has the attribute `parallel`, True, may run on several devices as one program (`Env.axis`): what it
    learns is then equal on all of them, because it learns from sums over all; and `acting` has the field `episodes`.
    """

    @property
    def policy(self) -> Policy:
        """The policy that acts with `variables`."""
        ...

    @property
    def beats_per_round(self) -> int:
        """Beats of a round."""
        ...

    @property
    def timed_rounds(self) -> int:
        """Rounds that are played with the stopwatch, at least 2."""
        ...

    @property
    def unsaved(self) -> tuple[str, ...]:
        """Fields of `acting` that checkpoints do not hold; they are () when a run is resumed, until `begin`.

        Where there are any, checkpoints do not hold the environments either.
        """
        ...

    @property
    def finish(self) -> Callable[[Any, Any, Array], tuple[Any, Any]] | None:
        """(acting, learning, key) -> (acting, learning) at the end of a round, or None; see `volvox.rollout.Stages`."""
        ...

    def act(self, acting: Any, learning: Any, key: Array, g: int, timestep: TimeStep) -> tuple[Any, Array]:
        """Returns (acting, action) of group `g`."""
        ...

    def work(self, acting: Any, learning: Any, key: Array, g: int) -> tuple[Any, Any]:
        """Learns while group `g` steps; returns (acting, learning)."""
        ...

    def init(self, key: Array) -> tuple[Any, Any]:
        """Returns (acting, learning) at the beginning of a run."""
        ...

    def begin(self, acting: Any, groups: tuple[EnvGroup, ...]) -> Any:
        """Returns `acting` with the collectors, and what else belongs to pools, for pools that were just made."""
        ...

    def progress(self, start: Any, acting: Any, made: Made) -> Progress:
        """Returns the progress of an iteration that began with `start` for `acting`."""
        ...

    def watched(self, learning: Any) -> dict[str, ArrayTree]:
        """Returns, by name, what must stay finite besides the metrics."""
        ...

    def row(self, acting: Any, learning: Any, timesteps: int) -> dict[str, Any]:
        """Returns the metrics of an iteration besides `learning.metrics`; `timesteps` are those of the run so far."""
        ...

    def candidates(self, learning: Any) -> Sequence[ArrayTree]:
        """Returns the variables for `policy.apply`, of each learner where several learn side by side.

        Several are ranked by their episodes in training, the field `episodes` of `acting`, before an evaluation.
        """
        ...


class LearnerSettings(Protocol):
    """Settings of a learner, such as `A3C` and `TD3`: a frozen dataclass with this method."""

    def bind(self, network: Any, env: Env) -> Learner:
        """Returns the learner of a network in an environment; raises ValueError if they do not fit the settings."""
        ...


def timesteps_progress(
    made: Made, per_iteration: int, env: Env, num_learners: int = 1, *, beats_per_round: int = 1
) -> Progress:
    """Returns the progress of an iteration that ends in the round that reaches a multiple of so many timesteps.

    Args:
      made: What was made so far.
      per_iteration: Timesteps of each learner in an iteration.
      env: The environments.
      num_learners: Number of learners that share them.
      beats_per_round: Beats of a round.
    """
    total = per_iteration * num_learners
    missing = total - made.before % total - made.timesteps
    # Timesteps that begin an episode do not count, so that these rounds may not be enough, and some follow.
    rounds_left = max(-(-missing // (env.all_envs * beats_per_round)), 0)
    return Progress(made.timesteps // num_learners, per_iteration, "timesteps", rounds_left)
