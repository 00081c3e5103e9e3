"""Finds out whether the other processes of a run are alive, so that waiting for a dead one ends.

Processes that learn together wait for each other in every exchange of a compiled program, where nothing can interrupt
them. `volvox.distributed.initialize` therefore begins a thread, which tells the others about once a second that this
process is alive, through the service that JAX coordinates processes with; whoever waits looks at what it found.
"""

import contextlib
import os
import sys
import threading
import time
from typing import Any

import jax

_FOLDER = "volvox/alive"
_SECONDS_BETWEEN_SIGNS = 1.0
_LAST_SECONDS = 5.0
"""Seconds that process 0 waits for the others after an error, because they would end with it."""

_SECONDS_TO_DISCONNECT = 2.0
_GRACE = 15.0
"""Seconds for a process that needs another which has ended to notice by itself, and to save."""


class Peers:
    """The processes of a run, as a thread of this one sees them.

    Attributes:
      patience: Seconds without a sign of life after which a process counts as dead.
      polls: How often the thread has heard of the others.
      lost: Another process is known to have ended too early.
      needed: Open sections in which this process waits for the others (`Devices.together`).
    """

    def __init__(self, client: Any, process: int, count: int, patience: float):
        """Begins the thread; `client` is that of JAX's coordination service."""
        self.patience, self.polls, self.lost, self.needed = patience, 0, False, 0
        self._client, self._process, self._count = client, process, count
        self._signs: dict[int, str] = {}
        self._silent = dict.fromkeys(range(count), 0.0)  # seconds of polls without a new sign
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="volvox-peers", daemon=True)
        self._thread.start()

    def problem(self) -> str | None:
        """Returns what is wrong with another process; None if nothing is known."""
        for process in range(self._count):
            if process == self._process:
                continue
            if self._signs.get(process) == "ended":
                return f"process {process} of {self._count} has ended"
            if self._silent[process] > self.patience:
                return f"process {process} of {self._count} has given no sign of life for {self.patience:g} seconds"
        return None

    def leave(self) -> None:
        """Tells the others that this process ends, and lets process 0 be the last; called when Python ends."""
        self._ended.set()
        self._thread.join(2 * _SECONDS_BETWEEN_SIGNS)
        # Without the service, which process 0 holds, JAX would abort the others.
        with contextlib.suppress(Exception):
            self._tell("ended")
        if self._process == 0:
            until = time.monotonic() + (_LAST_SECONDS if self.lost else 2 * self.patience)
            while time.monotonic() < until and not self._are_gone():
                time.sleep(0.1)
            time.sleep(_SECONDS_TO_DISCONNECT)
        elif not self.lost:
            jax.distributed.shutdown()
        if self.lost:  # a program that waits for the dead keeps Python from ending
            self._end()

    def _are_gone(self) -> bool:
        try:
            signs = self._read()
        except Exception:
            return True
        return all(signs.get(process, "ended") == "ended" for process in range(1, self._count))

    def _tell(self, sign: str) -> None:
        self._client.key_value_set(f"{_FOLDER}/{self._process}", sign, allow_overwrite=True)

    def _read(self) -> dict[int, str]:
        return {int(key.rpartition("/")[2]): sign for key, sign in self._client.key_value_dir_get(_FOLDER)}

    def _watch(self) -> None:
        late = 0.0
        while not self._ended.wait(_SECONDS_BETWEEN_SIGNS):
            with contextlib.suppress(Exception):  # the service may be gone, which `polls` shows
                self._tell(str(self.polls))
                signs = self._read()
                for process in self._silent:
                    same = signs.get(process) == self._signs.get(process)
                    self._silent[process] = self._silent[process] + _SECONDS_BETWEEN_SIGNS if same else 0.0
                self._signs = signs
                self.polls += 1
            problem = self.problem() if self.needed else None
            late = 0.0 if problem is None else late + _SECONDS_BETWEEN_SIGNS
            if late > _GRACE:  # it hangs where it cannot look
                text = f"error: the processes cannot go on together: {problem}; start all of them anew"
                print(text, file=sys.stderr)
                self._end()

    def _end(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


watched: list[Peers] = []
"""The other processes of this one, once `volvox.distributed.initialize` was called: JAX allows that once."""
