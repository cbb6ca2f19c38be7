"""The gate on one page: run, judge, record; each hands one package's product to the next."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gate.baseline.entry import MAX_RUN_URL, Baseline, BaselineEntry, Baselines, entry_name
from gate.baseline.record import propose_entry, recorded_price, successor
from gate.comparison.checks import first_not_finite
from gate.comparison.compare import missed_share
from gate.comparison.data_moves import moved_data
from gate.comparison.differences import Comparison
from gate.comparison.performance import performance_of
from gate.comparison.tolerances import tolerance_uses
from gate.data.data_sets import DataSets, move_sentence, same_data
from gate.diagnosis.touched_lines import by_its_files, shortened
from gate.errors import EvidenceError, RunError
from gate.evidence.capture import state_roots
from gate.evidence.folder import WrittenDocument
from gate.evidence.given import SeedResults
from gate.evidence.operators import OperatorReport
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.isolation.modes import Isolation
from gate.pipelines.adapters import Adapters
from gate.pipelines.comparisons import (
    RARE,
    Budget,
    against_entry,
    against_run,
    beside_the_difference,
    diagnosis_of,
    differ,
    equal_runs_of,
    first_two,
    made_until_they_differ,
    most_telling,
    never_pass,
    not_run,
    rare_faults_of,
    repeats_of,
)
from gate.pipelines.decided import Decided, brought_entry, decided
from gate.pipelines.entries import (
    movement,
    recorded_data,
    rules_in_force,
    selected,
    settled,
    with_settled,
)
from gate.pipelines.escalation import escalate, lines_of_the_change, trace_not_finite
from gate.pipelines.policy_files import read_baselines, work_tree_baseline
from gate.pipelines.runs import Session
from gate.pipelines.seed_results import entry_results, recorded_results, seeds_are_open, unfit_seeds
from gate.pipelines.seed_runs import run_seeds
from gate.pipelines.settings_tried import try_settings
from gate.settings.load import settings_digest, training_settings
from gate.training.lanes import turns_of
from gate.training.plan import (
    plan_base,
    plan_base_here,
    plan_gate,
    plan_operator_audit,
    plan_record,
)
from gate.training.runs import Commit, RunMode
from gate.training.timeline import CallTime, OwnWork
from gate.verdict.assemble import Assessment, assemble, brings_not_finite
from gate.verdict.decision import base_run_decides, needs_base_run
from gate.verdict.operators import operator_report
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Outcome, Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Gated:
    """What a gate call found: a verdict, what it rests on, the entry that it would propose.

    `documents` are what the evidence was written to.
    """

    verdict: Verdict
    evidence: EvidenceSet
    documents: tuple[WrittenDocument, ...]
    baseline: Baseline | None
    proposed: BaselineEntry | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """A gate call's runs, not judged; `operator_audit_failure` says why that one is missing.

    `found` is what was decided about this very evidence; None where a trace was added after that.
    """

    evidence: EvidenceSet
    documents: tuple[WrittenDocument, ...]
    isolation: Isolation
    found: Decided | None = None
    operator_audit_failure: str = ""


def gate(request: GateRequest, adapters: Adapters) -> Gated:
    """Run the training, run the base commit where only that can decide, and judge."""
    call = CallTime(adapters.clock)
    with call.own(OwnWork.PREPARING):
        # what decides is read before any training code runs
        baselines = read_baselines(request, adapters)
    ran = train_all(request, adapters, baselines, call)
    with call.own(OwnWork.JUDGING):
        gated = judge(request, baselines, ran)
    verdict = gated.verdict.model_copy(update={"timeline": call.timeline()})
    return replace(gated, verdict=verdict)


def train_all(
    request: GateRequest, adapters: Adapters, baselines: Baselines, call: CallTime
) -> Ran:
    """All runs of a gate call, the base commit's too where only those can decide."""
    change = lines_of_the_change(request, adapters)
    recorded = recorded_data(request, baselines.trusted)
    at_a_time = request.strict_runs
    session = Session(request, adapters, recorded=recorded, at_a_time=at_a_time, call=call)
    with session:
        session.change = shortened(change)
        tell_moved_data(recorded, session)
        planned = plan_gate(request.strict_runs, priced=request.priced)
        turns = session.in_turns(turns_of(planned, session.at_a_time))
        runs = made_until_they_differ(turns, planned, request)
        apart, skipped = differ(runs, request), len(planned) - len(runs)
        # of a commit that does not repeat itself, neither base nor seeds nor operators say more
        runs += () if apart else _base_runs(session, runs[0], baselines.trusted)
        needed = _needs_seeds(request, runs, baselines, session.data)
        seeded = run_seeds(session, runs[0]) if needed else ()
        audit = request.settings.operator_audit and not (apart or never_pass(runs, request))
        # after the runs that are judged: what it does to the machine must not reach them
        counted, failure = _operator_audit_run(session) if audit else ((), "")
        with call.own(OwnWork.KEEPING):
            evidence = session.evidence((*runs, *counted), seeded)
        with call.own(OwnWork.JUDGING):
            found = decided(request, baselines, evidence)
        budget = Budget(request.settings.diagnosis, runs, skipped)
        number = found.facts.not_finite
        if number is not None and brings_not_finite(found.facts):
            trace = trace_not_finite(session, number, evidence, change, budget)
        else:
            trace = escalate(session, found.decision, evidence, change, budget)
        if trace is not None:
            evidence = session.evidence((*runs, *counted), seeded, trace)
            tried = try_settings(session, found.decision, evidence, budget)
            if tried is not None:
                evidence = session.evidence((*runs, *counted), seeded, trace, tried)
        return Ran(
            evidence=evidence,
            documents=session.documents,
            isolation=session.isolation,
            found=found if trace is None else None,
            operator_audit_failure=failure,
        )


