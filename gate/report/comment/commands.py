"""What the runner reads as commands: annotations."""

from __future__ import annotations

from dataclasses import dataclass

from gate.errors import GateError
from gate.records.verdict import Finding, Severity, Verdict
from gate.report.escape import clean, command_data, command_property
from gate.report.wording import headline, sentences

# the runner shows the first ten of each level of a step and cuts a message here
MAX_PER_LEVEL = 10
MESSAGE_LIMIT = 4096
TITLE_LIMIT = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """A line that the runner shows beside the job."""

    level: Severity
    title: str
    message: str

    def command(self) -> str:
        """The workflow command."""
        # cleaned before it is escaped: a cut must not fall into the middle of an escape
        title = command_property(clean(self.title, TITLE_LIMIT))
        message = command_data(clean(self.message, MESSAGE_LIMIT))
        return f"::{self.level.value} title={title}::{message}"


def annotation_commands(verdict: Verdict) -> tuple[str, ...]:
    """The verdict, then its findings, as workflow commands; at most ten of each level."""
    level = Severity.NOTICE if verdict.passes else Severity.ERROR
    title = f"repro-gate {headline(verdict)}"
    every = [
        Annotation(level=level, title=title, message=verdict.cause or title),
        *map(_finding_annotation, verdict.findings),
    ]
    return tuple(
        annotation.command() for severity in Severity for annotation in _capped(every, severity)
    )


def fault_annotation(fault: GateError) -> str:
    """A fault that kept the gate from a verdict, as one workflow command."""
    message = sentences(fault.message, fault.hint)
    return Annotation(
        level=Severity.ERROR, title="repro-gate: no verdict", message=message
    ).command()


def _finding_annotation(finding: Finding) -> Annotation:
    return Annotation(
        level=finding.severity,
        title=f"repro-gate: {finding.code}",
        message=sentences(finding.message, finding.remedy),
    )


def _capped(every: list[Annotation], level: Severity) -> list[Annotation]:
    """Those of a level; the last one that fits counts those that do not."""
    level_annotations = [annotation for annotation in every if annotation.level is level]
    if len(level_annotations) <= MAX_PER_LEVEL:
        return level_annotations
    # the runner drops what is above the limit without a word, so the last one counts them
    shown = level_annotations[: MAX_PER_LEVEL - 1]
    more = f"{len(level_annotations) - len(shown)} more of these are in the job summary."
    return [*shown, Annotation(level=level, title="repro-gate", message=more)]
