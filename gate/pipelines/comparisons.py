"""Why a result is what it is, and what equal runs leave open."""

from __future__ import annotations

from gate.comparison.differences import EventKind
from gate.comparison.same_work import missed_share, on_one_cpu_thread
from gate.diagnosis.diagnosis import Diagnosis
from gate.diagnosis.first_divergence import diagnose_drift, diagnose_repeat
from gate.diagnosis.growth import growth_of
from gate.diagnosis.suspects import Known
from gate.diagnosis.touched_lines import (
    ran_before_nan,
    shown_change,
    unchanged,
    with_typed_numbers,
)
from gate.diagnosis.trace_window import with_trace
from gate.diagnosis.trial_results import with_tried
from gate.diagnosis.trials import threads_at
from gate.evidence.observations import SourceKind
from gate.evidence.run_evidence import EvidenceSet
from gate.evidence.trace import ShownChange
from gate.training.runs import Commit, RunMode
from gate.verdict.blind_spots import rare_faults
from gate.verdict.concluded import concluded_class
from gate.verdict.facts import Decision, Facts
from gate.verdict.overrides import changed_seeds, suspected_seeds, suspected_settings
from gate.verdict.request import GateRequest
from gate.verdict.verdict import EqualRuns, Outcome
from gate.verdict.verdict_sources import changed_precision, suspected_sources

RARE = 0.1
# where the difference may be the change's own
ITS_OWN = frozenset((Outcome.CODE_DRIFT, Outcome.NOT_COMPARABLE, Outcome.NONDETERMINISTIC))


def rare_faults_of(facts: Facts) -> tuple[str, ...]:
    """What the equal runs leave open, where they are equal at all."""
    if not facts.repeat.numerically_equal:
        return ()
    strict = facts.strict_runs
    runs = strict + len(facts.like_strict)
    every = missed_share(runs, RARE) if facts.like_strict else None
    return rare_faults((strict, runs), missed_share(strict, RARE), every)


def equal_runs_of(facts: Facts) -> EqualRuns | None:
    """The equal runs of one and the same work, and the share of rare faults that they miss."""
    if not facts.repeat.numerically_equal or any(
        not other.numerically_equal for other in facts.like_strict
    ):
        return None
    runs = facts.strict_runs + len(facts.like_strict)
    return EqualRuns(runs=runs, missed=round(missed_share(runs, RARE), 4))


def beside_the_difference(
    request: GateRequest,
    evidence: EvidenceSet,
    decision: Decision,
    diagnosis: Diagnosis | None,
    *,
    not_finite: bool = False,
) -> tuple[ShownChange | None, bool]:
    """What of the change belongs beside the difference; whether the named line is none of it."""
    folder = request.repository_path(request.settings.train.workdir)
    if not_finite:
        return ran_before_nan(evidence.change, evidence.trace, folder), False
    if diagnosis is None or not _may_be_its_own(decision, diagnosis):
        return None, False
    drift = decision.outcome is not Outcome.NONDETERMINISTIC
    opened = {
        source.call
        for run in evidence.runs_of(RunMode.STRICT)
        for source in run.sources
        if source.kind is SourceKind.OPENED
    }
    shown = shown_change(evidence.change, diagnosis, opened, folder, drift=drift)
    named = diagnosis.likely[0].code_place if diagnosis.likely else None
    return shown, unchanged(evidence.change, named, folder)


def _may_be_its_own(decision: Decision, diagnosis: Diagnosis) -> bool:
    """Where the environment moved as well, a setting of the run is still the change's."""
    led_by_settings = diagnosis.kind is not EventKind.ENVIRONMENT
    moved = decision.outcome is Outcome.ENVIRONMENT_DRIFT
    return decision.outcome in ITS_OWN or (moved and led_by_settings)


def diagnosis_of(decision: Decision, evidence: EvidenceSet) -> Diagnosis | None:
    """Why the comparison that decided came out as it did, where that is not a pass."""
    if decision.decided is None or decision.passes:
        return None
    found = with_trace(_recorded(decision, evidence), evidence.trace)
    if found is None:
        return None
    update = {
        "cause_class": concluded_class(found, decision.outcome),
        "growth": growth_of(decision.decided),
    }
    found = with_typed_numbers(found.model_copy(update=update), evidence.change)
    if evidence.tried is None or decision.outcome is not Outcome.NONDETERMINISTIC:
        return found
    strict = evidence.runs_of(RunMode.STRICT)[0]
    alive = threads_at(strict, found.first_step)
    return with_tried(found, evidence.tried, threads_alive=alive)


def _recorded(decision: Decision, evidence: EvidenceSet) -> Diagnosis | None:
    """What fingerprints and lines say that every run records."""
    if decision.decided is None:
        return None
    strict = evidence.runs_of(RunMode.STRICT)
    if decision.outcome is not Outcome.NONDETERMINISTIC:
        base = next(iter(evidence.runs_of(RunMode.STRICT, Commit.BASE)), None)
        traced = () if evidence.trace is None else evidence.trace.changed_seeds
        known = Known(
            changed_seeds=changed_seeds(strict[0], base) or traced,
            sources=changed_precision(strict[0], base),
        )
        return diagnose_drift(decision.decided, known)
    alone = all(map(on_one_cpu_thread, strict))
    # one thread leaves no order open, whatever is overridden
    settings = () if alone else suspected_settings(strict)
    known = Known(
        overrides=(*settings, *suspected_seeds(strict)),
        sources=suspected_sources(strict),
        children=(*strict[0].children, *strict[0].weaker_children),
    )
    return diagnose_repeat(decision.decided, known, one_cpu_thread=alone)
