"""SIGINT, SIGTERM and SIGHUP: the first stops the work in order, the second stops it at once.

A signal becomes an exception of the main thread, so every `finally` on the way out runs. It must
not arrive between a process's start and the `try` that ends it, nor in the middle of that ending.
Such stretches defer the signal.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from gate.errors import CancelledError, ExitCode

LAST_WORDS = b"\nstopped at once: every training process was killed, nothing was kept\n"


class StopSignals:
    """The signal handling of the whole program; create one instance.

    `leave` ends the process; a test passes another function in order to survive.
    """

    def __init__(self, leave: Callable[[int], object] = os._exit) -> None:
        self._leave = leave
        self._first: signal.Signals | None = None
        self._is_reported = False
        self._deferrals = 0
        self._last_resorts: list[Callable[[], object]] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals while the body runs, then restore the old handlers.

        It works in the main thread only. A SIGHUP that is ignored (`nohup`) stays ignored.
        """
        numbers = [signal.SIGINT, signal.SIGTERM]
        # `nohup` ignores SIGHUP on purpose, and a handler would undo that
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Hold a first signal back until the body has ended, and raise it then."""
        self._deferrals += 1
        try:
            yield
        finally:
            self._deferrals -= 1
            self._tell()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Lift the deferral for the body, and raise a signal that came meanwhile at once.

        A signal that was raised before is raised again. Libraries swallow every exception of their
        callbacks (`py_compile` does), and no work may begin after a cancellation that was
        swallowed.
        """
        deferrals = self._deferrals
        try:
            self._deferrals = 0
            self._is_reported = False
            self._tell()
            yield
        finally:
            self._deferrals = deferrals

    @contextmanager
    def last_resort(self, action: Callable[[], object]) -> Iterator[None]:
        """Call `action` if a second signal comes; it must be quick and never wait."""
        self._last_resorts.append(action)
        try:
            yield
        finally:
            self._last_resorts.remove(action)

    def wait_for_input(self, descriptor: int) -> None:
        """Block until the descriptor can be read; handle a signal at once.

        A blocking read would not do. The interpreter checks for signals before it blocks, and one
        that comes in between would wait for the next key.
        """
        # Python's C handler writes a byte immediately, wherever the interpreter is, and select(2)
        # wakes up (signal.set_wakeup_fd). Without O_NONBLOCK a full pipe would hang the handler.
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        before = signal.set_wakeup_fd(writer)
        try:
            select.select([descriptor, reader], [], [])
        finally:
            signal.set_wakeup_fd(before)
            os.close(reader)
            os.close(writer)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._first is not None:
            self._stop_at_once()
        self._first = signal.Signals(number)
        self._tell()

    def _tell(self) -> None:
        if self._first is None or self._is_reported or self._deferrals > 0:
            return
        self._is_reported = True
        raise CancelledError(
            f"cancelled by {self._first.name}",
            hint="Nothing was judged. Start it again when you are ready.",
        )

    def _stop_at_once(self) -> None:
        # innermost first: the training must end before the paths closed to it are opened again
        for action in reversed(self._last_resorts):
            action()
        # not through sys.stderr: the signal may have interrupted the very write that holds its lock
        os.write(2, LAST_WORDS)
        self._leave(int(ExitCode.CANCELLED))
