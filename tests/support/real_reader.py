"""The real reading process, under the tests' own account."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gate.errors import RunError
from gate.isolation.answering_client import LocalAnsweringProcess
from gate.isolation.modes import Credentials
from gate.isolation.process_request import AnsweringProcess as ProcessPort
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.isolation.stop_signals import StopSignals
from gate.pipelines.fresh_process import FreshReader
from gate.pipelines.reader_questions import Answer, Question
from gate.system.console import Progress, QuietProgress
from gate.system.files.files import LocalFiles
from gate.text.json_text import PACKED


def answering(request: ProcessRequest) -> LocalAnsweringProcess:
    """Start the reading process."""
    return LocalAnsweringProcess(request, StopSignals())


def real_reader(
    progress: Progress | None = None, credentials: Credentials | None = None
) -> FreshReader:
    """Return a reader, to be used in a `with`; all tests of a worker share its process (`kept`)."""
    return FreshReader(LocalFiles(), kept(answering), progress or QuietProgress(), credentials)


@dataclass
class Answering:
    """A fake reading process with a given answer; `refuses_account` makes it fail under another."""

    output: bytes = b""
    exit_code: int = 0
    refuses_account: bool = False
    accounts: list[Credentials | None] = field(default_factory=list)

    def __call__(self, request: ProcessRequest) -> Answering:
        self.accounts.append(request.credentials)
        if self.refuses_account and request.credentials is not None:
            raise RunError("cannot start python: permission denied")
        return self

    def wait_until_ready(self) -> None:
        pass

    def ask(self, question: bytes) -> ProcessResult:
        del question
        return ProcessResult(
            exit_code=self.exit_code,
            timed_out=False,
            wall_seconds=0.1,
            output=self.output,
            output_bytes=len(self.output),
        )

    def end(self) -> None:
        pass


def answer_bytes(kind: type[Question[Answer]], answer: Answer) -> bytes:
    """Return the bytes that the process writes as this answer to a question of this kind."""
    form = kind.answer_form()
    written = form.model_validate({"result": {"kind": "answer", "answer": answer}})
    return written.model_dump_json(context=PACKED).encode("utf-8")


class KeptProcess:
    """One reading process for all gate calls of a test worker, since its imports take 0.5 s.

    It forks a child for each question, as it does within one call, and ends with the worker. The
    real process still decides what happens after a crash or a timeout.
    """

    def __init__(self, process: LocalAnsweringProcess) -> None:
        self.wait_until_ready = process.wait_until_ready
        self._process = process

    def ask(self, question: bytes) -> ProcessResult:
        return self._process.ask(question)

    def end(self) -> None:
        """Keep the process for the next gate call; it ends with the worker."""


_kept: dict[str, KeptProcess] = {}
Start = Callable[[ProcessRequest], ProcessPort]


def kept(start: Start) -> Start:
    """Wrap `start`, so that a reader under the tests' own account is started once per request."""

    def started(request: ProcessRequest) -> ProcessPort:
        if request.credentials is not None:
            return start(request)
        name = repr(request)
        if name not in _kept:
            _kept[name] = KeptProcess(answering(request))
        return _kept[name]

    return started
