"""Vector environments of Gymnasium: in this process, or in worker processes.

`Here` and `Workers` have the same functions: `reset` and `step` say what to do, `wait` waits for the answer, and
`close` ends it all.
"""

import contextlib
import functools
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

_SECONDS_TO_START, _SECONDS_TO_CLOSE = 120.0, 5.0
Answer = tuple[Any, np.ndarray, np.ndarray, np.ndarray]
"""(observations, rewards, terminations, truncations) of all environments."""


def load_gymnasium() -> ModuleType:
    """Imports Gymnasium when it is first needed.

    Raises:
      ImportError: It is not installed.
    """
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError(f"Gymnasium cannot be imported ({error}): pip install gymnasium") from error
    return gymnasium


class Here:
    """Environments in this process, stepped when the answer is waited for.

    Attributes:
      make_one: Makes one environment.
    """

    def __init__(self, make_one: Callable[[], Any], num_envs: int):
        self.make_one, self._num_envs = make_one, num_envs
        self._due: Callable[[], Answer] = self._not_begun
        self._vector: Any = None

    def reset(self, seeds: list[int] | None) -> None:
        """Begins new episodes, seeded where seeds are given; the first time, makes the environments."""
        self._due = functools.partial(self._reset, seeds)

    def step(self, action: np.ndarray) -> None:
        """Sends actions `[B, ...]`; an episode that ended begins anew in place of that."""
        self._due = functools.partial(self._step, action)

    def wait(self) -> Answer:
        """Returns the answer to the last call; raises TypeError where `reset` or `step` returns other items."""
        due, self._due = self._due, self._not_begun
        try:
            return due()
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            if self._vector is None or not _raised_by_gymnasium(error):
                raise
            if isinstance(error, TypeError) and "argument" in str(error):
                raise TypeError(
                    f"an environment must have reset(self, *, seed=None, options=None) and step(self, action): {error}"
                ) from error
            if "values to unpack" in str(error):
                raise TypeError(
                    "an environment must return (observation, info) from reset, and (observation, reward, terminated, "
                    f"truncated, info) from step, five items, of which Gym's old step had four: {error}"
                ) from error
            one = self._vector.envs[0]
            raise TypeError(
                f"{type(one.unwrapped).__name__} must return observations of its observation_space, "
                f"{one.observation_space}, a number as the reward, and True or False as terminated and truncated; it "
                f"returned something else ({type(error).__name__}: {error}). gymnasium.utils.env_checker.check_env "
                "says what is wrong"
            ) from error

    def close(self) -> None:
        """Closes the environments."""
        if self._vector is not None:
            self._vector.close()
        self._vector, self._due = None, self._not_begun

    def _reset(self, seeds: list[int] | None) -> Answer:
        if self._vector is None:
            self._vector = load_gymnasium().vector.SyncVectorEnv([self.make_one] * self._num_envs, copy=False)
            # What `info` holds is not used, and cannot be put side by side where it differs between environments.
            self._vector._add_info = lambda infos, info, number: infos
        observation, _ = self._vector.reset(seed=seeds)
        nothing = np.zeros(self._num_envs, np.bool_)
        return observation, np.zeros(self._num_envs), nothing, nothing

    def _step(self, action: np.ndarray) -> Answer:
        return self._vector.step(action)[:4]

    def _not_begun(self) -> Answer:
        raise RuntimeError("nothing was sent to these environments, or they were closed")


