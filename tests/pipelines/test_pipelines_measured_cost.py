"""The stories of measuring, with a played training: real processes, no torch."""

from __future__ import annotations

import pytest
from gate_bench import Bench
from played_training import Project

from gate.comparison.differences import CostState
from gate.comparison.measurements import CostDocument, KnobState
from gate.errors import RunError
from gate.pipelines.measurement import measure_cost

LOSSES = [str(2.5 - step / 64) for step in range(8)]
FILL = {"fill_uninitialized_memory": 0.02}


def _settings(project: Project, **cost: object) -> None:
    keys = {"warmup_steps": 1, "min_steps": 4, "rounds": 3, **cost}
    project.settings("cost: {" + ", ".join(f"{key}: {value}" for key, value in keys.items()) + "}")


def _cost(priced: Bench, *, attribute: bool = False) -> CostDocument:
    return measure_cost(priced.request(), priced.adapters(), attribute=attribute)


def test_each_arm_is_priced_in_interleaved_rounds(priced: Bench, project: Project) -> None:
    project.play(losses=LOSSES, knob_seconds={"deterministic_algorithms": 0.01, **FILL})
    _settings(project, rounds=3)
    cost = _cost(priced)
    assert cost.order[:8] == (
        *("default-a-r1", "strict-r1", "strict-fill-r1", "default-b-r1"),
        *("default-b-r2", "strict-fill-r2", "strict-r2", "default-a-r2"),
    )
    assert [price.state for price in cost.prices] == [CostState.MEASURED] * 3
    ratios = [price.ratio for price in cost.prices]
    assert ratios == pytest.approx([1.1, 1.3, 1.3 / 1.1], rel=1e-6)
    assert cost.control.ratio == pytest.approx(1.0)
    assert [arm.cold_start_seconds for arm in cost.arms] == [1.5, 1.5, 1.5]
    assert cost.steps_used == 7


def test_two_rounds_claim_nothing(priced: Bench, project: Project) -> None:
    project.play(losses=LOSSES, knob_seconds=FILL)
    _settings(project, rounds=2)
    cost = _cost(priced)
    assert {price.state for price in cost.prices} == {CostState.INCONCLUSIVE}
    assert cost.prices[0].reason == "fewer than 3 rounds"


def test_short_runs_are_not_measurable(priced: Bench, project: Project) -> None:
    _settings(project, rounds=1, min_steps=10)
    assert _cost(priced).prices[0].reason == "8 steps too short"


def test_a_broken_budget_is_told(priced: Bench, project: Project) -> None:
    project.play(losses=LOSSES, knob_seconds={"deterministic_algorithms": 0.01})
    _settings(project, budget_percent=5)
    assert _cost(priced).over_budget
    _settings(project, budget_percent=20)
    assert not _cost(priced).over_budget


def test_the_budget_is_for_the_arm_that_the_gate_runs(priced: Bench, project: Project) -> None:
    project.play(losses=LOSSES, knob_seconds=FILL)
    project.settings(
        "determinism: {fill_uninitialized_memory: true}\n"
        "cost: {warmup_steps: 1, min_steps: 4, budget_percent: 5}"
    )
    cost = _cost(priced)
    assert (cost.judged_arm, cost.over_budget) == ("strict-fill", True)


def test_costly_knobs_that_are_not_needed_are_taken_out(priced: Bench, project: Project) -> None:
    project.play(
        losses=LOSSES,
        needs="deterministic_algorithms",
        knob_seconds={"deterministic_algorithms": 0.01, "inductor_deterministic": 0.03, **FILL},
    )
    _settings(project)
    cost = _cost(priced, attribute=True)
    fates = {knob.knob: knob.state for knob in cost.attribution}
    assert fates["deterministic_algorithms"] is KnobState.NEEDED
    assert fates["inductor_deterministic"] is KnobState.DROPPED
    assert fates["fill_uninitialized_memory"] is KnobState.OFF
    assert fates["cudnn_deterministic"] is KnobState.NOT_APPLICABLE
    assert cost.minimal is not None
    assert cost.minimal.dropped == ("inductor_deterministic",)
    assert (cost.minimal.verified, cost.minimal.equal_runs) == (True, 4)
    assert cost.minimal.same_bits_as_strict
    assert [arm.distinct_results for arm in cost.arms] == [6, 1, 1, 3, 1]


def test_a_strict_mode_that_does_not_repeat_has_no_minimal_set(
    priced: Bench, project: Project
) -> None:
    project.play(losses=LOSSES, random=True)
    _settings(project, rounds=1)
    cost = _cost(priced, attribute=True)
    assert cost.minimal is None
    assert cost.attribution[0].reason == "strict mode itself is not repeatable"


def test_a_training_that_fails_stops_the_measurement(priced: Bench, project: Project) -> None:
    project.play(exit=3)
    with pytest.raises(RunError, match="default-a-r1"):
        _cost(priced)
