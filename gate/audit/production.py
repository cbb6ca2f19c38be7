"""Three checklists for operators, answered from the facts of an audit; see docs/operations.md.

An item that no file can answer is left to a person, with a command that helps to answer it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from gate.audit.checklist import (
    Answered,
    AnsweredItem,
    Checklist,
    ChecklistAnswer,
    ChecklistItem,
    Rules,
    Topic,
    all_pass,
    answer_item,
    fact_words,
)
from gate.audit.items import AuditedPart, AuditReport, AuditSubject
from gate.diagnosis.diagnosis import ResumeState
from gate.verdict.verdict import Outcome

PAIR: Final = 2
REPRODUCED: Final = frozenset(
    outcome.value
    for outcome in (Outcome.REPRODUCED, Outcome.WITHIN_TOLERANCE, Outcome.BASELINE_CHANGE)
)
RESUMES: Final = frozenset((ResumeState.EXACT.value, ResumeState.WITHIN.value))
# Help for items that only a person can answer, by checklist and number.
HELP: Final = MappingProxyType(
    {
        (Checklist.READINESS, "4"): "a rehearsal: repro-gate rollback --to last-good --rehearse",
        (Checklist.INCIDENT, "3"): "on another machine: repro-gate reproduce package.tar",
        (Checklist.INCIDENT, "4"): "the model of the last pass: repro-gate rollback --to last-good",
        (Checklist.INCIDENT, "5"): "a test that fails without the fix; a new baseline if it moved",
    }
)


def _list(checklist: Checklist, *items: tuple[str, Topic]) -> tuple[ChecklistItem, ...]:
    return tuple(
        ChecklistItem(checklist=checklist, number=str(number), asks=asks, topic=topic)
        for number, (asks, topic) in enumerate(items, 1)
    )


PRODUCTION_ITEMS: Final = (
    *_list(
        Checklist.PRE_PRODUCTION,
        ("Runs of one commit are equal, and a baseline judges them", Topic.REPEATS),
        ("Packages are pinned with hashes, images by digest", Topic.PINNED),
        ("Data are declared, and known by digest", Topic.DECLARED),
        ("Every generator has a seed", Topic.SEEDED),
        ("A run that is interrupted resumes exactly", Topic.RESUMES),
    ),
    *_list(
        Checklist.READINESS,
        ("Results are sealed, and the seal verifies", Topic.SEALED),
        ("The machine is known: device, driver, CPU", Topic.MACHINE),
        ("Each verdict goes into a history, and somebody is paged", Topic.WATCHED),
        ("A rollback was rehearsed, and is fast enough", Topic.PERSON),
    ),
    *_list(
        Checklist.INCIDENT,
        ("What failed has a name, and a runbook", Topic.NAMED),
        ("Code, environment and data of the run are known", Topic.KNOWN),
        ("It was reproduced elsewhere, or was not", Topic.PERSON),
        ("What serves is the last sealed pass", Topic.PERSON),
        ("It cannot come back unseen", Topic.PERSON),
    ),
)


def production_items(report: AuditReport) -> tuple[AnsweredItem, ...]:
    """Return every item of the three lists, in order, with its answer."""
    return tuple(answer_item(item, report, _RULES) or _open(item) for item in PRODUCTION_ITEMS)


def _open(item: ChecklistItem) -> AnsweredItem:
    facts = (HELP[item.checklist, item.number],)
    return AnsweredItem(item=item, answer=ChecklistAnswer.PERSON, facts=facts)


def _repeats(report: AuditReport) -> Answered:
    runs = report.fact("strict_runs")
    facts = (
        fact_words(report, "outcome", "outcome of the gate"),
        fact_words(report, "strict_runs", "runs with one seed that were compared bit for bit"),
    )
    enough = runs.isdecimal() and int(runs) >= PAIR
    # A repository's runs are those of its baseline, which records only equal runs.
    good = report.subject is AuditSubject.REPOSITORY or report.fact("outcome") in REPRODUCED
    return (ChecklistAnswer.YES if enough and good else ChecklistAnswer.NO), facts


def _pinned(report: AuditReport) -> Answered:
    facts = (fact_words(report, "locks", "lock files"), fact_words(report, "packages", "packages"))
    return all_pass(report, AuditedPart.ENVIRONMENT), facts


def _declared(report: AuditReport) -> Answered:
    return all_pass(report, AuditedPart.DATA), (fact_words(report, "data", "declared data"),)


def _seeded(report: AuditReport) -> Answered:
    return all_pass(report, AuditedPart.SEEDS), (fact_words(report, "seed", "seed"),)


def _resumes(report: AuditReport) -> Answered:
    state = report.fact("resume")
    facts = (
        fact_words(report, "resume", "the run that was resumed"),
        fact_words(report, "resume_setting", "checkpoint that the gate resumes from"),
    )
    if state:
        return (ChecklistAnswer.YES if state in RESUMES else ChecklistAnswer.NO), facts
    if report.fact("resume_setting"):
        return ChecklistAnswer.PARTLY, (*facts, "a package of a call says whether it is exact")
    return ChecklistAnswer.NO, ("nothing resumes a run: docs/resume.md",)


def _sealed(report: AuditReport) -> Answered:
    return all_pass(report, AuditedPart.SEALS), (
        fact_words(report, "isolation", "isolation of the runs"),
    )


def _machine(report: AuditReport) -> Answered:
    facts = (fact_words(report, "device", "device"), fact_words(report, "cpu", "CPU"))
    return all_pass(report, AuditedPart.HARDWARE), facts


def _watched(report: AuditReport) -> Answered:
    history = fact_words(report, "history", "history of verdicts")
    if history:
        # no file shows whether a page reaches somebody
        return ChecklistAnswer.PARTLY, (history, "whether a page arrives: docs/operations.md")
    if report.subject is AuditSubject.PACKAGE:
        return ChecklistAnswer.PERSON, ("the settings of the repository say where lines go",)
    return ChecklistAnswer.NO, ("the settings name no history",)


def _named(report: AuditReport) -> Answered:
    facts = (
        fact_words(report, "outcome", "outcome of the gate"),
        fact_words(report, "failure_mode", "failure mode"),
        fact_words(report, "runbook", "runbook"),
    )
    if report.fact("failure_mode"):
        return ChecklistAnswer.YES, facts
    if report.fact("outcome") in REPRODUCED:
        return ChecklistAnswer.NO, (*facts, "this is no run that failed: audit that run's package")
    if report.fact("outcome"):
        return ChecklistAnswer.PARTLY, (*facts, "no failure mode is proven: docs/runbooks.md")
    return ChecklistAnswer.PERSON, ("name the run's package: repro-gate audit --package",)


def _known(report: AuditReport) -> Answered:
    parts = (AuditedPart.CODE, AuditedPart.ENVIRONMENT, AuditedPart.DATA)
    return all_pass(report, *parts), (fact_words(report, "commit", "commit"),)


_RULES: Final[Rules] = MappingProxyType(
    {
        Topic.REPEATS: ((AuditedPart.CONFIGURATION,), _repeats),
        Topic.PINNED: ((AuditedPart.ENVIRONMENT,), _pinned),
        Topic.DECLARED: ((AuditedPart.DATA,), _declared),
        Topic.SEEDED: ((AuditedPart.SEEDS,), _seeded),
        Topic.RESUMES: ((), _resumes),
        Topic.SEALED: ((AuditedPart.SEALS,), _sealed),
        Topic.MACHINE: ((AuditedPart.HARDWARE,), _machine),
        Topic.WATCHED: ((), _watched),
        Topic.NAMED: ((), _named),
        Topic.KNOWN: ((AuditedPart.CODE, AuditedPart.ENVIRONMENT, AuditedPart.DATA), _known),
    }
)
