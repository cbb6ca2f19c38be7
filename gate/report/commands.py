"""What the runner reads: annotations, and output of the training that must not be read as such."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gate.errors import GateError
from gate.records.verdict import Finding, Severity, Verdict
from gate.report.escape import clean, command_data, command_property, visible
from gate.report.wording import headline, sentences

# the runner shows the first ten of each level of a step and cuts a message here
MAX_PER_LEVEL = 10
MESSAGE_LIMIT = 4096
TITLE_LIMIT = 100
LOG_LINE_LIMIT = 2000
LOG_PREFIX = "| "
_LINE_END = re.compile(rb"[\r\n]+")
_OLD_COMMAND = re.compile(r"##(?=\[)")
_COLONS = re.compile(r":(?=:)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """A line that the runner shows beside the job."""

    level: Severity
    title: str
    message: str

    def command(self) -> str:
        """The workflow command."""
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
    return tuple(one.command() for severity in Severity for one in _capped(every, severity))


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
    found = [one for one in every if one.level is level]
    if len(found) <= MAX_PER_LEVEL:
        return found
    shown = found[: MAX_PER_LEVEL - 1]
    more = f"{len(found) - len(shown)} more of these are in the job summary."
    return [*shown, Annotation(level=level, title="repro-gate", message=more)]


def defused_log(output: bytes) -> tuple[str, ...]:
    """The training's output as lines that the runner takes for text, never for a command.

    The runner reads `::command::` at the beginning of a line and `##[command]` anywhere, and
    ends a line at a carriage return too. A line that begins with a bar is no command; the other
    form and, for readers of the log, the colons get a space. No invisible character does that
    work: a culture-aware comparison skips it.
    """
    lines = (_LINE_END.split(output)) if output else []
    return tuple(LOG_PREFIX + _defused(line) for line in lines if line)


def _defused(line: bytes) -> str:
    text = visible(line[: 4 * LOG_LINE_LIMIT].decode("utf-8", "replace"))[:LOG_LINE_LIMIT]
    return _OLD_COMMAND.sub("## ", _COLONS.sub(": ", text)).rstrip()
