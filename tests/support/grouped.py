"""Adds `together` to fakes that only have `run`: a process runs when it is let go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gate.isolation.process_request import Processes, ProcessRequest, ProcessResult, StartedProcess


class OneAfterTheOther:
    """Implements the port `TrainingProcesses` on top of the fake's own `run`."""

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        """Run one process, as the port specifies; the fake overrides this."""
        raise NotImplementedError

    @contextmanager
    def together(self) -> Iterator[Group]:
        """Yield a group, as the port specifies; its processes never run at the same time."""
        yield Group(self)


class Group:
    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def start(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> StartedProcess:
        return Waiting(self._processes, request, on_line)

    def follow(self, seconds: float) -> None:
        pass


class Waiting:
    def __init__(
        self, processes: Processes, request: ProcessRequest, on_line: Callable[[bytes], None]
    ) -> None:
        self._processes, self._request, self._on_line = processes, request, on_line
        self.result: ProcessResult | None = None

    def let_go(self) -> None:
        self.result = self._processes.run(self._request, self._on_line)

    def stop(self) -> None:
        pass
