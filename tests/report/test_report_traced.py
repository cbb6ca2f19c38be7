"""What a trace found, as a reader sees it: a sentence, two tables, an annotation at the line."""

from __future__ import annotations

from report_cases import diagnosed

from gate.evidence.trace import Claim, Phase, TraceFinding, TraceRow
from gate.report.assembly import ReportLinks
from gate.report.brief import brief_of
from gate.report.comment import comment_text
from gate.report.diagnosis_sections import trace_sections
from gate.report.layout import Limits
from gate.report.runner_files import annotation_commands
from gate.system.git.changes import ChangedLines
from gate.verdict.verdict import Outcome, Verdict

LIMITS = Limits(deltas=10, rows=20)
FOUND = TraceFinding(
    claim=Claim.CODE_PATH,
    sentence="aten::gelu at model.py:14 is called instead of aten::relu: the code path changed",
    step=3,
    operator="aten::gelu",
    expected_operator="aten::relu",
    phase=Phase.FORWARD,
    file="model.py",
    line=14,
    absolute=0.25,
    relative=0.5,
    rows=(
        TraceRow(expected="4 aten::addmm", observed="4 aten::addmm", state="equal"),
        TraceRow(
            expected="5 aten::relu",
            observed="5 aten::gelu",
            place="model.py:14",
            state="another call",
            here=True,
        ),
    ),
    changed=tuple(ChangedLines(file="model.py", first=line, last=line) for line in range(14, 19)),
    changed_later=(ChangedLines(file="model.py", first=40, last=41, removed=True),),
)


def told(trace: TraceFinding) -> Verdict:
    return diagnosed(Outcome.CODE_DRIFT, trace=trace)


def facts(trace: TraceFinding) -> dict[str, str]:
    table = trace_sections(told(trace), LIMITS)[0].table
    return {row[0].text: row[1].text for row in table.rows}


def test_of_a_drift_the_answer_names_the_place_and_the_section_the_operator() -> None:
    assert brief_of(told(FOUND)).happened.endswith(
        "Cause: it differs. The first operator call that differs is at model.py:14."
    )
    assert facts(FOUND)["What it shows"] == FOUND.sentence


def test_of_runs_that_differ_the_answer_has_the_operator_where_no_line_is_certain() -> None:
    verdict = diagnosed(Outcome.NONDETERMINISTIC, trace=FOUND)
    assert brief_of(verdict).happened.endswith(f"Traced: {FOUND.sentence}.")


def test_the_facts_of_a_trace_stand_in_one_table() -> None:
    shown = facts(FOUND)
    assert shown["Claim"] == "code-path"
    assert shown["Step and phase"] == "3 forward"
    assert shown["How far apart"] == "up to 0.25 among sampled values, 0.5 of the largest one"
    assert shown["Changed lines that ran before it"] == (
        "model.py:14, model.py:15, model.py:16 and 2 more"
    )
    assert shown["Changed lines not seen to run before it"] == (
        "model.py:40-41 (lines removed behind it)"
    )


def test_both_traces_stand_side_by_side_around_the_point() -> None:
    table = trace_sections(told(FOUND), LIMITS)[1].table
    assert table.headings == ("Base commit", "Head commit", "Line", "State")
    assert [cell.text for cell in table.rows[1]] == [
        "5 aten::relu",
        "5 aten::gelu",
        "model.py:14",
        "here: another call",
    ]


def test_a_trace_that_found_nothing_stands_in_its_section_alone() -> None:
    nothing = TraceFinding(claim=Claim.NOT_FOUND, sentence="not found: two traced runs agree")
    assert "Traced" not in brief_of(told(nothing)).happened
    assert facts(nothing)["What it shows"] == "not found: two traced runs agree"


def test_text_of_a_trace_is_shown_as_text() -> None:
    hostile = FOUND.model_copy(update={"sentence": "<img src=x> [a](https://b) @team"})
    body = comment_text(told(hostile), ReportLinks())
    assert "<img" not in body
    assert "[a](https://b)" not in body


def test_the_annotation_stands_at_the_line_of_the_trace() -> None:
    first = annotation_commands(told(FOUND), {"model.py": 14})[0]
    assert first.startswith("::error file=model.py,line=14,")
