"""How a difference goes on over the steps: a section of the page, folded."""

from __future__ import annotations

from gate.diagnosis.measured_growth import Growth, GrowthPoint
from gate.report.layout import Cell, Limits, Section, facts_table
from gate.verdict.verdict import Verdict

TITLE = "Growth of the difference over the steps"


def growth_section(verdict: Verdict, limits: Limits) -> Section | None:
    """The shape in words, then some of the numbers; None where there are too few to tell."""
    growth = verdict.diagnosis.growth if verdict.diagnosis is not None else None
    if growth is None:
        return None
    facts = (
        ("What the numbers say", Cell(_sentence(growth))),
        ("Metric", Cell(growth.metric, code=True)),
        ("Shape", Cell(growth.shape.value)),
        ("Steps that differ", Cell(f"{growth.points_used:,}")),
        *((f"Step {point.step:,}", Cell(_size(point))) for point in growth.points),
    )
    return Section(title=TITLE, table=facts_table(facts, limits.rows), in_comment=False)


def _sentence(growth: Growth) -> str:
    return f"{growth.sentence[:1].upper()}{growth.sentence[1:]}."


def _size(point: GrowthPoint) -> str:
    share = "" if point.relative is None else f", {point.relative:.3g} of the value"
    return f"{point.absolute:.4g}{share}"
