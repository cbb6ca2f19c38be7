"""Read what each process wrote about traces, sources and child processes, as untrusted bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from gate.checkpoint.untrusted_files import open_untrusted
from gate.errors import EvidenceError
from gate.evidence.harness_files import (
    HarnessFile,
    ProcessFiles,
    find_processes,
    numbered_lines,
    plain_fields,
    told_lines,
)
from gate.evidence.observations import (
    ChildLine,
    LiveThreads,
    Source,
    SourceLine,
    UnattestedChild,
    WeakerChild,
)
from gate.evidence.python_processes import python_commands, reason_of
from gate.evidence.ranks import TrainedRank
from gate.evidence.run_evidence import MAX_SOURCES
from gate.evidence.trace import (
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
from gate.system.files.port import Files
from gate.text.document import Document
from gate.text.documents import read_document
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import plain_text

MAX_TEXT = 200
NOT_KEPT = "was given an environment that lacks the gate's variables"
Children = tuple[tuple[UnattestedChild, ...], tuple[WeakerChild, ...]]


def read_children(files: Files, out: Path, processes: tuple[ProcessFiles, ...]) -> Children:
    """Return the child processes without the harness, and those that lack a variable of the gate.

    They are in the order of ranks and processes; harmless commands are left out. Raises
    `EvidenceError` for a file that is malformed or longer than the harness writes.
    """
    without: list[UnattestedChild] = []
    weaker: list[WeakerChild] = []
    lines = told_lines(files, out, processes, HarnessFile.CHILDREN, ChildLine)
    for line, process in lines:
        for command in python_commands(line.words, for_shell=line.shell):
            shown = {
                "rank": process.rank,
                "pid": process.pid,
                "command": plain_text(command.shown)[:MAX_TEXT],
                "file": plain_text(line.file)[:MAX_TEXT],
                "line": line.line,
            }
            if reason := reason_of(command) or ("" if line.kept else NOT_KEPT):
                without.append(UnattestedChild.model_validate({**shown, "reason": reason}))
            elif line.lost:
                weaker.append(WeakerChild.model_validate({**shown, "variables": line.lost}))
    return tuple(without), tuple(weaker)


def read_sources(
    files: Files, out: Path, processes: tuple[ProcessFiles, ...]
) -> tuple[Source, ...]:
    """Return the sources that all processes reported, equal ones once; at most `MAX_SOURCES`.

    Raises `EvidenceError` for a file that is malformed or longer than the harness writes.
    """
    sources: dict[Source, None] = {}
    for line, process in told_lines(files, out, processes, HarnessFile.SOURCES, SourceLine):
        if len(sources) < MAX_SOURCES:
            fields = plain_fields(line, _SOURCE_TEXTS)
            sources[Source.model_validate({**fields, "rank": process.rank})] = None
    return tuple(sources)


# the fields with the script's own text, which must be made safe before a report shows it
_SOURCE_TEXTS = ("call", "before", "after", "file")


def live_threads(rank: TrainedRank) -> tuple[LiveThreads, ...]:
    """Return the number of threads at each step at which it changed."""
    steps, counts = rank.lines.largest("threads")
    # `True` keeps the first step, which has no step before it
    moved = np.flatnonzero(np.append(True, counts[1:] != counts[:-1]))
    return tuple(
        LiveThreads(step=step, count=count)
        for step, count in zip(steps[moved].tolist(), counts[moved].tolist(), strict=True)
    )


# the harness stops at 32 MiB of calls; the lines that ran and the last record come on top
MAX_TRACE_BYTES = 48 * 1024 * 1024
HINT = "Only the harness may write into its output folder."
Executed = tuple[TracedFile, TracedLine, Annotated[int, Field(ge=0, le=MAX_CALLS)]]


class CallLine(TracedCall):
    """An operator call, as the harness writes it."""

    kind: Literal["call"]


class LinesLine(Document):
    """Lines of the script that ran: file, line and the number of the call that came next."""

    kind: Literal["lines"]
    lines: Annotated[tuple[Executed, ...], Field(max_length=1000)]


class SettingsLine(TracedSettings):
    """Settings of torch, as the harness writes them when they change."""

    kind: Literal["settings"]


class EndLine(Document):
    """The last line: why the trace ended, and how many calls it recorded and missed."""

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
    """Return the traces of the processes that took a step, in the order of their ranks.

    Raises `EvidenceError` for a file that is broken or too large, and for two traces of one rank.
    """
    traces = [
        process
        for process in find_processes(files, out)
        if {HarnessFile.TRACE, HarnessFile.STEPS} <= set(process.kinds)
    ]
    if len(traces) > MAX_RANKS:
        raise EvidenceError(f"more than {MAX_RANKS} processes left a trace", hint=HINT)
    ranks = {process.rank for process in traces}
    if len(ranks) != len(traces):
        raise EvidenceError("two processes of one rank left a trace", hint=HINT)
    return tuple(_read(files, out, process) for process in traces)


def _read(files: Files, out: Path, process: ProcessFiles) -> RankTrace:
    name = process.name(HarnessFile.TRACE)
    calls, lines = list[TracedCall](), list[ExecutedLine]()
    settings = list[TracedSettings]()
    end: EndLine | None = None
    with open_untrusted(files, out / name, name, max_bytes=MAX_TRACE_BYTES) as opened:
        for number, data in numbered_lines(opened):
            where = f"{name}: line {number}"
            # the harness writes the last record last, so somebody else added this line
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
                # other calls refer to a call by its number, so the number has to be its index
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
