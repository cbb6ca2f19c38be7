"""Starts the confined reader and asks it; trusts nothing about the form of its answers.

The reader gets an environment built from scratch and, where possible, an account of its own. Its
only descriptors are its output and the socket for questions. Its program is
`gate.pipelines.confined_reader`. The started process imports what reading needs, parses nothing
itself and forks a child for each question.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import gate
from gate.errors import (
    DataError,
    DocumentError,
    EvidenceError,
    GateError,
    OutputError,
    RunError,
    SettingsError,
    StorageError,
)
from gate.evidence.capture import MAX_STATE_BYTES
from gate.evidence.run_evidence import StateDistance
from gate.isolation.modes import Credentials
from gate.isolation.process_request import (
    AnsweringProcess,
    ProcessRequest,
    ProcessResult,
    ReadOnlyMount,
)
from gate.pipelines.reader_questions import (
    Answer,
    DistanceQuestion,
    KeptQuestion,
    Question,
    ReadingAnswer,
    ReadingFault,
)
from gate.system.console import Progress
from gate.system.files.port import Files
from gate.text.documents import read_document
from gate.text.json_text import PACKED
from gate.text.untrusted_text import escaped_lines

PACKAGE_ROOT = Path(gate.__file__).resolve().parents[1]
FIRST_NAME = "first.safetensors"
# -S: no .pth file of the environment runs. The import folders are passed as arguments instead. They
# come after the standard library's, so that none of them can replace a standard module. The garbage
# collector is off during the imports: what they create stays, and collecting costs an eighth of the
# start. One collection follows at the end.
PROGRAM = (
    "import gc, sys; gc.disable(); sys.path += sys.argv[1:-1]; "
    "from gate.pipelines.confined_reader import main; main(int(sys.argv[-1]))"
)
ENVIRONMENT = {
    "PATH": os.defpath,
    "LC_ALL": "C.UTF-8",
    # each hashing thread would otherwise reserve address space for an arena, and that is limited
    "MALLOC_ARENA_MAX": "2",
    # NumPy's thread pool would reserve it too, and nothing here multiplies matrices
    "OPENBLAS_NUM_THREADS": "1",
    "PYDANTIC_DISABLE_PLUGINS": "1",
}
TIMEOUT_SECONDS = 1800.0
MAX_ANSWER_BYTES = 256 * 1024 * 1024
SHOWN_LINES = 5
FAULTS: dict[str, type[GateError]] = {
    fault.__name__: fault
    for fault in (
        DataError,
        DocumentError,
        EvidenceError,
        OutputError,
        SettingsError,
        StorageError,
    )
}
ANY_FAULT: tuple[type[GateError], ...] = (RunError, *FAULTS.values())
CHANGED_HINT = (
    "Something else writes to the evidence folder: give --out a folder that nothing else uses."
)
CRASH_HINT = (
    "The run's files may be crafted to break the reader: look at the training's output and at "
    "what it writes. If the code is harmless, please report this as a bug in repro-gate."
)


class FreshReader:
    """One confined process for all questions, alive while the reader's context is open.

    `parser_unsandboxed_reason` says why the process runs under the gate's own account, if it does.
    """

    def __init__(
        self,
        files: Files,
        answering: Callable[[ProcessRequest], AnsweringProcess],
        progress: Progress,
        credentials: Credentials | None,
    ) -> None:
        """`credentials` belong to no training.

        The end of a training ends all processes of its account.
        """
        self._files = files
        self._answering = answering
        self._progress = progress
        # the reader opens no device, so it needs none of the device groups
        self._credentials = replace(credentials, groups=()) if credentials else None
        self._process: AnsweringProcess | None = None
        self._tried = False
        self.parser_unsandboxed_reason = ""

    def __enter__(self) -> Self:
        """Start the process without waiting, so that it imports while the gate does other work."""
        # the first question starts it again and reports the obstacle
        with suppress(RunError):
            self._process = self._answering(_start_of(self._credentials))
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()

    def let_read(self, *folders: Path) -> None:
        """Let the process read a run's files; all processes of the run must be gone."""
        if self._credentials is not None:
            for folder in folders:
                self._files.let_read(folder, gid=self._credentials.gid)

    def ask(self, question: Question[Answer], mounts: tuple[ReadOnlyMount, ...] = ()) -> Answer:
        """Return the answer to a question.

        With `mounts`, a separate process answers, which sees the sources at their targets. Under
        the gate's own account there is no such view, so the question then names the sources
        themselves.

        Raises the fault that the process found. Raises `EvidenceError` if the process crashed,
        exceeded a limit or gave no proper answer.
        """
        result = _parsed(question.answer_form(), self._result(question, mounts)).result
        if isinstance(result, ReadingFault):
            raise FAULTS[result.kind](
                escaped_lines(result.message),
                hint=escaped_lines(result.hint),
                details=tuple(map(escaped_lines, result.details)),
            )
        if not question.fits(result.answer):
            raise EvidenceError("the reading process answered for a different run", hint=CRASH_HINT)
        return result.answer

    def distance(self, first: tuple[Path, str], second: Path, folder: Path) -> StateDistance | None:
        """Return how far a second state is from the first; None, with a message, if unknown.

        No outcome depends on it: the digests already show that the two differ. `first` is path and
        SHA-256 of a kept file, `second` is in `folder`, as for `ask_of_kept`.
        """
        try:
            path, sha256 = first
            return self.ask_of_kept(DistanceQuestion(first=path, second=second), sha256, folder)
        except ANY_FAULT as fault:
            why = fault.message
        self._progress.step(f"the distance between the two states is not known: {why}")
        return None

    def ask_of_kept(self, question: KeptQuestion[Answer], sha256: str, folder: Path) -> Answer:
        """Return the answer about a kept file, or about it and a second one in `folder`.

        The process cannot open the kept file, so `folder` gets a copy, which must have this
        SHA-256. Raises what `ask` raises, and `EvidenceError` if the file has changed.
        """
        kept, copy = question.first, folder / FIRST_NAME
        try:
            if self._files.copy_file(kept, copy, max_bytes=MAX_STATE_BYTES) != sha256:
                raise EvidenceError(f"{kept.name} changed after it was kept", hint=CHANGED_HINT)
            return self.ask(question.model_copy(update={"first": copy.absolute()}))
        finally:
            self._files.remove_tree(copy)

    def _result(
        self, question: Question[Answer], mounts: tuple[ReadOnlyMount, ...]
    ) -> ProcessResult:
        """Return what the child for this question wrote."""
        process = self._running()
        if not mounts:
            return process.ask(_written(question))
        if self._credentials is None:
            sources = {mount.target.absolute(): mount.source for mount in mounts}
            real = {name: sources[path] for name, path in question if path in sources}
            return process.ask(_written(question.model_copy(update=real)))
        # a process's view of the file system is fixed at its start, so this one is new
        shown = self._answering(_start_of(self._credentials, mounts))
        try:
            return shown.ask(_written(question))
        finally:
            shown.end()

    def _running(self) -> AnsweringProcess:
        """Return the running process; start it if necessary.

        If the account cannot even start this program, the reader moves to the gate's own account
        and reports it. That happens at most once, before anything was read. A later failure may be
        the work of a run's files, which must not earn them a reader under the gate's account.
        """
        if self._credentials is not None and not self._tried:
            try:
                self._process = self._process or self._answering(_start_of(self._credentials))
                self._process.wait_until_ready()
            except RunError as fault:
                self._process = self._credentials = None
                self.parser_unsandboxed_reason = escaped_lines(fault.message)
                self._progress.step(
                    f"runs are read under the gate's own account: {self.parser_unsandboxed_reason}"
                )
        self._tried = True
        self._process = self._process or self._answering(_start_of(self._credentials))
        return self._process


