"""A training's container: started, followed and removed; its output is unpacked from frames.

The gate stays in its own container or outside any, and asks the engine for another one beside it.
Of the gate's files that container sees the folders of the run and the harness, and nothing else.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gate.errors import RunError
from gate.isolation.container_config import Mount, container_config, own_mounts, seen_by_engine
from gate.isolation.engine import Engine
from gate.isolation.modes import TrainingContainer
from gate.isolation.process_request import ProcessRequest
from gate.isolation.processes import GroupedProcesses, Running
from gate.isolation.stop_signals import StopSignals
from gate.isolation.training_output import FollowedOutput, Take
from gate.text.untrusted_text import safe_line

HEADER_BYTES = 8


class Frames:
    """Removes the frame headers from the engine's output stream, which arrives in arbitrary pieces.

    A header is one byte for the stream, three zero bytes, and the length of its data, big endian
    (Engine API, `POST /containers/{id}/attach`).
    """

    def __init__(self) -> None:
        self._header = b""
        self._missing = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the output in the next piece of the stream, in order."""
        at = 0
        while at < len(data):
            if self._missing:
                piece = data[at : at + self._missing]
                self._missing -= len(piece)
                yield piece
            else:
                piece = data[at : at + HEADER_BYTES - len(self._header)]
                self._header += piece
            at += len(piece)
            if len(self._header) == HEADER_BYTES:
                self._missing = int.from_bytes(self._header[4:], "big")
                self._header = b""


# together with the removal, below the 7.5 s that a runner waits between its first and second signal
GRACE_SECONDS = 3.0
LAST_RESORT_SECONDS = 2.0
# the container's init exits with 128 + n for a child that signal n ended, as a shell does
SIGNAL_BASE = 128


class RunningContainer:
    """A training's container; the caller must call `end` in every case."""

    def __init__(
        self, engine: Engine, container: str, descriptor: int, remove: Callable[[], object]
    ) -> None:
        """Wrap a created container; `descriptor` comes from `Engine.attached`.

        The container does not run yet. `remove` removes it and closes the descriptor.
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
        """The exit code, negative for a signal as for a local process; valid only after the end."""
        if self._state.get("Running", True):
            # it still ran when its container was removed, which kills it
            return -signal.SIGKILL
        code = int(self._state["ExitCode"])
        number = code - SIGNAL_BASE
        return -number if number in set(signal.Signals) else code

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel killed one of its processes for lack of memory."""
        return bool(self._state.get("OOMKilled"))

    def start(self) -> None:
        """Start the container; raises `RunError` if the engine cannot."""
        self._engine.start(self._container)
        self._started_at = time.monotonic()

    def let_go(self) -> None:
        """Start to count its time."""
        self._started_at = time.monotonic()

    def end(self, take: Take) -> None:
        """Ask what still runs to stop, then kill the rest by removing the container."""
        try:
            if self._started_at is not None and not self.ended():
                self._engine.ask_to_stop(self._container)
                self.output.follow(take, GRACE_SECONDS)
            self.output.drain(take)
            self._note_time()
        finally:
            self._remove()

    def kill(self) -> None:
        """Remove the container on a second signal: quickly, and without raising an error."""
        # through a new connection: the usual one may be in the middle of an answer when the signal
        # comes
        self._engine.remove_at_once(self._container, LAST_RESORT_SECONDS)

    def ended(self) -> bool:
        """Return whether the container has ended.

        The stream ends with the container, or earlier if the training closes its output. So the
        engine is asked for the state only after the stream has ended.
        """
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


class ContainerProcesses(GroupedProcesses):
    """Starts each process in its own container.

    `own_ids` are the names that the gate's own container may have.
    """

    def __init__(
        self, engine: Engine, own_ids: Sequence[str] = (), interrupts: StopSignals | None = None
    ) -> None:
        """`interrupts` must be the installed ones, if any are."""
        super().__init__(interrupts)
        self._engine = engine
        self._own_ids = own_ids
        self._mounts: tuple[Mount, ...] | None = None
        self._mounts_known = False

    def begin(self, request: ProcessRequest) -> RunningContainer:
        """Start a container; raises `RunError` if the engine cannot do what is asked."""
        config = container_config(request, _container(request), self._source)
        with ExitStack() as made:
            # create, attach, then start: a short training could have printed everything before an
            # attach
            container = self._engine.create(config)
            made.callback(self._engine.remove, container)
            descriptor = made.enter_context(self._engine.attached(container))
            running = RunningContainer(self._engine, container, descriptor, made.pop_all().close)
        try:
            running.start()
        except BaseException:
            running.end(lambda _: None)
            raise
        return running

    def _source(self, path: Path) -> str:
        if not self._mounts_known:
            self._mounts = own_mounts(self._engine, self._own_ids)
            self._mounts_known = True
        return seen_by_engine(path, self._mounts)


class RoutedProcesses(GroupedProcesses):
    """Sends each request to the place where its isolation runs."""

    def __init__(
        self,
        here: GroupedProcesses,
        beside: GroupedProcesses,
        interrupts: StopSignals | None = None,
        nodes: GroupedProcesses | None = None,
    ) -> None:
        """`here` starts processes of this machine, `beside` starts containers.

        `nodes` starts runs that are steps of a cluster's job.
        """
        super().__init__(interrupts)
        self._here = here
        self._beside = beside
        self._nodes = nodes or here

    def begin(self, request: ProcessRequest) -> Running:
        """Start a request on the nodes, in a container or on this machine."""
        if request.step is not None:
            return self._nodes.begin(request)
        return (self._beside if request.in_container else self._here).begin(request)


def _container(request: ProcessRequest) -> TrainingContainer:
    """Return the request's container, or raise `RunError` for a request that it cannot serve.

    The engine would not refuse: it creates a missing folder, as root.
    """
    if request.container is None or request.credentials is None or request.credentials.uid == 0:
        raise RunError(
            "isolation container needs an image, and an account that is not root",
            hint="This is a bug in repro-gate; report it with your repro-gate.yml.",
        )
    if not request.on_host(request.workdir).is_dir():
        raise RunError(
            f"the working directory {safe_line(str(request.workdir))} is not a folder",
            hint="Correct train.workdir in repro-gate.yml.",
        )
    return request.container
