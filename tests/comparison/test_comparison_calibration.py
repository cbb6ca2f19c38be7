from __future__ import annotations

import math

import pytest
from evidence_cases import evidence_of, series_of

from gate.comparison.calibration import calibrate
from gate.comparison.tolerances import misfit, tolerance_factor
from gate.evidence.run_evidence import RunEvidence
from gate.settings.levels import Direction, Improvement, Tolerance

RUNS = tuple(evidence_of(values=(2.0, 1.0 + wide / 1000, 0.5 + wide)) for wide in (0.0, 0.1, 0.2))


def _named(name: str, *values: float) -> RunEvidence:
    return evidence_of().model_copy(update={"metrics": (series_of(values, name=name),)})


def test_each_range_has_a_limit_of_its_own_at_the_step_where_runs_scatter_most() -> None:
    (early, late), notes = calibrate(RUNS, ("1-2", "3-9"), 0.95, ())
    assert (early.widest_step, late.widest_step, notes) == (2, 3, ())
    wanted = tolerance_factor(3) * math.sqrt(2) * 0.1
    assert wanted <= late.rule.absolute < wanted * 1.1
    assert late.rule.absolute == pytest.approx(early.rule.absolute * 1000)
    assert (misfit(early.rule), misfit(late.rule)) == ("", "")


def test_a_range_without_noise_gets_no_tolerance_and_says_so() -> None:
    found, notes = calibrate(RUNS, ("1-1", "final"), 0.95, ())
    assert [one.rule.steps for one in found] == ["final"]
    assert notes == (
        "metric loss (steps: 1-1) did not move, or has no such step: it must be equal, bit for bit",
    )


def test_more_confidence_gives_a_wider_limit() -> None:
    (sure,), _ = calibrate(RUNS, ("every",), 0.99, ())
    (usual,), _ = calibrate(RUNS, ("every",), 0.95, ())
    assert sure.rule.absolute > usual.rule.absolute


def test_which_way_is_better_is_taken_over() -> None:
    before = Tolerance(metric="l*", better_is=Direction.LOWER, improvement=Improvement.PASS)
    ((found,), _) = calibrate(RUNS, ("every",), 0.95, (before,))
    assert (found.rule.better_is, found.rule.improvement) == ("lower", "pass")


def test_a_name_with_a_star_is_no_pattern_and_a_limit_below_one_unit_is_one_unit() -> None:
    # each apart by one unit in the last place of a float64 near 2**60, and of three runs only
    runs = tuple(_named("a*[b]", 1.0, 1.0 + 1e-16 * step) for step in (0, 0, 3))
    ((found,), _) = calibrate(runs, ("every",), 0.95, ())
    assert found.rule.metric == "a[*][[]b]"
    assert found.use.metrics == ("a*[b]",)
    assert found.rule.ulp == 0
    huge = tuple(_named("a", 1.0, 2.0**60 + step) for step in (0, 0, 256.0))
    tiny = tuple(_named("a", 2.0**60, 1.0 + 1e-15 * step) for step in (0, 0, 3))
    assert calibrate(huge, ("every",), 0.95, ())[0][0].rule.ulp == 0
    assert calibrate(tiny, ("every",), 0.95, ())[0][0].rule.ulp == 1


def test_what_not_every_run_has_as_a_number_is_told() -> None:
    runs = (_named("a", math.nan), _named("a", 1.0))
    assert calibrate(runs, ("every",), 0.95, ()) == (
        (),
        ("metric a has no step at which all runs gave a finite number",),
    )
    assert calibrate((_named("a", 1.0), _named("b", 1.0)), ("every",), 0.95, ())[0] == ()


def test_a_name_too_long_for_a_pattern_is_left_out_and_told() -> None:
    runs = tuple(_named("*" * 100, value) for value in (1.0, 2.0))
    (found, (note,)) = calibrate(runs, ("every",), 0.95, ())
    assert not found
    assert note.endswith("has a name too long for a pattern")
