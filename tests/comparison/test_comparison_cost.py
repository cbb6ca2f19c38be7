from __future__ import annotations

import pytest
from evidence_cases import evidence_of, settings_of

from gate.baseline.record import recorded_price
from gate.comparison.cost import determinism_cost
from gate.comparison.differences import CostState, DeterminismCost
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.step_columns import Timings

COST = settings_of().cost
SIDE_BY_SIDE = (
    "strict-1 and strict-2 ran side by side with another run for too many steps; "
    "runs.parallel: never times them alone"
)


def _runs(
    label: str, *seconds: float, steps: int = 40, memory: int = 100
) -> tuple[RunEvidence, ...]:
    return tuple(
        evidence_of(
            f"{label}-{number}",
            step_seconds=tuple(base * (1 + 0.01 * (step % 5)) for step in range(steps)),
            memory=memory,
        )
        for number, base in enumerate(seconds, start=1)
    )


def _cost(strict: tuple[RunEvidence, ...], default: tuple[RunEvidence, ...]) -> DeterminismCost:
    return determinism_cost(strict, default, COST)


def test_a_clear_cost_is_measured_with_its_interval() -> None:
    cost = _cost(_runs("strict", 1.2, 1.2, memory=150), _runs("default", 1.0, 1.0))
    assert cost.state is CostState.MEASURED
    assert cost.time_ratio is not None
    assert cost.low is not None
    assert cost.high is not None
    assert cost.time_ratio == pytest.approx(1.2, rel=0.02)
    assert 1.1 < cost.low <= cost.time_ratio <= cost.high < 1.3
    assert cost.memory_ratio == 1.5
    assert cost.steps_used == 30


def test_a_gain_is_measured_too() -> None:
    cost = _cost(_runs("strict", 0.5, 0.5), _runs("default", 1.0, 1.0))
    assert cost.state is CostState.MEASURED
    assert cost.high is not None
    assert cost.high < 1


def test_inside_the_noise_of_the_machine_nothing_is_claimed() -> None:
    cost = _cost(_runs("strict", 1.1, 1.1), _runs("default", 1.0, 1.3))
    assert cost.state is CostState.INCONCLUSIVE
    assert cost.reason == "within the noise of this machine"


def test_too_few_steps_give_a_reason_and_no_number() -> None:
    cost = _cost(_runs("strict", 1.0, 1.0, steps=12), _runs("default", 1.0, 1.0))
    assert (cost.state, cost.reason) == (
        CostState.NOT_MEASURABLE,
        "7 steady steps are too few; a run needs at least 10 after its warm-up of 5",
    )
    assert cost.time_ratio is None


def test_one_default_run_has_no_control() -> None:
    cost = _cost(_runs("strict", 1.0, 1.0), _runs("default", 1.0))
    assert cost.reason == "too few runs in default mode"


def test_a_clock_that_stands_still_measures_nothing() -> None:
    cost = _cost(_runs("strict", 1.0, 1.0), _runs("default", 0.0, 0.0))
    assert cost.reason == "steps too short for this clock"


def test_without_a_memory_figure_there_is_no_memory_ratio() -> None:
    cost = _cost(_runs("strict", 1.0, 1.0, memory=0), _runs("default", 1.0, 1.0))
    assert cost.memory_ratio is None


def test_the_same_evidence_gives_the_same_interval() -> None:
    runs = _runs("strict", 1.1, 1.2), _runs("default", 1.0, 1.05)
    assert _cost(*runs) == _cost(*runs)


def test_a_cold_first_run_is_no_cost_of_determinism() -> None:
    cost = _cost(_runs("strict", 1.5, 1.0), _runs("default", 1.0, 1.0))
    assert cost.state is CostState.INCONCLUSIVE


def test_pairs_that_point_both_ways_measure_nothing() -> None:
    cost = _cost(_runs("strict", 1.2, 0.9), _runs("default", 1.0, 1.0))
    assert cost.state is CostState.INCONCLUSIVE
    assert cost.control_low is not None
    assert cost.control_high == pytest.approx(1 / cost.control_low)


