"""What a page shows in addition to the verdict; all of it may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gate.baseline.entry import Baseline, BaselineEntry
from gate.comparison.differences import BASELINE_SIDE, Comparison
from gate.evidence.run_evidence import EvidenceSet, MetricSeries, RunEvidence, StateDistance
from gate.training.runs import FIRST_STRICT, Commit, RunMode, label_of
from gate.verdict.verdict import Verdict

LOOKS = (
    *(label_of(mode, number) for mode in (RunMode.STRICT, RunMode.DEFAULT) for number in (1, 2)),
    BASELINE_SIDE,
    *(label_of(RunMode.STRICT, number, Commit.BASE) for number in (1, 2)),
)
# In a comparison, the two commits look like two runs in a gate's page: the second drawn over the
# first.
COMPARED = {
    "base": 0,
    "head": 1,
    "base strict": 0,
    "head strict": 1,
    "base default": 2,
    "head default": 3,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSources:
    """The runs' evidence, the baseline's entry, and the distance of the strict runs' states."""

    runs: tuple[RunEvidence, ...] = ()
    entry: BaselineEntry | None = None
    distance: StateDistance | None = None

    def side(self, name: str) -> RunEvidence | BaselineEntry | None:
        """Return a run by its label, or the baseline's entry."""
        if name == BASELINE_SIDE:
            return self.entry
        return next((run for run in self.runs if run.run.label == name), None)

    def settings(self, name: str) -> Mapping[str, str]:
        """Return a side's numeric optimizer settings, by the name of their leaf."""
        side = self.side(name)
        return {} if side is None else side.checkpoint.optimizer_settings

    @property
    def reference(self) -> RunEvidence | None:
        """The run with which the others are compared."""
        return next((run for run in self.runs if run.run.label == FIRST_STRICT), None)

    @property
    def parameter_names(self) -> Mapping[str, str]:
        """Maps the place of a parameter's state in an optimizer to the parameter's own leaf."""
        return self.reference.parameter_names if self.reference is not None else {}

    def series(self, metric: str) -> tuple[tuple[str, MetricSeries], ...]:
        """Return every series with this name: the reference's, the baseline's, then the others'."""
        order = sorted(self.runs, key=lambda run: run.run.label != FIRST_STRICT)
        sides = [(run.run.label, run.metrics) for run in order]
        if self.entry is not None:
            sides.insert(1, (BASELINE_SIDE, self.entry.metrics))
        return tuple(
            (label, series)
            for label, metrics in sides
            for series in metrics
            if series.name == metric
        )


def page_sources(verdict: Verdict, evidence: EvidenceSet, baseline: Baseline | None) -> PageSources:
    """Return a page's sources, with the baseline entry that the verdict names."""
    facts = verdict.baseline_facts
    distance = evidence.apart.distance if evidence.apart else None
    if facts is None or baseline is None:
        return PageSources(runs=evidence.runs, distance=distance)
    identity = (facts.commit, facts.recorded_at)
    # Found by the verdict's facts, because the page must show the entry that decided.
    matching = (
        entry for entry in baseline.entries if (entry.commit, entry.recorded_at) == identity
    )
    return PageSources(runs=evidence.runs, entry=next(matching, None), distance=distance)


def differing(verdict: Verdict) -> tuple[Comparison, ...]:
    """Return the verdict's comparisons whose sides differ, the most informative first."""
    known = (verdict.repeat, verdict.base_run, verdict.baseline)
    return tuple(
        comparison for comparison in known if comparison is not None and comparison.differs
    )


def style_of(name: str) -> int:
    """Return the number of a run's style, the same in every picture; other runs share the last."""
    if name in COMPARED:
        return COMPARED[name]
    return LOOKS.index(name) if name in LOOKS else len(LOOKS)
