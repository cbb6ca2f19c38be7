"""`sources-rR-P.jsonl`: what each process took from its surroundings, read as untrusted bytes."""

from __future__ import annotations

from pathlib import Path

from gate.evidence.observations import LiveThreads, Source, SourceLine
from gate.evidence.processes_harness_files import (
    HarnessFile,
    ProcessFiles,
    plain_fields,
    told_lines,
)
from gate.evidence.ranks import TrainedRank
from gate.evidence.run_evidence import MAX_SOURCES
from gate.system.files.port import Files


def read_sources(
    files: Files, out: Path, processes: tuple[ProcessFiles, ...]
) -> tuple[Source, ...]:
    """What every process told, once for each line of a rank; at most `MAX_SOURCES`.

    Raises `EvidenceError` for a malformed file, and for one longer than the harness's own limit.
    """
    sources: dict[Source, None] = {}
    for line, process in told_lines(files, out, processes, HarnessFile.SOURCES, SourceLine):
        if len(sources) < MAX_SOURCES:
            fields = plain_fields(line, _SOURCE_TEXTS)
            sources[Source.model_validate({**fields, "rank": process.rank})] = None
    return tuple(sources)


_SOURCE_TEXTS = ("call", "before", "after", "file")


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
