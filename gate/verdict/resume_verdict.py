"""What the verdict says of a resume: the outcome that it leads to, and findings."""

from __future__ import annotations

from typing import Final

from gate.diagnosis.diagnosis import ResumeResult, ResumeState
from gate.verdict.facts import Decision, Facts, failed
from gate.verdict.findings import warning
from gate.verdict.verdict import Finding, Outcome

DIFFERS, NOT_CHECKED = "resume-differs", "resume-not-checked"
# what a person looks at first
LIST: Final = "docs/resume.md lists what an exact resume needs."


def unrepeated_start(facts: Facts) -> Decision | None:
    """The interrupted run gave other first steps than the uninterrupted one: that is no resume."""
    result = facts.resume
    if result is None or result.state is not ResumeState.NOT_REPEATED:
        return None
    first = result.compared.first_step if result.compared is not None else None
    at = f" at step {first}" if first is not None else ""
    cause = f"the interrupted run differs from the strict runs{at}, before it was interrupted"
    return failed(Outcome.NONDETERMINISTIC, cause, result.compared)


def stopped_by_resume(facts: Facts) -> Decision | None:
    """A resume that differs, or could not be checked, where the policy does not only warn."""
    result = facts.resume
    if result is None or facts.settings.policy.resume == "warn":
        return None
    if result.fault is not None:
        return failed(Outcome.ERROR, f"the resume could not be checked: {result.fault.message}")
    if result.state is ResumeState.DIFFERS:
        return failed(Outcome.RESUME_DIFFERS, differs_words(result))
    return None


def differs_words(result: ResumeResult) -> str:
    """Where the resumed run leaves the uninterrupted one."""
    first = result.compared.first_step if result.compared is not None else None
    at = f"from step {first} on" if first is not None else "at the end"
    return (
        f"the run that was resumed after step {result.step} differs from the uninterrupted one {at}"
    )


def resume_findings(facts: Facts) -> tuple[Finding, ...]:
    """What a policy that only warns leaves to be said."""
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
