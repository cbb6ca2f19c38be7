"""`sources-rR-P.jsonl`: what each process took from its surroundings, read as untrusted bytes."""

from __future__ import annotations

from pathlib import Path

from gate.codec.untrusted_text import plain_text
from gate.evidence.processes.harness_files import HarnessFile, ProcessFiles, told_lines
from gate.evidence.processes.ranks import TrainedRank
from gate.ports import Files
from gate.records.observed.evidence import MAX_SOURCES
from gate.records.observed.sources import LiveThreads, Source, SourceLine

MAX_TEXT = 200


def read_sources(
    files: Files, out: Path, processes: tuple[ProcessFiles, ...]
) -> tuple[Source, ...]:
    """What every process told, once for each line of a rank; at most `MAX_SOURCES`.

    Raises `EvidenceError` for a malformed file, and for one longer than the harness's own limit.
    """
    sources: dict[Source, None] = {}
    for line, process in told_lines(files, out, processes, HarnessFile.SOURCES, SourceLine):
        texts = {key: plain_text(getattr(line, key))[:MAX_TEXT] for key in _TEXTS}
        stack = tuple(plain_text(frame)[:MAX_TEXT] for frame in line.stack)
        shown = {**line.model_dump(), **texts, "stack": stack, "rank": process.rank}
        if len(sources) < MAX_SOURCES:
            sources[Source.model_validate(shown)] = None
    return tuple(sources)


_TEXTS = ("call", "before", "after", "file")


def live_threads(rank: TrainedRank) -> tuple[LiveThreads, ...]:
    """The number of threads at each step at which it is another than at the step before."""
    counts: dict[int, int] = {}
    for line in rank.lines:
        counts[line.step] = max(line.threads, counts.get(line.step, 0))
    changes: list[LiveThreads] = []
    for step, count in sorted(counts.items()):
        if not changes or changes[-1].count != count:
            changes.append(LiveThreads(step=step, count=count))
    return tuple(changes)
