"""Declared data that is not what the baseline was recorded with: what that makes of a result."""

from __future__ import annotations

from gate.comparison.differences import Comparison
from gate.data.data_sets import move_sentence
from gate.verdict import reasons
from gate.verdict.facts import (
    Decision,
    Facts,
    agree,
    failed,
    inside,
    repeat_answer,
    within_tolerance,
)
from gate.verdict.verdict import DATA_MOVED, Answer, Finding, Outcome, Severity


def with_moved_data(facts: Facts, baseline: Comparison) -> Decision:
    """The entry cannot judge the code: its numbers are those of other data.

    The base commit, run here with the data as it is now, tells whether the change moves the result
    as well; where the change itself brings the data, it trains with its own and says nothing.
    """
    moved = reasons.moved_data_reason(facts.data_moved, by_change=facts.data_brought)
    base = facts.base_run
    if base is None or facts.data_brought or not _repeats(facts):
        return _drift(facts, baseline, f"{moved}, and the result {_differs(baseline)}")
    if not agree(base, facts.settings):
        against = "the base commit, run here with the same data"
        return failed(Outcome.CODE_DRIFT, f"{moved}; {reasons.drift(base, against)}", base)
    how = "the same result" if base.numerically_equal else "the result within tolerance"
    cause = (
        f"{moved}, and the result {_differs(baseline)}; with this data the base commit gives "
        f"{how} here"
    )
    return _drift(facts, baseline, cause)


def _drift(facts: Facts, baseline: Comparison, cause: str) -> Decision:
    may_pass = facts.settings.policy.data_drift == "pass"
    near = baseline.comparable_environment and baseline.comparable
    if may_pass and near and inside(baseline, facts.settings):
        return within_tolerance(facts, f"{cause}, within tolerance, and policy.data_drift is pass")
    return failed(Outcome.DATA_DRIFT, cause, baseline)


def _repeats(facts: Facts) -> bool:
    return repeat_answer(facts.base_repeat) is Answer.EQUAL


def _differs(baseline: Comparison) -> str:
    return reasons.drift(baseline, "the baseline")


def moved_data_findings(facts: Facts) -> tuple[Finding, ...]:
    """Which declared data is not what the baseline was recorded with?"""
    remedy = (
        "This change introduces it: review the data as you review code."
        if facts.data_brought
        else "Every commit trains on it now. If that is intended, record the baseline again."
    )
    return tuple(
        Finding(
            code=DATA_MOVED,
            severity=Severity.WARNING,
            message=move_sentence(move),
            remedy=remedy,
        )
        for move in facts.data_moved
    )
