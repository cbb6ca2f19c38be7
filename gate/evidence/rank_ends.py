"""Find how far each rank came and how it ended, from what all processes left.

A rank that crashes records its exception. A rank that is killed, or that hangs, records nothing.
Then only its last recorded step and the exit code that its parent saw are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from gate.evidence.harness_files import (
    Attestation,
    Ended,
    ExitLine,
    HarnessFile,
    ProcessFiles,
    read_own_document,
    told_lines,
)
from gate.evidence.run_evidence import MAX_NODE, MAX_RANKS
from gate.evidence.step_lines import read_step_lines
from gate.system.files.port import Files
from gate.text.untrusted_text import plain_text
from gate.training.runs import RankEnd, told_nodes

# by process id and rank, because processes on two nodes may have the same id
Exits = Mapping[tuple[int, int | None], ExitLine]


def rank_ends(
    files: Files,
    out: Path,
    processes: tuple[ProcessFiles, ...],
    ended: Mapping[ProcessFiles, Ended],
) -> tuple[RankEnd, ...]:
    """Return the end of each known rank, in order; none if there is only one rank.

    A rank is known if it attested, if its parent started it under a number, or if another rank says
    how many ranks there are. Raises `EvidenceError` if a file cannot be read.
    """
    exits = {
        (line.pid, line.rank): line
        for line, _ in told_lines(files, out, processes, HarnessFile.EXITS, ExitLine)
    }
    attested = {
        process: read_own_document(files, out, process, HarnessFile.PROCESS, Attestation)
        for process in processes
        if HarnessFile.PROCESS in process.kinds
    }
    world = max((summary.world_size for summary in attested.values()), default=1)
    known = {end.rank: end for end in _started(exits)}
    training = tuple(_training(attested))
    if (
        len(
            known.keys()
            | {trained_rank.rank for trained_rank in training}
            # two are enough to know that there are several ranks
            | set(range(min(world, 2)))
        )
        == 1
    ):
        # reading all lines of its steps, only for the number of the last one, is not worth it
        return ()
    nodes = told_nodes({process.rank: attested[process].node for process in training})
    for process in training:
        known[process.rank] = RankEnd(
            rank=process.rank,
            node=plain_text(nodes.get(process.rank, ""))[:MAX_NODE],
            last_step=_last_step(files, out, process),
            exit_code=_exit_code(exits, process, ended),
            failed=_failed(ended.get(process)),
            told_its_end=process in ended,
        )
    # a rank that left nothing is listed too: it may be the one that failed
    missing = (rank for rank in range(min(world, MAX_RANKS)) if rank not in known)
    known |= {rank: RankEnd(rank=rank) for rank in missing}
    return tuple(known[rank] for rank in sorted(known))


def _training(attested: Mapping[ProcessFiles, Attestation]) -> Iterator[ProcessFiles]:
    """Yield one process for each rank: the one that took steps, or else the first.

    A process without steps counts only if it knows of several ranks, because a launcher trains
    nothing.
    """
    by_rank: dict[int, ProcessFiles] = {}
    for process in attested:
        if HarnessFile.STEPS in process.kinds:
            by_rank[process.rank] = process
        elif attested[process].world_size > 1:
            by_rank.setdefault(process.rank, process)
    yield from by_rank.values()


def _started(exits: Exits) -> Iterator[RankEnd]:
    """Yield the ranks whose failure a parent saw.

    For a rank that never imported torch, nothing else is known.
    """
    for line in exits.values():
        if line.rank is not None and line.rank < MAX_RANKS:
            yield RankEnd(rank=line.rank, exit_code=line.code)


def _last_step(files: Files, out: Path, process: ProcessFiles) -> int:
    if HarnessFile.STEPS not in process.kinds:
        return 0
    lines = read_step_lines(files, out, process.name(HarnessFile.STEPS))
    return int(lines.column("step").max()) if len(lines) else 0


def _exit_code(
    exits: Exits, process: ProcessFiles, ended: Mapping[ProcessFiles, Ended]
) -> int | None:
    """Return the exit code that the parent saw.

    Without one it is 0 if the process recorded a normal end, and None otherwise.
    """
    # a parent that started the process without RANK recorded no rank
    seen = exits.get((process.pid, process.rank), exits.get((process.pid, None)))
    if seen is not None:
        return seen.code
    sound = process in ended and not ended[process].exceptions
    return 0 if sound else None


def _failed(end: Ended | None) -> str:
    return plain_text(end.exceptions[0])[:200] if end is not None and end.exceptions else ""
