"""Which processes without a trace may have made a value that the training uses."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from gate.evidence.observations import SourceKind
from gate.evidence.run_evidence import RunEvidence

# Python's audit events of a program that a line starts.
STARTS: Final = frozenset(
    ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn")
)


class OtherProcesses(StrEnum):
    """Processes that a trace does not follow: a DataLoader's workers, or any that a line starts."""

    NONE = ""
    WORKERS = "workers"
    STARTED = "started"


def other_processes(runs: Iterable[RunEvidence]) -> OtherProcesses:
    """Return which processes beside the training's own ran in any of these runs."""
    known = tuple(runs)
    facts = [rank.facts for run in known for rank in run.rank_facts]
    workers = any(fact.get("loader_workers") for fact in facts)
    # a worker is forked too, so forks prove nothing beside workers
    forked = any(fact.get("forks") for fact in facts) and not workers
    started = any(
        source.kind is SourceKind.UNSEEN and source.call in STARTS
        for run in known
        for source in run.sources
    )
    if started or forked:
        return OtherProcesses.STARTED
    return OtherProcesses.WORKERS if workers else OtherProcesses.NONE
