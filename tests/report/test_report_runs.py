"""What the runs did over their steps: metrics, step times, memory."""

from __future__ import annotations

import math

from page_cases import METRIC, baseline_entry, repeat_apart, run_evidence, sources
from report_outcomes import CODE_DRIFT, NONDETERMINISTIC, REPRODUCED

from gate.evidence.columns import Memory, StepMemory
from gate.evidence.step_columns import StepTiming, Timings
from gate.report.page.page_sources import PageSources, style_of
from gate.report.page.run_charts import (
    first_differences,
    memory_charts,
    metric_picture,
    quantile,
    step_times,
)
from gate.verdict.verdict import SeriesSummary

SUMMARY = SeriesSummary(name=METRIC, source="harness", steps=(), values=(), last_decimal="0.5")


def test_equal_runs_are_drawn_once_and_have_no_picture_of_distances() -> None:
    found = metric_picture(SUMMARY, sources(), ())
    (line,) = found.curves.lines
    assert line.name == "this change"
    assert line.words.startswith("3 runs, identical; last ")
    assert found.distances is None


def test_runs_that_equal_the_baseline_are_one_curve_with_it() -> None:
    both = PageSources(runs=sources().runs, entry=baseline_entry(apart_from=99))
    (line,) = metric_picture(SUMMARY, both, ()).curves.lines
    assert line.words.startswith("3 runs, identical; equal to baseline, bit for bit; last ")


def test_a_run_apart_says_from_which_step_on_and_by_how_much() -> None:
    found = metric_picture(SUMMARY, sources(apart_from=4), ())
    assert [line.name for line in found.curves.lines] == ["strict-1", "strict-2"]
    assert found.curves.lines[0].words.startswith("equal to default-1, bit for bit; last ")
    assert found.curves.lines[1].words.endswith(
        "; differs from strict-1 from step 4 on: by 1e-06 at most, equal at 3 steps of 6"
    )
    assert found.distances is not None
    assert [line.words for line in found.distances.lines] == [
        "by 1e-06 at most, equal at 3 steps of 6"
    ]


def test_the_baselines_series_comes_after_the_reference() -> None:
    both = PageSources(runs=sources().runs, entry=baseline_entry(apart_from=2))
    found = metric_picture(SUMMARY, both, ())
    assert found.curves.lines[1].name == "baseline"
    assert found.values is not None
    assert found.values.headings == ("Step", "strict-1", "baseline", "default-1", "strict-2")


def test_a_run_with_fewer_steps_differs_where_it_ends() -> None:
    runs = (run_evidence("strict-1", 6), run_evidence("strict-2", 6))
    cut = runs[1].metrics[0].model_copy(update={"points": runs[1].metrics[0].points[:4]})
    short = runs[1].model_copy(update={"metrics": (cut,)})
    found = metric_picture(SUMMARY, PageSources(runs=(runs[0], short)), ())
    assert found.curves.lines[1].words.endswith("differs from strict-1 from step 5 on")
    # nothing to draw: where both are there they are equal
    assert found.distances is None


def test_of_many_values_some_are_listed_and_the_rest_counted() -> None:
    found = metric_picture(SUMMARY, sources(200), ())
    assert found.values is not None
    assert (len(found.values.rows), found.values.omitted) == (60, 140)
    assert found.values.rows[-1][0].text == "200"


def test_each_comparison_that_differs_marks_its_first_step() -> None:
    assert first_differences(REPRODUCED) == ()
    assert [mark.label for mark in first_differences(CODE_DRIFT)] == [
        "step 6: this change ≠ baseline"
    ]
    apart = NONDETERMINISTIC.model_copy(update={"repeat": repeat_apart(5, "weight")})
    assert [mark.step for mark in first_differences(apart)] == [5]


def test_comparisons_that_differ_from_the_same_step_on_share_a_mark() -> None:
    drifted = CODE_DRIFT.baseline
    assert drifted is not None
    twice = CODE_DRIFT.model_copy(
        update={"base_run": drifted.model_copy(update={"expected": "base-1"})}
    )
    assert [mark.label for mark in first_differences(twice)] == [
        "step 6: this change ≠ base-1, baseline"
    ]


def test_a_run_looks_the_same_in_every_picture() -> None:
    assert len({style_of(name) for name in ("strict-1", "strict-2", "baseline", "audit-1")}) == 4
    assert style_of("audit-1") == style_of("another")


def test_memory_on_the_host_and_on_a_device_that_was_used() -> None:
    assert [chart.title for chart in memory_charts(sources())] == ["Resident memory of the process"]
    on_device = StepMemory(step=1, resident_bytes=2**30, device_bytes=2**21)
    run = run_evidence("strict-1").model_copy(update={"memory": Memory.of((on_device,))})
    device = memory_charts(PageSources(runs=(run,)))[1]
    assert (device.title, device.y_title) == (
        "Memory allocated on the device (not reserved)",
        "GiB",
    )
    assert device.lines[0].words == "highest 0.002 GiB"
    assert memory_charts(PageSources()) == ()


def test_step_times_are_told_in_words_too() -> None:
    found = step_times(sources())
    assert found is not None
    assert found.rows[1].words == (
        "default-1 (default mode, 6 steps): median 13.5 ms, 5 % 11.2 ms, 95 % 15.8 ms, "
        "longest 16 ms"
    )
    assert len(found.rows[1].dots) == 6
    assert step_times(PageSources()) is None


def test_a_slow_first_step_makes_the_axis_logarithmic() -> None:
    run = run_evidence("strict-1")
    slow = Timings.of((StepTiming(step=1, seconds=9.0), *run.timings[1:]))
    found = step_times(PageSources(runs=(run.model_copy(update={"timings": slow}),)))
    assert found is not None
    assert found.notes[-1] == "The axis is logarithmic."
    # in milliseconds, which the axis' title says
    assert [tick.label for tick in found.x_ticks] == ["12", "329", "9,000"]


def test_of_many_step_times_some_are_dots_and_the_page_says_so() -> None:
    found = step_times(sources(1000))
    assert found is not None
    assert len(found.rows[0].dots) == 150
    assert found.notes[1] == "The dots are 150 steps of each run, evenly spaced by rank."


def test_a_share_of_a_list_lies_between_its_neighbours() -> None:
    assert quantile([1.0], 0.95) == 1.0
    assert math.isclose(quantile([1.0, 2.0, 3.0, 4.0], 0.5), 2.5)
