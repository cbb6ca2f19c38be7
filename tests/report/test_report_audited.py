"""The views of an audit and of the determinism budget: complete, and harmless."""

from __future__ import annotations

from dataclasses import replace

from audit_cases import BASELINE
from harmless import hidden_characters, markdown_faults
from hypothesis import given
from report_hostile import HOSTILE
from report_outcomes import CASES

from gate.audit.checklist import ITEMS, ChecklistAnswer, Topic, answered_items
from gate.audit.items import AuditReport, LineKind, RepositoryFacts, ScriptLine, WishList
from gate.audit.production import production_items
from gate.audit.repository_answers import audit_repository
from gate.evidence.lock_files import LockFile
from gate.report.assembly import ReportLinks
from gate.report.audit_views import audit_markdown, audit_text, checklist_markdown
from gate.report.comment import comment_text
from gate.report.page.page import page_html
from gate.verdict.verdict import ClusterSource, SourceState, SourceStatus

BOUNDED = SourceState(
    kind=ClusterSource.REDUCTION,
    state=SourceStatus.BOUNDED,
    because="4 ranks, and nothing shows one order of reduction",
    figure=3e-6,
    runs=4,
)


def found(text: str) -> AuditReport:
    """An audit of a folder in which every free text is this one."""
    line = ScriptLine(file=text, line=3, kind=LineKind.FLAG, what=text, subject=text)
    facts = RepositoryFacts(
        place=text,
        commit=text,
        git_problem=text,
        changed=(text, text),
        incomplete=text,
        settings_problem=text,
        baseline=BASELINE,
        keys_problem=text,
        workflow=text,
        locks=(LockFile(path=text[:400] or "x", problem=text[:400]),),
        wishes=(WishList(path=text, packages=1, unpinned=(text,)),),
        images=(text,),
        training=text,
        script_missing=text,
        unreadable=(text,),
        lines=(line, replace(line, kind=LineKind.READS), replace(line, kind=LineKind.UNSEEDED)),
    )
    budget = (BOUNDED.model_copy(update={"because": text}),)
    return audit_repository(facts).model_copy(update={"determinism_budget": budget})


@given(HOSTILE)
def test_no_text_that_was_found_does_harm_in_markdown(text: str) -> None:
    report = found(text)
    assert markdown_faults(audit_markdown(report)) == []
    assert markdown_faults(checklist_markdown(report, production_items(report))) == []
    form = checklist_markdown(report, answered_items(report))
    lines = [line for line in form.splitlines() if not line.startswith("Source: <https://")]
    assert markdown_faults("\n".join(lines)) == []


@given(HOSTILE)
def test_no_text_that_was_found_does_harm_in_a_terminal(text: str) -> None:
    shown = audit_text(found(text))
    assert hidden_characters(shown) == set()
    assert "::" not in shown
    assert "##[" not in shown


def test_the_form_answers_every_item_and_leaves_the_rest_to_the_author() -> None:
    report = found("x")
    answered = answered_items(report)
    assert tuple(one.item for one in answered) == ITEMS
    left = [one.answer is ChecklistAnswer.AUTHOR for one in answered]
    assert left == [item.topic is Topic.AUTHOR for item in ITEMS]


def test_a_page_has_the_budget_as_a_table_and_a_comment_as_a_line() -> None:
    verdict = CASES["reproduced"].model_copy(update={"determinism_budget": (BOUNDED,)})
    comment = comment_text(verdict, ReportLinks())
    line = "| Determinism budget | reductions bounded (moved a metric at most 0.0003 % in 4 runs) |"
    assert line in comment
    page = page_html(verdict, ReportLinks())
    assert "Determinism budget" not in page.partition('id="details"')[0]
    assert "nothing shows one order of reduction" in page
    assert "at most 0.0003 % in 4 runs" in page


def test_a_verdict_without_a_budget_says_nothing_of_it() -> None:
    verdict = CASES["reproduced"].model_copy(update={"determinism_budget": ()})
    assert "Determinism budget" not in comment_text(verdict, ReportLinks())
    assert "Determinism budget" not in page_html(verdict, ReportLinks())
