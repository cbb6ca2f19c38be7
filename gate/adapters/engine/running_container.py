"""A training's container between its start and its removal."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from gate.adapters.engine.container_output import Frames
from gate.adapters.engine.engine import Engine

CHUNK_BYTES = 256 * 1024
POLL_SECONDS = 0.05
DRAIN_SECONDS = 0.5
# together with the removal below the 7.5 s that a runner waits between its first and second signal
GRACE_SECONDS = 3.0
LAST_RESORT_SECONDS = 2.0
# an init process answers for a child that a signal ended, as a shell does
SIGNAL_BASE = 128


class RunningContainer:
    """Made, listened to, then started; `end` is owed whatever happens."""

    def __init__(self, engine: Engine, container: str, descriptor: int) -> None:
        """`descriptor` is that of `Engine.attached`; the container does not run yet."""
        self._engine = engine
        self._container = container
        self._descriptor = descriptor
        self._frames = Frames()
        self._poller = select.poll()
        self._poller.register(self._descriptor, select.POLLIN)
        self._stream_open = True
        self._started_at: float | None = None
        self._state: Mapping[str, Any] = {}
        self.wall_seconds = 0.0

    @property
    def exit_code(self) -> int:
        """Negative for a signal, as for a local process; only after the end."""
        if self._state.get("Running", True):
            return -signal.SIGKILL
        code = int(self._state["ExitCode"])
        number = code - SIGNAL_BASE
        return -number if number in set(signal.Signals) else code

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel ended one of its processes for want of memory."""
        return bool(self._state.get("OOMKilled"))

    def start(self) -> None:
        """Let it run; raises `RunError` when the engine cannot."""
        self._engine.start(self._container)
        self._started_at = time.monotonic()

    def follow(self, take: Callable[[bytes], None], seconds: float) -> bool:
        """Hand on output until the container ends; False when that takes more than `seconds`."""
        deadline = time.monotonic() + seconds
        while not self._ended():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self._pump(take, min(remaining, POLL_SECONDS))
        self._drain(take)
        return True

    def end(self, take: Callable[[bytes], None]) -> None:
        """Ask what still runs to stop; who made the container removes it, and kills the rest."""
        if self._started_at is not None and not self._ended():
            self._engine.ask_to_stop(self._container)
            self.follow(take, GRACE_SECONDS)
        self._drain(take)
        self._note_time()

    def kill(self) -> None:
        """For a second signal: quick, through a connection of its own, and without an error."""
        # the usual connection may be in the middle of an answer when the signal comes
        self._engine.remove_at_once(self._container, LAST_RESORT_SECONDS)

    def _ended(self) -> bool:
        """The stream ends with the container, or before it when the training closes its output."""
        if self._stream_open:
            return False
        if self._state.get("Running", True):
            self._state = self._engine.state(self._container)
        if self._state["Running"]:
            return False
        self._note_time()
        return True

    def _note_time(self) -> None:
        if self._started_at is not None and not self.wall_seconds:
            self.wall_seconds = time.monotonic() - self._started_at

    def _pump(self, take: Callable[[bytes], None], seconds: float) -> None:
        if not self._stream_open:
            time.sleep(seconds)
        elif self._poller.poll(seconds * 1000):
            data = os.read(self._descriptor, CHUNK_BYTES)
            self._stream_open = bool(data)
            for piece in self._frames.feed(data):
                take(piece)

    def _drain(self, take: Callable[[bytes], None]) -> None:
        """What is still on its way; never wait for an end that may not come."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._stream_open and self._poller.poll(0) and time.monotonic() < deadline:
            self._pump(take, 0)