def test_a_machine_that_slows_down_does_not_move_the_ratio_of_neighbours() -> None:
    cost = _cost(_runs("strict", 1.2, 2.4), _runs("default", 1.0, 2.0))
    assert cost.time_ratio == pytest.approx(1.2, rel=0.02)
    assert cost.high == pytest.approx(1.2, rel=0.03)
    assert cost.reason == "within the noise of this machine"


def test_the_first_run_warms_up_twice_as_long() -> None:
    (run,) = _runs("strict", 1.0)
    slow = Timings.of(
        timing.model_copy(update={"seconds": 9.0 if timing.step <= 10 else 1.0})
        for timing in run.timings
    )
    first = run.model_copy(update={"timings": slow})
    cost = _cost((first, *_runs("strict", 1.0)), _runs("default", 1.0, 1.0))
    assert cost.strict_step_seconds == pytest.approx(1.0, rel=0.05)


def _disturbed(runs: tuple[RunEvidence, ...], kept: int) -> tuple[RunEvidence, ...]:
    """All but `kept` of the steady steps seem half as long, and the harness's work hid in them."""
    found = []
    for run in runs:
        timings = Timings.of(
            timing
            if timing.step > len(run.timings) - kept
            else timing.model_copy(update={"seconds": timing.seconds / 2, "harness_seconds": 0.5})
            for timing in run.timings
        )
        found.append(run.model_copy(update={"timings": timings}))
    return tuple(found)


def test_steps_that_observing_did_not_touch_make_the_price_where_there_are_enough() -> None:
    strict, default = _runs("strict", 1.2, 1.2), _runs("default", 1.0, 1.0)
    cost = _cost(_disturbed(strict, kept=6), default)
    assert cost.time_ratio == pytest.approx(1.2, rel=0.02)
    assert cost.steps_used == 6


def test_with_too_few_of_them_all_steps_count_on_both_sides() -> None:
    strict, default = _runs("strict", 1.2, 1.2), _runs("default", 1.0, 1.0)
    cost = _cost(_disturbed(strict, kept=4), _disturbed(default, kept=4))
    assert cost.time_ratio == pytest.approx(1.2, rel=0.02)
    assert cost.steps_used == 30


def _beside(runs: tuple[RunEvidence, ...]) -> tuple[RunEvidence, ...]:
    """The same runs, let go at the same time."""
    return tuple(
        run.model_copy(
            update={
                "run": run.run.model_copy(update={"clock_seconds": 10.0, "wall_seconds": 90.0}),
                "first_step_clock_seconds": 11.0,
            }
        )
        for run in runs
    )


def test_steps_missing_because_runs_went_side_by_side_name_the_setting() -> None:
    cost = _cost(_beside(_runs("strict", 1.0, 1.0)), _runs("default", 1.0, 1.0))
    assert (cost.state, cost.reason) == (CostState.NOT_MEASURABLE, SIDE_BY_SIDE)


@pytest.mark.parametrize("factor", [0.4, 4.5])
def test_a_cost_that_determinism_cannot_have_is_implausible(factor: float) -> None:
    cost = _cost(_runs("strict", factor, factor), _runs("default", 1.0, 1.0))
    assert (cost.state, cost.reason) == (
        CostState.IMPLAUSIBLE,
        "outside -50 % to +300 %; check what else changes the time of a step between the modes",
    )
    assert recorded_price(cost, "2026-01-02T03:04:05+00:00") is None


def test_the_step_times_shown_give_the_ratio_beside_them() -> None:
    cost = _cost(_runs("strict", 1.5, 2.5), _runs("default", 1.0, 1.0))
    assert cost.strict_step_seconds is not None
    assert cost.default_step_seconds is not None
    assert cost.time_ratio == pytest.approx(cost.strict_step_seconds / cost.default_step_seconds)
