"""What is compared with what: runs with each other, with the baseline's entries, with the base."""

from __future__ import annotations

from gate.baseline.entry import BaselineEntry
from gate.baseline.select import key_place
from gate.comparison.compare import compare_environments, compare_results
from gate.comparison.differences import BASELINE_SIDE, Comparison, EnvironmentChange
from gate.evidence.run_evidence import RunEvidence
from gate.verdict.request import GateRequest


def repeats_of(runs: tuple[RunEvidence, ...], request: GateRequest) -> tuple[Comparison, ...]:
    """The first run of one kind against each other one."""
    first, *others = runs
    return tuple(against_run(first, run, request) for run in others)


def first_two(runs: tuple[RunEvidence, ...], request: GateRequest) -> Comparison | None:
    """The first two runs of one kind against each other; None where there are not two."""
    return next(iter(repeats_of(runs[:2], request)), None) if runs else None


def alone(run: RunEvidence) -> Comparison:
    """Of a run that no other was made beside: nothing was compared."""
    return Comparison(
        expected=run.run.label,
        observed=run.run.label,
        metrics=(),
        series=(),
        tensors=(),
        step_faults=(),
        environment=(),
        compared_points=0,
        compared_steps=0,
        compared_tensors=0,
        steps_expected=len(run.steps),
        steps_observed=len(run.steps),
    )


def most_telling(repeats: tuple[Comparison, ...]) -> Comparison:
    """The first that differs, else the first whose environment moved, else the first."""
    apart = (one for one in repeats if not one.numerically_equal)
    moved = (one for one in repeats if one.environment)
    return next(apart, next(moved, repeats[0]))


def against_run(expected: RunEvidence, run: RunEvidence, request: GateRequest) -> Comparison:
    """Two runs, named by their labels."""
    names = (expected.run.label, run.run.label)
    return compare_results(expected, run, request.settings.compare, names)


def against_entry(
    entry: BaselineEntry | None,
    run: RunEvidence,
    request: GateRequest,
    side: str = BASELINE_SIDE,
) -> Comparison | None:
    """A run against an entry, which reports call `side`; None where there is no entry."""
    if entry is None:
        return None
    return compare_results(entry, run, request.settings.compare, (side, run.run.label))


def separated(
    nearest: BaselineEntry | None, run: RunEvidence, request: GateRequest
) -> tuple[EnvironmentChange, ...]:
    """What separates an entry that cannot judge the run, in the order of the key."""
    if nearest is None:
        return ()
    comparable = request.settings.compare.comparable_environment
    changes = compare_environments(nearest.environment, run.environment, comparable)
    return tuple(sorted(changes, key=lambda change: key_place(change.part)))
