"""Which steps are traced, and what is believed of a traced run."""

from __future__ import annotations

import pytest
from evidence_cases import evidence_of
from report_cases import comparison

from gate.diagnosis.trace_window import same_until, window_of, with_trace
from gate.records.comparison import Comparison, Event, EventKind
from gate.records.observed.columns.digests import StepDigest, StepDigests
from gate.records.observed.traced import Claim, TraceFinding
from gate.records.verdict import Diagnosis


def _apart(step: int | None, equal_until: int | None = None) -> Comparison:
    event = Event(kind=EventKind.PARAMETERS, name="parameters", step=step, equal_until=equal_until)
    return comparison(steps_expected=20, steps_observed=20, events=(event,))


@pytest.mark.parametrize(
    ("step", "equal_until", "window"),
    [
        (1, None, (1, 1)),
        (3, 2, (1, 3)),
        (12, 11, (12, 12)),
        (12, 8, (9, 12)),
        (12, None, (12, 12)),
        (None, None, (20, 20)),
        (None, 16, (17, 20)),
    ],
)
def test_the_window_goes_from_the_last_equal_step_to_the_first_other(
    step: int | None, equal_until: int | None, window: tuple[int, int]
) -> None:
    assert window_of(_apart(step, equal_until), 20) == window


def test_a_traced_run_counts_where_it_agrees_up_to_the_difference() -> None:
    plain, traced = (
        evidence_of().model_copy(
            update={
                "steps": StepDigests.of(
                    StepDigest(step=step, parameters=digest)
                    for step, digest in enumerate(digests, 1)
                )
            }
        )
        for digests in (("a", "b", "c"), ("a", "x"))
    )
    assert same_until(plain, traced, 1)
    assert not same_until(plain, traced, 2)


def _diagnosis(trace: TraceFinding | None) -> Diagnosis | None:
    known = Diagnosis(
        first_step=1, kind=EventKind.LOSS, subject="loss", cause="the loss", remedy="Look here."
    )
    return with_trace(known, trace)


def test_what_a_trace_says_to_do_goes_first() -> None:
    found = TraceFinding(claim=Claim.CODE_PATH, sentence="a call", remedy="Look there.")
    told = _diagnosis(found)
    assert told is not None
    assert told.remedy == "Look there. If that is not it: look here."


def test_a_trace_that_found_nothing_leaves_the_remedy() -> None:
    told = _diagnosis(TraceFinding(claim=Claim.NOT_FOUND, sentence="not found"))
    assert told is not None
    assert told.remedy == "Look here."
