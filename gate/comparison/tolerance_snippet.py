"""Tolerances as text for repro-gate.yml, with the origin that a reviewer will ask for."""

from __future__ import annotations

import glob
import json

from gate.comparison.measurements import CalibratedTolerance, MetricNoise, Provenance
from gate.settings.tolerances import Tolerance
from gate.text.untrusted_text import masked

MAX_METRICS = 20
ENVIRONMENT = ("device", "cpu", "torch", "threads")


def tolerance_snippet(
    metrics: tuple[MetricNoise, ...], runs: int, factor: float, provenance: Provenance
) -> str:
    """A `compare` section for the metrics that moved; a comment alone when none did.

    All of it is printable ASCII, since names come from the training.
    """
    moved = [metric for metric in metrics if metric.largest_gap > 0]
    head = [
        f"# repro-gate noise: {runs} runs in default mode, k({runs}) = {factor:.3g}",
        _origin(provenance),
    ]
    if not moved:
        return "\n".join([*head, "# no metric moved: a tolerance would only hide changes", ""])
    rows = [
        # a name with a star or a bracket would be a pattern, and a quote would end the YAML text
        f"    - {{metric: {json.dumps(glob.escape(metric.name))}, absolute: {metric.tolerance!r}}}"
        for metric in moved[:MAX_METRICS]
    ]
    return "\n".join([*head, "compare:", "  tolerances:", *rows, ""])


def calibrated_block(
    tolerances: tuple[CalibratedTolerance, ...], measured: str, provenance: Provenance
) -> str:
    """The same for derived tolerances, one key a line; empty when no metric moved."""
    if not tolerances:
        return ""
    head = [f"# {_plain(measured)}", _origin(provenance), "compare:", "  tolerances:"]
    return "\n".join([*head, *(_row(found.rule) for found in tolerances), ""])


def _row(rule: Tolerance) -> str:
    keys = rule.model_dump(mode="json", exclude_defaults=True)
    # JSON is YAML too: a name that the training chose cannot end its own text
    lines = [f"{key}: {json.dumps(value)}" for key, value in keys.items() if key != "derived"]
    if rule.derived is not None:
        parts = rule.derived.model_dump(mode="json").items()
        lines.append(f"derived: {{{', '.join(f'{key}: {value!r}' for key, value in parts)}}}")
    return "\n".join(f"    {' ' if place else '-'} {line}" for place, line in enumerate(lines))


def _origin(provenance: Provenance) -> str:
    parts = provenance.environment.parts
    where = ", ".join(f"{part} {parts.get(part, 'unknown')}" for part in ENVIRONMENT)
    dirty = " with uncommitted changes" if provenance.changed_files else ""
    commit = f"{provenance.commit[:12]}{dirty}"
    return f"# commit {commit}, {provenance.created_at[:10]}, {_plain(where)}"


def _plain(text: str) -> str:
    return masked(text).encode("ascii", "replace").decode("ascii")[:200]
