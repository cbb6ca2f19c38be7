"""Tolerances as text for repro-gate.yml, with the origin that a reviewer will ask for."""

from __future__ import annotations

import glob
import json

from gate.codec.untrusted_text import masked
from gate.records.measurement import MetricNoise, Provenance

MAX_METRICS = 20
ENVIRONMENT = ("device", "cpu", "torch", "threads")


def tolerance_snippet(
    metrics: tuple[MetricNoise, ...], runs: int, factor: float, provenance: Provenance
) -> str:
    """A `compare` section for the metrics that moved; a comment alone when none did.

    All of it is printable ASCII, since names come from the training.
    """
    parts = provenance.environment.parts
    where = ", ".join(f"{part} {parts.get(part, 'unknown')}" for part in ENVIRONMENT)
    moved = [metric for metric in metrics if metric.largest_gap > 0]
    head = [
        f"# repro-gate noise: {runs} runs in default mode, k({runs}) = {factor:.3g}",
        f"# commit {provenance.commit[:12]}, {provenance.created_at[:10]}, {_plain(where)}",
    ]
    if not moved:
        return "\n".join([*head, "# no metric moved: a tolerance would only hide changes", ""])
    rows = [
        # a name with a star or a bracket would be a pattern, and a quote would end the YAML text
        f"    - {{metric: {json.dumps(glob.escape(metric.name))}, absolute: {metric.tolerance!r}}}"
        for metric in moved[:MAX_METRICS]
    ]
    return "\n".join([*head, "compare:", "  tolerances:", *rows, ""])


def _plain(text: str) -> str:
    return masked(text).encode("ascii", "replace").decode("ascii")[:200]
