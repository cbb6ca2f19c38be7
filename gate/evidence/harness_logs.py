"""`trace-rR-P.jsonl` of every rank, read as untrusted bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gate.checkpoint.untrusted_files import open_untrusted
from gate.errors import EvidenceError
from gate.evidence.observed_trace import (
    MAX_CALLS,
    MAX_EXECUTED,
    MAX_RANKS,
    ExecutedLine,
    RankTrace,
    TracedCall,
    TracedFile,
    TracedLine,
    TracedSettings,
)
from gate.evidence.processes_harness_files import (
    HarnessFile,
    ProcessFiles,
    find_processes,
    numbered_lines,
)
from gate.system.files.port import Files
from gate.text.documents import read_document
from gate.text.records_document import Document
from gate.text.strict_json import parse_json

# the harness ends at 32 MiB of calls; lines and the last record come on top
MAX_TRACE_BYTES = 48 * 1024 * 1024
HINT = "Only the harness may write into its output folder."
Executed = tuple[TracedFile, TracedLine, Annotated[int, Field(ge=0, le=MAX_CALLS)]]


class CallLine(TracedCall):
    """A call, as the harness writes it."""

    kind: Literal["call"]


class LinesLine(Document):
    """Lines that ran: file, line and the number of the call that came next."""

    kind: Literal["lines"]
    lines: Annotated[tuple[Executed, ...], Field(max_length=1000)]


class SettingsLine(TracedSettings):
    """Settings, as the harness writes them where they are others than before."""

    kind: Literal["settings"]


class EndLine(Document):
    """The last line: why the trace ended, and what it holds."""

    kind: Literal["end"]
    why: Literal["done", "calls", "bytes", "time"]
    calls: Annotated[int, Field(ge=0, le=MAX_CALLS)]
    unread: Annotated[int, Field(ge=0, le=2**53)]


KINDS: dict[object, type[CallLine | SettingsLine | LinesLine | EndLine]] = {
    "call": CallLine,
    "settings": SettingsLine,
    "lines": LinesLine,
    "end": EndLine,
}


def read_traces(files: Files, out: Path) -> tuple[RankTrace, ...]:
    """The traces of the processes that took a step, by rank.

    Raises `EvidenceError` for a broken or oversized file, and for two traces of one rank.
    """
    found = [
        process
        for process in find_processes(files, out)
        if {HarnessFile.TRACE, HarnessFile.STEPS} <= set(process.kinds)
    ]
    if len(found) > MAX_RANKS:
        raise EvidenceError(f"more than {MAX_RANKS} processes left a trace", hint=HINT)
    ranks = {process.rank for process in found}
    if len(ranks) != len(found):
        raise EvidenceError("two processes of one rank left a trace", hint=HINT)
    return tuple(_read(files, out, process) for process in found)


def _read(files: Files, out: Path, process: ProcessFiles) -> RankTrace:
    name = process.name(HarnessFile.TRACE)
    calls, lines = list[TracedCall](), list[ExecutedLine]()
    settings = list[TracedSettings]()
    end: EndLine | None = None
    with open_untrusted(files, out / name, name, max_bytes=MAX_TRACE_BYTES) as opened:
        for number, data in numbered_lines(opened):
            where = f"{name}: line {number}"
            if end is not None:
                raise opened.fault(f"line {number}: comes after the last record", hint=HINT)
            line = _line(data, where)
            if isinstance(line, EndLine):
                end = line
            elif isinstance(line, LinesLine):
                lines += [
                    ExecutedLine(file=file, line=at, call=call) for file, at, call in line.lines
                ]
            elif isinstance(line, SettingsLine):
                settings.append(line)
            else:
                if line.number != len(calls):
                    raise opened.fault(f"line {number}: call {line.number} is out of order")
                calls.append(line)
            if len(lines) > MAX_EXECUTED:
                raise opened.fault(f"more than {MAX_EXECUTED:,} lines that ran", hint=HINT)
    return RankTrace(
        rank=process.rank,
        calls=tuple(calls),
        lines=tuple(lines),
        settings=tuple(settings),
        ended=end.why if end is not None else "",
        unread=end.unread if end is not None else 0,
    )


def _line(data: bytes, where: str) -> CallLine | SettingsLine | LinesLine | EndLine:
    value = parse_json(data, where)
    kind = value.get("kind") if isinstance(value, dict) else None
    model = KINDS.get(kind if isinstance(kind, str) else None)
    if model is None:
        raise EvidenceError(f"{where}: no record of a trace", hint=HINT)
    return read_document(model, data, where)