def _raised_by_gymnasium(error: Exception) -> bool:
    """Whether Gymnasium's own vectors or wrappers raised this, or NumPy called by them, and not an environment."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    raised_by = next(name for name in reversed(modules) if not name.startswith("numpy."))
    return raised_by.startswith(("gymnasium.vector.", "gymnasium.wrappers."))


class Share:
    """A worker's environments, as one environment that `AsyncVectorEnv` steps.

    It is made in the first process too, where Gymnasium asks for its spaces. What its environments raise is told in
    `info`, because Gymnasium waits for ever for an error that cannot be pickled.
    """

    metadata: ClassVar[dict[str, Any]] = {}
    render_mode, begun = None, True

    def __init__(self, make: Callable[[], Any], spaces: tuple[Any, Any], size: int):
        utils = load_gymnasium().vector.utils
        self.observation_space, self.action_space = (utils.batch_space(space, size) for space in spaces)
        no, observation = np.zeros(size, np.bool_), utils.create_empty_array(spaces[0], size)
        self._nothing: Answer = (observation, np.zeros(size), no, no)
        self._environments = Here(make, size)

    def reset(self, *, seed: list[int] | None, options: Any) -> tuple[Any, dict[str, Any]]:
        """Resets all; see `Here.reset`."""
        del options
        self._environments.reset(seed)
        (observation, *_), info = self._answer()
        return observation, info

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        """Steps all; see `Here.step`."""
        self._environments.step(action)
        answer, info = self._answer()
        return *answer, info

    def close(self) -> None:
        """Closes all."""
        self._environments.close()

    def get_wrapper_attr(self, name: str) -> Any:
        """What `AsyncVectorEnv.call` reads; `begun` is asked for when a worker starts."""
        return getattr(self, name)

    def _answer(self) -> tuple[Answer, dict[str, Any]]:
        try:
            return self._environments.wait(), {}
        except BaseException:  # whatever the environment's own code raises
            return self._nothing, {"raised": traceback.format_exc()}


class Workers:
    """Environments in worker processes, which are stepped from `step` on.

    Attributes:
      make_one: Makes one environment, in this process.
    """

    def __init__(
        self, name: str, make_one: Callable[[], Any], spaces: tuple[Any, Any], count: int, num_envs: int, timeout: float
    ):
        self.make_one, self._name, self._timeout = make_one, name, timeout
        self._make_share = functools.partial(Share, make_one, spaces, num_envs // count)
        self._count, self._num_envs = count, num_envs
        self._vector: Any = None
        self._wait: Callable[[float], Answer] = self._not_begun

    def reset(self, seeds: list[int] | None) -> None:
        """See `Here.reset`; the first time, starts the processes."""
        if self._vector is None:
            self._start()
        each = [None] * self._count
        if seeds is not None:
            each = np.array(seeds).reshape(self._count, -1).tolist()
        vector: Any = self._vector
        with self._watched(self._timeout):
            vector.reset_async(seed=each)
        self._wait = self._reset_answer

    def step(self, action: np.ndarray) -> None:
        """See `Here.step`; returns at once."""
        if self._vector is None:
            self._not_begun(0)
        vector: Any = self._vector
        with self._watched(self._timeout):
            vector.step_async(action.reshape(self._count, -1, *action.shape[1:]))
        self._wait = self._step_answer

    def wait(self) -> Answer:
        """See `Here.wait`; raises RuntimeError where an environment fails, a worker ends, or one takes too long."""
        wait, self._wait = self._wait, self._not_begun
        with self._watched(self._timeout):
            observation, *others = wait(self._timeout)
        reward, terminated, truncated = (np.asarray(other).reshape(-1) for other in others)
        return observation, reward, terminated, truncated

    def close(self, seconds: float = _SECONDS_TO_CLOSE) -> None:
        """Closes the environments, and ends processes that have not done so in some seconds."""
        vector, self._vector, self._wait = self._vector, None, self._not_begun
        if vector is None:
            return
        vector.closed = True  # what Gymnasium's own `close` waits for may never come
        for pipe in vector.parent_pipes:
            with contextlib.suppress(OSError, AttributeError):  # Gymnasium has None in place of a worker that failed
                pipe.send(("close", None))
        deadline = time.monotonic() + seconds
        for process in vector.processes:
            process.join(max(deadline - time.monotonic(), 0))
            process.kill()
            process.join()
        for pipe in filter(None, vector.parent_pipes):
            pipe.close()

    def _start(self) -> None:
        # Processes inherit what this thread blocks: ctrl-c reaches them too, but is for the first process to handle.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        workers = self

        class Vector(load_gymnasium().vector.AsyncVectorEnv):
            def _check_spaces(self) -> None:
                """Waits for the processes, with a limit, in the constructor, which keeps what they need alive."""
                workers._vector = self
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                with workers._watched(_SECONDS_TO_START, begun=False):
                    self.call_async("begun")
                    self.call_wait(_SECONDS_TO_START)

        try:
            make = [self._make_share] * self._count
            Vector(make, context="spawn", autoreset_mode="Disabled", copy=False)  # forks of threads may block
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _reset_answer(self, timeout: float) -> Answer:
        observation, info = self._vector.reset_wait(timeout)
        self._raise(info)
        nothing = np.zeros(self._num_envs, np.bool_)
        return observation, np.zeros(self._num_envs), nothing, nothing

    def _step_answer(self, timeout: float) -> Answer:
        *answer, info = self._vector.step_wait(timeout)
        self._raise(info)
        return tuple(answer)

    def _raise(self, info: dict[str, Any]) -> None:
        if "raised" in info:
            told = next(text for text in info["raised"] if text)
            raise RuntimeError(f"an environment of {self._name} raised an error in its worker process:\n{told}")

    def _not_begun(self, timeout: float) -> Answer:
        raise RuntimeError(f"nothing was sent to these environments of {self._name}, or they were closed")

    @contextlib.contextmanager
    def _watched(self, seconds: float, *, begun: bool = True) -> Iterator[None]:
        """Stops the workers where one of them fails or takes longer than `seconds`, and says what happened."""
        try:
            yield
        except multiprocessing.TimeoutError as error:
            self.close(seconds=0)
            why = "an environment blocks, or a timestep takes longer (give a longer timeout, or more workers)"
            if not begun:
                why = "they are still importing what makes the environment, or that blocks"
            raise RuntimeError(
                f"the workers of {self._name} did not answer within {seconds:g} seconds: {why}"
            ) from error
        except (EOFError, ConnectionError) as error:
            processes = self._vector.processes
            for process in processes:
                process.join(0.1)
            codes = ", ".join(str(code) for code in {process.exitcode for process in processes} - {None})
            self.close(seconds=0)
            told = (
                f"a worker process of {self._name} ended (exit code {codes}): its environment ended it, or the system "
                "did, for example for lack of memory"
            )
            if not begun:
                told = (
                    f"a worker process for {self._name} ended before it began; what it wrote says why. A script that "
                    'has workers keeps its own statements under `if __name__ == "__main__":`, and what makes the '
                    "environment can be imported or pickled"
                )
            raise RuntimeError(told) from error
        except BaseException:
            self.close(seconds=0)
            raise
