"""A training's output, with limits on memory and on how much of it is shown."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from gate.isolation.process_request import ProcessResult

LINE_LIMIT_BYTES = 4096
LINES_PER_SECOND = 50
BURST_LINES = 200
_LINE_ENDS = re.compile(rb"[\r\n]+")


class OutputCapture:
    """Keeps the first and the last half of `limit_bytes`; what is between is only counted."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_limit = limit_bytes // 2
        self._tail_limit = limit_bytes - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def feed(self, data: bytes) -> None:
        """Add the next piece."""
        self.total_bytes += len(data)
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        # cut only at twice the limit, so that each byte is moved once at most
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    def content(self) -> bytes:
        """Return what was kept, with a line that counts the bytes left out."""
        tail = self._tail[-self._tail_limit :]
        left_out = self.total_bytes - len(self._head) - len(tail)
        marker = b"\n[... %d bytes left out ...]\n" % left_out if left_out else b""
        return bytes(self._head + marker + tail)


class LineFeed:
    """Passes on lines to show: a burst of `BURST_LINES`, then `LINES_PER_SECOND`.

    A line ends at a line feed or a carriage return (a progress bar). It is cut at
    `LINE_LIMIT_BYTES` and never empty. Lines of a flood are left out, and a line says how many.
    """

    def __init__(
        self, on_line: Callable[[bytes], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._on_line = on_line
        self._clock = clock
        self._allowance = float(BURST_LINES)
        self._refilled_at = clock()
        self._rest = b""
        self._left_out = 0

    def feed(self, data: bytes) -> None:
        """Add the next piece; its last, unfinished line waits for the rest."""
        allowance = self._refill()
        lines, after = [], self._rest + data
        if allowance:  # a maxsplit of 0 would mean no limit
            *lines, after = _LINE_ENDS.split(after, maxsplit=allowance)
        for line in lines:
            self._show(line)
        # the larger count, because a line can end in both characters
        self._left_out += max(after.count(b"\n"), after.count(b"\r"))
        unfinished = max(after.rfind(b"\n"), after.rfind(b"\r")) + 1
        self._rest = after[unfinished : unfinished + LINE_LIMIT_BYTES]

    def finish(self) -> None:
        """Pass on the last line, ended or not, and the number of lines left out before it."""
        self._tell_left_out()
        if self._rest:
            self._on_line(self._rest)
            self._rest = b""

    def _refill(self) -> int:
        now = self._clock()
        earned = (now - self._refilled_at) * LINES_PER_SECOND
        self._allowance = min(float(BURST_LINES), self._allowance + earned)
        self._refilled_at = now
        return int(self._allowance)

    def _show(self, line: bytes) -> None:
        if line:
            self._tell_left_out()
            self._allowance -= 1
            self._on_line(line[:LINE_LIMIT_BYTES])

    def _tell_left_out(self) -> None:
        if self._left_out:
            self._on_line(b"[... %d lines not shown ...]" % self._left_out)
            self._left_out = 0


class EndedProcess(Protocol):
    """A process or container after its end."""

    @property
    def exit_code(self) -> int:
        """The exit code, negative for a signal."""
        ...

    @property
    def wall_seconds(self) -> float:
        """The seconds from its start to its end."""
        ...


class RunOutput:
    """All that a run prints: kept within a limit, and shown line by line."""

    def __init__(self, limit_bytes: int, on_line: Callable[[bytes], None]) -> None:
        self._capture = OutputCapture(limit_bytes)
        self._lines = LineFeed(on_line)

    def take(self, data: bytes) -> None:
        """Keep and show the next piece."""
        self._capture.feed(data)
        self._lines.feed(data)

    def keep(self, data: bytes) -> None:
        """Keep the next piece without showing it: after a fault, showing may be what failed."""
        self._capture.feed(data)

    def result(
        self, ended: EndedProcess, *, in_time: bool, out_of_memory: bool = False
    ) -> ProcessResult:
        """Show the last line, and return the result of the ended process with its output."""
        self._lines.finish()
        return ProcessResult(
            exit_code=ended.exit_code,
            timed_out=not in_time,
            wall_seconds=ended.wall_seconds,
            output=self._capture.content(),
            output_bytes=self._capture.total_bytes,
            out_of_memory=out_of_memory,
        )


CHUNK_BYTES: Final = 256 * 1024
POLL_SECONDS: Final = 0.05
DRAIN_SECONDS: Final = 0.5
Take = Callable[[bytes], None]


class FollowedOutput:
    """The output stream of a process or a container, read without blocking.

    Following it stops when the process ends, even if the stream is still open. A silent process
    does not delay that.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        ended: Callable[[], bool],
        wait: Callable[[float], object],
        pieces: Callable[[bytes], Iterable[bytes]] = lambda data: (data,),
    ) -> None:
        """Follow `descriptor`; `ended` returns whether the training is over.

        `wait` sleeps for some seconds; it is used when the output is closed and the training goes
        on. `pieces` extracts the output from the data read.
        """
        self.descriptor = descriptor
        self._ended = ended
        self._wait = wait
        self._pieces = pieces
        self._poller = select.poll()
        self._poller.register(descriptor, select.POLLIN)
        self.open = True

    def follow(self, take: Take, seconds: float) -> bool:
        """Pass on output until the training ends; return False after more than `seconds`."""
        deadline = time.monotonic() + seconds
        while not self._ended():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self._wait_for(take, min(remaining, POLL_SECONDS))
        self.drain(take)
        return True

    def drain(self, take: Take) -> None:
        """Pass on what is still in the stream, for a limited time.

        It never waits for the stream's end: a process that holds the other end could delay that
        forever.
        """
        deadline = time.monotonic() + DRAIN_SECONDS
        while self.open and self._poller.poll(0) and time.monotonic() < deadline:
            self.pump(take)

    def _wait_for(self, take: Take, seconds: float) -> None:
        if not self.open:
            self._wait(seconds)
        elif self._poller.poll(seconds * 1000):
            self.pump(take)

    def pump(self, take: Take) -> None:
        """Pass on what has arrived; blocks if nothing has."""
        data = os.read(self.descriptor, CHUNK_BYTES)
        self.open = bool(data)
        for piece in self._pieces(data):
            take(piece)
