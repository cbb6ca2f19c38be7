"""The operator's checklists: each item is answered from facts, or stays open for a person."""

from __future__ import annotations

from dataclasses import replace

import pytest
from audit_cases import BASELINE
from evidence_cases import settings_of

from gate.audit.checklist import AnsweredItem, Checklist, ChecklistAnswer, Topic
from gate.audit.items import AuditReport, AuditSubject, RepositoryFacts, fact
from gate.audit.production import HELP, PRODUCTION_ITEMS, production_items
from gate.audit.repository_answers import audit_repository

BARE = RepositoryFacts(place="/here")
SET_UP = RepositoryFacts(
    place="/here",
    commit="a" * 40,
    settings=settings_of(resume={"checkpoint": "last.pt", "at_step": 2}, report={"history": True}),
    baseline=BASELINE,
    active_keys=1,
    workflow="gate.yml",
)


def of_package(**facts: str) -> AuditReport:
    report = audit_repository(SET_UP)
    known = tuple(fact(name, value) for name, value in facts.items())
    return report.model_copy(update={"subject": AuditSubject.PACKAGE, "facts": known})


def answer(report: AuditReport, topic: Topic) -> AnsweredItem:
    (found,) = [one for one in production_items(report) if one.item.topic is topic]
    return found


def test_the_lists_have_five_four_and_five_items() -> None:
    counts = [sum(one.checklist is name for one in PRODUCTION_ITEMS) for name in Checklist]
    assert counts == [0, 0, 5, 4, 5]


def test_what_only_a_person_can_answer_comes_with_a_command_or_a_deed() -> None:
    asked = {(one.checklist, one.number) for one in PRODUCTION_ITEMS if one.topic is Topic.PERSON}
    assert asked == set(HELP)
    answers = {one.answer for one in production_items(audit_repository(SET_UP))
               if one.item.topic is Topic.PERSON}  # fmt: skip
    assert answers == {ChecklistAnswer.PERSON}


def test_a_bare_folder_is_ready_for_nothing() -> None:
    answers = {one.answer for one in production_items(audit_repository(BARE))}
    assert ChecklistAnswer.YES not in answers
    assert ChecklistAnswer.PARTLY not in answers


def test_a_repository_that_is_set_up_says_what_it_has() -> None:
    report = audit_repository(SET_UP)
    assert answer(report, Topic.REPEATS).answer is ChecklistAnswer.YES
    assert answer(report, Topic.SEALED).answer is ChecklistAnswer.YES
    # that it is set says neither that a resume is exact nor that a page arrives
    assert answer(report, Topic.RESUMES).answer is ChecklistAnswer.PARTLY
    assert answer(report, Topic.WATCHED).answer is ChecklistAnswer.PARTLY


def test_one_run_is_no_repeat() -> None:
    entry = BASELINE.entries[0].model_copy(update={"equal_runs": 1})
    facts = replace(SET_UP, baseline=BASELINE.model_copy(update={"entries": (entry,)}))
    assert answer(audit_repository(facts), Topic.REPEATS).answer is ChecklistAnswer.NO


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("exact", ChecklistAnswer.YES),
        ("within-tolerance", ChecklistAnswer.YES),
        ("differs", ChecklistAnswer.NO),
        ("not-checked", ChecklistAnswer.NO),
    ],
)
def test_a_package_says_whether_its_run_resumed(state: str, expected: ChecklistAnswer) -> None:
    assert answer(of_package(resume=state), Topic.RESUMES).answer is expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"outcome": "nondeterministic", "failure_mode": "F1"}, ChecklistAnswer.YES),
        ({"outcome": "nondeterministic"}, ChecklistAnswer.PARTLY),
        ({"outcome": "reproduced"}, ChecklistAnswer.NO),
        ({}, ChecklistAnswer.PERSON),
    ],
)
def test_an_incident_has_a_name_only_where_one_is_proven(
    facts: dict[str, str], expected: ChecklistAnswer
) -> None:
    assert answer(of_package(**facts), Topic.NAMED).answer is expected
