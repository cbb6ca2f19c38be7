"""The one metric that stands for a training where there is room for one."""

from __future__ import annotations

from gate.records.observed.evidence import MetricSource
from gate.records.verdict import SeriesSummary, Verdict


def main_series(verdict: Verdict) -> SeriesSummary | None:
    """The loss that the harness saw, else any loss, else the first metric that there is."""
    losses = [series for series in verdict.series if series.name.endswith("loss")]
    # the loss that was differentiated goes before one that is merely called so
    seen = [series for series in losses if series.source == MetricSource.HARNESS.value]
    return next(iter((*seen, *losses, *verdict.series)), None)
