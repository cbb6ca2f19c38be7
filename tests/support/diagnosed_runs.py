"""Runs with fingerprints, and lines of a script that override settings, for diagnoses."""

from __future__ import annotations

from evidence_cases import evidence_of

from gate.evidence.observations import Override, OverrideKind
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.step_columns import StepDigest, StepDigests


def with_fingerprints(
    *steps: dict[str, str], values: tuple[float, ...] = (2.5, 2.25)
) -> RunEvidence:
    """Return a run with these step digests; a step without `parameters` was not observed."""
    digests = StepDigests.of(
        StepDigest(
            step=step,
            parameters=fingerprints.get("parameters", ""),
            fingerprints={
                name: text for name, text in fingerprints.items() if name != "parameters"
            },
        )
        for step, fingerprints in enumerate(steps, start=1)
    )
    return evidence_of(values=values).model_copy(update={"steps": digests})


def turned(name: str, step: int = 1, after: str = "on") -> Override:
    return Override(
        rank=0, pid=7, step=step, kind=OverrideKind.SWITCH, name=name, before="off", after=after,
        file="train.py", line=12, closed=False, restored=False,
    )  # fmt: skip


def seeded() -> Override:
    return turned("numpy.random.default_rng").model_copy(
        update={"kind": OverrideKind.ENTROPY, "line": 28}
    )
