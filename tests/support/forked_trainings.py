"""Gate calls whose trainings with torch are forks, without an import of torch for each.

Of a whole call on a small script that import is nine tenths. Where the way itself is asked about
(processes, time limits, runs beside each other), or what Python reads when it starts, a training
has its own Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from gate_bench import Bench
from torch_processes import can_fork, run_forked
from trainings_at_once import GroupAtOnce, Left, OnLine, RunAtOnce, TrainingsAtOnce, result_of

from gate.errors import RunError
from gate.isolation.modes import Credentials, Isolation, IsolationMode
from gate.isolation.process_request import (
    ProcessGroup,
    ProcessRequest,
    ProcessResult,
    StartedProcess,
)
from gate.pipelines.adapters import Adapters
from gate.verdict.request import GateRequest

PYTHONS = frozenset(("python", "python3"))


def _forkable(request: ProcessRequest) -> bool:
    apart = request.credentials or request.container or request.step or request.place
    if apart or request.argv[0] not in PYTHONS or len(request.argv) == 1:
        return False
    script = request.workdir / request.argv[1]
    return script.is_file() and can_fork(script, request.env)


def _forked(request: ProcessRequest) -> Left:
    """Run a training in a fork; the time limit of its request is not applied."""
    ended = run_forked(request.workdir, request.argv[1:], request.env)
    output = (ended.stdout + ended.stderr).encode()
    return Left(ended.code, output, len(output))


class ForkedGroup(GroupAtOnce):
    """The processes of a turn, some of them forks."""

    def start(self, request: ProcessRequest, on_line: OnLine) -> StartedProcess:
        if not _forkable(request):
            return self.group.start(request, on_line)
        self.runs.append(RunAtOnce(partial(_forked, request), on_line))
        return self.runs[-1]


@dataclass(frozen=True)
class ForkedTrainings(TrainingsAtOnce):
    """The real processes, except that trainings are forked where possible.

    `forks` has the forks of all groups.
    """

    forks: list[RunAtOnce] = field(default_factory=list)

    def run(self, request: ProcessRequest, on_line: OnLine) -> ProcessResult:
        if _forkable(request):
            return result_of(partial(_forked, request), on_line)
        return super().run(request, on_line)

    def in_place_of(self, group: ProcessGroup) -> ForkedGroup:
        return ForkedGroup(group, self.forks)


def _one_lane(_isolation: Isolation, _number: int) -> tuple[Credentials | None, ...]:
    # a fork shares its parent's view of the file system: two forks of a turn would see one folder
    raise RunError("forks go one after the other", hint="")


def with_forks(adapters: Adapters) -> Adapters:
    """Return the same adapters, with trainings forked one after the other."""
    return replace(adapters, processes=ForkedTrainings(adapters.processes), beside=_one_lane)


class ForkedBench(Bench):
    """A project whose trainings are forked wherever that makes no difference to them."""

    alike = True

    def request(self, **options: object) -> GateRequest:
        asked = super().request(**options)
        alone = asked.settings.isolation.model_copy(update={"mode": IsolationMode.NONE})
        settings = asked.settings.model_copy(update={"isolation": alone})
        return replace(asked, settings=settings)

    def adapters(self) -> Adapters:
        return with_forks(super().adapters())
