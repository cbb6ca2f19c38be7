"""Which steps are worth a trace, was the traced run the one it repeats, and what it adds."""

from __future__ import annotations

from typing import Final

from gate.records.comparison import Comparison
from gate.records.observed.evidence import RunEvidence
from gate.records.observed.traced import TraceFinding
from gate.records.verdict import Diagnosis

# so near to the start the trace begins with the process: what is made before step 1 is seen too
NEAR_THE_START: Final = 3


def window_of(comparison: Comparison, max_steps: int) -> tuple[int, int]:
    """The first and last step to trace: from the last seen equal to the first that differs.

    Without a step, such as where only the end differs, up to the last one.
    """
    last = min(comparison.first_step or max_steps, max_steps)
    if last <= NEAR_THE_START:
        return 1, max(1, last)
    seen = [
        event.equal_until
        for event in comparison.events
        if event.equal_until is not None and event.equal_until < last
    ]
    return max(1, min([*seen, last - 1]) + 1), last


def same_until(plain: RunEvidence, traced: RunEvidence, last: int) -> bool:
    """Whether the parameters agree at every step up to `last` that both observed."""
    before = {step.step: step.parameters for step in plain.steps.told if step.parameters}
    return all(
        before.get(step.step, step.parameters) == step.parameters
        for step in traced.steps.told
        if step.parameters and step.step <= last
    )


def with_trace(diagnosis: Diagnosis | None, trace: TraceFinding | None) -> Diagnosis | None:
    """The diagnosis with what the traced runs say; a line known otherwise keeps its remedy."""
    if diagnosis is None or trace is None:
        return diagnosis
    known = diagnosis.suspects or diagnosis.optimizer_settings
    remedy = diagnosis.remedy
    if trace.found and trace.remedy and not known:
        remedy = f"{trace.remedy} If that is not it: {remedy[:1].lower()}{remedy[1:]}"
    return diagnosis.model_copy(update={"trace": trace, "remedy": remedy})