def tell_moved_data(recorded: DataSets, session: Session) -> None:
    """Say before the first run that declared data is not what the baseline was recorded with."""
    for move in moved_data(recorded, session.data) if recorded else ():
        session.adapters.progress.step(f"data-moved: {move_sentence(move)}")


def _base_runs(
    session: Session, run: RunEvidence, trusted: Baseline | None
) -> tuple[RunEvidence, ...]:
    """The base commit's runs where only those can decide, each side in its own environment."""
    request, own = session.request, session.own_environments
    now = session.adapters.clock.now().isoformat()
    if not _needs_base_run(session, run, trusted, now):
        return ()
    environment = Commit.BASE if own else Commit.HEAD
    base = session.together(plan_base(environment))
    against = against_run(base[0], run, request)
    if not own or base_run_decides(against, request.settings):
        return base
    try:
        return (*base, session.run(plan_base_here()))
    except (RunError, EvidenceError):
        # the base commit may well not start with the new packages: then the two stay together
        return base


def take_operator_audit(request: GateRequest, adapters: Adapters) -> OperatorReport:
    """One run that counts operators; nothing is judged."""
    with Session(request, adapters) as session:
        evidence = session.evidence((session.run(plan_operator_audit()),))
    report = operator_report(evidence)
    return report if report is not None else OperatorReport(complete=True)


def _operator_audit_run(session: Session) -> tuple[tuple[RunEvidence, ...], str]:
    """The operator audit, or why it could not be taken: the verdict does not hang on it."""
    try:
        return (session.run(plan_operator_audit()),), ""
    except (RunError, EvidenceError) as fault:
        return (), fault.message


def judge(request: GateRequest, baselines: Baselines, ran: Ran) -> Gated:
    """Decide about what was run, and say what it rests on and what would become the baseline."""
    evidence = ran.evidence
    first = evidence.runs_of(RunMode.STRICT)[0]
    # comparing many points takes long: not again where it was decided already
    found = ran.found or decided(request, baselines, evidence)
    decision, entry = found.decision, found.selection.entry
    seeds_problem = unfit_seeds(evidence, request.settings)
    unrepeated = decision.outcome is Outcome.NONDETERMINISTIC
    unfit = unrepeated or seeds_problem or evidence.changed_files
    proposed = None if unfit else _proposal(request, baselines, evidence, found)
    changes_baseline = decision.outcome is Outcome.BASELINE_CHANGE
    diagnosis = diagnosis_of(decision, evidence)
    shown, named_unchanged = beside_the_difference(
        request, evidence, decision, diagnosis, not_finite=brings_not_finite(found.facts)
    )
    if diagnosis is not None:
        by_files = by_its_files(diagnosis.cause_class, shown, evidence.change)
        diagnosis = diagnosis.model_copy(update={"cause_class": by_files})
    assessment = Assessment(
        evidence=evidence,
        facts=found.facts,
        decision=decision,
        entry=entry,
        diagnosis=diagnosis,
        change=shown,
        named_unchanged=named_unchanged,
        default_repeat=first_two(evidence.runs_of(RunMode.DEFAULT), request),
        isolation=ran.isolation,
        settings_digest=settings_digest(request.settings),
        proposed=entry_name(proposed) if proposed is not None else "",
        movement=movement(request, found.facts.baseline, entry) if changes_baseline else None,
        tolerances=tolerance_uses(first, request.settings.compare.tolerances),
        rare_faults=rare_faults_of(found.facts),
        equal_runs=equal_runs_of(found.facts),
        performance=performance_of(evidence.runs, request.settings.cost),
        operator_audit=operator_report(evidence, ran.operator_audit_failure),
        not_run=not_run(request, evidence, failed_audit=bool(ran.operator_audit_failure)),
        seeds_problem=seeds_problem,
        seeds_of_brought=found.seeds,
        states=state_roots(first, evidence),
    )
    verdict = assemble(assessment, request)
    return Gated(
        verdict=verdict,
        evidence=evidence,
        documents=ran.documents,
        baseline=baselines.trusted,
        proposed=proposed,
    )


