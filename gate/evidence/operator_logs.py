"""Read what each process wrote about operators and overrides, as untrusted bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, field_validator

from gate.errors import EvidenceError, RunError
from gate.evidence.columns import MAX_STEP
from gate.evidence.harness_files import (
    Count,
    HarnessFile,
    OwnedDocument,
    ProcessFiles,
    plain_fields,
    read_own_document,
    told_lines,
)
from gate.evidence.observations import Override, OverrideLine
from gate.evidence.operator_records import (
    Autotuner,
    FileName,
    Line,
    Name,
    OperatorAudit,
    OperatorUse,
    Refusal,
    Span,
)
from gate.evidence.run_evidence import RunEvidence
from gate.settings.train_sections import OnOverride
from gate.system.files.port import Files
from gate.text.document import Document
from gate.text.phrases import count
from gate.text.untrusted_text import plain_text
from gate.training.operator_tables import admitting_entry, remedy_for

MAX_USES = 1000
MAX_SPANS = 500
MAX_NAMES = 200
MAX_REFUSALS = 100
Item = TypeVar("Item")
Number = Annotated[int, Field(ge=1, le=MAX_STEP)]
SpanLine = tuple[Number, Number, Number]


class UseLine(Document):
    """An entry of `uses`; each span is `[first step, last step, calls in each step]`."""

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
    """`operators-rR-P.json`: operators that one process refused and counted, and its imports."""

    refused: Annotated[tuple[Refusal, ...], Field(max_length=MAX_REFUSALS)]
    uses: Annotated[tuple[UseLine, ...], Field(max_length=MAX_USES)]
    modules: Annotated[tuple[Name, ...], Field(max_length=MAX_NAMES)]
    autotuners: Annotated[tuple[Autotuner, ...], Field(max_length=MAX_NAMES)]
    extensions: Annotated[tuple[Name, ...], Field(max_length=MAX_NAMES)]
    dropped: Count


def read_operator_audit(
    files: Files, out: Path, processes: tuple[ProcessFiles, ...]
) -> OperatorAudit:
    """Return what all processes of a run noted about operators, lower ranks first.

    At most `MAX_USES` uses are kept; the others are only counted. Raises `EvidenceError` for a
    broken file.
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
        # uses that are cut here count as dropped too, so that a report does not claim to be
        # complete
        dropped=sum(audit.dropped for audit in documents) + len(uses[MAX_USES:]),
    )


def _use(line: UseLine) -> OperatorUse:
    spans = tuple(Span(first=first, last=last, calls=calls) for first, last, calls in line.spans)
    fields: Mapping[str, object] = line.model_dump(exclude={"spans"})
    return OperatorUse.model_validate({**fields, "spans": spans})


def _distinct(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(dict.fromkeys(items))


def explained(fault: RunError, refused: tuple[Refusal, ...]) -> RunError:
    """Return the failure of a run, explained by the operator that strict mode refused, if any."""
    if not refused:
        return fault
    # the last refusal ended the run: the script caught any earlier one and continued
    first = refused[-1]
    # the training wrote these texts
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


SHOWN = 20


def read_overrides(
    files: Files, out: Path, processes: tuple[ProcessFiles, ...]
) -> tuple[Override, ...]:
    """Return the overrides that every process logged, in the order of ranks and processes.

    Raises `EvidenceError` for a log that is malformed or longer than the harness writes.
    """
    lines = told_lines(files, out, processes, HarnessFile.OVERRIDES, OverrideLine)
    return tuple(_of_process(line, process) for line, process in lines)


def _of_process(line: OverrideLine, process: ProcessFiles) -> Override:
    fields = plain_fields(line, _OVERRIDE_TEXTS)
    return Override.model_validate({**fields, "rank": process.rank, "pid": process.pid})


# the fields with the script's own text, which must be made safe before a report shows it
_OVERRIDE_TEXTS = ("name", "before", "after", "file")


def refuse_overrides(run: RunEvidence, mode: OnOverride) -> None:
    """Raise `EvidenceError` if `mode` is `fail` and a strict run overrode settings of the gate.

    Seeds of the script's own and suspended determinism are allowed in every mode.
    """
    overrides = [override for override in run.overrides if override.weakens]
    if mode is not OnOverride.FAIL or not run.run.mode.is_strict or not overrides:
        return
    details = tuple(
        f"{override.place}, step {override.step}: {override.name} from "
        f"{override.before or 'unset'} to {override.after or 'unset'}"
        for override in overrides[:SHOWN]
    )
    raise EvidenceError(
        f"run {run.run.label}: the training overrode what the gate had set "
        f"({count(len(overrides), 'time')})",
        hint="Remove these lines from the script, or set determinism.on_override to observe or "
        "restore.",
        details=details,
    )
