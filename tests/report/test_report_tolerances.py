from __future__ import annotations

from evidence_cases import evidence_of
from report_outcomes import WITHIN_TOLERANCE

from gate.comparison.tolerances import derive, tolerance_uses
from gate.report.assembly import tolerances_section
from gate.report.layout import Limits
from gate.settings.levels import Direction, Improvement, Tolerance

LIMIT, DERIVED = derive(5, 1.3e-4, 0.95)


def _cells(rule: Tolerance) -> list[str]:
    uses = tolerance_uses(evidence_of(values=(2.0, 1.0)), (rule,))
    section = tolerances_section(
        WITHIN_TOLERANCE.model_copy(update={"tolerances": uses}), Limits(deltas=9, rows=9)
    )
    assert section is not None
    (row,) = section.table.rows
    return [cell.text for cell in row]


def test_each_tolerance_says_what_it_would_have_caught_and_where_it_comes_from() -> None:
    assert _cells(Tolerance(metric="*loss", absolute=LIMIT, derived=DERIVED)) == [
        "*loss",
        "every",
        "loss",
        "absolute 0.00094",
        "more than 0.047 % (0.00094: loss at step 1)",
        "5 runs, k = 5.094, spread 0.00013, confidence 95 %",
    ]


def test_a_one_sided_tolerance_names_the_side_that_it_sees() -> None:
    rule = Tolerance(
        metric="loss",
        relative=0.01,
        better_is=Direction.LOWER,
        improvement=Improvement.PASS,
        steps="final",
    )
    assert _cells(rule)[1:] == [
        "final",
        "loss",
        "relative 1 %",
        "more than 1 % for the worse (0.01: loss at step 2)",
        "nothing: chosen by hand",
    ]


def test_an_edited_limit_says_so_where_its_origin_would_stand() -> None:
    edited = Tolerance(metric="loss", absolute=0.5, derived=DERIVED)
    assert _cells(edited)[-1].startswith("edited: absolute is 0.5, but ")


def test_without_a_tolerance_there_is_no_table() -> None:
    bare = WITHIN_TOLERANCE.model_copy(update={"tolerances": ()})
    assert tolerances_section(bare, Limits(deltas=9, rows=9)) is None
