from __future__ import annotations

import math

import pytest
from each_row import each_row
from evidence_cases import evidence_of, series_of
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gate.comparison.metric_differences import compare_metrics
from gate.comparison.tolerances import (
    derive,
    misfit,
    smallest_difference,
    tolerance_factor,
    tolerance_uses,
)
from gate.settings.levels import Derivation, Direction, Improvement, Tolerance

LOWER = Tolerance(metric="*", absolute=0.1, better_is=Direction.LOWER)
ONE_SIDED = Tolerance(
    metric="*", absolute=0.1, better_is=Direction.LOWER, improvement=Improvement.PASS
)


def _within(expected: tuple[float, ...], observed: tuple[float, ...], *rules: Tolerance) -> str:
    """The steps that are outside, as text."""
    found = compare_metrics((series_of(expected),), (series_of(observed),), rules)
    return " ".join(str(delta.step) for delta in found.deltas if not delta.within)


def _derived(runs: int = 5, spread: float = 1.3e-4, **edited: object) -> Tolerance:
    limit, derived = derive(runs, spread, 0.95)
    return Tolerance(metric="loss", absolute=limit, derived=derived).model_copy(update=edited)


def test_a_range_decides_its_own_steps_and_leaves_the_others_to_the_next() -> None:
    early = Tolerance(metric="*", absolute=0.1, steps="1-2")
    late = Tolerance(metric="*", absolute=1.0, steps="4-9")
    moved = (1.2, 1.05, 1.05, 1.5)
    # step 3 is in no range: only equal bits will do
    assert _within((1.0,) * 4, moved, early, late) == "1 3"
    assert _within((1.0,) * 4, moved, early, Tolerance(metric="*", absolute=1.0)) == "1"


def test_a_final_tolerance_leaves_every_other_step_to_the_next() -> None:
    final = Tolerance(metric="*", absolute=0.002, steps="final")
    every = Tolerance(metric="*", absolute=0.01)
    moved = (0.0, 1.005, 1.005, 1.005)
    assert _within((1.0,) * 4, moved, final, every) == "1 4"
    _, second = tolerance_uses(evidence_of(values=moved), (final, every))
    assert (second.metrics, second.shadowed) == (("loss",), False)


STEPS = st.sampled_from(("every", "final", "1-2", "2-4", "6-9"))


@given(kinds=st.lists(st.tuples(st.sampled_from(("loss", "*", "acc")), STEPS), max_size=5))
def test_the_first_tolerance_that_matches_metric_and_step_judges_it(
    kinds: list[tuple[str, str]],
) -> None:
    steps = {"every": {1, 2, 3, 4}, "final": {4}, "1-2": {1, 2}, "2-4": {2, 3, 4}, "6-9": set()}
    # a limit of its own for each, so that what is within says which rule judged
    for place, (metric, at) in enumerate(kinds):
        one = Tolerance(metric=metric, steps=at, absolute=1)
        rules = [Tolerance(metric=other, steps=where) for other, where in kinds]
        rules[place] = one
        first = {
            step
            for step in range(1, 5)
            if next((n for n, (m, s) in enumerate(kinds) if m != "acc" and step in steps[s]), -1)
            == place
        }
        outside = " ".join(str(step) for step in range(1, 5) if step not in first)
        assert _within((1.0,) * 4, (1.5,) * 4, *rules) == outside


@each_row("steps", ["", "3", "5-4", "-1-2", "1 - 2", "1-", "all", "٣-٤", "1-9999999999"])
def test_steps_that_are_no_range_are_refused(steps: str) -> None:
    with pytest.raises(ValidationError, match=r"such as 1-10|ends before it begins"):
        Tolerance(metric="*", steps=steps)


def test_better_beyond_the_tolerance_is_outside_unless_that_is_chosen() -> None:
    assert _within((1.0, 1.0), (0.5, 1.5), LOWER) == "1 2"
    assert _within((1.0, 1.0), (0.5, 1.5), ONE_SIDED) == "2"
    higher = ONE_SIDED.model_copy(update={"better_is": Direction.HIGHER})
    assert _within((1.0, 1.0), (0.5, 1.5), higher) == "1"


def test_one_sided_without_a_side_is_refused() -> None:
    with pytest.raises(ValidationError, match="improvement: pass needs better_is"):
        Tolerance(metric="*", improvement=Improvement.PASS)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_no_number_is_an_improvement_on_nothing(odd: float) -> None:
    assert _within((1.0,), (odd,), ONE_SIDED) == "1"


@given(st.floats(-9, 9), st.floats(-9, 9), st.floats(0, 3))
def test_one_side_passes_whatever_both_sides_pass(a: float, b: float, limit: float) -> None:
    both = LOWER.model_copy(update={"absolute": limit})
    one = ONE_SIDED.model_copy(update={"absolute": limit})
    if not _within((a,), (b,), both):
        assert not _within((a,), (b,), one)


@given(st.integers(2, 50), st.floats(1e-12, 1e6), st.sampled_from((0.9, 0.95, 0.99)))
def test_what_was_derived_fits_and_never_falls_short(
    runs: int, spread: float, confidence: float
) -> None:
    limit, derived = derive(runs, spread, confidence)
    assert limit >= smallest_difference(tolerance_factor(runs, confidence), spread)
    assert misfit(Tolerance(metric="*", absolute=limit, ulp=1, derived=derived)) == ""


def test_more_confidence_and_fewer_runs_need_a_larger_factor() -> None:
    assert tolerance_factor(5, 0.99) > tolerance_factor(5, 0.95) > tolerance_factor(10, 0.95)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (_derived(absolute=0.5), "absolute is 0.5, but 5.094 x sqrt(2) x 0.00013 gives 0.00094"),
        (_derived(relative=0.1), "relative or ulp in addition to the derived limit widens it"),
        (_derived(ulp=9), "relative or ulp in addition to the derived limit widens it"),
        (
            _derived(derived=Derivation(runs=5, factor=9, spread=1.3e-4, confidence=0.95)),
            "the factor is 9, but 5 runs at a confidence of 0.95 give 5.094",
        ),
    ],
)
def test_an_edit_that_no_longer_fits_is_told(rule: Tolerance, why: str) -> None:
    assert misfit(rule) == why
    (use,) = tolerance_uses(evidence_of(), (rule,))
    assert use.misfit == why


def test_the_smallest_change_caught_is_where_the_tolerance_is_tightest() -> None:
    run = evidence_of(values=(4.0, 2.0, 1.0))
    early, none = tolerance_uses(
        run,
        (Tolerance(metric="loss", absolute=0.1, steps="1-2"), Tolerance(metric="*", steps="8-9")),
    )
    assert early.least is not None
    assert (early.least.step, early.least.absolute) == (1, 0.1)
    assert (none.metrics, none.shadowed, none.named) == ((), False, True)
