"""Which runs, in which order: strict and default interleaved, so that drift of speed hits both."""

from __future__ import annotations

from gate.records.runs import Commit, PlannedRun, RunMode, label_of


def plan_gate(repeats: int) -> tuple[PlannedRun, ...]:
    """The runs of a gate call: strict, default, default, strict, and the other repeats.

    A drift of speed cancels out in the first four, and only those are timed.
    """
    return (
        _run(RunMode.STRICT, 1),
        _run(RunMode.DEFAULT, 1),
        _run(RunMode.DEFAULT, 2),
        *(_run(RunMode.STRICT, number) for number in range(2, repeats + 1)),
    )


def plan_record(repeats: int) -> tuple[PlannedRun, ...]:
    """The runs that a baseline is recorded from, which must be equal."""
    return tuple(run for run in plan_gate(repeats) if run.mode is RunMode.STRICT)


def plan_base() -> tuple[PlannedRun, ...]:
    """The base commit twice on this machine: their difference is the machine's own."""
    return _run(RunMode.STRICT, 1, Commit.BASE), _run(RunMode.STRICT, 2, Commit.BASE)


def plan_operator_audit() -> PlannedRun:
    """One more run that counts operators and is never judged."""
    return _run(RunMode.AUDIT, 1)


def _run(mode: RunMode, number: int, commit: Commit = Commit.HEAD) -> PlannedRun:
    return PlannedRun(label=label_of(mode, number, commit), mode=mode, commit=commit)
