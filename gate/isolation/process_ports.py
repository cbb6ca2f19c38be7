"""The protocols of whoever starts processes, beside those of `gate.ports`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from gate.isolation.process_request import ProcessRequest, ProcessResult


class Processes(Protocol):
    """Starts a process and waits for its end."""

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        """Run to the end, to its time limit, or to cancellation, then leave no process behind."""
        ...


class TrainingProcesses(Processes, Protocol):
    """Starts training processes."""

    def together(self) -> AbstractContextManager[ProcessGroup]:
        """Processes that live at the same time; none of them is left when the body ends."""
        ...


class ProcessGroup(Protocol):
    """Processes that live at the same time."""

    def start(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> StartedProcess:
        """Start one; raises `RunError` when it cannot be started."""
        ...

    def follow(self, seconds: float) -> None:
        """Hand on output until one of those that were let go ends, at most for so long."""
        ...


class StartedProcess(Protocol):
    """A process of a group, from its start on."""

    @property
    def result(self) -> ProcessResult | None:
        """How it ended; None as long as it lives."""
        ...

    def let_go(self) -> None:
        """Its time counts from now on, and its output is handed on."""
        ...

    def stop(self) -> None:
        """End it now, with all that it started; nothing happens where it has ended."""
        ...


class AnsweringProcess(Protocol):
    """A process that answers questions, each in a child of its own: what one breaks is its own."""

    def wait_until_ready(self) -> None:
        """Return when it can answer; `RunError` that says why when it could not start."""
        ...

    def ask(self, question: bytes) -> ProcessResult:
        """What a child printed, and how it ended; started again where an earlier one took it."""
        ...

    def end(self) -> None:
        """Leave no process behind."""
        ...
