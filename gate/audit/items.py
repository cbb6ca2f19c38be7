"""Records of `repro-gate audit`: what was found, seven parts of a result, and their answers."""

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
    """A part of a result: something that a number depends on, or that proves it."""

    CODE = "code"
    ENVIRONMENT = "environment"
    DATA = "data"
    CONFIGURATION = "configuration"
    SEEDS = "seeds"
    HARDWARE = "hardware"
    SEALS = "seals"


class AuditResult(StrEnum):
    """The answer of an item or part; `unknown` neither passes nor fails."""

    PASS = "pass"  # noqa: S105 - a word of an answer
    FAIL = "fail"
    UNKNOWN = "unknown"


class AuditItem(Document):
    """One thing that was looked at.

    `found` says what is there or missing. If the item does not pass, `risk` says how that could
    make the number wrong, `remedy` what to do, and `command` what to type. `command` is empty if no
    command fixes it.
    """

    code: str = Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")
    part: AuditedPart
    result: AuditResult
    found: Text
    risk: Text = ""
    remedy: Text = ""
    command: Text = ""


class AuditFact(Document):
    """A known fact about the result, used to fill in a checklist."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    value: Text


class AuditSubject(StrEnum):
    """What was audited."""

    REPOSITORY = "repository"
    PACKAGE = "package"


class PartAnswer(Document):
    """The answer of one part, derived from its items."""

    part: AuditedPart
    result: AuditResult


class AuditReport(Document):
    """The document that `repro-gate audit --format json` prints.

    `not_known` lists what an audit cannot find out.
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
        """1 if a part fails; an unknown part does not fail."""
        failed = any(answer.result is AuditResult.FAIL for answer in self.parts)
        return ExitCode.FAIL if failed else ExitCode.PASS

    def items_of(self, part: AuditedPart) -> tuple[AuditItem, ...]:
        """Return the items of a part."""
        return tuple(item for item in self.items if item.part is part)

    def fact(self, name: str) -> str:
        """Return a fact by its name, or empty text if it is not known."""
        return next((fact.value for fact in self.facts if fact.name == name), "")


def part_answers(items: tuple[AuditItem, ...]) -> tuple[PartAnswer, ...]:
    """Return all seven parts: one failed item fails a part, and a part without items is unknown."""
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
    """A line of a script; `what` is the call or flag, and `subject` the library or path."""

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
    """A file that asks for packages, and the ones for which it does not name a single version."""

    path: str
    packages: int
    unpinned: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RepositoryFacts:
    """What an audit found in a folder, without running any of it.

    `commit` is empty without one, and `git_problem` says why. `names` are its files and folders;
    `incomplete` says why some were not looked at. `settings` is None if repro-gate.yml is missing
    or has the fault in `settings_problem`; `settings_place` is its folder. `images` are base images
    without a digest, and `modules` are what the training imports.
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
        """Whether any file of the gate is there, even a broken one."""
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
    """The result of checking a package's seal."""

    NOT_ASKED = "not-asked"
    NONE = "none"
    VALID = "valid"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageFacts:
    """What an audit found in a package.

    A document is None if the package has none that can be read; `problems` then has the reason
    under its name. `settings_digest` is the digest of the packed settings. `seal_words` describe
    the result of the seal's check.
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
# A package cannot be changed, so for some faults only another package helps.
NOTHING_TO_TYPE: Final = "Do not use this package: no command fixes it."


def passed_item(part: AuditedPart, code: str, fact: str) -> AuditItem:
    """Return an item for something that is as it should be."""
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
    """Return an item for something missing or wrong, with its risk and its remedy."""
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
    """Return an item for something that the audit cannot find out, and what would find it out."""
    return _open(AuditResult.UNKNOWN, part, code, (fact, risk, remedy, command))


def missing_document(
    problems: Mapping[str, str], part: AuditedPart, name: str, what: str
) -> AuditItem:
    """Return an item for a package's document that is missing, or of an unreadable version."""
    return unknown(
        part,
        name.partition(".")[0],
        problems.get(name, f"the package holds no {name}"),
        risk=f"It is not known {what}.",
        remedy="Run the gate again with this version, or audit it with the version that made it.",
        command=RUN,
    )


def fact(name: str, value: object) -> AuditFact:
    """Return a known fact as text."""
    return AuditFact(name=name, value=_cut(str(value)))


def first(names: Sequence[str]) -> str:
    """Return the first of many names, and the number of the others."""
    shown = ", ".join(safe_line(name, limit=MAX_SHOWN) for name in names[:SHOWN])
    rest = len(names) - SHOWN
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def weakened(settings: GateSettings) -> tuple[str, ...]:
    """Return the settings that weaken strict mode, key by key."""
    determinism = settings.determinism
    weak = [f"allow_operators: {name}" for name in determinism.allow_operators]
    if determinism.profile is not Profile.STRICT:
        weak.append(f"profile: {determinism.profile.value}")
    return tuple(weak)


def next_command(facts: RepositoryFacts) -> str:
    """Return the next command for setting up or using the gate."""
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
