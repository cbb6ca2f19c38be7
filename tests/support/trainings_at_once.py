"""Trainings that a test runs in one go, in the place of processes: recordings and forks.

They stand in for the real ones through the gate's own protocol, and what they cannot do goes to
real processes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from gate.isolation.process_request import (
    ProcessGroup,
    ProcessRequest,
    ProcessResult,
    StartedProcess,
    TrainingProcesses,
)

OnLine = Callable[[bytes], None]
STOPPED = ProcessResult(
    exit_code=-15, timed_out=False, wall_seconds=0.0, output=b"", output_bytes=0
)


class Left(NamedTuple):
    """How a training ended, and what it printed."""

    exit_code: int
    output: bytes
    output_bytes: int


def result_of(train: Callable[[], Left], on_line: OnLine) -> ProcessResult:
    """Train, and hand on what it printed."""
    begun = time.monotonic()
    left = train()
    for line in left.output.splitlines():
        on_line(line)
    return ProcessResult(
        exit_code=left.exit_code,
        timed_out=False,
        wall_seconds=time.monotonic() - begun,
        output=left.output,
        output_bytes=left.output_bytes,
    )


@dataclass
class RunAtOnce:
    """A training that runs to its end as soon as it was let go."""

    train: Callable[[], Left]
    on_line: OnLine
    result: ProcessResult | None = None
    going: bool = False

    def let_go(self) -> None:
        self.going = True

    def end(self) -> None:
        self.result = result_of(self.train, self.on_line)

    def stop(self) -> None:
        self.result = self.result or STOPPED


@dataclass
class GroupAtOnce(ABC):
    """Processes that live at the same time; `runs` are those that run in one go."""

    group: ProcessGroup
    runs: list[RunAtOnce] = field(default_factory=list)

    @abstractmethod
    def start(self, request: ProcessRequest, on_line: OnLine) -> StartedProcess:
        """Start a process, or add to `runs` what stands in for it."""

    def follow(self, seconds: float) -> None:
        due = [run for run in self.runs if run.going and run.result is None]
        for run in due:
            run.end()
        self.group.follow(0.0 if due else seconds)


@dataclass(frozen=True)
class TrainingsAtOnce(ABC):
    """The real processes, but for the trainings that its groups run in one go."""

    processes: TrainingProcesses

    def run(self, request: ProcessRequest, on_line: OnLine) -> ProcessResult:
        return self.processes.run(request, on_line)

    @contextmanager
    def together(self) -> Iterator[ProcessGroup]:
        with self.processes.together() as group:
            yield self.in_place_of(group)

    @abstractmethod
    def in_place_of(self, group: ProcessGroup) -> GroupAtOnce:
        """The group of this kind, which starts all else in `group`."""