def _proposal(
    request: GateRequest, baselines: Baselines, evidence: EvidenceSet, found: Decided
) -> BaselineEntry | None:
    """What this result would become beside the entries that are there; None where it may not."""
    facts = found.facts
    if facts.not_finite or not facts.repeat.numerically_equal:
        return None
    seeded = entry_results(found.selection.entry, facts.baseline, evidence, request.settings)
    entry = _entry(request, evidence, facts.repeat, request.baseline_reason, seeded)
    price = recorded_price(facts.cost, evidence.created_at)
    entry = entry.model_copy(update={"price": price})
    also, trusted = baselines.brought, baselines.trusted
    outcome = found.decision.outcome.value
    return successor(trusted, settled(entry, trusted, request, outcome=outcome, also=also))


def _entry(
    request: GateRequest,
    evidence: EvidenceSet,
    repeat: Comparison,
    reason: str,
    seeded: SeedResults,
) -> BaselineEntry:
    """The first strict run as an entry of the baseline; `BaselineError` where it is unfit."""
    strict = evidence.runs_of(RunMode.STRICT)
    entry = propose_entry(
        evidence,
        repeat,
        training=training_settings(request.settings),
        not_finite=first_not_finite(strict, request.settings.compare.allow_not_finite),
        reason=reason,
        seeded=seeded,
    )
    return entry.model_copy(
        update={
            "equal_runs": len(strict),
            "missed_faults": round(missed_share(len(strict), RARE), 4),
            "run_url": request.run_url[:MAX_RUN_URL],
            "gate_id": request.gate_of_settings,
        }
    )


def record_baseline(
    request: GateRequest, adapters: Adapters, reason: str, who: str = ""
) -> Baseline:
    """Repeat a training under strict settings; a result that is fit goes into the baseline.

    `who` records it, as far as that is known.
    """
    # what a training may have touched is not read after it
    known = work_tree_baseline(request, adapters)
    with Session(request, adapters, at_a_time=request.recorded_runs) as session:
        runs = session.together(plan_record(request.recorded_runs))
        repeat = most_telling(repeats_of(runs, request))
        # of a training that does not repeat itself, no other seed says anything
        seeded = run_seeds(session, runs[0]) if repeat.numerically_equal else ()
        evidence = session.evidence(runs, seeded)
    results = recorded_results(evidence, request.settings)
    entry = _entry(request, evidence, repeat, reason, results)
    return with_settled(entry.model_copy(update={"accepted_by": who}), known, request)


def _needs_seeds(
    request: GateRequest,
    runs: tuple[RunEvidence, ...],
    baselines: Baselines,
    data: DataSets,
) -> bool:
    """Whether the policy's level, or the entry that is proposed, hangs on runs of more seeds."""
    heads = tuple(run for run in runs if run.run.commit is Commit.HEAD)
    strict = tuple(run for run in heads if run.run.mode is RunMode.STRICT)
    if not request.settings.policy.level.needs_seeds or not _fit(strict, request):
        return False
    trusted = selected(request, strict[0], baselines.trusted, data)
    against = against_entry(trusted.entry, strict[0], request)
    brought = brought_entry(request, strict[0], baselines.brought, data)
    return seeds_are_open(trusted, against, brought)


def _fit(strict: tuple[RunEvidence, ...], request: GateRequest) -> bool:
    """Whether strict runs are equal, and hold no number that never passes."""
    equal = all(one.numerically_equal for one in repeats_of(strict, request))
    return equal and not first_not_finite(strict, request.settings.compare.allow_not_finite)


def _needs_base_run(session: Session, run: RunEvidence, trusted: Baseline | None, now: str) -> bool:
    """Whether something moved so that the base commit, run here, has something to say."""
    request, data = session.request, session.data
    if request.base_commit is None or not request.settings.policy.run_base_on_drift:
        return False
    selection = selected(request, run, trusted, data)
    against = against_entry(selection.entry, run, request)
    recorded = selection.entry.data if selection.entry is not None else ()
    return (
        against is not None
        and selection.same_training
        and needs_base_run(
            against,
            request.settings,
            own_environments=session.own_environments,
            data_moved=not session.brings_data and not same_data(recorded, data),
            quarantine=rules_in_force(request, selection.entry, now),
        )
    )
