"""Make a baseline entry from a run, refuse a poisoned one, and put it into the file."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gate.codec.documents import read_document
from gate.errors import BaselineError
from gate.records.baseline import Baseline, BaselineEntry
from gate.records.comparison import Comparison
from gate.records.evidence import EvidenceSet, MetricSeries, RunEvidence

MAX_BASELINE_BYTES = 16 * 1024 * 1024


def read_baseline(data: bytes | None, source: str) -> Baseline | None:
    """Parse the committed file; None when there is none.

    Raises `DocumentError` for a broken file or one of another schema version.
    """
    if data is None:
        return None
    return read_document(Baseline, data, source, max_bytes=MAX_BASELINE_BYTES)


def propose_entry(
    evidence: EvidenceSet, run: RunEvidence, repeat: Comparison, *, reason: str
) -> BaselineEntry:
    """The entry that this run would become.

    Raises `BaselineError` when the run may not become one: it was not repeatable, compared
    nothing, or holds NaN or infinity.
    """
    if not repeat.numerically_equal:
        raise BaselineError(
            "not recorded: the two strict runs are not equal, so there is no one result to record",
            hint="Run `repro-gate gate` and follow its diagnosis first.",
        )
    bad = first_not_finite(run.metrics)
    if bad is not None:
        name, step, value = bad
        raise BaselineError(
            f"not recorded: metric {name} is {value} at step {step}",
            hint="A baseline of NaN or infinity would pass every later failure.",
        )
    if evidence.changed_files:
        raise BaselineError(
            "not recorded: the work tree differs from its commit, so the entry's commit would lie",
            hint="Commit the changes, then record.",
            details=evidence.changed_files[:20],
        )
    return BaselineEntry(
        commit=evidence.commit,
        recorded_at=evidence.created_at,
        reason=reason,
        training_digest=evidence.training_digest,
        environment=run.environment,
        metrics=run.metrics,
        # the digests that decide; streams are for a diagnosis of two runs of one call
        steps=tuple(step.model_copy(update={"streams": {}}) for step in run.steps),
        checkpoint=run.checkpoint,
    )


def first_not_finite(series: Iterable[MetricSeries]) -> tuple[str, int, str] | None:
    """Name, step and text of the first value that is NaN or infinite."""
    for one in series:
        for point in one.points:
            if not math.isfinite(point.value):
                return one.name, point.step, point.decimal
    return None


def with_entry(baseline: Baseline | None, entry: BaselineEntry) -> Baseline:
    """The baseline with this entry: it replaces the one of the same environment and training.

    Entries of another training are dropped: `repro-gate.yml` has moved on and nothing can be
    compared with them any more.
    """
    others = [
        other
        for other in (baseline.entries if baseline else ())
        if other.training_digest == entry.training_digest and other.environment != entry.environment
    ]
    ordered = sorted((*others, entry), key=lambda each: sorted(each.environment.parts.items()))
    return Baseline(entries=tuple(ordered))
