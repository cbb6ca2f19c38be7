"""A pass that breaks the budget of determinism: the outcome stays, the pass does not."""

from __future__ import annotations

from typing import Any

import pytest
from each_row import each_row
from evidence_cases import evidence_of, settings_of

from gate.comparison.compare import compare_results
from gate.comparison.differences import CostState, DeterminismCost, SelfTestProbe
from gate.verdict.decision import decide
from gate.verdict.facts import Decision, Facts
from gate.verdict.findings import budget_not_applied
from gate.verdict.next_step import ReaderPlace, next_steps
from gate.verdict.verdict import Outcome

RUN = evidence_of()
OTHER = evidence_of(values=(9.0, 9.0, 9.0))


def _cost(low: float | None, state: CostState = CostState.MEASURED) -> DeterminismCost:
    return DeterminismCost(state=state, reason="", low=low)


def _decided(cost: DeterminismCost | None, budget: float | None = 10.0, **facts: Any) -> Decision:  # noqa: ANN401 - any of the facts
    settings = settings_of(cost={"budget_percent": budget})
    same = compare_results(RUN, RUN, settings.compare, ("a", "b"))
    known = {"repeat": same, "baseline": same, "self_test": (SelfTestProbe(name="x", caught=True),)}
    return decide(Facts(settings=settings, cost=cost, **{**known, **facts}))


def test_a_pass_above_the_budget_fails_and_keeps_its_outcome() -> None:
    decision = _decided(_cost(1.25))
    assert (decision.outcome, decision.passes) == (Outcome.REPRODUCED, False)
    assert decision.over_budget
    assert decision.cause == (
        "equal to the baseline, bit for bit; but determinism costs at least 25.0 % step time, "
        "and cost.budget_percent allows 10 %"
    )


@each_row(
    ("cost", "budget"),
    [
        (_cost(1.25), None),
        (_cost(1.05), 10.0),
        (_cost(None, CostState.NOT_MEASURABLE), 10.0),
        (_cost(1.25, CostState.INCONCLUSIVE), 10.0),
        (None, 10.0),
    ],
)
def test_a_budget_that_is_not_surely_broken_stops_nothing(
    cost: DeterminismCost | None, budget: float | None
) -> None:
    assert _decided(cost, budget).passes


def test_the_budget_does_not_hide_a_stronger_objection() -> None:
    settings = settings_of()
    drifted = compare_results(OTHER, RUN, settings.compare, ("baseline", "strict-1"))
    decision = _decided(_cost(1.25), baseline=drifted)
    assert decision.outcome is Outcome.CODE_DRIFT
    assert not decision.over_budget
    assert "budget" not in decision.cause


def test_the_next_command_finds_the_costly_knob() -> None:
    here = ReaderPlace(
        config="repro-gate.yml", out="out", baseline="", base_commit="", on_runner=False
    )
    (step,) = next_steps(Outcome.REPRODUCED, here, passes=False, over_budget=True)
    assert step.command == "repro-gate cost --attribute"


@pytest.mark.parametrize(("budget", "priced"), [(None, False), (None, True), (10.0, True)])
def test_a_budget_that_is_not_set_or_was_applied_is_no_finding(
    budget: float | None, *, priced: bool
) -> None:
    cost = settings_of(cost={"budget_percent": budget, "when": "never"}).cost
    assert budget_not_applied(cost, priced=priced) == ()
