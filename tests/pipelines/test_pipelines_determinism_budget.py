"""The budget of determinism in the gate itself."""

from __future__ import annotations

from gate_bench import Bench
from played_training import Project

from gate.verdict.verdict import Outcome, Verdict

LOSSES = [str(2.5 - step / 64) for step in range(8)]


def _gated(priced: Bench, project: Project, budget: float) -> Verdict:
    project.play(losses=LOSSES, knob_seconds={"deterministic_algorithms": 0.02})
    project.settings(f"cost: {{warmup_steps: 1, min_steps: 4, budget_percent: {budget}}}\n")
    priced.record()
    return priced.gate().verdict


def test_a_pass_that_costs_too_much_fails_with_its_outcome(priced: Bench, project: Project) -> None:
    verdict = _gated(priced, project, 5)
    assert (verdict.outcome, verdict.passes) == (Outcome.REPRODUCED, False)
    assert "determinism costs at least 19." in verdict.cause
    assert verdict.next_steps[0].command == "repro-gate cost --attribute"


def test_a_pass_inside_the_budget_passes(priced: Bench, project: Project) -> None:
    assert _gated(priced, project, 50).passes
