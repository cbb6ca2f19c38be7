"""The harness's output folder: which processes wrote what, each file read with a limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from gate.checkpoint.untrusted_files import UntrustedFile, open_untrusted
from gate.errors import EvidenceError, StorageError
from gate.evidence.harness_files import OwnedDocument
from gate.evidence.observations import SourceLine
from gate.evidence.overrides import OverrideLine
from gate.system.files.port import Files
from gate.text.documents import read_document
from gate.text.records_document import Document
from gate.text.untrusted_text import plain_text

MAX_NAMES = 20_000
MAX_HARNESS_FILES = 10_000
MAX_DOCUMENT_BYTES = 8 * 1024 * 1024
MAX_LINES_BYTES = 256 * 1024 * 1024
MAX_LINE_BYTES = 64 * 1024
MAX_LINES = 1_000_000
# of overrides, started processes and sources: the harness writes no more of any
MAX_NOTED_LINES = 200
# as long as the records allow, however much longer escapes made it
MAX_TEXT = 200
# No leading zeros: so each process has one name, and two files cannot claim to be the same one's.
NAME = re.compile(
    r"(process|summary|steps|metrics|state|operators|overrides|children|trace|sources|untrained|ended)"
    r"-r(0|[1-9][0-9]{0,5})-(0|[1-9][0-9]{0,9})"
    r"\.(jsonl|json|safetensors)\Z"
)
Record = TypeVar("Record", bound=Document)
Owned = TypeVar("Owned", bound=OwnedDocument)


class HarnessFile(StrEnum):
    """The kinds of files, by the first word of their names."""

    PROCESS = "process"
    STEPS = "steps"
    METRICS = "metrics"
    STATE = "state"
    SUMMARY = "summary"
    OPERATOR_AUDIT = "operators"
    OVERRIDES = "overrides"
    CHILDREN = "children"
    TRACE = "trace"
    SOURCES = "sources"
    UNTRAINED = "untrained"
    ENDED = "ended"


ENDINGS = {
    HarnessFile.PROCESS: "json",
    HarnessFile.SUMMARY: "json",
    HarnessFile.OPERATOR_AUDIT: "json",
    HarnessFile.UNTRAINED: "json",
    HarnessFile.ENDED: "json",
    HarnessFile.STEPS: "jsonl",
    HarnessFile.METRICS: "jsonl",
    HarnessFile.STATE: "safetensors",
    HarnessFile.OVERRIDES: "jsonl",
    HarnessFile.CHILDREN: "jsonl",
    HarnessFile.TRACE: "jsonl",
    HarnessFile.SOURCES: "jsonl",
}


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class ProcessFiles:
    """What one process left; `kinds` names the files that are there."""

    rank: int
    pid: int
    kinds: tuple[HarnessFile, ...]

    def name(self, kind: HarnessFile) -> str:
        """The name of this process's file of a kind."""
        return f"{kind.value}-r{self.rank}-{self.pid}.{ENDINGS[kind]}"


def find_processes(files: Files, out: Path) -> tuple[ProcessFiles, ...]:
    """The processes that left a file of the protocol, by rank and process id.

    Any other name in the folder is passed over. `EvidenceError` when there are too many.
    """
    try:
        names = files.list_names(out, max_names=MAX_NAMES)
    except StorageError as error:
        raise EvidenceError(
            f"the run's output folder cannot be read: {error.message}",
            hint="Only the harness writes there; the training may have filled or replaced it.",
        ) from error
    kinds: dict[tuple[int, int], list[HarnessFile]] = {}
    # what else lies there is not the protocol's: the training can write into this folder too
    for match in filter(None, map(NAME.match, names)):
        kind = HarnessFile(match[1])
        if match[4] == ENDINGS[kind]:
            kinds.setdefault((int(match[2]), int(match[3])), []).append(kind)
    if sum(map(len, kinds.values())) > MAX_HARNESS_FILES:
        raise EvidenceError(
            f"the run left more than {MAX_HARNESS_FILES:,} files of the harness",
            hint="The training starts too many processes; use fewer data workers.",
        )
    return tuple(
        ProcessFiles(rank=rank, pid=pid, kinds=tuple(found))
        for (rank, pid), found in sorted(kinds.items())
    )


def read_harness_document(files: Files, out: Path, name: str, model: type[Record]) -> Record:
    """One JSON file of the harness's."""
    with open_untrusted(files, out / name, name, max_bytes=MAX_DOCUMENT_BYTES) as opened:
        return read_document(model, opened.read_at(0, opened.size_bytes), name)


def read_own_document(
    files: Files, out: Path, process: ProcessFiles, kind: HarnessFile, model: type[Owned]
) -> Owned:
    """A process's document, refused when it claims to be another process's."""
    name = process.name(kind)
    document = read_harness_document(files, out, name, model)
    if (document.rank, document.pid) != (process.rank, process.pid):
        raise EvidenceError(
            f"{name}: names process {document.pid}, rank {document.rank} inside",
            hint="Only the harness may write into its output folder.",
        )
    return document


def read_harness_lines(
    files: Files, out: Path, name: str, model: type[Record]
) -> tuple[Record, ...]:
    """One JSON Lines file of the harness's; each fault names the file and the line."""
    with open_untrusted(files, out / name, name, max_bytes=MAX_LINES_BYTES) as opened:
        return tuple(
            read_document(model, line, f"{name}: line {number}")
            for number, line in numbered_lines(opened)
        )


def told_lines(
    files: Files,
    out: Path,
    found: tuple[ProcessFiles, ...],
    kind: HarnessFile,
    model: type[Record],
) -> Iterator[tuple[Record, ProcessFiles]]:
    """The lines of one kind of file of every process, in the order of ranks and processes.

    Raises `EvidenceError` for a malformed file, and for one longer than the harness's own limit.
    """
    for process in found:
        if kind not in process.kinds:
            continue
        name = process.name(kind)
        lines = read_harness_lines(files, out, name, model)
        if len(lines) > MAX_NOTED_LINES:
            raise EvidenceError(
                f"{name}: {len(lines):,} lines, the harness writes {MAX_NOTED_LINES} at most",
                hint="Only the harness may write into its output folder.",
            )
        yield from ((line, process) for line in lines)


def plain_fields(line: OverrideLine | SourceLine, texts: tuple[str, ...]) -> dict[str, object]:
    """The fields of a line; `texts` and the stack are the script's own text and go into reports."""
    shown = {name: _plain(getattr(line, name)) for name in texts}
    return {**line.model_dump(), **shown, "stack": tuple(map(_plain, line.stack))}


def _plain(text: str) -> str:
    return plain_text(text)[:MAX_TEXT]


def numbered_lines(opened: UntrustedFile) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, counted from 1, without their ends; empty ones are passed over."""
    # one byte more than a line may have: a line without an end is never read as a whole
    lines = iter(lambda: opened.stream.readline(MAX_LINE_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_LINE_BYTES:
            raise opened.fault(f"line {number}: longer than {MAX_LINE_BYTES:,} bytes")
        if number > MAX_LINES:
            raise opened.fault(f"more than {MAX_LINES:,} lines")
        if line.strip():
            yield number, line.rstrip(b"\r\n")
