"""A training's container between its start and its removal."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from gate.isolation.container_output import Frames
from gate.isolation.engine import Engine
from gate.isolation.followed_output import FollowedOutput, Take

# together with the removal below the 7.5 s that a runner waits between its first and second signal
GRACE_SECONDS = 3.0
LAST_RESORT_SECONDS = 2.0
# an init process answers for a child that a signal ended, as a shell does
SIGNAL_BASE = 128


class RunningContainer:
    """Made, listened to, then started; `end` is owed whatever happens."""

    def __init__(
        self, engine: Engine, container: str, descriptor: int, remove: Callable[[], object]
    ) -> None:
        """`descriptor` is that of `Engine.attached`; the container does not run yet.

        `remove` gives both back.
        """
        self._engine = engine
        self._container = container
        self._remove = remove
        self.output = FollowedOutput(
            descriptor, ended=self.ended, wait=time.sleep, pieces=Frames().feed
        )
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
        """Whether the kernel ended one of its processes for lack of memory."""
        return bool(self._state.get("OOMKilled"))

    def start(self) -> None:
        """Let it run; raises `RunError` when the engine cannot."""
        self._engine.start(self._container)
        self._started_at = time.monotonic()

    def let_go(self) -> None:
        """Its time counts from now on."""
        self._started_at = time.monotonic()

    def end(self, take: Take) -> None:
        """Ask what still runs to stop, then kill the rest with the container."""
        try:
            if self._started_at is not None and not self.ended():
                self._engine.ask_to_stop(self._container)
                self.output.follow(take, GRACE_SECONDS)
            self.output.drain(take)
            self._note_time()
        finally:
            self._remove()

    def kill(self) -> None:
        """For a second signal: quick, through a connection of its own, and without an error."""
        # the usual connection may be in the middle of an answer when the signal comes
        self._engine.remove_at_once(self._container, LAST_RESORT_SECONDS)

    def ended(self) -> bool:
        """The stream ends with the container, or before it when the training closes its output."""
        if self.output.open:
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
