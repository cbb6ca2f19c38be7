"""The decision about what was run, and every comparison that it rests on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gate.baseline.entry import Baseline, BaselineEntry, Baselines
from gate.baseline.select import Selection
from gate.comparison.checks import first_not_finite, run_self_test, threshold_results
from gate.comparison.compare import runs_of_the_same_work
from gate.comparison.cost import determinism_cost
from gate.comparison.data_moves import moved_data
from gate.data.data_sets import DataSets, brings_data, same_data
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.pipelines.comparisons import (
    against_entry,
    against_run,
    alone,
    first_two,
    most_telling,
    repeats_of,
    separated,
)
from gate.pipelines.entries import provisional_entry, rules_in_force, selected
from gate.pipelines.seed_results import judged, seeds_of_brought
from gate.training.runs import Commit, RunMode
from gate.verdict.decision import decide
from gate.verdict.facts import Decision, Facts
from gate.verdict.levels import SeedsOfBrought
from gate.verdict.overrides import drawn_entropy
from gate.verdict.request import GateRequest

BROUGHT_SIDE = "the pull request's baseline"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """The decision, its facts, the entry that was asked, and what a brought entry says of seeds."""

    selection: Selection
    facts: Facts
    decision: Decision
    seeds: SeedsOfBrought


def decided(request: GateRequest, baselines: Baselines, evidence: EvidenceSet) -> Decided:
    """Compare what was run with itself, with the baseline and with the base; decide."""
    first = evidence.runs_of(RunMode.STRICT)[0]
    selection = selected(request, first, baselines.trusted, evidence.data)
    trusted = selection.entry if selection.same_training else None
    brought = brought_entry(request, first, baselines.brought, evidence.data)
    seeds = seeds_of_brought(brought, trusted, evidence, request.settings)
    # with other results of seeds than were seen here it is not reproduced
    facts = replace(
        _facts(request, baselines, evidence, selection, brought if seeds.seen else None),
        data_moved=moved_data(trusted.data, evidence.data) if trusted is not None else (),
        data_brought=brings_data(evidence.base_data, evidence.data),
        unrepeated=evidence.unrepeated,
    )
    return Decided(selection=selection, facts=facts, decision=decide(facts), seeds=seeds)


def brought_entry(
    request: GateRequest, run: RunEvidence, brought: Baseline | None, data: DataSets
) -> BaselineEntry | None:
    """The entry for this run and its data of the baseline that the pull request itself brings."""
    selection = selected(request, run, brought, data)
    entry = selection.entry if selection.same_training else None
    # recorded with other data it would call the next run's data moved, whatever bits it holds
    return entry if entry is not None and same_data(entry.data, data) else None


def _facts(
    request: GateRequest,
    baselines: Baselines,
    evidence: EvidenceSet,
    selection: Selection,
    brought: BaselineEntry | None,
) -> Facts:
    """Every comparison that the outcome depends on; `brought` is the pull request's own entry."""
    settings, compare = request.settings, request.settings.compare
    strict = evidence.runs_of(RunMode.STRICT)
    first = strict[0]
    trusted = selection.entry if selection.same_training else None
    repeats = repeats_of(strict, request)
    default, base = evidence.runs_of(RunMode.DEFAULT), evidence.runs_of(RunMode.STRICT, Commit.BASE)
    here = evidence.base_here
    not_finite = first_not_finite((*strict, *base), compare.allow_not_finite)
    return Facts(
        settings=settings,
        # a number that never passes is an answer of one run
        repeat=most_telling(repeats) if repeats else alone(first),
        strict_runs=len(strict),
        unequal=sum(not one.numerically_equal for one in repeats),
        self_test=() if not_finite else run_self_test(first, compare),
        not_finite=not_finite,
        base_not_finite=first_not_finite(base, compare.allow_not_finite) is not None,
        like_strict=runs_of_the_same_work(first, default, compare),
        baseline=against_entry(selection.entry, first, request),
        same_training=selection.same_training,
        other_settings=selection.other_settings,
        proposed=against_entry(brought, first, request, BROUGHT_SIDE),
        base_run=against_run(base[0], first, request) if base else None,
        base_repeat=first_two(base, request),
        own_environments=any(run.run.environment is Commit.BASE for run in base),
        base_here=against_run(here, first, request) if here else None,
        base_moved=against_run(base[0], here, request) if here and base else None,
        nearest=separated(selection.nearest, first, request),
        provisional=provisional_entry(
            request, first, baselines.trusted, baselines.brought, evidence.data
        ),
        quarantine=rules_in_force(request, selection.entry, evidence.created_at),
        same_code=selection.entry is not None and selection.entry.commit in baselines.same_code,
        thresholds=threshold_results(first, settings.policy.thresholds),
        judged=judged(trusted, evidence, settings),
        # without default runs nothing was priced, and nothing failed to be
        entropy=drawn_entropy(strict),
        cost=(
            determinism_cost((first, strict[1]), default, settings.cost)
            if default[1:] and strict[1:]
            else None
        ),
    )
