"""The answer of `repro-gate audit`: seven parts of a result, each with what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.baseline.entry import Baseline
from gate.errors import ExitCode
from gate.evidence.context_documents import (
    ClusterDocument,
    DataDocument,
    EnvironmentDocument,
    SeedsDocument,
)
from gate.evidence.lock_files import LockFile
from gate.package.packing import CallDocument
from gate.settings.gate_settings import GateSettings
from gate.settings.knobs import Profile
from gate.text.document import Document
from gate.text.untrusted_text import safe_line
from gate.verdict.verdict import DeterminismBudget, Verdict

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


class LineKind(StrEnum):
    """What a line of a script does, as far as its syntax shows."""

    SEEDS = "seeds"
    UNSEEDED = "unseeded"
    DRAWS = "draws"
    FLAG = "flag"
    READS = "reads"
    DOWNLOADS = "downloads"


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class ScriptLine:
    """A line of a script; `what` is the call or the flag, `subject` the library or the path."""

    file: str
    line: int
    kind: LineKind
    what: str
    subject: str = ""

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WishList:
    """A file that names packages, and those of which it names no single version."""

    path: str
    packages: int
    unpinned: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RepositoryFacts:
    """A folder as an audit sees it; nothing of it was run.

    `commit` is empty without one, and `git_problem` says why. `names` are its files and folders,
    `incomplete` says why there are more than were looked at. `settings` is None without
    repro-gate.yml, or with one that `settings_problem` is about; `settings_place` is its folder.
    `images` are base images that are named without a digest, `modules` what the training imports.
    """

    place: str
    commit: str = ""
    git_problem: str = ""
    changed: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    incomplete: str = ""
    settings: GateSettings | None = None
    settings_place: str = ""
    settings_problem: str = ""
    baseline: Baseline | None = None
    baseline_problem: str = ""
    active_keys: int = 0
    keys_problem: str = ""
    workflow: str = ""
    locks: tuple[LockFile, ...] = ()
    wishes: tuple[WishList, ...] = ()
    images: tuple[str, ...] = ()
    training: str = ""
    script_missing: str = ""
    scripts: int = 0
    modules: frozenset[str] = frozenset()
    unreadable: tuple[str, ...] = ()
    lines: tuple[ScriptLine, ...] = ()

    @property
    def has_gate(self) -> bool:
        """Whether any file of the gate is there, be it broken."""
        return bool(
            self.settings
            or self.settings_problem
            or (self.baseline and self.baseline.entries)
            or self.baseline_problem
            or self.active_keys
            or self.keys_problem
            or self.workflow
        )


class SealCheck(StrEnum):
    """What came of a package's seal."""

    NOT_ASKED = "not-asked"
    NONE = "none"
    VALID = "valid"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageFacts:
    """A package as an audit sees it.

    A document is None where the package has none that can be read; `problems` says why, by its
    name. `settings_digest` is that of the packed settings. `seal_words` are those of the check.
    """

    place: str
    sha256: str
    members: tuple[str, ...]
    problems: dict[str, str]
    verdict: Verdict | None = None
    call: CallDocument | None = None
    environment: EnvironmentDocument | None = None
    cluster: ClusterDocument | None = None
    data: DataDocument | None = None
    seeds: SeedsDocument | None = None
    settings: GateSettings | None = None
    settings_digest: str = ""
    seal: SealCheck = SealCheck.NOT_ASKED
    seal_words: str = ""


SHOWN: Final = 3
MAX_TEXT: Final = 1000
MAX_SHOWN: Final = 100
RUN: Final = "repro-gate gate"
WEAKENED: Final = "Two runs may differ although nothing changed, or be equal by luck."
# a package stays as it was made: some faults only another package is free of
NOTHING_TO_TYPE: Final = "Do not use this package: no command fixes it."


def passed_item(part: AuditedPart, code: str, fact: str) -> AuditItem:
    """It is there and as it should be."""
    return AuditItem(code=code, part=part, result=AuditResult.PASS, found=_cut(fact))


def failed_item(
    part: AuditedPart,
    code: str,
    fact: str,
    *,
    risk: str,
    remedy: str = "",
    command: str = "",
) -> AuditItem:
    """It is missing or wrong: how the number could be wrong because of it, and what mends it."""
    return _open(AuditResult.FAIL, part, code, (fact, risk, remedy, command))


def unknown(
    part: AuditedPart,
    code: str,
    fact: str,
    *,
    risk: str,
    remedy: str = "",
    command: str = "",
) -> AuditItem:
    """It cannot be told from here; what would tell it stands there as for a failure."""
    return _open(AuditResult.UNKNOWN, part, code, (fact, risk, remedy, command))


def missing_document(
    problems: Mapping[str, str], part: AuditedPart, name: str, what: str
) -> AuditItem:
    """A document of a package that is not there, or of a version that is not read here."""
    return unknown(
        part,
        name.partition(".")[0],
        problems.get(name, f"the package holds no {name}"),
        risk=f"It is not known {what}.",
        remedy="Run the gate again with this version, or audit it with the version that made it.",
        command=RUN,
    )


def fact(name: str, value: object) -> AuditFact:
    """Something known, as text."""
    return AuditFact(name=name, value=_cut(str(value)))


def first(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    shown = ", ".join(safe_line(name, limit=MAX_SHOWN) for name in names[:SHOWN])
    rest = len(names) - SHOWN
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def weakened(settings: GateSettings) -> tuple[str, ...]:
    """What the settings take from strict mode, key by key."""
    determinism = settings.determinism
    weak = [f"allow_operators: {name}" for name in determinism.allow_operators]
    if determinism.profile is not Profile.STRICT:
        weak.append(f"profile: {determinism.profile.value}")
    return tuple(weak)


def next_command(facts: RepositoryFacts) -> str:
    """The command that goes on from what there is of a gate."""
    if facts.settings is not None:
        return RUN
    return "repro-gate doctor" if facts.settings_problem else "repro-gate init"


def _open(
    result: AuditResult, part: AuditedPart, code: str, texts: tuple[str, str, str, str]
) -> AuditItem:
    answer, risk, remedy, command = map(_cut, texts)
    return AuditItem(
        code=code,
        part=part,
        result=result,
        found=answer,
        risk=risk,
        remedy=remedy,
        command=command,
    )


def _cut(text: str) -> str:
    line = safe_line(text, limit=MAX_TEXT)
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…"
