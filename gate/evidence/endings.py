"""How a run's processes ended, by what each of them said of itself: the gate's stop, or a crash.

The exit code of a command is one number for all its processes. A launcher may take the gate's stop
for a failure (the command fails, and nothing is wrong), or pass over the crash of a rank (the
command ends with 0, and a rank has failed). What each process told at its end decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from gate.errors import EvidenceError
from gate.evidence.harness_files import Ended, Summary
from gate.evidence.processes_harness_files import (
    HarnessFile,
    ProcessFiles,
    read_harness_document,
    read_own_document,
)
from gate.system.files.port import Files
from gate.text.untrusted_text import plain_text
from gate.training.runs import RunEnd, StoppedBy

MAX_SHOWN = 20
# these start a worker in which the stop, a `SystemExit`, is a failure like any other; for those
# that ask for an exit code (torchrun, accelerate, mpirun, spawn) it is the end of a run that went
# well, so what they report is a crash
LAUNCHERS = ("ray.", "submitit.", "joblib.", "concurrent.futures.", "distributed.")


def read_end(files: Files, out: Path, found: tuple[ProcessFiles, ...]) -> RunEnd:
    """Whether the gate had ended every rank, and whether a command that failed did so for that.

    That is so where every rank was stopped, as many as each of them knew of, none ended
    with an exception of its own, and whoever started them failed for that stop alone: its exception
    holds the stop, or it is a launcher's and all ranks told a sound end.

    Raises `EvidenceError` for a file that cannot be read.
    """
    ended = _read(files, out, found)
    trained = {one for one in found if HarnessFile.STEPS in one.kinds}
    failed = tuple(_failed(ended, trained))
    summaries = {
        process: read_harness_document(files, out, process.name(HarnessFile.SUMMARY), Summary)
        for process in trained
        if HarnessFile.SUMMARY in process.kinds
    }
    every = bool(trained) and summaries.keys() == trained and _as_many_as_known(summaries)
    by_gate = (one.stopped_by is StoppedBy.MAX_STEPS for one in summaries.values())
    stopped = every and all(by_gate)
    others = [end for process, end in ended.items() if process not in trained]
    of_launchers = bool(others) and all(
        name.startswith(LAUNCHERS) for name in chain.from_iterable(one.exceptions for one in others)
    )
    held = any(one.stopped for one in others) or trained <= ended.keys()
    return RunEnd(
        stopped=stopped,
        by_stop=stopped and not failed and of_launchers and held,
        failed=failed[:MAX_SHOWN],
    )


def refuse_crashed(files: Files, out: Path, found: tuple[ProcessFiles, ...]) -> None:
    """Raise `EvidenceError` where a rank ended with an exception, whatever its command made of it.

    What the rank had recorded by then may be whole, and is all the same no training that went well.
    """
    trained = {one for one in found if HarnessFile.STEPS in one.kinds}
    failed = tuple(_failed(_read(files, out, found), trained))
    if failed:
        raise EvidenceError(
            f"{failed[0]}, and the command exited with 0 all the same",
            hint="Let the command fail where a rank does: pass on the exit code of each process "
            "that it starts.",
            details=failed[:MAX_SHOWN],
        )


def _read(files: Files, out: Path, found: tuple[ProcessFiles, ...]) -> dict[ProcessFiles, Ended]:
    return {
        process: read_own_document(files, out, process, HarnessFile.ENDED, Ended)
        for process in found
        if HarnessFile.ENDED in process.kinds
    }


def _failed(ended: dict[ProcessFiles, Ended], trained: set[ProcessFiles]) -> Iterable[str]:
    for process, end in ended.items():
        if process in trained and end.exceptions:
            yield f"rank {process.rank} failed with {plain_text(end.exceptions[0])}"


def _as_many_as_known(summaries: dict[ProcessFiles, Summary]) -> bool:
    """Whether there are as many ranks as each was told: one that crashed early is missed."""
    ranks = {process.rank for process in summaries}
    told = {summary.environment.get("world_size", "") for summary in summaries.values()}
    return len(ranks) == len(summaries) and told <= {str(len(ranks)), ""}
