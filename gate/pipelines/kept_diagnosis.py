"""What `repro-gate diagnose` tells of kept evidence."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from gate.diagnosis.diagnosis import Diagnosis
from gate.text.records_document import Document
from gate.verdict.verdict import Verdict

DIAGNOSIS_SCHEMA: Final = "repro-gate.diagnosis/1"
Sentence = Annotated[str, Field(max_length=2000)]


class KeptDiagnosis(Document):
    """A diagnosis made again from kept evidence; it judges nothing.

    `expected` and `observed` are the two sides that differ; both are empty, and `diagnosis` is
    None, where nothing does. `outcome` is a verdict's, or "equal". `summary` says it in the
    words of the comment. `missing` names what the evidence does not hold, and why, one
    sentence each. `seal_checked` is always false: `repro-gate verify` checks seals.
    """

    schema_version: Literal["repro-gate.diagnosis/1"] = DIAGNOSIS_SCHEMA
    commit: str
    base_commit: str | None = None
    created_at: str
    outcome: str
    expected: str = ""
    observed: str = ""
    summary: str = ""
    diagnosis: Diagnosis | None = None
    missing: tuple[Sentence, ...] = ()
    seal_checked: Literal[False] = False


class Retold(Document):
    """What differs in kept evidence, as the reports take a verdict; None where nothing does.

    `compared` names each pair of sides that was looked at.
    """

    commit: str
    verdict: Verdict | None
    compared: tuple[str, ...]
    missing: tuple[Sentence, ...] = ()
