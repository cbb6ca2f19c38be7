"""Trainings that a test runs in one step instead of as processes: recordings and forks.

They implement the gate's own protocol for processes, and pass everything else to real processes.
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
    """A training's exit code and output."""

    exit_code: int
    output: bytes
    output_bytes: int


def result_of(train: Callable[[], Left], on_line: OnLine) -> ProcessResult:
    """Run `train`, pass its output on line by line, and return the result of a process."""
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
    """A training that runs to its end as soon as it is let go."""

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
    """Processes that run at the same time; `runs` are those that run in one step."""

    group: ProcessGroup
    runs: list[RunAtOnce] = field(default_factory=list)

    @abstractmethod
    def start(self, request: ProcessRequest, on_line: OnLine) -> StartedProcess:
        """Start a process, or add its replacement to `runs`."""

    def follow(self, seconds: float) -> None:
        due = [run for run in self.runs if run.going and run.result is None]
        for run in due:
            run.end()
        self.group.follow(0.0 if due else seconds)


@dataclass(frozen=True)
class TrainingsAtOnce(ABC):
    """The real processes, except for the trainings that the groups run in one step."""

    processes: TrainingProcesses

    def run(self, request: ProcessRequest, on_line: OnLine) -> ProcessResult:
        return self.processes.run(request, on_line)

    @contextmanager
    def together(self) -> Iterator[ProcessGroup]:
        with self.processes.together() as group:
            yield self.in_place_of(group)

    @abstractmethod
    def in_place_of(self, group: ProcessGroup) -> GroupAtOnce:
        """Return this class's group, which starts all other processes in `group`."""
