"""Making the items of an audit: what a look found, masked and cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gate.audit.audit import AuditedPart, AuditFact, AuditItem, AuditResult
from gate.audit.items import RepositoryFacts
from gate.text.untrusted_text import safe_line

SHOWN: Final = 3
MAX_TEXT: Final = 1000
MAX_SHOWN: Final = 100
RUN: Final = "repro-gate gate"
# a package stays as it was made: some faults only another package is free of
NOTHING_TO_TYPE: Final = "Do not use this package: no command fixes it."


def passed(part: AuditedPart, code: str, found: str) -> AuditItem:
    """It is there and as it should be."""
    return AuditItem(code=code, part=part, result=AuditResult.PASS, found=_cut(found))


def failed(
    part: AuditedPart, code: str, found: str, *, risk: str, remedy: str = "", command: str = ""
) -> AuditItem:
    """It is missing or wrong: how the number could be wrong because of it, and what mends it."""
    return _open(AuditResult.FAIL, part, code, (found, risk, remedy, command))


def unknown(
    part: AuditedPart, code: str, found: str, *, risk: str, remedy: str = "", command: str = ""
) -> AuditItem:
    """It cannot be told from here; what would tell it stands there as for a failure."""
    return _open(AuditResult.UNKNOWN, part, code, (found, risk, remedy, command))


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


def next_command(facts: RepositoryFacts) -> str:
    """The command that goes on from what there is of a gate."""
    if facts.settings is not None:
        return RUN
    return "repro-gate doctor" if facts.settings_problem else "repro-gate init"


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 rank`, `2,048 ranks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _open(
    result: AuditResult, part: AuditedPart, code: str, texts: tuple[str, str, str, str]
) -> AuditItem:
    found, risk, remedy, command = map(_cut, texts)
    return AuditItem(
        code=code,
        part=part,
        result=result,
        found=found,
        risk=risk,
        remedy=remedy,
        command=command,
    )


def _cut(text: str) -> str:
    line = safe_line(text, limit=MAX_TEXT)
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…"
