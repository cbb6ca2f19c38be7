"""Gate calls whose trainings with torch are forks, without an import of torch for each.

Of a whole call on a small script that import is nine tenths. Where the way itself is asked about
(processes, time limits, runs beside each other), or what Python reads when it starts, a training
has its own Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

from gate_bench import Bench
from torch_processes import can_fork, run_forked

from gate.errors import RunError
from gate.isolation.modes import Credentials, Isolation, IsolationMode
from gate.isolation.process_request import (
    ProcessGroup,
    ProcessRequest,
    ProcessResult,
    StartedProcess,
    TrainingProcesses,
)
from gate.pipelines.adapters import Adapters
from gate.verdict.request import GateRequest

OnLine = Callable[[bytes], None]
PYTHONS = frozenset(("python", "python3"))
STOPPED = ProcessResult(
    exit_code=-15, timed_out=False, wall_seconds=0.0, output=b"", output_bytes=0
)


def _forkable(request: ProcessRequest) -> bool:
    apart = request.credentials or request.container or request.step or request.place
    if apart or request.argv[0] not in PYTHONS or len(request.argv) == 1:
        return False
    script = request.workdir / request.argv[1]
    return script.is_file() and can_fork(script, request.env)


def forked(request: ProcessRequest, on_line: OnLine) -> ProcessResult:
    """Run a training to its end; a kill is no time limit of its own."""
    begun = time.monotonic()
    ended = run_forked(request.workdir, request.argv[1:], request.env)
    output = (ended.stdout + ended.stderr).encode()
    for line in output.splitlines():
        on_line(line)
    return ProcessResult(
        exit_code=ended.code,
        timed_out=False,
        wall_seconds=time.monotonic() - begun,
        output=output,
        output_bytes=len(output),
    )


@dataclass
class ForkedRun:
    """A training that runs once it was let go."""

    request: ProcessRequest
    on_line: OnLine
    result: ProcessResult | None = None
    going: bool = False

    def let_go(self) -> None:
        self.going = True

    def stop(self) -> None:
        self.result = self.result or STOPPED


@dataclass
class ForkedGroup:
    """Processes of a turn, some of them forks."""

    group: ProcessGroup
    forks: list[ForkedRun]

    def start(self, request: ProcessRequest, on_line: OnLine) -> StartedProcess:
        if not _forkable(request):
            return self.group.start(request, on_line)
        self.forks.append(ForkedRun(request, on_line))
        return self.forks[-1]

    def follow(self, seconds: float) -> None:
        due = [run for run in self.forks if run.going and run.result is None]
        for run in due:
            run.result = forked(run.request, run.on_line)
        self.group.follow(0.0 if due else seconds)


@dataclass(frozen=True)
class ForkedTrainings:
    """The real processes, but for trainings that can be forked; `forks` are those of all groups."""

    processes: TrainingProcesses
    forks: list[ForkedRun] = field(default_factory=list)

    def run(self, request: ProcessRequest, on_line: OnLine) -> ProcessResult:
        if _forkable(request):
            return forked(request, on_line)
        return self.processes.run(request, on_line)

    def together(self) -> AbstractContextManager[ProcessGroup]:
        return self._together()

    @contextmanager
    def _together(self) -> Iterator[ProcessGroup]:
        with self.processes.together() as group:
            yield ForkedGroup(group, self.forks)


def _one_lane(_isolation: Isolation, _number: int) -> tuple[Credentials | None, ...]:
    # a fork shares the view of whoever forks: two of one turn would see one folder
    raise RunError("forks go one after the other", hint="")


def with_forks(adapters: Adapters) -> Adapters:
    """The same adapters with trainings that are forks, one after the other."""
    return replace(adapters, processes=ForkedTrainings(adapters.processes), beside=_one_lane)


class ForkedBench(Bench):
    """A project whose trainings are forks wherever that makes no difference to them."""

    alike = True

    def request(self, **options: object) -> GateRequest:
        asked = super().request(**options)
        alone = asked.settings.isolation.model_copy(update={"mode": IsolationMode.NONE})
        settings = asked.settings.model_copy(update={"isolation": alone})
        return replace(asked, settings=settings)

    def adapters(self) -> Adapters:
        return with_forks(super().adapters())
