"""Findings on where a training ran: what moved, which ranks are unlike, and lock files."""

from __future__ import annotations

from gate.comparison.differences import Comparison, EnvironmentChange
from gate.evidence.lock_files import LockChange, changed_locks, unlike_installed
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.training.runs import RunMode
from gate.verdict.findings import notice, warning
from gate.verdict.verdict import Finding, Severity

SHOWN_PACKAGES = 6


def environment(baseline: Comparison | None, evidence: EvidenceSet) -> tuple[Finding, ...]:
    """Return all findings on the environment of the first strict run.

    Strict runs in different environments are an error, so one is enough.
    """
    run = evidence.runs_of(RunMode.STRICT)[0]
    return (
        *environment_moved(baseline),
        *packages_aside(baseline),
        *unlike_ranks(run),
        *unreadable_locks(evidence),
        *unlike_locks(evidence, run),
        *brought_locks(evidence),
    )


def environment_moved(baseline: Comparison | None) -> tuple[Finding, ...]:
    """Which parts of the environment differ from the baseline's?"""
    changes = baseline.environment if baseline else ()
    return tuple(
        Finding(
            code="environment-moved",
            severity=Severity.NOTICE if change.comparable else Severity.WARNING,
            message=_moved(change),
        )
        for change in changes
    )


def packages_aside(baseline: Comparison | None) -> tuple[Finding, ...]:
    """Which installed packages moved that are ignored?"""
    moved = baseline.packages_aside if baseline else ()
    if not moved:
        return ()
    return notice(
        "packages-not-counted",
        message="installed packages moved that the training does not import, or that "
        f"environment.ignore names: {_first(list(moved))}",
        remedy="No action needed: they are ignored.",
    )


def unlike_ranks(run: RunEvidence) -> tuple[Finding, ...]:
    """Which ranks ran in a different environment from rank 0, and how does it differ?"""
    unlike = run.environment.unlike_ranks
    if not unlike:
        return ()
    rest = len(unlike) - SHOWN_PACKAGES
    more = f"; and {rest} more" if rest > 0 else ""
    return warning(
        "ranks-unlike",
        message="; ".join(rank.described for rank in unlike[:SHOWN_PACKAGES]) + more,
        remedy="Give every rank the same image and the same kind of machine: ranks that compute "
        "differently drift apart, and a result belongs to none of them.",
    )


def _moved(change: EnvironmentChange) -> str:
    """Return what moved, by name where it is known: two digests help nobody."""
    if not change.details:
        return f"{change.part}: {change.expected} → {change.observed}"
    named = f"{change.part}: {_first(list(change.details))}"
    return f"{named} ({change.share})" if change.share else named


def unreadable_locks(evidence: EvidenceSet) -> tuple[Finding, ...]:
    """Which lock files that were found could not be read?"""
    return tuple(
        finding
        for lock in evidence.locks
        if lock.problem
        for finding in warning(
            "lock-unreadable",
            message=f"{lock.path}: {lock.problem}",
            remedy="Regenerate the lock file with the tool that made it, so that its packages can "
            "be compared.",
        )
    )


def unlike_locks(evidence: EvidenceSet, run: RunEvidence) -> tuple[Finding, ...]:
    """Which imported packages differ from those that the lock files name?"""
    unlike = unlike_installed(evidence.locks, run.environment)
    if not unlike:
        return ()
    names = ", ".join(lock.path for lock in evidence.locks if lock.packages)
    words = _first([move.compared for move in unlike])
    return warning(
        "lock-not-installed",
        message=f"the training did not run with what {names} names: {words}",
        remedy="Install from the lock file where the training runs, or regenerate the lock file.",
    )


def brought_locks(evidence: EvidenceSet) -> tuple[Finding, ...]:
    """Which lock files differ from the base commit's, and which versions do they change?"""
    if evidence.base_commit is None or not evidence.base_locks:
        return ()
    changes = changed_locks(evidence.base_locks, evidence.locks)
    return tuple(
        finding
        for change in changes
        for finding in notice("lock-changed", message=f"{change.path} {_in_proposal(change)}")
    )


def _in_proposal(change: LockChange) -> str:
    if not change.before:
        return "is new"
    if not change.after:
        return "was removed"
    return f"changed: {_first(list(change.moved))}" if change.moved else "changed, no version did"


def _first(words: list[str]) -> str:
    rest = len(words) - SHOWN_PACKAGES
    return ", ".join(words[:SHOWN_PACKAGES]) + (f", and {rest} more" if rest > 0 else "")
