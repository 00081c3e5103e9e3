"""A logger: the metrics of many runs in one SQLite database, as lines (run, step, metric, value)."""

import functools
import os
import sqlite3
from typing import Any

import volvox as vx


class SQLite:
    """Writes the numbers of each row as lines of the table `metrics`. Steps that a resumed run repeats are dropped."""

    def __init__(self, path: str | os.PathLike[str], run: vx.loggers.LoggedRun):
        self._run, self._database = str(run.path), sqlite3.connect(path)
        with self._database as database:
            database.execute("CREATE TABLE IF NOT EXISTS metrics (run, step, metric, value)")
            database.execute("DELETE FROM metrics WHERE run = ? AND step > ?", (self._run, len(run.rows)))

    def write(self, step: int, row: dict[str, Any]) -> None:
        lines = [(self._run, step, name, value) for name, value in row.items() if isinstance(value, int | float)]
        with self._database as database:
            database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?)", lines)

    def close(self) -> None:
        self._database.close()


def sqlite(path: str | os.PathLike[str]) -> vx.loggers.OpenLogger:
    return functools.partial(SQLite, path)
