"""SIGINT, SIGTERM and SIGHUP: the first stops the work in order, the second stops it at once.

A signal becomes an exception of the main thread, so every `finally` on the way out does its work.
It must not strike between a process's start and the `try` that ends it, nor in the middle of that
ending: such stretches defer it.
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
    """One for the whole program; `leave` ends the process (handed in so that a test survives)."""

    def __init__(self, leave: Callable[[int], object] = os._exit) -> None:
        self._leave = leave
        self._first: signal.Signals | None = None
        self._is_reported = False
        self._deferrals = 0
        self._last_resorts: list[Callable[[], object]] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals while the body runs, then put the old handlers back.

        Works in the main thread only. A SIGHUP that is ignored (`nohup`) stays ignored.
        """
        numbers = [signal.SIGINT, signal.SIGTERM]
        # `nohup` asks for this, and a handler of ours would take it back
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
        """Let a first signal wait until the body is through; it is raised on the way out."""
        self._deferrals += 1
        try:
            yield
        finally:
            self._deferrals -= 1
            self._tell()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Lift the deferral for the body, and raise at once what has come meanwhile.

        Raised again if it was before: libraries catch every exception of their own callbacks
        (`py_compile` does), and no work may begin after a cancellation that one of them ate.
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
        """Call `action` (it must be quick and never wait) should a second signal come."""
        self._last_resorts.append(action)
        try:
            yield
        finally:
            self._last_resorts.remove(action)

    def wait_for_input(self, descriptor: int) -> None:
        """Block until something can be read from the descriptor; a signal is acted on at once.

        Blocking in the read itself would not promise that: the interpreter looks for signals before
        it blocks, and one that comes between the two would wait for the next key.
        """
        # Python's C handler writes a byte at once, wherever the interpreter stands, and select(2)
        # sees it (signal.set_wakeup_fd); without O_NONBLOCK a full pipe would hang the handler
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
        # innermost first: a training is ended before what was closed to it opens again
        for action in reversed(self._last_resorts):
            action()
        # not through sys.stderr: a handler may interrupt the very writing that holds its lock
        os.write(2, LAST_WORDS)
        self._leave(int(ExitCode.CANCELLED))
