"""`operators-rR-P.json` of every process, read as untrusted bytes and put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, field_validator

from gate.errors import RunError
from gate.evidence.harness_files import Count, OwnedDocument
from gate.evidence.operators import (
    Autotuner,
    FileName,
    Line,
    Name,
    OperatorAudit,
    OperatorUse,
    Refusal,
    Span,
)
from gate.evidence.point import MAX_STEP
from gate.evidence.processes_harness_files import HarnessFile, ProcessFiles, read_own_document
from gate.system.files.port import Files
from gate.text.records_document import Document
from gate.text.untrusted_text import plain_text
from gate.training.remedies import admitting_entry, remedy_for

MAX_USES = 1000
MAX_SPANS = 500
MAX_NAMES = 200
MAX_REFUSALS = 100
Item = TypeVar("Item")
Number = Annotated[int, Field(ge=1, le=MAX_STEP)]
SpanLine = tuple[Number, Number, Number]


class UseLine(Document):
    """An entry of `uses`: spans are `[first step, last step, calls in each]`."""

    source: Literal["alert", "call"]
    operator: Name
    device: Annotated[str, Field(max_length=20)]
    direction: Literal["forward", "backward"]
    file: FileName
    line: Line
    spans: Annotated[tuple[SpanLine, ...], Field(max_length=MAX_SPANS)]

    @field_validator("spans")
    @classmethod
    def _forward(cls, spans: tuple[SpanLine, ...]) -> tuple[SpanLine, ...]:
        for first, last, _ in spans:
            if last < first:
                message = f"a span ends at step {last}, before its first step {first}"
                raise ValueError(message)
        return spans


class OperatorAuditDocument(OwnedDocument):
    """`operators-rR-P.json`: what one process refused, counted and found imported."""

    refused: Annotated[tuple[Refusal, ...], Field(max_length=MAX_REFUSALS)]
    uses: Annotated[tuple[UseLine, ...], Field(max_length=MAX_USES)]
    modules: Annotated[tuple[Name, ...], Field(max_length=MAX_NAMES)]
    autotuners: Annotated[tuple[Autotuner, ...], Field(max_length=MAX_NAMES)]
    extensions: Annotated[tuple[Name, ...], Field(max_length=MAX_NAMES)]
    dropped: Count


def read_operator_audit(
    files: Files, out: Path, processes: tuple[ProcessFiles, ...]
) -> OperatorAudit:
    """What all processes of a run noted; the first ranks and processes come first.

    At most `MAX_USES` uses are kept, the others are counted. `EvidenceError` for a broken file.
    """
    documents = tuple(
        read_own_document(files, out, process, HarnessFile.OPERATOR_AUDIT, OperatorAuditDocument)
        for process in processes
        if HarnessFile.OPERATOR_AUDIT in process.kinds
    )
    uses = tuple(_use(line) for document in documents for line in document.uses)
    return OperatorAudit(
        refused=_distinct(item for audit in documents for item in audit.refused)[:MAX_REFUSALS],
        uses=uses[:MAX_USES],
        modules=_distinct(item for audit in documents for item in audit.modules)[:MAX_NAMES],
        autotuners=_distinct(item for audit in documents for item in audit.autotuners)[:MAX_NAMES],
        extensions=_distinct(item for audit in documents for item in audit.extensions)[:MAX_NAMES],
        dropped=sum(audit.dropped for audit in documents) + len(uses[MAX_USES:]),
    )


def _use(line: UseLine) -> OperatorUse:
    spans = tuple(Span(first=first, last=last, calls=calls) for first, last, calls in line.spans)
    told: Mapping[str, object] = line.model_dump(exclude={"spans"})
    return OperatorUse.model_validate({**told, "spans": spans})


def _distinct(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(dict.fromkeys(items))


def explained(fault: RunError, refused: tuple[Refusal, ...]) -> RunError:
    """The failure of a run, explained by the operator that strict mode refused, if one was."""
    if not refused:
        return fault
    # the last one ended the run: the script caught those before it and went on
    first = refused[-1]
    name = plain_text(first.operator)
    where = plain_text(f"{first.place}, step {first.step}")
    return RunError(
        f"{fault.message}: strict mode refused {name} at {where}: it has no deterministic "
        "implementation",
        hint=f"{remedy_for(name)} To allow it at a weaker level, add to repro-gate.yml: "
        f"{admitting_entry((name,))}",
        details=fault.details,
        file=fault.file,
        line=fault.line,
    )
