"""What each tolerance would have caught, and what its limit was derived from."""

from __future__ import annotations

from gate.records.comparison import ToleranceUse
from gate.records.sections.tolerances import Derivation
from gate.records.verdict import Verdict
from gate.report.layout import Cell, Limits, Row, Section, table_of
from gate.report.wording import magnitude, share

SHOWN_METRICS = 5


def tolerances_section(verdict: Verdict, limits: Limits) -> Section | None:
    """One row for each tolerance of the settings; nothing where every metric must be equal."""
    if not verdict.tolerances:
        return None
    headings = ("Tolerance", "Steps", "Metrics", "Limit", "Smallest change caught", "Derived from")
    table = table_of(headings, map(_row, verdict.tolerances), limits.rows)
    return Section(title=f"Tolerances ({table.total:,})", table=table)


def _row(use: ToleranceUse) -> Row:
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
