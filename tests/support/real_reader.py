"""The reading process as it is, under the tests' own account."""

from __future__ import annotations

from gate.adapters.console import QuietProgress
from gate.adapters.files.files import LocalFiles
from gate.adapters.process.answering.client import AnsweringProcess
from gate.adapters.process.stop_signals import StopSignals
from gate.evidence.fresh_process import FreshReader
from gate.ports import Progress
from gate.records.processes import ProcessRequest
from gate.records.runs import Credentials


def answering(request: ProcessRequest) -> AnsweringProcess:
    """Start it."""
    return AnsweringProcess(request, StopSignals())


def real_reader(
    progress: Progress | None = None, credentials: Credentials | None = None
) -> FreshReader:
    """For a `with`."""
    return FreshReader(LocalFiles(), answering, progress or QuietProgress(), credentials)
