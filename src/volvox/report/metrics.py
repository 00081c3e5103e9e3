"""Metrics, tasks and scores of runs, as reports show them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from volvox.envs.envpool_tasks import atari_game, known_scores
from volvox.report.files import numbers

SCORES = (
    *("elite_score", "evaluation_mean", "validation_mean", "test_mean", "test_score"),
    *("training_mean", "training_best", "best_score"),
)
"""Metrics by which runs are compared, the most informative one first."""


def task_of(config: Mapping[str, Any]) -> str:
    """Returns the name of the environment of a run, by its `config.json`."""
    env = config["algorithm"].get("env")
    while isinstance(env, Mapping) and isinstance(env.get("env"), Mapping):  # inside its wrappers
        env = env["env"]
    if not isinstance(env, Mapping):
        return str(env)
    given = (env[name] for name in ("game", "task", "name", "make_env") if isinstance(env.get(name), str))
    return next(given, str(env.get("type")).rpartition(".")[2])


def atari_scores(env_config: Any) -> Mapping[str, float]:
    """Returns the published scores of random play (`random`) and of a human tester (`human`) of an Atari game.

    Args:
      env_config: `Env.config`, or its form in `config.json`. The result is empty for other environments.
    """
    return known_scores(atari_game(env_config)) if isinstance(env_config, Mapping) else {}


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Returns each metric that is ever a finite number as float64 `[rows]`, with NaN where it is missing."""
    figures = [numbers(row) for row in rows]
    names = dict.fromkeys(name for row in rows for name in row if any(name in figure for figure in figures))
    return {name: np.array([figure.get(name, np.nan) for figure in figures], np.float64) for name in names}


def latest(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the latest value of each metric.

    `elite_score` is left out if the last row has a new elite, since the score in earlier rows belongs to another one.
    """
    found = {name: value for row in rows for name, value in numbers(row).items()}
    if rows and rows[-1].get("elite_is_new"):
        found.pop("elite_score", None)
    return found


def format_number(value: float) -> str:
    """Writes a number with at least four significant digits: `0.1235`, `57.61`, `1,250,000`."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def format_duration(seconds: float) -> str:
    """Writes a duration: `0:07`, `1:02:03`, `3 d 4 h`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def listed(items: Iterable[Any]) -> str:
    """Writes `a, b and c`."""
    *others, last = [str(item) for item in items] or [""]
    return f"{', '.join(others)} and {last}" if others else last
