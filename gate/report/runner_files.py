"""What a runner and GitHub read beside the comment: annotations, status, badge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gate.diagnosis.diagnosis import CodePlace
from gate.errors import ExitCode, GateError
from gate.report.brief import brief_of
from gate.report.escape import clean, command_data, command_property
from gate.report.wording import ANOTHER, headline, sentences
from gate.system.github.records import StatusState
from gate.text.json_text import canonical_json
from gate.verdict.verdict import DRIFTS, FAULT, Finding, Outcome, Severity, Verdict

# the colours are shields' own names
PASSED, LOOK_AT_IT, FAILED, NOT_CHECKED = "brightgreen", "yellow", "red", "lightgrey"


def badge_json(verdict: Verdict, *, gate_id: str = "default") -> bytes:
    """Label, message and colour, all of our own words."""
    name = "" if gate_id == "default" else f" ({gate_id})"
    badge = {
        "schemaVersion": 1,
        "label": f"repro-gate{name}",
        "message": _message(verdict),
        "color": _colour(verdict),
    }
    return canonical_json(badge) + b"\n"


def _message(verdict: Verdict) -> str:
    if verdict.missed_threshold:
        return "threshold missed"
    return "over budget" if verdict.over_budget else verdict.outcome.value


def _colour(verdict: Verdict) -> str:
    if verdict.outcome is Outcome.ERROR:
        return NOT_CHECKED
    if verdict.nothing_to_compare:
        return NOT_CHECKED
    if not verdict.passes:
        return FAILED
    return LOOK_AT_IT if verdict.outcome in ANOTHER else PASSED


# the runner shows the first ten of each level of a step and cuts a message here
MAX_PER_LEVEL = 10
MESSAGE_LIMIT = 4096
TITLE_LIMIT = 100
FILE_LIMIT = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """A line that the runner shows beside the job, and beside the line of code that it is about.

    `file` is a path in the repository; empty where no line is known.
    """

    level: Severity
    title: str
    message: str
    file: str = ""
    line: int = 0

    def command(self) -> str:
        """The workflow command."""
        # cleaned before it is escaped: a cut must not fall into the middle of an escape
        title = command_property(clean(self.title, TITLE_LIMIT))
        message = command_data(clean(self.message, MESSAGE_LIMIT))
        file = command_property(clean(self.file, FILE_LIMIT))
        place = f"file={file},line={self.line}," if file else ""
        return f"::{self.level.value} {place}title={title}::{message}"


def annotation_commands(verdict: Verdict, lines: Mapping[str, int]) -> tuple[str, ...]:
    """The verdict, then its findings, as workflow commands; at most ten of each level.

    `lines` are the Python files of the judged commit, by their paths, with how many lines each has:
    a run may name any place, and an annotation stands beside no other.
    """
    level = Severity.NOTICE if verdict.passes else Severity.ERROR
    if verdict.nothing_to_compare:
        level = Severity.WARNING
    title = f"repro-gate {headline(verdict)}"
    brief = brief_of(verdict)
    cause = _cause_place(verdict)
    file, line = _in_repository(verdict, cause, lines)
    named = _named_elsewhere(cause) if cause is not None and not file else ""
    if not file or verdict.outcome in DRIFTS:
        # the reviewer looks at the diff: the call that it moves may be anywhere
        changed, number = _changed_place(verdict)
        file, line = (changed, number) if changed else (file, line)
    verdict_annotation = Annotation(
        level=level,
        title=title,
        message=f"{brief.happened} Is it this change? {brief.this_change}{named}",
        file=file,
        line=line,
    )
    # why nothing was judged is what the verdict's own annotation says
    findings = (finding for finding in verdict.findings if finding.code != FAULT)
    every = [
        verdict_annotation,
        *(_finding_annotation(verdict, finding, lines) for finding in findings),
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


def notice_annotation(code: str, message: str) -> str:
    """Something about the report and not about the verdict, as one workflow command."""
    return Annotation(level=Severity.NOTICE, title=f"repro-gate: {code}", message=message).command()


def _finding_annotation(verdict: Verdict, finding: Finding, lines: Mapping[str, int]) -> Annotation:
    place = finding.code_place
    file, line = _in_repository(verdict, place, lines)
    named = _named_elsewhere(place) if place is not None and not file else ""
    return Annotation(
        level=finding.severity,
        title=f"repro-gate: {finding.code}",
        message=sentences(finding.message, finding.remedy) + named,
        file=file,
        line=line,
    )


def _cause_place(verdict: Verdict) -> CodePlace | None:
    """The line that the verdict blames, or that raised."""
    # of a pass it blames nothing
    diagnosis = None if verdict.passes else verdict.diagnosis
    if diagnosis is not None and diagnosis.likely:
        return diagnosis.likely[0].code_place
    trace = diagnosis.trace if diagnosis is not None else None
    if trace is not None and trace.names_a_call and trace.file:
        return CodePlace.known(trace.file, trace.line)
    faults = (finding.code_place for finding in verdict.findings if finding.code == FAULT)
    return next(faults, None)


def _changed_place(verdict: Verdict) -> tuple[str, int]:
    """The changed line, where no other is blamed: its path counts from the repository already."""
    hunk = verdict.change.hunks[0] if verdict.change is not None else None
    # a file that the commit has not, or whose lines are none, has no line to stand beside
    if hunk is None or not (hunk.first or hunk.gone):
        return "", 0
    return hunk.file, max(hunk.first, 1)


def _in_repository(
    verdict: Verdict, place: CodePlace | None, lines: Mapping[str, int]
) -> tuple[str, int]:
    """A line by its path in the repository, or nothing for one that the commit does not hold."""
    if place is None:
        return "", 0
    path = place.held_by(lines, verdict.workdir)
    return (path, place.line) if path else ("", 0)


def _named_elsewhere(place: CodePlace) -> str:
    return f" The run names {place.file}:{place.line}."


def _capped(every: list[Annotation], level: Severity) -> list[Annotation]:
    """Those of a level; the last one that fits counts those that do not."""
    level_annotations = [annotation for annotation in every if annotation.level is level]
    if len(level_annotations) <= MAX_PER_LEVEL:
        return level_annotations
    # the runner drops what is above the limit without a word, so the last one counts them
    shown = level_annotations[: MAX_PER_LEVEL - 1]
    more = f"{len(level_annotations) - len(shown)} more of these are in the job summary."
    return [*shown, Annotation(level=level, title="repro-gate", message=more)]


DESCRIPTION_LIMIT = 140


def verdict_status(verdict: Verdict) -> tuple[StatusState, str]:
    """State and description; only a pass is a success."""
    words = sentences(headline(verdict), brief_of(verdict).happened)
    return _state(verdict.exit_code), clean(words, DESCRIPTION_LIMIT)


def fault_status(fault: GateError) -> tuple[StatusState, str]:
    """The same for a gate that ended before it came to a verdict."""
    return StatusState.ERROR, clean(f"could not check. {fault.message}", DESCRIPTION_LIMIT)


def _state(exit_code: ExitCode) -> StatusState:
    if exit_code is ExitCode.PASS:
        return StatusState.SUCCESS
    return StatusState.FAILURE if exit_code is ExitCode.FAIL else StatusState.ERROR
