"""`children-rR-P.jsonl`: which Python processes were started without the harness, or with less."""

from __future__ import annotations

from pathlib import Path

from gate.evidence.children import ChildLine, UnattestedChild, WeakerChild
from gate.evidence.processes import python_commands
from gate.evidence.processes_harness_files import HarnessFile, ProcessFiles, told_lines
from gate.evidence.shut_out import reason_of
from gate.system.files.port import Files
from gate.text.untrusted_text import plain_text

MAX_TEXT = 200
NOT_KEPT = "was given an environment that lacks the gate's variables"
Children = tuple[tuple[UnattestedChild, ...], tuple[WeakerChild, ...]]


def read_children(files: Files, out: Path, processes: tuple[ProcessFiles, ...]) -> Children:
    """Those without the harness, and those that it came along to without a variable of the gate's.

    In the order of ranks and processes; harmless lines are left out. Raises `EvidenceError` for a
    malformed file, and for one longer than the harness's own limit.
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
