"""Which steps are traced, and what is believed of a traced run."""

from __future__ import annotations

import pytest
from each_row import each_row
from evidence_cases import evidence_of, manifest_of, series_of
from hypothesis import given
from hypothesis import strategies as st
from report_cases import comparison

from gate.comparison.differences import Comparison, Event, EventKind
from gate.diagnosis.diagnosis import Diagnosis
from gate.diagnosis.trace_window import (
    optimizers_of,
    reach_of,
    same_thing,
    same_until,
    shown_by,
    with_trace,
)
from gate.evidence.columns import Points
from gate.evidence.run_evidence import MetricSeries, MetricSource, RunEvidence
from gate.evidence.step_columns import StepDigest, StepDigests
from gate.evidence.trace import Claim, TraceFinding
from gate.training.runs import EarlyEnd


def _apart(step: int | None, equal_until: int | None = None) -> Comparison:
    event = Event(kind=EventKind.PARAMETERS, name="parameters", step=step, equal_until=equal_until)
    return comparison(steps_expected=20, steps_observed=20, events=(event,))


@each_row(
    ("step", "equal_until", "window", "whole"),
    [
        (1, None, (1, 1), False),
        (3, 2, (1, 3), False),
        (12, 11, (12, 12), False),
        (12, 8, (9, 12), False),
        (12, None, (12, 12), False),
        (20, 19, (20, 20), True),
        (None, None, (20, 20), True),
        (None, 16, (17, 20), True),
    ],
)
def test_the_window_goes_from_the_last_equal_step_to_the_first_other(
    step: int | None, equal_until: int | None, window: tuple[int, int], *, whole: bool
) -> None:
    reach = reach_of(_apart(step, equal_until), ())
    assert ((reach.first, reach.last), reach.whole, reach.written) == (window, whole, False)


def _metric(own: int | None, step: int | None, kind: EventKind = EventKind.METRIC) -> Comparison:
    event = Event(kind=kind, name="file.accuracy", step=step, own_step=own)
    return comparison(steps_expected=20, steps_observed=20, events=(event,))


def _with_rows(*rows: int, **changes: object) -> RunEvidence:
    points = Points((row, 0.5) for row in rows)
    series = MetricSeries(
        name="file.accuracy", dtype="float64", source=MetricSource.FILE, points=points
    )
    return evidence_of().model_copy(update={"metrics": (series,), **changes})


@each_row(
    ("rows", "own", "step", "window"),
    [
        # a script that counts steps: behind the last number that was equal
        ((5, 10, 15, 20), 5, 5, (1, 5)),
        ((5, 10, 15, 20), 10, 10, (6, 10)),
        ((0, 4, 8), 4, 5, (2, 5)),
        # epochs, which come at regular intervals
        ((0, 1, 2, 3), 0, None, (1, 5)),
        ((0, 1, 2, 3), 2, None, (11, 15)),
        ((1,), 1, None, (1, 20)),
        ((), None, None, (1, 20)),
    ],
)
def test_a_metric_is_traced_from_the_last_number_that_was_equal(
    rows: tuple[int, ...], own: int | None, step: int | None, window: tuple[int, int]
) -> None:
    reach = reach_of(_metric(own, step), (_with_rows(*rows),))
    assert ((reach.first, reach.last), reach.written) == (window, True)


@given(st.integers(1, 40), st.integers(0, 45), st.integers(0, 45), st.sampled_from(EventKind))
def test_a_window_lies_within_the_training(
    total: int, step: int, own: int, kind: EventKind
) -> None:
    event = Event(kind=kind, name="file.accuracy", step=step or None, own_step=own)
    apart = comparison(steps_expected=total, steps_observed=total, events=(event,))
    reach = reach_of(apart, (_with_rows(0, 3, 9),))
    assert 1 <= reach.first <= reach.last <= total
    assert reach.whole == (reach.last == total)


def test_a_run_ends_once_every_optimizer_of_a_rank_has_stepped() -> None:
    names = ("state/optimizer/0/group/0/lr", "state/optimizer/1/state/3/step")
    other = ("state.rank1/optimizer/0/group/0/lr",)
    leaves = dict.fromkeys((*names, *other), b"1")
    run = evidence_of().model_copy(update={"checkpoint": manifest_of(**leaves)})
    assert optimizers_of(run) == (2, 1)
    end = reach_of(_apart(4, 3), (run,)).end(run)
    assert end == EarlyEnd(step=4, optimizers=(2, 1), written=False)
    assert reach_of(_apart(None), (run,)).end(run) is None


PARTIAL = evidence_of().run.model_copy(update={"partial": True})


@each_row(
    ("comparison", "run", "shown"),
    [
        (_metric(3, 3), _with_rows(3), (0.5).hex()),
        (_metric(3, 3), _with_rows(1), None),
        (_metric(3, 3, EventKind.METRIC_MISSING), _with_rows(1), "absent"),
        (_metric(3, 3, EventKind.METRIC_MISSING), _with_rows(1, run=PARTIAL), None),
        (_metric(None, None), _with_rows(1), "float64"),
        (_apart(2), evidence_of(), evidence_of().steps[1].parameters),
        (_apart(9), evidence_of(), None),
    ],
)
def test_what_differs_is_known_of_a_run_that_came_so_far(
    comparison: Comparison, run: RunEvidence, shown: str | None
) -> None:
    assert comparison.first is not None
    assert shown_by(comparison.first, run) == shown


def test_runs_are_alike_in_what_differs_only_where_both_have_it() -> None:
    event = _metric(3, 3).events[0]
    one, other = _with_rows(3), _with_rows(1)
    moved = one.model_copy(update={"metrics": (series_of((0.25,)),)})
    assert same_thing(event, one, one) is True
    assert same_thing(event, one, other) is None
    assert same_thing(event, one, moved) is None


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


def _diagnosis(trace: TraceFinding | None, guess: str = "") -> Diagnosis | None:
    known = Diagnosis(
        first_step=1,
        kind=EventKind.LOSS,
        subject="loss",
        cause=f"the loss differs: {guess}" if guess else "the loss differs",
        guess=guess,
        remedy="Look here.",
    )
    return with_trace(known, trace, drift=False)


def test_what_a_trace_says_to_do_goes_first() -> None:
    found = TraceFinding(claim=Claim.CODE_PATH, sentence="a call", remedy="Look there.")
    told = _diagnosis(found)
    assert told is not None
    assert told.remedy == "Look there. If that is not it: look here."


def test_a_trace_that_found_nothing_leaves_the_remedy() -> None:
    told = _diagnosis(TraceFinding(claim=Claim.NOT_FOUND, sentence="not found"))
    assert told is not None
    assert told.remedy == "Look here."


@pytest.mark.parametrize(
    ("claim", "operator", "told"),
    [
        (Claim.UNINITIALISED, "aten::empty", "the loss differs"),
        (Claim.NONDETERMINISTIC_OPERATOR, "aten::scatter_add_", "the loss differs"),
        # what a trace leaves open, the guess still fits
        (Claim.OUTSIDE_VALUE, "aten::lift_fresh", "the loss differs: a random draw"),
        (Claim.NOT_FOUND, "", "the loss differs: a random draw"),
    ],
)
def test_what_a_trace_shows_takes_the_place_of_a_guess(
    claim: Claim, operator: str, told: str
) -> None:
    found = TraceFinding(claim=claim, sentence="it", operator=operator)
    diagnosis = _diagnosis(found, guess="a random draw")
    assert diagnosis is not None
    assert diagnosis.cause == told
