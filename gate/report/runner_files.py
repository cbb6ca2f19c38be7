"""What a runner and GitHub read beside the comment: annotations, the commit status, the badge."""

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

# these are the names of shields.io's colours
PASSED, LOOK_AT_IT, FAILED, NOT_CHECKED = "brightgreen", "yellow", "red", "lightgrey"


def badge_json(verdict: Verdict, *, gate_id: str = "default") -> bytes:
    """Return label, message and colour; no text in it comes from the training."""
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


# The runner shows only the first ten annotations of each level of a step, and cuts a message here.
MAX_PER_LEVEL = 10
MESSAGE_LIMIT = 4096
TITLE_LIMIT = 100
FILE_LIMIT = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """A message that the runner shows beside the job, and beside a line of code if one is known.

    `file` is a path in the repository, empty if no line is known.
    """

    level: Severity
    title: str
    message: str
    file: str = ""
    line: int = 0

    def command(self) -> str:
        """Return the workflow command."""
        # Clean before escaping, so that no cut can fall inside an escape.
        title = command_property(clean(self.title, TITLE_LIMIT))
        message = command_data(clean(self.message, MESSAGE_LIMIT))
        file = command_property(clean(self.file, FILE_LIMIT))
        place = f"file={file},line={self.line}," if file else ""
        return f"::{self.level.value} {place}title={title}::{message}"


def annotation_commands(verdict: Verdict, lines: Mapping[str, int]) -> tuple[str, ...]:
    """Return the verdict and then its findings as workflow commands, at most ten of each level.

    `lines` maps the judged commit's Python files to their numbers of lines. A run may name any
    place, so an annotation is only placed in these files.
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
        # A reviewer looks at the diff, and the call whose result moved may be anywhere.
        changed, number = _changed_place(verdict)
        file, line = (changed, number) if changed else (file, line)
    verdict_annotation = Annotation(
        level=level,
        title=title,
        message=f"{brief.happened} Is it this change? {brief.this_change}{named}",
        file=file,
        line=line,
    )
    # The verdict's own annotation already says why nothing was judged.
    findings = (finding for finding in verdict.findings if finding.code != FAULT)
    every = [
        verdict_annotation,
        *(_finding_annotation(verdict, finding, lines) for finding in findings),
    ]
    return tuple(
        annotation.command() for severity in Severity for annotation in _capped(every, severity)
    )


def fault_annotation(fault: GateError) -> str:
    """Return one workflow command for a fault that kept the gate from a verdict."""
    message = sentences(fault.message, fault.hint)
    return Annotation(
        level=Severity.ERROR, title="repro-gate: no verdict", message=message
    ).command()


def notice_annotation(code: str, message: str) -> str:
    """Return one workflow command about the report rather than the verdict."""
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
    """Return the line that the verdict blames, or that raised, or None."""
    # a pass blames nothing
    diagnosis = None if verdict.passes else verdict.diagnosis
    if diagnosis is not None and diagnosis.likely:
        return diagnosis.likely[0].code_place
    trace = diagnosis.trace if diagnosis is not None else None
    if trace is not None and trace.names_a_call and trace.file:
        return CodePlace.known(trace.file, trace.line)
    faults = (finding.code_place for finding in verdict.findings if finding.code == FAULT)
    return next(faults, None)


def _changed_place(verdict: Verdict) -> tuple[str, int]:
    """Return the changed line, whose path is already relative to the repository; or nothing."""
    hunk = verdict.change.hunks[0] if verdict.change is not None else None
    # A deleted file, or one without lines such as a binary file, has no line to annotate.
    if hunk is None or not (hunk.first or hunk.gone):
        return "", 0
    return hunk.file, max(hunk.first, 1)


def _in_repository(
    verdict: Verdict, place: CodePlace | None, lines: Mapping[str, int]
) -> tuple[str, int]:
    """Return a line by its path in the repository, or nothing if the commit does not have it."""
    if place is None:
        return "", 0
    path = place.held_by(lines, verdict.workdir)
    return (path, place.line) if path else ("", 0)


def _named_elsewhere(place: CodePlace) -> str:
    return f" The run names {place.file}:{place.line}."


def _capped(every: list[Annotation], level: Severity) -> list[Annotation]:
    """Return the annotations of one level; above the limit, the last one counts the rest."""
    level_annotations = [annotation for annotation in every if annotation.level is level]
    if len(level_annotations) <= MAX_PER_LEVEL:
        return level_annotations
    # The runner silently drops annotations above its limit.
    shown = level_annotations[: MAX_PER_LEVEL - 1]
    more = f"{len(level_annotations) - len(shown)} more of these are in the job summary."
    return [*shown, Annotation(level=level, title="repro-gate", message=more)]


DESCRIPTION_LIMIT = 140


def verdict_status(verdict: Verdict) -> tuple[StatusState, str]:
    """Return the state and the description of a commit status; only a pass is a success."""
    words = sentences(headline(verdict), brief_of(verdict).happened)
    return _state(verdict.exit_code), clean(words, DESCRIPTION_LIMIT)


def fault_status(fault: GateError) -> tuple[StatusState, str]:
    """Return the status of a gate that ended before it reached a verdict."""
    return StatusState.ERROR, clean(f"could not check. {fault.message}", DESCRIPTION_LIMIT)


def _state(exit_code: ExitCode) -> StatusState:
    if exit_code is ExitCode.PASS:
        return StatusState.SUCCESS
    return StatusState.FAILURE if exit_code is ExitCode.FAIL else StatusState.ERROR
