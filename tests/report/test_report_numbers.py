"""Numbers and their order, as a reader sees them."""

from __future__ import annotations

import math

from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from report_cases import delta, digest

from gate.report.layout import BLOCKS, GAP, sparkline
from gate.report.wording import (
    duration,
    farthest,
    interval,
    magnitude,
    percent,
    percentage,
    points_words,
    sentences,
    short_if_digest,
    worst_first,
)
from gate.text.phrases import count

VALUES = st.lists(st.none() | st.floats(), max_size=90)


@each_row(
    ("ratio", "text"),
    [
        (1.042, "+4.2 %"),
        (0.985, "-1.5 %"),
        (1.0, "+0.0 %"),
        (0.99999, "+0.0 %"),
        (3.0, "+200.0 %"),
        (math.nan, "not a number"),
        (math.inf, "not a number"),
    ],
)
def test_a_ratio_is_a_signed_change(ratio: float, text: str) -> None:
    assert percent(ratio) == text


def test_an_interval_has_both_bounds_or_none() -> None:
    assert interval(1.01, 1.075) == "[+1.0 %, +7.5 %]"
    assert interval(1.01, None) == ""


def test_small_differences_keep_their_digits() -> None:
    assert [percentage(0.0123456), percentage(1e-9), percentage(None), percentage(math.inf)] == [
        "1.23 %",
        "1e-07 %",
        "—",
        "—",
    ]
    assert [magnitude(0.000123), magnitude(None), magnitude(math.nan)] == ["0.000123", "—", "—"]


def test_times_have_a_readable_unit() -> None:
    assert [duration(0.01294), duration(7.314), duration(None)] == ["12.9 ms", "7.314 s", ""]


def test_counts_have_their_nouns() -> None:
    assert [count(1, "tensor"), count(2048, "tensor")] == ["1 tensor", "2,048 tensors"]


def test_message_and_remedy_are_two_sentences() -> None:
    assert sentences("it moved", "Record it.") == "it moved. Record it."
    assert sentences("It moved.", "Record it.") == "It moved. Record it."
    assert sentences("it moved", "") == "it moved"


def test_a_digest_is_told_by_its_head() -> None:
    assert short_if_digest(digest("x")) == digest("x")[:12]
    assert short_if_digest("2.13.0") == "2.13.0"


def test_what_has_no_size_is_worst_then_what_is_outside_then_the_largest() -> None:
    nan = delta(1, 0.0, within=False).model_copy(update={"relative": None})
    small, large, inside = (
        delta(2, 0.1, within=False),
        delta(3, 0.2, within=False),
        delta(4, 0.9, within=True),
    )
    assert worst_first((inside, small, nan, large)) == [nan, large, small, inside]


FRACTIONS = st.floats(min_value=0.001, max_value=1)


@given(pairs=st.lists(st.tuples(FRACTIONS, FRACTIONS), min_size=1, max_size=20))
def test_the_farthest_is_the_largest_of_the_numbers_that_are_printed(
    pairs: list[tuple[float, float]],
) -> None:
    deltas = tuple(
        delta(step, abs(right - left) / left, within=False).model_copy(
            update={"metric": "file.acc", "expected": repr(left), "observed": repr(right)}
        )
        for step, (left, right) in enumerate(pairs, start=1)
    )
    found = farthest(deltas)
    assert found is not None
    told = points_words("file.acc", found.expected, found.observed)
    assert told == f"{max(abs(right - left) for left, right in pairs) * 100:.3g} points"


@each_row(
    ("values", "text"),
    [
        ((), ""),
        ((1.0, 2.0, 3.0), "▁▅█"),
        ((2.0, 2.0), "▅▅"),
        ((1.0, None, math.nan, 2.0), f"▁{GAP}{GAP}█"),
        ((None,), GAP),
        ((1e308, -1e308), "█▁"),
        ((0.0, 5e-324), "▁█"),
    ],
)
def test_a_curve_in_one_line(values: tuple[float | None, ...], text: str) -> None:
    assert sparkline(values) == text


def test_more_values_than_places_are_averaged_and_a_hole_stays_one() -> None:
    assert sparkline((1.0, 1.0, 3.0, 3.0, 2.0, None), 3) == f"▁█{GAP}"


@given(VALUES)
def test_a_line_is_never_wider_than_asked(values: list[float | None]) -> None:
    line = sparkline(values, 40)
    assert len(line) == min(len(values), 40)
    assert set(line) <= {*BLOCKS, GAP}
    missing = any(value is None or not math.isfinite(value) for value in values)
    assert missing == (GAP in line)
