"""Answer checklists from the facts of an audit; this module has the public checklists.

Sources: the NeurIPS paper checklist, https://neurips.cc/public/guides/PaperChecklist, and the
machine learning reproducibility checklist that MLRC uses (J. Pineau, version 2.0),
https://www.cs.mcgill.ca/~jpineau/ReproducibilityChecklist.pdf. The second one has no numbers, so
its sections are named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from gate.audit.items import AuditedPart, AuditReport, AuditResult


class Checklist(StrEnum):
    """The checklist that an item comes from."""

    NEURIPS = "NeurIPS paper checklist"
    MLRC = "ML reproducibility checklist (MLRC)"
    PRE_PRODUCTION = "Pre-production"
    READINESS = "Production readiness"
    INCIDENT = "Incident"


SOURCES: Final = {
    Checklist.NEURIPS: "https://neurips.cc/public/guides/PaperChecklist",
    Checklist.MLRC: "https://www.cs.mcgill.ca/~jpineau/ReproducibilityChecklist.pdf",
}


class Topic(StrEnum):
    """What an item asks about; no run can answer `author` and `person`."""

    AUTHOR = "author"
    PERSON = "person"
    REPRODUCIBILITY = "reproducibility"
    ACCESS = "access"
    SETTING = "setting"
    SIGNIFICANCE = "significance"
    COMPUTE = "compute"
    DATA = "data"
    DEPENDENCIES = "dependencies"
    TRAINING_CODE = "training-code"
    RUNS = "runs"
    HYPERPARAMETERS = "hyperparameters"
    REPEATS = "repeats"
    PINNED = "pinned"
    DECLARED = "declared"
    SEEDED = "seeded"
    RESUMES = "resumes"
    SEALED = "sealed"
    MACHINE = "machine"
    WATCHED = "watched"
    NAMED = "named"
    KNOWN = "known"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChecklistItem:
    """One item: its number or section, its question, and its topic."""

    checklist: Checklist
    number: str
    asks: str
    topic: Topic = Topic.AUTHOR


class ChecklistAnswer(StrEnum):
    """An item's answer; `partly` means that the known facts answer only part of the question."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"
    AUTHOR = "for the author"
    PERSON = "for a person"


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredItem:
    """An item with its answer and facts; `missing` lists what the answer lacks."""

    item: ChecklistItem
    answer: ChecklistAnswer
    facts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def _neurips(number: int, asks: str, topic: Topic = Topic.AUTHOR) -> ChecklistItem:
    return ChecklistItem(checklist=Checklist.NEURIPS, number=str(number), asks=asks, topic=topic)


def _mlrc(section: str, asks: str, topic: Topic = Topic.AUTHOR) -> ChecklistItem:
    return ChecklistItem(checklist=Checklist.MLRC, number=section, asks=asks, topic=topic)


ITEMS: Final = (
    _neurips(1, "Claims: abstract and introduction say what the paper shows"),
    _neurips(2, "Limitations: they are discussed"),
    _neurips(3, "Theory: assumptions and proofs are complete"),
    _neurips(4, "Reproducibility: main results can be reproduced", Topic.REPRODUCIBILITY),
    _neurips(5, "Open access: data, code and the commands to run them", Topic.ACCESS),
    _neurips(6, "Setting: splits, hyperparameters and how they were chosen", Topic.SETTING),
    _neurips(7, "Significance: error bars, and what they cover", Topic.SIGNIFICANCE),
    _neurips(8, "Compute: workers, memory and time of each run", Topic.COMPUTE),
    _neurips(9, "Ethics: the conference's code is followed"),
    _neurips(10, "Impact: effects on society are discussed"),
    _neurips(11, "Safeguards: against misuse of released data and models"),
    _neurips(12, "Licenses: of existing assets"),
    _neurips(13, "New assets: they are documented"),
    _neurips(14, "People: instructions and pay of participants"),
    _neurips(15, "People: risks were reviewed"),
    _neurips(16, "Language models: their use is declared"),
    _mlrc("Models and algorithms", "Model, setting and complexity are described"),
    _mlrc("Theory", "Claims have statements and proofs"),
    _mlrc("Data", "Size, splits, exclusions and where to get the data", Topic.DATA),
    _mlrc("Code", "Dependencies are specified", Topic.DEPENDENCIES),
    _mlrc("Code", "Code that trains, and the command for it", Topic.TRAINING_CODE),
    _mlrc("Code", "Code that evaluates, trained models, a table of results"),
    _mlrc("Experiments", "Hyperparameters: range, choice and values", Topic.HYPERPARAMETERS),
    _mlrc("Experiments", "Number of runs", Topic.RUNS),
    _mlrc("Experiments", "What is reported, with mean and variation", Topic.SIGNIFICANCE),
    _mlrc("Experiments", "Time of each run, and the machines", Topic.COMPUTE),
)


Answered = tuple[ChecklistAnswer, tuple[str, ...]]
Rule = Callable[[AuditReport], Answered]
Rules = Mapping[Topic, tuple[tuple[AuditedPart, ...], Rule]]


def answered_items(report: AuditReport) -> tuple[AnsweredItem, ...]:
    """Return every item of both public checklists, in order, with its answer."""
    return tuple(
        answer_item(item, report, _ANSWERS)
        or AnsweredItem(item=item, answer=ChecklistAnswer.AUTHOR)
        for item in ITEMS
    )


def answer_item(item: ChecklistItem, report: AuditReport, rules: Rules) -> AnsweredItem | None:
    """Return the item with its rule's answer, or None if its topic has no rule."""
    answer = rules.get(item.topic)
    if answer is None:
        return None
    parts, rule = answer
    finding, facts = rule(report)
    missing = tuple(
        f"{audited.code}: {audited.found}"
        for audited in report.items
        if audited.part in parts and audited.result is not AuditResult.PASS
    )
    return AnsweredItem(
        item=item, answer=finding, facts=tuple(filter(None, facts)), missing=missing
    )


