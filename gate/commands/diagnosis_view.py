"""A diagnosis made again from kept evidence, for a terminal; the caller prints it."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from gate.pipelines.kept_diagnosis import KeptDiagnosis, Retold
from gate.report.brief import brief_of
from gate.report.context import diagnosis_section
from gate.report.escape import clean
from gate.report.growth import growth_section
from gate.report.layout import Limits
from gate.report.sentence import Sentence
from gate.report.tables import section_view
from gate.report.terminal import change_lines
from gate.report.traced import trace_sections
from gate.report.wording import short

LIMITS: Final = Limits(deltas=5, rows=24)
EQUAL: Final = "equal"


def kept_diagnosis(retold: Retold, created_at: str) -> KeptDiagnosis:
    """The document for programs, with the words of the comment."""
    verdict = retold.verdict
    if verdict is None:
        return KeptDiagnosis(
            commit=retold.commit,
            created_at=created_at,
            outcome=EQUAL,
            summary=_equal(retold),
            missing=retold.missing,
        )
    compared = verdict.repeat or verdict.base_run or verdict.baseline
    return KeptDiagnosis(
        commit=retold.commit,
        base_commit=verdict.base_commit,
        created_at=created_at,
        outcome=verdict.outcome.value,
        expected=compared.expected if compared is not None else "",
        observed=compared.observed if compared is not None else "",
        summary=brief_of(verdict).happened,
        diagnosis=verdict.diagnosis,
        missing=retold.missing,
    )


def diagnosis_view(retold: Retold, *, package: bool) -> RenderableType:
    """What happened, whether it is the change, suspects and traces, and what is missing."""
    verdict = retold.verdict
    parts: list[RenderableType] = []
    if verdict is None:
        parts.append(Sentence(clean(_equal(retold))))
    else:
        brief = brief_of(verdict)
        head = f"{verdict.outcome.value}, commit {short(verdict.commit)}"
        parts.append(Text(clean(head), style="bold red"))
        parts.append(Sentence(clean(brief.happened)))
        parts += change_lines(brief.change)
        parts.append(Sentence(f"Is it this change? {clean(brief.this_change)}"))
        sections = (
            diagnosis_section(verdict, LIMITS),
            *trace_sections(verdict, LIMITS),
            growth_section(verdict, LIMITS),
        )
        parts += [section_view(section) for section in sections if section is not None]
    for sentence in retold.missing:
        parts += [Text(""), Sentence(clean(sentence), lead="Not here: ", lead_style="yellow")]
    if package:
        words = "The package's seal was not checked: `repro-gate verify` does that."
        parts += [Text(""), Sentence(words, style="dim")]
    return Group(*parts)


def _equal(retold: Retold) -> str:
    """Nothing differs in what could be compared."""
    if not retold.compared:
        return f"Nothing to compare: commit {short(retold.commit)} ran once."
    return (
        f"Nothing to diagnose: of commit {short(retold.commit)}, {'; '.join(retold.compared)} are "
        "equal, bit for bit."
    )
