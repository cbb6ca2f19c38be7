from __future__ import annotations

import pytest
from evidence_cases import evidence_of, settings_of

from gate.comparison.cost_arms import Arms, arm_figures, arm_price, control_price
from gate.comparison.differences import CostState
from gate.comparison.measurements import Price
from gate.evidence.run_evidence import RunEvidence

COST = settings_of(cost={"warmup_steps": 1, "min_steps": 4}).cost
DEFAULTS = ("default-a", "default-b")


def _runs(*speeds: float, steps: int = 8) -> tuple[RunEvidence, ...]:
    return tuple(evidence_of(step_seconds=(9.0, *([speed] * (steps - 1)))) for speed in speeds)


def _price(arms: Arms) -> Price:
    return arm_price(arms, "strict", DEFAULTS, COST, control_price(arms, DEFAULTS, COST))


def _arms(strict: tuple[float, ...], a: tuple[float, ...], b: tuple[float, ...]) -> Arms:
    return {"strict": _runs(*strict), "default-a": _runs(*a), "default-b": _runs(*b)}


def test_a_cost_outside_the_control_is_measured() -> None:
    price = _price(_arms((1.5, 1.5, 1.5), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0)))
    assert (price.state, price.over) == (CostState.MEASURED, "default")
    assert price.ratio == pytest.approx(1.5)


def test_the_control_counts_in_both_directions() -> None:
    # Default b is always twice as fast as a: the same noise would hide a cost of 1.5.
    price = _price(_arms((1.5, 1.5, 1.5), (1.4, 1.4, 1.4), (0.7, 0.7, 0.7)))
    assert (price.state, price.reason) == (
        CostState.INCONCLUSIVE,
        "within the noise of this machine",
    )


def test_rounds_that_disagree_are_inconclusive() -> None:
    price = _price(_arms((1.5, 0.7, 1.1), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0)))
    assert price.state is CostState.INCONCLUSIVE


def test_a_step_of_no_duration_cannot_be_priced() -> None:
    price = _price(_arms((1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (1.0, 1.0, 1.0)))
    assert (price.state, price.reason) == (
        CostState.NOT_MEASURABLE,
        "steps too short for this clock",
    )
    assert price.memory_ratio == 1.0


def test_a_control_that_cannot_be_measured_leaves_no_claim() -> None:
    arms = _arms((2.0,) * 3, (1.0,) * 3, (1.0,) * 3)
    control = control_price(arms, DEFAULTS, COST).model_copy(update={"low": None})
    price = arm_price(arms, "strict", DEFAULTS, COST, control)
    assert (price.state, price.reason) == (CostState.INCONCLUSIVE, "without a control")


def test_an_arm_without_steady_steps_or_cold_start_shows_none() -> None:
    figures = arm_figures("strict", (), _runs(1.0, steps=1), COST)
    assert (figures.step_seconds, figures.cold_start_seconds) == (None, None)


@pytest.mark.parametrize(
    ("low", "measured", "broken"),
    [(1.2, True, True), (1.05, True, False), (1.2, False, False), (None, True, False)],
)
def test_only_a_measured_lower_bound_breaks_a_budget(
    low: float | None,
    measured: bool,  # noqa: FBT001 - a column of the table
    broken: bool,  # noqa: FBT001 - a column of the table
) -> None:
    settings = settings_of(cost={"budget_percent": 10.0}).cost
    assert settings.exceeded_by(low, measured=measured) is broken
    assert not COST.exceeded_by(low, measured=measured)
