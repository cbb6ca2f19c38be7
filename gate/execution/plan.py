"""Which runs, in which order: strict and default interleaved, so that drift of speed hits both."""

from __future__ import annotations

from gate.records.runs import Commit, PlannedRun, RunMode

STRICT_PREFIX = "strict"
DEFAULT_PREFIX = "default"
BASE_PREFIX = "base"
AUDIT_LABEL = "audit-1"


def plan_gate() -> tuple[PlannedRun, ...]:
    """The runs of a gate call: strict, default, default, strict; a drift of speed cancels out."""
    return (
        PlannedRun(label=f"{STRICT_PREFIX}-1", mode=RunMode.STRICT),
        PlannedRun(label=f"{DEFAULT_PREFIX}-1", mode=RunMode.DEFAULT),
        PlannedRun(label=f"{DEFAULT_PREFIX}-2", mode=RunMode.DEFAULT),
        PlannedRun(label=f"{STRICT_PREFIX}-2", mode=RunMode.STRICT),
    )


def plan_record() -> tuple[PlannedRun, ...]:
    """The runs that a baseline is recorded from: two, which must be equal."""
    return tuple(run for run in plan_gate() if run.mode is RunMode.STRICT)


def plan_base() -> tuple[PlannedRun, ...]:
    """The base commit twice on this machine: their difference is the machine's own."""
    return (
        PlannedRun(label=f"{BASE_PREFIX}-1", mode=RunMode.STRICT, commit=Commit.BASE),
        PlannedRun(label=f"{BASE_PREFIX}-2", mode=RunMode.STRICT, commit=Commit.BASE),
    )


def plan_operator_audit() -> PlannedRun:
    """One more run that counts operators and is never judged."""
    return PlannedRun(label=AUDIT_LABEL, mode=RunMode.AUDIT)
