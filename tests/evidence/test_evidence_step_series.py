from __future__ import annotations

from harness_folder import exact, step_line

from gate.evidence.harness_files import StepLine
from gate.evidence.metric_series import MAX_PASS_SERIES, step_series
from gate.evidence.run_evidence import MetricSeries


def series_of(*lines: dict[str, object]) -> dict[str, MetricSeries]:
    found = step_series([StepLine.model_validate(line) for line in lines])
    return {series.name: series for series in found}


def points(series: MetricSeries) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in series.points]


def test_one_backward_a_step_needs_no_second_series() -> None:
    assert series_of(step_line(1, losses=(exact(0.5),)), step_line(2)) == {}


def test_backward_passes_stand_at_the_optimizer_step_that_they_belong_to() -> None:
    found = series_of(
        step_line(1, losses=(exact(1.0), exact(2.0))), step_line(2, losses=(exact(3.0),))
    )
    assert points(found["loss.pass1"]) == [(1, 1.0), (2, 3.0)]
    assert points(found["loss.pass2"]) == [(1, 2.0)]
    assert found["loss.pass1"].dtype == "float32"


def test_many_optimizers_of_many_passes_stay_within_the_limit_of_series() -> None:
    lines = [step_line(1, optimizer=number, losses=(exact(1.0),) * 150) for number in range(3)]
    found = series_of(*lines)
    assert len(found) == MAX_PASS_SERIES
    assert "loss.1.pass50" in found


def test_a_backward_from_no_scalar_keeps_its_place() -> None:
    found = series_of(step_line(1, losses=(None, exact(2.0))))
    assert points(found["loss.pass2"]) == [(1, 2.0)]
    assert "loss.pass1" not in found


def test_losses_of_two_types_are_float64_which_holds_both() -> None:
    found = series_of(
        step_line(1, losses=(exact(1.0), exact(2.0))),
        step_line(2, losses=(exact(1.0, "bfloat16"), exact(2.0))),
    )
    assert found["loss.pass1"].dtype == "float64"
    assert found["loss.pass2"].dtype == "float32"


def test_skipped_steps_are_a_series_for_each_optimizer() -> None:
    found = series_of(step_line(1, skipped=False), step_line(1, optimizer=1, skipped=True))
    assert points(found["skipped"]) == [(1, 0.0)]
    assert points(found["skipped.1"]) == [(1, 1.0)]
