"""Facts for the decision table, made from short runs."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

from evidence_cases import PARTS, evidence_of, settings_of
from hypothesis import strategies as st

from gate.comparison.compare import compare_results
from gate.comparison.differences import Comparison, SelfTestProbe
from gate.evidence.run_evidence import RunEvidence, TensorDigest
from gate.settings.gate_settings import GateSettings
from gate.training.environment import Environment
from gate.verdict.decision import decide
from gate.verdict.facts import Decision, Facts
from gate.verdict.verdict import Outcome

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


def with_head(content: bytes, numbers: tuple[float, ...], run: RunEvidence = RUN) -> RunEvidence:
    """Return the run with a weight of 16 numbers, which are also its sketch."""
    sha256 = hashlib.sha256(content).hexdigest()
    figures = (*numbers, *map(abs, numbers), min(numbers), max(numbers))
    sketch = struct.pack("<34f", *figures).hex()
    head = TensorDigest(name="state/model/0/head.weight", dtype="F32", shape=(16,), sha256=sha256)
    tensors = sorted((*run.checkpoint.tensors, head), key=lambda tensor: tensor.name)
    update = {"tensors": tuple(tensors), "sketches": {sha256: sketch}}
    return run.model_copy(update={"checkpoint": run.checkpoint.model_copy(update=update)})


def without_sketches(run: RunEvidence) -> RunEvidence:
    return run.model_copy(update={"checkpoint": run.checkpoint.model_copy(update={"sketches": {}})})


HALF = (0.5,) * 16
HALVED = with_head(b"halved", HALF)
WHOLE = with_head(b"whole", (1.0,) * 16)


def facts_of(
    settings: GateSettings = EXACT,
    *,
    baseline: RunEvidence | None = RUN,
    again: RunEvidence | None = None,
    head: RunEvidence = RUN,
) -> Facts:
    return Facts(
        settings=settings,
        repeat=compare(head, again or head, settings),
        self_test=SEEN,
        baseline=compare(baseline, head, settings) if baseline else None,
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
