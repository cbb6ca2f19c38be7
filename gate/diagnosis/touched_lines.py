"""Which lines of the diff ran up to the point at which two traces part, nearest first."""

from __future__ import annotations

from typing import Final

from gate.records.observed.trace import RankTrace
from gate.records.observed.traced import MAX_HUNKS, ChangedLines, TraceFinding

NEVER: Final = -1


def with_changed_lines(
    finding: TraceFinding, hunks: tuple[ChangedLines, ...], trace: RankTrace | None, folder: str
) -> TraceFinding:
    """The finding with the diff's hunks, as far as Python files of the training's are meant.

    `folder` is the training's in the repository; files of the trace count from there. A hunk ran
    when one of its lines did, before the call that parts the runs.
    """
    if trace is None or not hunks:
        return finding
    local = [hunk for hunk in (_seen_from(hunk, folder) for hunk in hunks) if hunk is not None]
    end = len(trace.calls) if finding.call is None else finding.call
    when = {hunk: _ran(hunk, trace, end) for hunk in local}
    before = [hunk for hunk in local if when[hunk] != NEVER]
    # the line that made the call, then what ran last before it
    before.sort(key=lambda hunk: (not _holds(hunk, finding.file, finding.line), -when[hunk]))
    later = tuple(hunk for hunk in local if when[hunk] == NEVER)
    return finding.model_copy(
        update={"changed": tuple(before[:MAX_HUNKS]), "changed_later": later[:MAX_HUNKS]}
    )


def _seen_from(hunk: ChangedLines, folder: str) -> ChangedLines | None:
    prefix = f"{folder}/" if folder and folder != "." else ""
    if not hunk.file.startswith(prefix) or not hunk.file.endswith(".py"):
        return None
    return hunk.model_copy(update={"file": hunk.file.removeprefix(prefix)})


def _ran(hunk: ChangedLines, trace: RankTrace, end: int) -> int:
    """Before which call a line of the hunk ran last for the first time, up to `end`."""
    ran = [
        line.call
        for line in trace.lines
        if line.file == hunk.file and hunk.first <= line.line <= hunk.last and line.call <= end
    ]
    return max(ran, default=NEVER)


def _holds(hunk: ChangedLines, file: str, line: int) -> bool:
    return hunk.file == file and hunk.first <= line <= hunk.last
