"""What `train` gives each step: it shows how far the step is, and says whether a signal asked to stop."""

import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import FrameType
from typing import Any

from volvox.runs.progress import Progress

_ONE_PRESS = 0.5
"""Seconds within which signals count as one."""
_DROPPING, _AGAIN = ("_xla_gc_callback", "__del__", "_remove"), 1.0
"""Functions of which Python prints and drops what they raise; seconds until a signal that was dropped is sent again."""


class Monitor:
    """What a step calls about once a second: it shows figures, and says whether a signal asked to stop.

    Until the stack closes, SIGINT and SIGTERM are noted here; a second one raises `KeyboardInterrupt`, but not within
    half a second, because one Ctrl-C may come twice: from the terminal, and from a program around this one. Outside the
    main thread signals are left alone, since Python delivers them to the main thread only.

    Where several processes make each step, they stop together: what one of them was asked, all are.

    Attributes:
      signal: The number of the first signal that asked to stop, or 0; of several processes, as they agreed last.
    """

    def __init__(self, display: Progress, stack: ExitStack, largest: Callable[[float], float] | None = None):
        self._pressed, self._agreed, self._since, self._largest = 0, 0, 0.0, largest
        self._display, self._announced = display, False
        self._again: threading.Timer | None = None
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                previous = signal.signal(number, self._note)
                if previous is not None:  # None: installed by C code, out of Python's reach
                    stack.callback(signal.signal, number, previous)
            stack.callback(lambda: self._again and self._again.cancel())

    def __call__(self, figures: Mapping[str, Any]) -> bool:
        self._display.inside(figures)
        if self._pressed and not self._announced:
            self._display.note("stopping; once more stops at once, without saving")
            self._announced = True
        return bool(self._pressed)

    @property
    def signal(self) -> int:
        return self._pressed if self._largest is None else self._agreed

    def stops(self) -> bool:
        """Whether a signal asked any process to stop; all call this at the same points."""
        self._agreed = int(self.largest(self._pressed))
        return bool(self.signal)

    def largest(self, number: float) -> float:
        """Returns the largest number of all processes."""
        return number if self._largest is None else self._largest(number)

    def abandons(self, step: bool) -> bool:
        """Whether any process has abandoned its `step`; then none has made it."""
        abandoned = self.largest(step) > 0
        if abandoned:
            self._pressed = self._pressed or signal.SIGINT
            self.stops()
        return abandoned

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._pressed:
            self._pressed, self._since = number, time.monotonic()
        elif time.monotonic() - self._since >= _ONE_PRESS:
            while frame is not None and frame.f_code.co_name not in _DROPPING:
                frame = frame.f_back
            if frame is None:
                raise KeyboardInterrupt
            if self._again is not None:
                self._again.cancel()
            main = threading.main_thread().ident
            self._again = threading.Timer(_AGAIN, signal.pthread_kill, [main, number])
            self._again.daemon = True
            self._again.start()
