"""How a difference grows, as the page and the terminal show it."""

from __future__ import annotations

import pytest
from report_cases import LINKS
from report_outcomes import CODE_DRIFT

from gate.diagnosis.diagnosis import Growth, GrowthPoint, GrowthShape
from gate.report.comment import comment_text
from gate.report.diagnosis_sections import growth_section
from gate.report.layout import Limits
from gate.report.page.page import page_html
from gate.verdict.verdict import Verdict

LIMITS = Limits(deltas=5, rows=30)
POINTS = (
    GrowthPoint(step=2, absolute=1e-7, relative=1e-7),
    GrowthPoint(step=9, absolute=0.25),
)
GROWTH = Growth(
    metric="loss",
    shape=GrowthShape.EXPONENTIAL,
    sentence="grows exponentially, by a factor of 8 a step",
    points_used=8,
    first=POINTS[0],
    last=POINTS[-1],
    points=POINTS,
    factor=8.0,
)


@pytest.fixture
def grown() -> Verdict:
    assert CODE_DRIFT.diagnosis is not None
    diagnosis = CODE_DRIFT.diagnosis.model_copy(update={"growth": GROWTH})
    return CODE_DRIFT.model_copy(update={"diagnosis": diagnosis})


def test_the_sentence_stands_first_and_the_numbers_below(grown: Verdict) -> None:
    section = growth_section(grown, LIMITS)
    assert section is not None
    rows = [[cell.text for cell in row] for row in section.table.rows]
    assert rows == [
        ["What the numbers say", "Grows exponentially, by a factor of 8 a step."],
        ["Metric", "loss"],
        ["Shape", "exponential"],
        ["Steps that differ", "8"],
        ["Step 2", "1e-07, 1e-07 of the value"],
        ["Step 9", "0.25"],
    ]


def test_the_page_folds_it_among_the_details_and_the_comment_leaves_it_out(grown: Verdict) -> None:
    page = page_html(grown, LINKS)
    before, _, after = page.partition('<h2 id="details">')
    assert "Growth of the difference over the steps" not in before
    assert "<summary><h3>Growth of the difference over the steps</h3></summary>" in after
    assert "Growth of the difference" not in comment_text(grown, LINKS)


def test_without_enough_steps_there_is_no_section(grown: Verdict) -> None:
    assert grown.diagnosis is not None
    bare = grown.diagnosis.model_copy(update={"growth": None})
    assert growth_section(grown.model_copy(update={"diagnosis": bare}), LIMITS) is None
    assert growth_section(grown.model_copy(update={"diagnosis": None}), LIMITS) is None
