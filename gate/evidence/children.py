"""`children-rR-P.jsonl`: which Python processes were started without the harness."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gate.codec.untrusted_text import plain_text
from gate.evidence.commands import PythonCommand, python_commands
from gate.evidence.harness_files import HarnessFile, ProcessFiles, told_lines
from gate.evidence.shut_out import REASONS
from gate.ports import Files
from gate.records.children import ChildLine, UnattestedChild, WeakerChild

MAX_LINES = 200
MAX_TEXT = 200
CLEARED = "gets an emptied environment or a PYTHONPATH of its own"
NOT_KEPT = "was given an environment that lacks the gate's variables"


def read_children(
    files: Files, out: Path, found: tuple[ProcessFiles, ...]
) -> tuple[UnattestedChild, ...]:
    """What every process told, in the order of ranks and processes; harmless lines left out.

    Raises `EvidenceError` for a malformed file, and for one longer than the harness's own limit.
    """
    told = told_lines(files, out, found, HarnessFile.CHILDREN, ChildLine, max_lines=MAX_LINES)
    return tuple(child for line, process in told for child in _shut_out(line, process))


def read_weaker_children(
    files: Files, out: Path, found: tuple[ProcessFiles, ...]
) -> tuple[WeakerChild, ...]:
    """Those that the harness came along to, without a variable that the gate had set."""
    told = told_lines(files, out, found, HarnessFile.CHILDREN, ChildLine, max_lines=MAX_LINES)
    return tuple(
        WeakerChild(
            rank=process.rank,
            pid=process.pid,
            command=plain_text(command.shown)[:MAX_TEXT],
            variables=line.lost,
            file=plain_text(line.file)[:MAX_TEXT],
            line=line.line,
        )
        for line, process in told
        if line.lost
        for command in python_commands(line.words, for_shell=line.shell)
        if not _reason(command, kept=line.kept)
    )


def _shut_out(line: ChildLine, process: ProcessFiles) -> Iterator[UnattestedChild]:
    for command in python_commands(line.words, for_shell=line.shell):
        reason = _reason(command, kept=line.kept)
        if reason:
            yield UnattestedChild(
                rank=process.rank,
                pid=process.pid,
                command=plain_text(command.shown)[:MAX_TEXT],
                reason=reason,
                file=plain_text(line.file)[:MAX_TEXT],
                line=line.line,
            )


def _reason(command: PythonCommand, *, kept: bool) -> str:
    """What keeps the harness out of this command; empty when nothing does."""
    if command.option:
        return REASONS[command.option]
    if command.cleared:
        return CLEARED
    return "" if kept else NOT_KEPT
