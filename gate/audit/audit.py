"""The answer of `repro-gate audit`: seven parts of a result, each with what it rests on."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.errors import ExitCode
from gate.text.records_document import Document
from gate.verdict.measured_determinism_budget import DeterminismBudget

AUDIT_SCHEMA: Final = "repro-gate.audit/1"
MAX_ITEMS: Final = 100
MAX_FACTS: Final = 100
Text = Annotated[str, Field(max_length=1000)]


class AuditedPart(StrEnum):
    """What a number depends on, or is proved by."""

    CODE = "code"
    ENVIRONMENT = "environment"
    DATA = "data"
    CONFIGURATION = "configuration"
    SEEDS = "seeds"
    HARDWARE = "hardware"
    SEALS = "seals"


class AuditResult(StrEnum):
    """`unknown` is what cannot be told from here; it fails nothing and is no pass."""

    PASS = "pass"  # noqa: S105 - a word of an answer
    FAIL = "fail"
    UNKNOWN = "unknown"


class AuditItem(Document):
    """One thing that was looked at.

    `found` is what is there, or missing. Where it is no pass, `risk` says how the number could be
    wrong because of it, `remedy` what to do and `command` what to type, empty where no command
    mends it.
    """

    code: str = Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")
    part: AuditedPart
    result: AuditResult
    found: Text
    risk: Text = ""
    remedy: Text = ""
    command: Text = ""


class AuditFact(Document):
    """Something that is known of the result, for a form that somebody fills in."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    value: Text


class AuditSubject(StrEnum):
    """What was audited."""

    REPOSITORY = "repository"
    PACKAGE = "package"


class PartAnswer(Document):
    """The answer of one part, from its items."""

    part: AuditedPart
    result: AuditResult


class AuditReport(Document):
    """The document that `repro-gate audit --format json` prints.

    `not_known` says what no look from here can tell.
    """

    schema_version: Literal["repro-gate.audit/1"] = AUDIT_SCHEMA
    version: Text
    subject: AuditSubject
    place: Text
    parts: Annotated[tuple[PartAnswer, ...], Field(max_length=len(AuditedPart))]
    items: Annotated[tuple[AuditItem, ...], Field(max_length=MAX_ITEMS)]
    facts: Annotated[tuple[AuditFact, ...], Field(max_length=MAX_FACTS)] = ()
    determinism_budget: DeterminismBudget = ()
    not_known: Annotated[tuple[Text, ...], Field(max_length=20)] = ()

    @property
    def exit_code(self) -> ExitCode:
        """1 when a part fails; what is unknown fails nothing."""
        failed = any(answer.result is AuditResult.FAIL for answer in self.parts)
        return ExitCode.FAIL if failed else ExitCode.PASS

    def items_of(self, part: AuditedPart) -> tuple[AuditItem, ...]:
        """What was looked at for a part."""
        return tuple(item for item in self.items if item.part is part)

    def fact(self, name: str) -> str:
        """A fact by its name, empty where it is not known."""
        return next((fact.value for fact in self.facts if fact.name == name), "")


def part_answers(items: tuple[AuditItem, ...]) -> tuple[PartAnswer, ...]:
    """All seven: one failure fails a part, and a part of which nothing is known is no pass."""
    return tuple(PartAnswer(part=part, result=_result(items, part)) for part in AuditedPart)


def _result(items: tuple[AuditItem, ...], part: AuditedPart) -> AuditResult:
    results = {item.result for item in items if item.part is part}
    if AuditResult.FAIL in results:
        return AuditResult.FAIL
    return AuditResult.PASS if results == {AuditResult.PASS} else AuditResult.UNKNOWN