def _start_of(
    credentials: Credentials | None, mounts: tuple[ReadOnlyMount, ...] = ()
) -> ProcessRequest:
    return ProcessRequest(
        # isolated, without site packages and byte-code files, like the sandbox launcher
        argv=(sys.executable, "-I", "-S", "-B", "-c", PROGRAM, *_import_folders()),
        env=ENVIRONMENT,
        workdir=Path("/"),
        timeout_seconds=TIMEOUT_SECONDS,
        # of a longer output the middle is dropped and half the limit kept from its beginning; twice
        # the maximum therefore keeps every legal answer whole
        output_limit_bytes=2 * MAX_ANSWER_BYTES,
        credentials=credentials,
        mounts=mounts,
    )


def _import_folders() -> Iterable[str]:
    """Return the folders that this process imports from, the gate's package first."""
    return dict.fromkeys(
        (str(PACKAGE_ROOT), *(folder for folder in sys.path if Path(folder).is_absolute()))
    )


def _written(question: Question[Answer]) -> bytes:
    return question.model_dump_json().encode("utf-8")


def _parsed(form: type[ReadingAnswer[Answer]], result: ProcessResult) -> ReadingAnswer[Answer]:
    """Return the answer document, read strictly; raise `EvidenceError` for anything else."""
    answer = result.output
    if result.timed_out or result.exit_code != 0:
        raise EvidenceError(
            f"the process that reads the run's files {_how_it_ended(result)}",
            hint=CRASH_HINT,
            details=tuple(map(escaped_lines, _last_lines(answer))),
        )
    try:
        return read_document(
            form,
            answer,
            "the reading process's answer",
            max_bytes=MAX_ANSWER_BYTES,
            context=PACKED,
        )
    except DocumentError as error:
        raise EvidenceError(
            escaped_lines(error.message),
            hint=CRASH_HINT,
            details=tuple(map(escaped_lines, error.details)),
        ) from error


def _how_it_ended(result: ProcessResult) -> str:
    if result.timed_out:
        return f"timed out after {TIMEOUT_SECONDS:g} s"
    # SIGXCPU comes from the soft limit of CPU time, SIGKILL from a kernel short of memory
    if result.exit_code in {-signal.SIGXCPU, -signal.SIGKILL}:
        return "was killed for using too much CPU time or memory"
    if result.exit_code == -signal.SIGBUS:
        return "was killed: a file was truncated, or its disk failed, while it was read"
    if result.exit_code < 0:
        return f"crashed (signal {-result.exit_code})"
    return f"ended with exit code {result.exit_code} and no answer"


def _last_lines(output: bytes) -> list[str]:
    lines = output[-SHOWN_LINES * 1000 :].decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.strip()][-SHOWN_LINES:]
