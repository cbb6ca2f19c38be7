"""A page for every outcome, drawn from runs like those behind the verdict."""

from __future__ import annotations

from collections.abc import Mapping

from page_cases import GIBIBYTE, distance_of
from report_outcomes import (
    CASES,
    DRIFTED,
    MOVED_PARTS,
    NO_MOMENT,
    OLD_PARTS,
    PLAIN,
    TOLERANT,
    WITH_DATA,
    base_in_its_own,
    base_runs,
    both,
    entry,
    not_finite_from,
    ran,
    resumed_runs,
)

from gate.baseline.entry import BaselineEntry
from gate.evidence.columns import Memory, StepMemory
from gate.evidence.run_evidence import RunEvidence
from gate.report.page.page_sources import PageSources
from gate.training.runs import BASE_HERE, Commit, RunMode

Runs = tuple[RunEvidence, ...]


def _with_memory(run: RunEvidence) -> RunEvidence:
    memory = Memory.of(
        StepMemory(
            step=line.step,
            resident_bytes=2 * GIBIBYTE + line.step % 3 * GIBIBYTE // 100,
            device_bytes=GIBIBYTE + line.step % 5 * GIBIBYTE // 100,
        )
        for line in run.steps
    )
    return run.model_copy(update={"memory": memory})


def _sources(
    strict: Runs, against: BaselineEntry | None = PLAIN, base: Runs = (), **distances: float
) -> PageSources:
    """Return two strict runs, a default run after each, and what they are compared with."""
    beside = [
        strict[0].model_copy(
            update={
                "run": ran(label).run.model_copy(update={"label": label, "mode": RunMode.DEFAULT})
            }
        )
        for label in ("default-1", "default-2")
    ]
    runs = (strict[0], beside[0], strict[1], beside[1], *base)
    distance = distance_of(**distances) if distances else None
    return PageSources(runs=tuple(map(_with_memory, runs)), entry=against, distance=distance)


SOURCES: Mapping[str, PageSources] = {
    "reproduced": _sources(both()),
    "within-tolerance": _sources(both(since=5, by=0.00001), entry(ran(), under=TOLERANT)),
    "code-drift": _sources(
        both(first="parameters", since=6, rate="0.002"), entry(ran(rate="0.001"))
    ),
    "environment-drift": _sources(both(since=2), entry(ran(parts=MOVED_PARTS)), base_runs(since=2)),
    "environment-moved": _sources(both(since=2), entry(ran(parts=OLD_PARTS)), base_runs(since=2)),
    "dependency-drift": _sources(
        both(since=2),
        entry(ran(parts=MOVED_PARTS)),
        base_in_its_own(ran(BASE_HERE, commit=Commit.BASE, since=2), parts=MOVED_PARTS),
    ),
    "data-drift": _sources(
        both(first="batch", since=2), WITH_DATA, base_runs(first="batch", since=2)
    ),
    "data-brought": _sources(both(first="batch", since=2), WITH_DATA),
    "preprocessing": _sources(both()),
    "same-code": _sources(both(since=2)),
    "baseline-change": _sources(DRIFTED),
    "quarantine": _sources(both(), entry(ran(since=2)), base_runs()),
    "no-baseline": _sources(both(), None),
    "provisional": _sources(both(), None),
    "other-accelerator": _sources(both(), None),
    "not-comparable": _sources(both(), entry(ran(steps=18))),
    "nondeterministic": _sources(
        (ran(), ran("strict-2", first="batch", since=3, by=0.0000004)),
        conv1=3e-7,
        conv2=0.0042,
        head=1.5,
    ),
    "resume-differs": _sources(both(), base=resumed_runs(NO_MOMENT)),
    "checkpoint-torn": _sources(both(), base=resumed_runs()),
    "error": PageSources(),
    "unaffected": PageSources(entry=PLAIN),
    "one-run": PageSources(runs=(_with_memory(ran()),), entry=PLAIN),
    "nan": _sources((not_finite_from(1, ran()), not_finite_from(1, ran("strict-2")))),
}
if SOURCES.keys() != CASES.keys():
    message = "every outcome has a page"
    raise ValueError(message)
