"""Facts that the decision table is asked about, made of short runs."""

from __future__ import annotations

from dataclasses import replace

from evidence_cases import PARTS, evidence_of, settings_of
from hypothesis import strategies as st

from gate.comparison.compare import compare_results
from gate.records.comparison import Comparison
from gate.records.observed.environment import Environment
from gate.records.observed.evidence import RunEvidence
from gate.records.settings import GateSettings
from gate.records.verdict import Outcome, SelfTestProbe
from gate.verdict.decision import decide
from gate.verdict.facts import Decision, Facts

EXACT = settings_of()
TOLERANT = settings_of(compare={"tolerances": ({"metric": "*", "absolute": 0.5},)})
BITWISE = settings_of(
    compare={"tolerances": ({"metric": "*", "absolute": 0.5},)}, policy={"require_bitwise": True}
)
SEEN = (SelfTestProbe(name="one flipped bit", caught=True),)
RUN = evidence_of()
NEAR = evidence_of(values=(2.5, 2.25, 2.25), weights=b"WEIGHTS")
FAR = evidence_of(values=(2.5, 2.25, 9.0), weights=b"WEIGHTS")
OTHER_CPU = {**PARTS, "cpu": "two"}
OTHER_TORCH = {**PARTS, "torch": "9"}
OTHER_DRIVER = {**PARTS, "driver": "9"}


def compare(expected: RunEvidence, observed: RunEvidence, settings: GateSettings) -> Comparison:
    return compare_results(expected, observed, settings.compare, ("expected", "observed"))


def facts_of(
    settings: GateSettings = EXACT, *, baseline: RunEvidence | None = RUN, again: RunEvidence = RUN
) -> Facts:
    return Facts(
        settings=settings,
        repeat=compare(RUN, again, settings),
        self_test=SEEN,
        baseline=compare(baseline, RUN, settings) if baseline else None,
    )


def moved(run: RunEvidence, parts: dict[str, str]) -> RunEvidence:
    return run.model_copy(update={"environment": Environment(parts=parts)})


def row(decision: Decision) -> tuple[Outcome, bool]:
    return decision.outcome, decision.passes


def with_base(
    base: RunEvidence, again: RunEvidence | None = None, settings: GateSettings = TOLERANT
) -> Decision:
    facts = facts_of(settings, baseline=moved(FAR, OTHER_DRIVER))
    return decide(
        replace(
            facts,
            base_run=compare(base, RUN, settings),
            base_repeat=compare(base, again or base, settings),
        )
    )


RUNS = st.sampled_from([RUN, NEAR, FAR, moved(RUN, OTHER_CPU), moved(FAR, OTHER_TORCH)])
MAYBE = st.none() | RUNS
