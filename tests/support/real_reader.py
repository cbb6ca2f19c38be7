"""The reading process as it is, under the tests' own account."""

from __future__ import annotations

from collections.abc import Callable

from gate.isolation.answering_client import AnsweringProcess
from gate.isolation.modes import Credentials
from gate.isolation.process_request import AnsweringProcess as Answering
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.isolation.stop_signals import StopSignals
from gate.pipelines.fresh_process import FreshReader
from gate.system.console import Progress, QuietProgress
from gate.system.files.files import LocalFiles


def answering(request: ProcessRequest) -> AnsweringProcess:
    """Start it."""
    return AnsweringProcess(request, StopSignals())


def real_reader(
    progress: Progress | None = None, credentials: Credentials | None = None
) -> FreshReader:
    """For a `with`."""
    return FreshReader(LocalFiles(), answering, progress or QuietProgress(), credentials)


class KeptProcess:
    """A process that reads for every gate call of a worker: its start is half a second of imports.

    It forks a child for each question, as in one call, and ends with the worker. What a call does
    with a process that crashed or timed out stays the process's own.
    """

    def __init__(self, process: AnsweringProcess) -> None:
        self.wait_until_ready = process.wait_until_ready
        self._process = process

    def ask(self, question: bytes) -> ProcessResult:
        return self._process.ask(question)

    def end(self) -> None:
        """Not now."""


_kept: dict[str, KeptProcess] = {}
Start = Callable[[ProcessRequest], Answering]


def kept(start: Start) -> Start:
    """Start readers so, but for each kind that runs under the tests' own account only the first."""

    def started(request: ProcessRequest) -> Answering:
        if request.credentials is not None:
            return start(request)
        name = repr(request)
        if name not in _kept:
            _kept[name] = KeptProcess(answering(request))
        return _kept[name]

    return started
