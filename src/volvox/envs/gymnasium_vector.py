"""Gymnasium's vector environments, in this process or in workers; imports Gymnasium."""

import functools
import signal
import traceback
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import TimeLimit


def make_environment(make_env: Any, options: dict[str, Any], max_episode_steps: int | None) -> gymnasium.Env:
    """Makes one environment by its name, its specification, or the class or function that makes it.

    Raises:
      ValueError: Gymnasium does not know the name or the options.
      TypeError: `make_env` makes something else.
    """
    if isinstance(make_env, str | EnvSpec):
        try:
            return gymnasium.make(make_env, max_episode_steps=max_episode_steps, **options)
        except gymnasium.error.Error as error:
            raise ValueError(f"Gymnasium cannot make {make_env!r}: {error}") from error
    env = make_env(**options) if callable(make_env) else make_env
    if not callable(make_env) or not isinstance(env, gymnasium.Env):
        raise TypeError(f"make_env must be a name, or make an environment of Gymnasium; {make_env!r} gave {env!r}")
    return env if max_episode_steps is None else TimeLimit(env, max_episode_steps)


class NoInfo(gymnasium.Wrapper):
    """Drops `info`: it is not used here, and Gymnasium cannot batch it if it differs between environments."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment."""
        observation, _ = self.env.reset(seed=seed, options=options)
        return observation, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps the environment."""
        observation, reward, terminated, truncated, _ = self.env.step(action)
        return observation, reward, terminated, truncated, {}


class Share(gymnasium.Env):
    """The environments of one worker as a single environment with batched spaces, which `AsyncVectorEnv` can step.

    Errors are raised again as a RuntimeError with the traceback as its message, because Gymnasium waits for ever for an
    error that cannot be pickled.
    """

    def __init__(self, make_one: Callable[[], gymnasium.Env], spaces: tuple[Any, Any], size: int):
        self.observation_space, self.action_space = (batch_space(space, size) for space in spaces)
        self._make, self._envs = functools.partial(in_process, make_one, size), None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets all environments; `seed` is a list of seeds, or None. The first call makes the environments."""
        return self._call(lambda envs: envs.reset(seed=seed))

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments."""
        return self._call(lambda envs: envs.step(action))

    def close(self) -> None:
        """Closes all environments."""
        if self._envs is not None:
            self._envs.close()

    def _call(self, function: Callable[[SyncVectorEnv], Any]) -> Any:
        try:
            if self._envs is None:
                self._envs = self._make()
            return function(self._envs)
        except Exception:
            raise RuntimeError(traceback.format_exc()) from None


def in_process(make_one: Callable[[], gymnasium.Env], num_envs: int) -> SyncVectorEnv:
    """Makes environments that this process steps."""
    return SyncVectorEnv([lambda: NoInfo(make_one())] * num_envs)


def in_workers(
    make_one: Callable[[], gymnasium.Env], spaces: Any, num_envs: int, workers: int, *, shared_memory: bool
) -> AsyncVectorEnv:
    """Starts worker processes, each with an equal share of the environments.

    Raises:
      RuntimeError: They cannot start.
    """
    make_share = functools.partial(Share, make_one, spaces, num_envs // workers)
    # Processes inherit the blocked signals of this thread: Ctrl-C is for the main process to handle.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return AsyncVectorEnv(
            [make_share] * workers,
            shared_memory=shared_memory,
            context="spawn",  # a fork of a process with threads may block
            autoreset_mode=AutoresetMode.DISABLED,  # the shares reset their environments
        )
    except Exception as error:
        raise RuntimeError(
            f"the workers did not start ({type(error).__name__}: {error}). They import the main program, so its "
            'statements must be under `if __name__ == "__main__":`. They unpickle make_env; if that fails, give its '
            "module, as in 'my_module:MyEnv-v0'"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
