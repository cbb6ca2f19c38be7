"""Which level a result reached, and which entries are in quarantine and do not judge."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from enum import Enum
from types import MappingProxyType

from gate.baseline.entry import BaselineEntry
from gate.comparison.differences import Comparison, ThresholdResult
from gate.comparison.level_records import LevelResult
from gate.settings.gate_settings import GateSettings
from gate.settings.levels import Level, Quarantine, ReachedLevel
from gate.verdict.facts import agree
from gate.verdict.findings import notice, warning
from gate.verdict.verdict import DRIFTS, Finding, Outcome

# The level that a result has to reach if it differs from the baseline's.
ENOUGH: Mapping[Level, ReachedLevel] = MappingProxyType(
    {
        Level.STATISTICAL: ReachedLevel.STATISTICAL,
        Level.FUNCTIONAL: ReachedLevel.FUNCTIONAL,
        Level.SCIENTIFIC: ReachedLevel.SCIENTIFIC,
    }
)
HELD: Mapping[Level, str] = MappingProxyType(
    {
        Level.STATISTICAL: "every judged metric is equivalent over the seeds",
        Level.FUNCTIONAL: "every threshold is met",
        Level.SCIENTIFIC: "the variants rank as before",
    }
)


def reached(
    outcome: Outcome,
    base_run: Comparison | None,
    thresholds: tuple[ThresholdResult, ...],
    judged: LevelResult | None,
) -> ReachedLevel | None:
    """Return the strictest level that the result reached, or None."""
    if outcome in {Outcome.REPRODUCED, Outcome.BASELINE_CHANGE}:
        return ReachedLevel.BITWISE
    if outcome is Outcome.WITHIN_TOLERANCE:
        # If the base commit gives equal bits here, this change moved none, whatever the entry's
        # bits are.
        equal = base_run is not None and base_run.numerically_equal
        return ReachedLevel.BITWISE if equal else ReachedLevel.TOLERANCE
    if outcome not in DRIFTS:
        return None
    if judged is not None and judged.reached is not None:
        return judged.reached
    # Without a threshold nothing was judged, and that is never a level (T4).
    met = bool(thresholds) and all(threshold.met for threshold in thresholds)
    return ReachedLevel.FUNCTIONAL if met else None


def is_enough(level: ReachedLevel | None, asked: Level) -> bool:
    """Return whether a result that differs from the baseline's passes at the level `asked` for."""
    return level is not None and ENOUGH.get(asked) is level


def why(asked: Level, level: ReachedLevel | None, judged: LevelResult | None) -> str:
    """Return why a different result passes at the level or misses it; "" where none was judged."""
    if is_enough(level, asked):
        return f"{HELD[asked]}, and policy.level asks for no more"
    if judged is None:
        return ""
    return f"the level {asked} was not reached: {judged.problem}"


def unfit_seed_findings(problem: str) -> tuple[Finding, ...]:
    """Could the results of several seeds not be used, neither to judge nor to record?"""
    if not problem:
        return ()
    return warning(
        "seeds-unusable",
        message=f"no baseline entry is proposed: {problem}",
        remedy="Fix that, or choose a policy.level that does not need seeds.",
    )


class SeedsOfBrought(Enum):
    """How a pull request's entry compares with this call in its results of seeds and variants."""

    AS_SEEN = "as seen"
    OTHER = "other"
    UNCHECKED = "unchecked"

    @property
    def seen(self) -> bool:
        """Whether nothing contradicts the entry."""
        return self is not SeedsOfBrought.OTHER


def seeds_of_entry(seeds: SeedsOfBrought) -> tuple[Finding, ...]:
    """Does the pull request's entry contain seed results that this call did not see?"""
    if seeds is SeedsOfBrought.OTHER:
        return warning(
            "brought-seeds",
            message="the pull request's baseline holds other results of seeds or variants than "
            "this call saw, so it does not count as reproduced",
            remedy="Record it again with these settings, or accept this call's proposal.",
        )
    if seeds is SeedsOfBrought.UNCHECKED:
        return warning(
            "brought-seeds",
            message="the pull request's baseline holds results of seeds or variants, and nothing "
            "checked them: the settings that decide here name no seeds",
            remedy="Merge the settings first and the baseline after them, or record the baseline "
            "yourself and compare.",
        )
    return ()


RENEW = "Record the entry again, or find out why it does not match; then remove the quarantine."


def in_force(
    rules: tuple[Quarantine, ...], entry: BaselineEntry | None, now: str
) -> tuple[Quarantine, ...]:
    """Return the rules that cover an entry on the UTC day of `now`, an ISO 8601 time."""
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
    """Return the rule that excuses the whole difference from the entry, or None.

    A rule for the whole entry covers everything. A rule that names metrics covers only these: apart
    from them the result has to agree with the entry, weights included.
    """
    whole = next((rule for rule in rules if not rule.metrics), None)
    if whole is not None or not rules:
        return whole
    rest = baseline.model_copy(
        update={
            "metrics": tuple(
                metric for metric in baseline.metrics if not _named(metric.metric, rules)
            ),
            "series": tuple(
                series_item
                for series_item in baseline.series
                if not _named(series_item.metric, rules)
            ),
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
    """Report the rules for an entry: in force, not needed, or expired.

    `holds`: the result agrees with the entry. `excused`: the base commit judged instead.
    """
    if entry is None:
        return ()
    day, findings = _day(now), list[Finding]()
    for rule in _covering(rules, entry):
        until = date.fromisoformat(rule.until)
        if day > until:
            findings += warning(
                "quarantine-expired",
                message=f"the quarantine of {rule_subject(rule)} ended on {rule.until} and no "
                "longer "
                f"applies: {rule.reason}",
                remedy=RENEW,
            )
        elif day < date.fromisoformat(rule.since):
            continue
        elif holds:
            findings += notice(
                "quarantine-not-needed",
                message=f"{rule_subject(rule)} is in quarantine until {rule.until}, and this "
                "result agrees with it",
                remedy="Remove it from baseline.quarantine.",
            )
        else:
            judged = (
                "the base commit, run here, judged instead" if excused else "it excused nothing"
            )
            findings += warning(
                "quarantine",
                message=f"{rule_subject(rule)} is in quarantine until {rule.until}: {rule.reason}; "
                f"{judged}",
                remedy=RENEW,
            )
    return tuple(findings)


def rule_subject(rule: Quarantine) -> str:
    """Return what a rule covers: `the baseline`, or the metric patterns that it names."""
    return f"{', '.join(rule.metrics[:3])} of the baseline" if rule.metrics else "the baseline"


def _day(now: str) -> date:
    return datetime.fromisoformat(now).astimezone(UTC).date()


def _covering(rules: tuple[Quarantine, ...], entry: BaselineEntry) -> tuple[Quarantine, ...]:
    return tuple(rule for rule in rules if rule.covers(entry.environment.parts))


def _named(metric: str, rules: tuple[Quarantine, ...]) -> bool:
    return any(rule.covers_metric(metric) for rule in rules)
