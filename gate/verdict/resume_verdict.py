"""What a resume check means for the verdict: the outcome it leads to, and findings."""

from __future__ import annotations

from typing import Final

from gate.diagnosis.diagnosis import CodePlace, ResumeResult, ResumeState
from gate.diagnosis.killed_saves import WRITE_BESIDE, kill_words, torn_words
from gate.evidence.observations import LeftBy
from gate.verdict.facts import Decision, Facts, failed
from gate.verdict.findings import notice, warning
from gate.verdict.verdict import Finding, Outcome, Severity

DIFFERS, NOT_CHECKED = "resume-differs", "resume-not-checked"
TORN, NOT_KILLED = "checkpoint-torn", "save-not-interrupted"
# The first thing a person should read.
LIST: Final = "docs/resume.md lists what an exact resume needs."
NOTHING_COMPLETE: Final = "a run that is killed inside the save leaves no complete checkpoint"


def unrepeated_start(facts: Facts) -> Decision | None:
    """Return a decision if the interrupted run differs before its interruption, else None.

    Such a run tests repeating, not resuming.
    """
    return None if facts.resume is None else start_differs(facts.resume)


def start_differs(result: ResumeResult) -> Decision | None:
    """Return the decision on an interrupted run that differs before its interruption, else None."""
    if result.state is not ResumeState.NOT_REPEATED:
        return None
    first = result.compared.first_step if result.compared is not None else None
    at = f" at step {first}" if first is not None else ""
    cause = f"the interrupted run differs from the strict runs{at}, before it was interrupted"
    return failed(Outcome.NONDETERMINISTIC, cause, result.compared)


def stopped_by_resume(facts: Facts) -> Decision | None:
    """Return a decision for a resume that differs or could not be checked, else None.

    Under the policy `warn` it never stops a pass.
    """
    if facts.resume is None or facts.settings.policy.resume == "warn":
        return None
    return resume_fails(facts.resume)


def resume_fails(result: ResumeResult) -> Decision | None:
    """Return the decision on a resume that differs or could not be checked, else None."""
    if result.fault is not None:
        return failed(Outcome.ERROR, f"the resume could not be checked: {result.fault.message}")
    if result.state is ResumeState.DIFFERS:
        return failed(Outcome.RESUME_DIFFERS, differs_words(result))
    if result.torn is not None:
        return failed(Outcome.RESUME_DIFFERS, NOTHING_COMPLETE)
    return None


def differs_words(result: ResumeResult) -> str:
    """Return a clause on where the resumed run diverges from the uninterrupted one."""
    first = result.compared.first_step if result.compared is not None else None
    at = f"from step {first} on" if first is not None else "at the end"
    return (
        f"the run that was resumed after step {result.step} differs from the uninterrupted one {at}"
    )


def kill_findings(result: ResumeResult | None) -> tuple[Finding, ...]:
    """Report what runs left that were killed inside the save, or why a kill proves nothing."""
    if result is None:
        return ()
    if result.torn is not None:
        words = torn_words(result.torn, result.checkpoint)
        return (
            Finding(
                code=TORN,
                severity=Severity.WARNING,
                message=f"{words} ({kill_words(result.torn, result.checkpoint)})",
                remedy=WRITE_BESIDE,
                code_place=CodePlace.known(result.torn.file, result.torn.line),
            ),
        )
    unsaid = next((kill for kill in result.kills if not kill.is_good), None)
    if unsaid is None:
        return ()
    if unsaid.left is LeftBy.NOTHING_YET:
        return notice(
            NOT_KILLED,
            message=f"A kill inside the save was not checked: {result.checkpoint} had not been "
            "written before",
            remedy="Set resume.at_step to the second step at which the script saves.",
        )
    return notice(
        NOT_KILLED,
        message=f"A kill inside the save was not checked: {unsaid.why}",
        remedy="docs/resume.md lists which saves can be interrupted.",
    )


def resume_findings(facts: Facts) -> tuple[Finding, ...]:
    """Report a failed resume where the policy only warns."""
    result = facts.resume
    if result is None or facts.settings.policy.resume != "warn":
        return ()
    if result.fault is not None:
        message = f"The resume could not be checked: {result.fault.message}."
        return warning(NOT_CHECKED, message=message, remedy=result.fault.hint)
    if result.state is not ResumeState.DIFFERS:
        return ()
    because = f": {result.causes[0].sentence}" if result.causes else ""
    words = differs_words(result)
    message = f"{words[0].upper()}{words[1:]}{because}."
    return warning(DIFFERS, message=message, remedy=LIST)
