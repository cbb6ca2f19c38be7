"""The verdict as a commit status: one state and one short line."""

from __future__ import annotations

from gate.errors import ExitCode, GateError
from gate.report.brief import brief_of
from gate.report.escape import clean
from gate.report.wording import headline, sentences
from gate.system.github.pull_request_records import StatusState
from gate.verdict.verdict import Verdict

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
