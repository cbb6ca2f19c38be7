"""Entries that do not judge for a while: which rule applies, and what a reader is told of it."""

from __future__ import annotations

from datetime import UTC, date, datetime

from gate.baseline.entry import BaselineEntry
from gate.comparison.differences import Comparison
from gate.settings.gate_settings import GateSettings
from gate.settings.quarantine import Quarantine
from gate.verdict.answers import agree
from gate.verdict.findings import notice, warning
from gate.verdict.verdict import Finding

RENEW = "Record the entry again, or find out why it does not hold; then remove the quarantine."


def in_force(
    rules: tuple[Quarantine, ...], entry: BaselineEntry | None, now: str
) -> tuple[Quarantine, ...]:
    """The rules that cover an entry on the day (UTC) of an ISO 8601 time."""
    if entry is None:
        return ()
    day = _day(now)
    return tuple(
        rule
        for rule in _covering(rules, entry)
        if date.fromisoformat(rule.since) <= day <= date.fromisoformat(rule.until)
    )


def excusing(
    baseline: Comparison, rules: tuple[Quarantine, ...], settings: GateSettings
) -> Quarantine | None:
    """The rule by which the entry does not judge this result, or None where none covers it all.

    A rule of the whole entry covers everything. Rules that name metrics cover these alone: without
    them the result has to be the entry's, weights included.
    """
    whole = next((rule for rule in rules if not rule.metrics), None)
    if whole is not None or not rules:
        return whole
    rest = baseline.model_copy(
        update={
            "metrics": tuple(one for one in baseline.metrics if not _named(one.metric, rules)),
            "series": tuple(one for one in baseline.series if not _named(one.metric, rules)),
        }
    )
    return rules[0] if agree(rest, settings) else None


def quarantine_findings(
    rules: tuple[Quarantine, ...],
    entry: BaselineEntry | None,
    now: str,
    *,
    holds: bool,
    excused: bool,
) -> tuple[Finding, ...]:
    """What a reader should know of the rules for an entry: in force, not needed, or over."""
    if entry is None:
        return ()
    day, found = _day(now), list[Finding]()
    for rule in _covering(rules, entry):
        until = date.fromisoformat(rule.until)
        if day > until:
            found += warning(
                "quarantine-expired",
                message=f"the quarantine of {described(rule)} ended on {rule.until} and excuses "
                f"nothing any more: {rule.reason}",
                remedy=RENEW,
            )
        elif day < date.fromisoformat(rule.since):
            continue
        elif holds:
            found += notice(
                "quarantine-not-needed",
                message=f"{described(rule)} is in quarantine until {rule.until}, and this "
                "result agrees with it",
                remedy="Remove it from baseline.quarantine.",
            )
        else:
            judged = (
                "the base commit, run here, judged instead" if excused else "it excused nothing"
            )
            found += warning(
                "quarantine",
                message=f"{described(rule)} is in quarantine until {rule.until}: {rule.reason}; "
                f"{judged}",
                remedy=RENEW,
            )
    return tuple(found)


def described(rule: Quarantine) -> str:
    """What a rule is about: `the baseline's entry`, or its metrics by their patterns."""
    return f"{', '.join(rule.metrics[:3])} of the baseline" if rule.metrics else "the baseline"


def _day(now: str) -> date:
    return datetime.fromisoformat(now).astimezone(UTC).date()


def _covering(rules: tuple[Quarantine, ...], entry: BaselineEntry) -> tuple[Quarantine, ...]:
    return tuple(rule for rule in rules if rule.covers(entry.environment.parts))


def _named(metric: str, rules: tuple[Quarantine, ...]) -> bool:
    return any(rule.covers_metric(metric) for rule in rules)
