from __future__ import annotations

import math

from evidence_cases import series_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.differences import MetricDelta, SeriesFaultKind
from gate.comparison.metric_differences import compare_metrics
from gate.settings.levels import Tolerance

NUMBERS = st.floats(min_value=-1e6, max_value=1e6)
LIMITS = st.floats(min_value=0, max_value=1e3)


def _delta(expected: float, observed: float, *rules: Tolerance) -> MetricDelta:
    found = compare_metrics((series_of((expected,)),), (series_of((observed,)),), rules)
    (delta,) = found.deltas
    return delta


def test_equal_bits_are_no_delta() -> None:
    found = compare_metrics((series_of(),), (series_of(),), ())
    assert (found.deltas, found.faults, found.compared) == ((), (), 3)


def test_a_delta_carries_every_measure() -> None:
    delta = _delta(2.0, 2.5)
    assert (delta.absolute, delta.relative, delta.ulp) == (0.5, 0.25, 2**50)
    assert (delta.expected, delta.observed, delta.within) == ("2.0", "2.5", False)


def test_without_a_rule_nothing_but_equal_bits_is_within() -> None:
    assert not _delta(0.0, -0.0).within


def test_any_one_limit_suffices() -> None:
    assert _delta(2.0, 2.5, Tolerance(metric="*", absolute=0.5)).within
    assert _delta(2.0, 2.5, Tolerance(metric="*", relative=0.25)).within
    assert _delta(1.0, 1.0 + 2**-52, Tolerance(metric="*", ulp=1)).within
    assert not _delta(2.0, 2.5, Tolerance(metric="*", absolute=0.4, relative=0.2, ulp=3)).within


def test_the_first_matching_pattern_wins() -> None:
    strict, loose = Tolerance(metric="loss*"), Tolerance(metric="*", absolute=9.0)
    assert not _delta(2.0, 2.5, strict, loose).within
    assert _delta(2.0, 2.5, loose, strict).within


def test_nan_and_infinity_are_within_nothing() -> None:
    anything = Tolerance(metric="*", absolute=1e308, relative=1e308, ulp=2**52)
    delta = _delta(1.0, float("nan"), anything)
    assert (delta.within, delta.absolute, delta.ulp) == (False, None, None)
    assert not _delta(float("inf"), 1.0, anything).within


def test_a_rule_for_the_final_step_alone_leaves_the_earlier_ones_to_equal_bits() -> None:
    rule = Tolerance(metric="*", absolute=0.1, steps="final")
    left, right = series_of((1.0, 2.0)), series_of((1.05, 2.05))
    assert [d.within for d in compare_metrics((left,), (right,), (rule,)).deltas] == [False, True]


def test_missing_extra_and_retyped_series_are_faults() -> None:
    one, two = series_of(name="logged.a"), series_of(name="logged.b")
    retyped = one.model_copy(update={"dtype": "float32"})
    found = compare_metrics((one,), (two,), ())
    assert [(f.metric, f.reason) for f in found.faults] == [
        ("logged.a", "missing"),
        ("logged.b", "only in this result"),
    ]
    (fault,) = compare_metrics((one,), (retyped,), ()).faults
    assert fault.reason == "type float64 became float32"


def test_other_steps_are_a_fault_and_the_common_ones_are_compared() -> None:
    found = compare_metrics((series_of((1.0, 2.0)),), (series_of((1.0,)),), ())
    assert found.faults[0].reason == "step 2 is missing, 2 points expected, 1 found"
    extra = compare_metrics((series_of((1.0,)),), (series_of((1.0, 2.0)),), ())
    assert extra.faults[0].reason == "step 2 is not expected, 1 points expected, 2 found"
    assert found.compared == extra.compared == 1
    assert (found.faults[0].kind, found.faults[0].first_step) == (SeriesFaultKind.STEPS, 2)


@given(NUMBERS, NUMBERS, LIMITS, LIMITS)
def test_a_wider_tolerance_never_refuses_what_a_narrower_one_takes(
    expected: float, observed: float, narrow: float, more: float
) -> None:
    if expected.hex() == observed.hex():
        return
    if _delta(expected, observed, Tolerance(metric="*", absolute=narrow)).within:
        wide = Tolerance(metric="*", absolute=narrow + more)
        assert _delta(expected, observed, wide).within


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4),
)
def test_what_is_beyond_float64_has_no_size_instead_of_an_infinite_one(
    left: list[float], right: list[float]
) -> None:
    rule = Tolerance(metric="*", relative=1e9)
    found = compare_metrics((series_of(tuple(left)),), (series_of(tuple(right)),), (rule,))
    for delta in found.deltas:
        assert delta.absolute is None or math.isfinite(delta.absolute)
        assert delta.relative is None or math.isfinite(delta.relative)
        assert delta.absolute is not None or not delta.within


def test_two_huge_numbers_of_other_signs_are_outside_any_tolerance() -> None:
    delta = _delta(1.7e308, -1.7e308, Tolerance(metric="*", relative=1e9))
    assert (delta.absolute, delta.relative, delta.within) == (None, None, False)
