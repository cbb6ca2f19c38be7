"""Curves: every value inside the picture, none that vanishes, what is thinned says so."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from gate.report.page.curves import (
    BOTTOM,
    BUCKETS,
    HEIGHT,
    LABEL_HEIGHT,
    LEFT,
    TOP,
    WIDTH,
    Line,
    Mark,
    Scale,
    axis_number,
    chart,
    envelope,
    evenly,
    step_ticks,
    ticks,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def line(*values: float, name: str = "strict-1") -> Line:
    steps = tuple(range(1, len(values) + 1))
    return Line(name=name, style=0, steps=steps, values=values, words="")


@given(st.lists(FINITE, min_size=1, max_size=30))
@example([0.0, 5e-324])
def test_every_finite_value_lies_inside_the_picture(values: list[float]) -> None:
    path = chart("loss", (line(*values),)).lines[0].path
    pairs = re.findall(r"(-?[0-9.]+),(-?[0-9.]+)", path)
    assert pairs
    assert all(LEFT <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT for x, y in pairs)


@given(st.lists(FINITE.map(abs), min_size=1, max_size=30))
@example([0.0, 5e-324])
def test_every_distance_lies_inside_the_picture(values: list[float]) -> None:
    path = chart("apart", (line(*values),), distances=True).lines[0].path
    places = [float(y) for _, y in re.findall(r"(-?[0-9.]+),(-?[0-9.]+)", path)]
    assert all(0 <= y <= HEIGHT for y in places)


@given(st.lists(FINITE, min_size=1, max_size=7))
def test_the_names_of_curves_stand_beside_the_picture_and_hide_none_of_each_other(
    ends: list[float],
) -> None:
    places = [drawn.label_y for drawn in chart("loss", tuple(line(0.0, end) for end in ends)).lines]
    known = sorted(place for place in places if place is not None)
    assert len(known) == len(ends)
    assert known[0] >= TOP
    assert known[-1] <= HEIGHT - BOTTOM
    assert all(below - above >= LABEL_HEIGHT - 1e-9 for above, below in pairwise(known))


def test_a_curve_without_a_finite_value_has_no_name_beside_the_picture() -> None:
    drawn = chart("loss", (line(1.0), line(math.nan, name="strict-2")))
    assert [one.label_y is None for one in drawn.lines] == [False, True]


def test_the_title_of_an_axis_that_is_too_long_is_cut() -> None:
    assert chart("loss", (line(1.0),)).y_title == "loss"
    title = chart("x" * 200, (line(1.0),)).y_title
    assert (len(title), title[-1]) == (48, "…")


def test_an_equal_step_lies_on_the_ground_of_a_picture_of_distances() -> None:
    drawn = chart("apart", (line(0.0, 1e-12, 1.0),), distances=True)
    ground, far = drawn.y_ticks[0], drawn.y_ticks[-1]
    assert (ground.label, far.label) == ("equal", "1")
    heights = [float(y) for _, y in re.findall(r"([0-9.]+),([0-9.]+)", drawn.lines[0].path)]
    assert heights[0] == ground.position
    assert heights[-1] == far.position < heights[-2] < ground.position


def test_a_hole_makes_two_pieces_and_marks_above() -> None:
    drawn = chart("loss", (line(1, 2, math.nan, math.inf, 3, 4),))
    assert drawn.lines[0].path.count("M") == 2
    assert drawn.lines[0].gaps.count("M") == 2
    assert drawn.notes == ("strict-1 has 2 values that are not finite, marked above the curve.",)


def test_a_single_value_is_drawn_as_a_dot() -> None:
    assert "h0" in chart("loss", (line(1.0),)).lines[0].path


def test_nothing_to_draw_has_no_labels_of_values() -> None:
    drawn = chart("loss", (line(math.nan),))
    assert (drawn.lines[0].path, drawn.y_ticks) == ("", ())


def test_labels_of_marks_stand_over_one_another_and_above_the_lines() -> None:
    marks = (Mark(step=2, label="one"), Mark(step=9, label="other"))
    drawn = chart("loss", (line(*range(10)),), marks)
    assert [(mark.y, mark.anchor) for mark in drawn.marks] == [(0, "start"), (-20, "end")]
    # above them stands the title of the axis
    assert drawn.head == 60


def test_a_mark_beyond_the_last_step_stays_in_the_picture() -> None:
    drawn = chart("loss", (line(1, 2),), (Mark(step=99, label="late"),))
    assert drawn.marks[0].x == drawn.x_ticks[-1].position


@given(st.lists(FINITE, min_size=1, max_size=20), st.integers(40, 90))
def test_a_thinned_curve_keeps_the_lowest_and_the_highest_value(
    some: list[float], times: int
) -> None:
    values = some * times
    pairs = list(enumerate(values, start=1))
    steps = np.arange(1, len(values) + 1)
    kept = envelope(steps, np.array(values), 1, len(pairs))
    numbers = [value for _, value in kept]
    assert set(kept) <= set(pairs)
    assert (min(numbers), max(numbers)) == (min(values), max(values))
    assert len(kept) <= 2 * BUCKETS


def test_a_thinned_curve_keeps_a_value_that_is_not_finite() -> None:
    values = [1.0] * 5000
    values[2500] = math.nan
    drawn = chart("loss", (line(*values),))
    assert drawn.lines[0].gaps.count("M") == 1
    assert drawn.notes[0] == "strict-1 has 1 value that is not finite, marked above the curve."
    assert drawn.notes[1] == (
        "5,000 points are too many to draw: each stretch of steps shows its lowest and highest "
        "value."
    )


def test_a_series_out_of_order_is_thinned_all_the_same() -> None:
    steps = tuple(range(1, 5001, 2)) + tuple(range(2, 5001, 2))
    mixed = Line(name="strict-1", style=0, steps=steps, values=(1.0,) * 5000, words="")
    assert len(chart("loss", (mixed,)).lines[0].path) < 20 * 2 * BUCKETS


def test_places_evenly_apart_include_both_ends() -> None:
    assert evenly(3, 5) == [0, 1, 2]
    assert evenly(101, 5) == [0, 25, 50, 75, 100]


def test_an_axis_of_one_value_has_one_label() -> None:
    found = ticks(Scale(low=7, high=7, start=0, end=100), axis_number)
    assert [(tick.label, tick.position) for tick in found] == [("7", 50)]


def test_labels_of_steps_are_whole_and_stand_where_they_belong() -> None:
    found = step_ticks(Scale(low=1, high=1200, start=0, end=1199))
    assert [(tick.label, tick.position) for tick in found] == [
        ("1", 0), ("600", 599), ("1,200", 1199),
    ]  # fmt: skip
    assert len(step_ticks(Scale(low=1, high=2, start=0, end=1))) == 2
