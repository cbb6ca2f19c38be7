"""What each tolerance would have caught, and what its limit was derived from."""

from __future__ import annotations

from gate.comparison.differences import ToleranceUse
from gate.comparison.measurements import CalibratedTolerance, CalibrationDocument
from gate.report.layout import Cell, Limits, Row, Section, table_of
from gate.report.wording import count, magnitude, share
from gate.settings.tolerances import Derivation
from gate.verdict.verdict import Verdict

SHOWN_METRICS = 5


def tolerances_section(verdict: Verdict, limits: Limits) -> Section | None:
    """One row for each tolerance of the settings; nothing where every metric must be equal."""
    if not verdict.tolerances:
        return None
    headings = ("Tolerance", "Steps", "Metrics", "Limit", "Smallest change caught", "Derived from")
    table = table_of(headings, map(_tolerance_row, verdict.tolerances), limits.rows)
    return Section(title=f"Tolerances ({table.total:,})", table=table)


def _tolerance_row(use: ToleranceUse) -> Row:
    more = ", ..." if len(use.metrics) > SHOWN_METRICS else ""
    return (
        Cell(use.pattern, code=True),
        Cell(use.steps),
        Cell(f"{', '.join(use.metrics[:SHOWN_METRICS])}{more}", code=bool(use.metrics)),
        Cell(" or ".join(use.limits) or "none: equal bits"),
        Cell(least_words(use)),
        Cell(f"edited: {use.misfit}" if use.misfit else derived_words(use.derived)),
    )


def least_words(use: ToleranceUse) -> str:
    """The smallest change that it would have caught, or that no change means anything to it."""
    least = use.least
    if least is None:
        return "not known: every value is zero" if use.metrics else ""
    # at a share of zero any bit that moves is outside
    if not least.share:
        return "any"
    # a one-sided tolerance is blind on its other side, and must not look as if it were not
    worse = " for the worse" if use.one_sided else ""
    return (
        f"more than {share(least.share)}{worse} ({magnitude(least.absolute)}: {least.metric} at "
        f"step {least.step})"
    )


def derived_words(derived: Derivation | None) -> str:
    """n, k, spread and confidence of a derived limit; one that was chosen by hand says so."""
    if derived is None:
        return "nothing: chosen by hand"
    return (
        f"{derived.runs} runs, k = {derived.factor:g}, spread {derived.spread:g}, confidence "
        f"{derived.confidence * 100:g} %"
    )


def calibration_headline(found: CalibrationDocument) -> str:
    """What was derived, in one sentence."""
    if not found.tolerances:
        return (
            f"Of {found.measured}, no metric moved: it needs no tolerance, which would only hide "
            "changes."
        )
    return (
        f"{count(len(found.tolerances), 'tolerance')} derived from {found.measured}, "
        f"{count(found.environments, 'environment')}, confidence {found.confidence * 100:g} %."
    )


def calibration_sections(found: CalibrationDocument, limit: int) -> tuple[Section, ...]:
    """The tolerances with their origin, and what has none or could not catch much."""
    headings = ("Metric", "Steps", "Limit", "Catches more than", "Spread", "At step", "k")
    rows = table_of(headings, map(_calibrated_row, found.tolerances), limit, 3, 4, 5, 6)
    notes = table_of(("Note",), ((Cell(note),) for note in found.notes), limit)
    sections = (
        Section(title="Derived tolerances", table=rows),
        Section(title="What to know", table=notes),
    )
    return tuple(section for section in sections if section.table.rows)


def _calibrated_row(one: CalibratedTolerance) -> Row:
    derived = one.rule.derived
    return (
        Cell(one.rule.metric, code=True),
        Cell(one.rule.steps),
        Cell(" or ".join(one.use.limits)),
        Cell(share(one.use.least.share if one.use.least else None)),
        Cell(magnitude(derived.spread if derived else None)),
        Cell(f"{one.widest_step}"),
        Cell(f"{derived.factor:g}" if derived else ""),
    )