def _result(report: AuditReport, part: AuditedPart) -> AuditResult:
    return next(answer.result for answer in report.parts if answer.part is part)


def all_pass(report: AuditReport, *parts: AuditedPart) -> ChecklistAnswer:
    """Return yes if all parts pass, no if none does, else partly."""
    good = [_result(report, part) is AuditResult.PASS for part in parts]
    if all(good):
        return ChecklistAnswer.YES
    return ChecklistAnswer.PARTLY if any(good) else ChecklistAnswer.NO


def fact_words(report: AuditReport, name: str, words: str) -> str:
    """Return a fact after some words, or empty text if the fact is not known."""
    value = report.fact(name)
    return f"{words}: {value}" if value else ""


def _reproducibility(report: AuditReport) -> Answered:
    facts = (
        fact_words(report, "outcome", "outcome of the gate"),
        fact_words(report, "level", "level reached"),
        fact_words(report, "strict_runs", "runs with one seed that were compared bit for bit"),
        fact_words(report, "commit", "commit"),
    )
    return all_pass(report, *AuditedPart), facts


def _access(report: AuditReport) -> Answered:
    facts = (
        fact_words(report, "repository", "repository"),
        fact_words(report, "commit", "commit"),
        fact_words(report, "command", "command"),
        fact_words(report, "data", "data"),
    )
    # Whether readers have access to the address is for the author to say.
    known = any(facts)
    return ChecklistAnswer.PARTLY if known else ChecklistAnswer.NO, facts


def _setting(report: AuditReport) -> Answered:
    facts = (
        fact_words(report, "command", "command"),
        fact_words(report, "max_steps", "optimizer steps of the smoke training"),
        fact_words(report, "seed", "seed"),
    )
    return ChecklistAnswer.PARTLY if any(facts) else ChecklistAnswer.NO, facts


def _significance(report: AuditReport) -> Answered:
    seeds = report.fact("seeds_run")
    if seeds:
        return ChecklistAnswer.PARTLY, (f"seeds run besides the first: {seeds}",)
    return ChecklistAnswer.NO, (
        "one seed was run, so no spread is known",
        "with policy.level statistical the gate runs several seeds and reports mean and deviation",
    )


def _compute(report: AuditReport) -> Answered:
    facts = (
        fact_words(report, "device", "device"),
        fact_words(report, "cpu", "CPU"),
        fact_words(report, "memory_gib", "memory, GiB"),
        fact_words(report, "ranks", "ranks"),
        fact_words(report, "os", "system"),
        fact_words(report, "run_seconds", "seconds of all runs of the gate"),
    )
    full = bool(report.fact("device") and report.fact("run_seconds"))
    if full:
        return ChecklistAnswer.PARTLY, (*facts, "of the smoke training, not of the paper's runs")
    return ChecklistAnswer.PARTLY if any(facts) else ChecklistAnswer.NO, facts


def _data(report: AuditReport) -> Answered:
    # Splits and exclusions are in no document, so the answer is `partly` at most.
    known = all_pass(report, AuditedPart.DATA) is ChecklistAnswer.YES
    facts = (
        fact_words(report, "data", "declared data"),
        "no data is declared" if known and not report.fact("data") else "",
    )
    return ChecklistAnswer.PARTLY if known else ChecklistAnswer.NO, facts


def _dependencies(report: AuditReport) -> Answered:
    facts = (
        fact_words(report, "locks", "lock files"),
        fact_words(report, "packages", "packages with versions"),
        fact_words(report, "python", "Python"),
        fact_words(report, "torch", "torch"),
    )
    answer = all_pass(report, AuditedPart.ENVIRONMENT)
    if answer is ChecklistAnswer.NO and report.fact("packages"):
        return ChecklistAnswer.PARTLY, facts
    return answer, facts


def _training_code(report: AuditReport) -> Answered:
    facts = (fact_words(report, "commit", "commit"), fact_words(report, "command", "command"))
    command = bool(report.fact("command"))
    answer = all_pass(report, AuditedPart.CODE)
    if answer is ChecklistAnswer.YES and not command:
        return ChecklistAnswer.PARTLY, facts
    return (ChecklistAnswer.PARTLY if command and answer is ChecklistAnswer.NO else answer), facts


def _runs(report: AuditReport) -> Answered:
    facts = (
        fact_words(report, "strict_runs", "runs with one seed"),
        fact_words(report, "seeds_run", "further seeds"),
    )
    return ChecklistAnswer.PARTLY if any(facts) else ChecklistAnswer.NO, facts


_ANSWERS: Final[Rules] = MappingProxyType(
    {
        Topic.REPRODUCIBILITY: (tuple(AuditedPart), _reproducibility),
        Topic.ACCESS: ((AuditedPart.CODE, AuditedPart.DATA), _access),
        Topic.SETTING: ((AuditedPart.CONFIGURATION,), _setting),
        Topic.SIGNIFICANCE: ((AuditedPart.SEEDS,), _significance),
        Topic.COMPUTE: ((AuditedPart.HARDWARE,), _compute),
        Topic.DATA: ((AuditedPart.DATA,), _data),
        Topic.DEPENDENCIES: ((AuditedPart.ENVIRONMENT,), _dependencies),
        Topic.TRAINING_CODE: ((AuditedPart.CODE,), _training_code),
        Topic.RUNS: ((AuditedPart.SEEDS,), _runs),
        Topic.HYPERPARAMETERS: ((AuditedPart.CONFIGURATION,), _setting),
    }
)
