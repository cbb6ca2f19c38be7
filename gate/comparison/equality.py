"""Whether results are equal bit for bit, without saying where they differ."""

from __future__ import annotations

from gate.codec.digests import sha256_hex
from gate.codec.json_text import canonical_json
from gate.records.evidence import RunEvidence


def result_digest(run: RunEvidence) -> str:
    """SHA-256 over every number, step digest and tensor of a run: equal for equal results."""
    parts = {
        "metrics": [series.model_dump(mode="json") for series in run.metrics],
        "steps": [digest.model_dump(mode="json") for digest in run.steps],
        "state": [run.checkpoint.algorithm, run.checkpoint.root],
    }
    return sha256_hex(canonical_json(parts))


def distinct_results(runs: tuple[RunEvidence, ...]) -> int:
    """How many different results there are."""
    return len({result_digest(run) for run in runs})
