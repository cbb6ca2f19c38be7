"""The whole gate call in order: prepare, train, decide, explain, judge.

Nothing here writes the verdict's files. `delivery.py` turns what `gate` returns into files.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path

from gate.baseline.entry import MAX_RUN_URL, Baseline, BaselineEntry, Baselines, entry_name
from gate.baseline.record import propose_entry, recorded_price, successor
from gate.comparison.checks import first_not_finite
from gate.comparison.compare import missed_share
from gate.comparison.data_moves import data_moves
from gate.comparison.differences import Comparison
from gate.data.data_sets import DataSets, move_sentence, same_data
from gate.diagnosis.touched_lines import by_its_files, shortened
from gate.errors import EvidenceError, RunError
from gate.evidence.operator_records import OperatorReport
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.evidence.step_work import SeedResults
from gate.pipelines.adapters import Adapters
from gate.pipelines.case import Case, ClosedCase, Gated, case_of, open_case
from gate.pipelines.committed_policy import with_policy_checked
from gate.pipelines.comparisons import Budget, beside_the_difference, most_telling, repeats_of
from gate.pipelines.declared_data import refuse_study_of_other_data
from gate.pipelines.entries import compared_entry, recorded_data, with_compared
from gate.pipelines.escalation import escalate, trace_not_finite
from gate.pipelines.imported_evidence import MOVED_HINT, take_over
from gate.pipelines.policy_files import read_baselines, work_tree_baseline
from gate.pipelines.prepared import Prepared, prepare
from gate.pipelines.resume_runs import run_resumed
from gate.pipelines.seed_results import entry_results, recorded_results, unfit_seeds
from gate.pipelines.seed_runs import run_seeds
from gate.pipelines.settings_tried import try_settings
from gate.pipelines.snapshots import clear_out, held_out, lines_of_the_change
from gate.pipelines.trainings import Trainings
from gate.pipelines.unaffected import recorded_answer
from gate.settings.load import answering_digest, training_settings
from gate.system.git.changes import Change
from gate.training.lanes import in_groups, turns_of
from gate.training.plan import (
    plan_base,
    plan_base_here,
    plan_operator_audit,
    plan_record,
)
from gate.training.runs import Commit, RunMode
from gate.training.timeline import CallTime, OwnWork
from gate.verdict import findings
from gate.verdict.assemble import Assessment, assemble, brings_not_finite
from gate.verdict.blind_spots import RARE
from gate.verdict.decision import needs_base_run
from gate.verdict.facts import agree
from gate.verdict.operator_findings import operator_report
from gate.verdict.reached_level import in_force
from gate.verdict.request import GateRequest
from gate.verdict.sources import reads_known
from gate.verdict.verdict import Outcome


def run_only(request: GateRequest, adapters: Adapters) -> Path:
    """Train without judging, as the first of two jobs; return the folder with the evidence."""
    with held_out(request.out, adapters.files):
        request = with_policy_checked(request, adapters)
        clear_out(request.out, adapters.files)
        # now, because git does not look at the clone after a training
        change = lines_of_the_change(request, adapters.git)
        baselines = read_baselines(request, adapters)
        train_all(request, adapters, change, baselines, CallTime(adapters.clock))
    return request.out / "evidence"


def judging(folder: Path) -> Callable[[GateRequest, Adapters, Change | None], Gated]:
    """Return the second of two jobs: a function that judges the evidence in `folder`.

    The function has the signature of `gate`. It trains nothing.
    """

    def judge_imported(request: GateRequest, adapters: Adapters, _: Change | None) -> Gated:
        baselines = read_baselines(request, adapters)
        imported = take_over(request, adapters, folder)
        evidence, isolation = imported.evidence, imported.isolation
        closed = case_of(request, baselines, evidence, isolation, imported.documents)
        refuse_lone_run(closed.case)
        asked = request.settings.operator_audit and not closed.case.outcome_known
        # an audit needs a training, which this job does not make
        if asked and not evidence.runs_of(RunMode.AUDIT):
            closed = replace(closed, operator_audit_failure="the job that ran took none")
        return judge(closed)

    return judge_imported


def refuse_lone_run(case: Case) -> None:
    """Raise `EvidenceError` if the first job stopped after one run that does not suffice here.

    The first job may stop after one run when that run equals the baseline. The baseline may have
    moved since then, and this job cannot train a second run.
    """
    if len(case.strict) == 1 and not case.outcome_known and case.one_run is None:
        raise EvidenceError(
            "the evidence has one strict run, and it does not equal the baseline recorded in its "
            "environment",
            hint=MOVED_HINT,
        )


def gate(request: GateRequest, adapters: Adapters, change: Change | None) -> Gated:
    """Train head, train the base commit if only its runs can decide, and judge.

    `change` contains the changed lines. The caller reads them beforehand, because the gate does not
    let git look at the clone after a training.
    """
    call = CallTime(adapters.clock)
    with call.own(OwnWork.PREPARING):
        # read the policy files before any training code runs, so that it cannot change them
        baselines = read_baselines(request, adapters)
    with _prepared(request, adapters, baselines, call) as prepared:
        gated, why_trained = recorded_answer(prepared, baselines)
        closed = None if gated else _train_all(prepared, change, baselines)
    if closed is not None:
        with call.own(OwnWork.JUDGING):
            gated = judge(closed)
    assert gated is not None  # noqa: S101 - one of the two was; tells the checker
    reported = (*gated.verdict.findings, *findings.trained_all_the_same(why_trained))
    verdict = gated.verdict.model_copy(update={"timeline": call.timeline(), "findings": reported})
    return replace(gated, verdict=verdict)


def train_all(
    request: GateRequest,
    adapters: Adapters,
    change: Change | None,
    baselines: Baselines,
    call: CallTime,
) -> ClosedCase:
    """Prepare, train, decide and explain; return the case with everything that its runs show."""
    with _prepared(request, adapters, baselines, call) as prepared:
        return _train_all(prepared, change, baselines)


def _prepared(
    request: GateRequest, adapters: Adapters, baselines: Baselines, call: CallTime
) -> AbstractContextManager[Prepared]:
    recorded = recorded_data(request.settings, baselines.base)
    return prepare(request, adapters, recorded=recorded, at_a_time=request.strict_runs, call=call)


def _train_all(code: Prepared, change: Change | None, baselines: Baselines) -> ClosedCase:
    prepared = replace(code, change=shortened(change))
    refuse_study_of_other_data(prepared.request.study, prepared.data)
    tell_moved_data(recorded_data(code.request.settings, baselines.base), prepared)
    trainings = Trainings(prepared)
    closed = _trained(trainings, baselines)
    with code.call.own(OwnWork.JUDGING):
        decision = closed.decision
    return closed if decision.passes else _explained(trainings, closed, change)


def tell_moved_data(recorded: DataSets, prepared: Prepared) -> None:
    """Report, before the first run, declared data that moved since the baseline was recorded."""
    for move in data_moves(recorded, prepared.data) if recorded else ():
        prepared.adapters.progress.step(f"data-moved: {move_sentence(move)}")


def _trained(trainings: Trainings, baselines: Baselines) -> ClosedCase:
    """Make all runs before a diagnosis: head, the base commit, resume, seeds and operator audit.

    The base commit runs only if its runs can decide. Only head's runs are made in every case.
    """
    prepared, ended = trainings.prepared, trainings.ended
    case = _own_runs(trainings, open_case(prepared.request, baselines, prepared.data))
    # if head's runs differ, runs of the base commit add nothing to the outcome
    case = case if case.differ else case.with_runs(_base_runs(trainings, case))
    # of runs that differ, or that never pass, a resume proves nothing
    resumes = case.request.resumes and not case.outcome_known
    resumed = run_resumed(trainings, case.first) if resumes else ()
    seeded = run_seeds(trainings, case.first) if case.seeds_are_open else ()
    audit = case.request.settings.operator_audit and not case.outcome_known
    # the audit comes last, so that its effects on the machine cannot reach a run that is judged
    counted, failure = _operator_audit_run(trainings) if audit else ((), "")
    with prepared.call.own(OwnWork.KEEPING):
        evidence = ended.evidence((*case.runs, *resumed, *counted), seeded)
    return ClosedCase(
        case=case,
        evidence=evidence,
        documents=ended.documents,
        isolation=ended.isolation,
        operator_audit_failure=failure,
    )


def _own_runs(trainings: Trainings, case: Case) -> Case:
    """Return the case with the runs of head, in the order of the plan.

    No further turn starts once the outcome is known: two strict runs differ, or one has a number
    that never passes. If one equal run can suffice, the first run goes alone. The second run is
    then only started ahead: its process waits before the script's first line.
    """
    planned = case.planned
    made: dict[str, RunEvidence] = {}
    # one run is never enough if the preprocessing wrote two different outputs
    one_may_do = case.request.one_may_do and trainings.prepared.unrepeated is None
    split = in_groups(planned[:1], 1) if one_may_do else ()
    rest = turns_of(planned[len(split) :], trainings.at_a_time)
    # closing ends the runs that were started ahead and are not needed
    with closing(trainings.in_turns((*split, *rest))) as turns:
        for turn in turns:
            made |= {run.run.label: run for run in turn}
            # turns start runs in another order than the plan, which the case keeps
            runs = tuple(made[run.label] for run in planned if run.label in made)
            case = replace(case, runs=runs)
            if len(made) < len(planned) and case.outcome_known:
                break
            if one_may_do and case.one_run is not None:
                break
    return case


def _explained(trainings: Trainings, closed: ClosedCase, change: Change | None) -> ClosedCase:
    """Return the case with what further runs show about a failed outcome.

    First one or two traced runs locate the difference. Then settings are changed one at a time.
    """
    case, ended = closed.case, trainings.ended
    runs, seeded = closed.evidence.runs, closed.evidence.seeded
    budget = Budget(case.request.settings.diagnosis, case.runs, case.skipped)
    number = closed.facts.not_finite
    if number is not None and brings_not_finite(closed.facts):
        trace = trace_not_finite(trainings, number, closed.evidence, change, budget)
    else:
        trace = escalate(trainings, closed, change, budget)
    if trace is not None:
        closed = replace(closed, evidence=ended.evidence(runs, seeded, trace))
        tried = try_settings(trainings, closed, budget)
        if tried is not None:
            closed = replace(closed, evidence=ended.evidence(runs, seeded, trace, tried))
    elif ended.isolation == closed.isolation:
        return closed
    return replace(closed, documents=ended.documents, isolation=ended.isolation)


def _base_runs(trainings: Trainings, case: Case) -> tuple[RunEvidence, ...]:
    """Run the base commit if only its runs can decide; return no run otherwise.

    If the pull request installs other packages, each commit runs in its own environment. If their
    results differ, the base commit runs in head's environment too. That run separates an effect of
    the packages from an effect of the code.
    """
    prepared = trainings.prepared
    if not _needs_base_run(prepared, case):
        return ()
    own = prepared.own_environments
    # without separate environments, the base commit runs in head's
    environment = Commit.BASE if own else Commit.HEAD
    base = trainings.together(plan_base(environment))
    against = case.with_runs(base).base_run
    # without a separate environment, or if the two sides agree, no question is left
    if not own or against is None or agree(against, case.request.settings):
        return base
    try:
        return (*base, trainings.run(plan_base_here()))
    except (RunError, EvidenceError):
        # the base commit may not start with the new packages; then code and packages stay
        # unseparated
        return base


def _needs_base_run(prepared: Prepared, case: Case) -> bool:
    """Decide whether something moved so that a run of the base commit here is informative."""
    request, entry, against = case.request, case.judging_entry, case.against_entry
    if request.base_commit is None or not request.settings.policy.run_base_on_drift:
        return False
    if entry is None or against is None:
        return False
    settings, now = request.settings, prepared.adapters.clock.now()
    return needs_base_run(
        against,
        settings,
        own_environments=prepared.own_environments,
        data_moved=not prepared.declared.changed_by_head and not same_data(entry.data, case.data),
        quarantine=in_force(settings.baseline.quarantine, entry, now.isoformat()),
    )


def take_operator_audit(request: GateRequest, adapters: Adapters) -> OperatorReport:
    """Train once to count operators, and return the counts. Nothing is judged."""
    with prepare(request, adapters) as prepared:
        trainings = Trainings(prepared)
        evidence = trainings.ended.evidence((trainings.run(plan_operator_audit()),))
    report = operator_report(evidence)
    return report if report is not None else OperatorReport(complete=True)


def _operator_audit_run(trainings: Trainings) -> tuple[tuple[RunEvidence, ...], str]:
    """Return the run of the operator audit, or no run and the reason why it failed.

    The audit is informational: its failure does not change the outcome.
    """
    try:
        return (trainings.run(plan_operator_audit()),), ""
    except (RunError, EvidenceError) as fault:
        return (), fault.message


def judge(closed: ClosedCase) -> Gated:
    """Return the verdict on a decided case, and the entry that would become the baseline."""
    case, evidence, decision = closed.case, closed.evidence, closed.decision
    request = case.request
    seeds_problem = unfit_seeds(evidence, request.settings)
    unrepeated = decision.outcome is Outcome.NONDETERMINISTIC
    # no baseline from a result that does not repeat, has unfit seeds or is not committed
    unfit = unrepeated or evidence.unrepeated or seeds_problem or evidence.changed_files
    proposed = None if unfit else _proposal(closed)
    diagnosis = closed.diagnosis
    shown, named_unchanged = beside_the_difference(
        request, evidence, decision, diagnosis, not_finite=brings_not_finite(closed.facts)
    )
    assessment = Assessment(
        evidence=evidence,
        facts=closed.facts,
        decision=decision,
        entry=case.entry,
        diagnosis=diagnosis,
        change=shown,
        named_unchanged=named_unchanged,
        default_repeat=case.default_repeat,
        isolation=closed.isolation,
        proposed=entry_name(proposed) if proposed is not None else "",
        movement=closed.movement,
        operator_audit_failure=closed.operator_audit_failure,
        not_run=closed.not_run,
        seeds_problem=seeds_problem,
        seeds_of_brought=closed.seeds_of_brought,
    )
    if diagnosis is not None:
        parsed = any(change.parsed for change in assessment.configuration_changes)
        by_files = by_its_files(diagnosis.cause_class, shown, evidence.change, parsed=parsed)
        classified = diagnosis.model_copy(update={"cause_class": by_files})
        assessment = replace(assessment, diagnosis=classified)
    return Gated(
        verdict=assemble(assessment, request),
        evidence=evidence,
        documents=closed.documents,
        baseline=case.baselines.base,
        proposed=proposed,
    )


def _proposal(closed: ClosedCase) -> BaselineEntry | None:
    """Return the entry that this result proposes beside the known entries; None if it is unfit."""
    case, facts, evidence = closed.case, closed.facts, closed.evidence
    request, trusted = case.request, case.baselines.base
    if facts.not_finite or not facts.repeat.numerically_equal:
        return None
    seeded = entry_results(case.entry, case.against_entry, evidence, request.settings)
    entry = _entry(request, evidence, facts.repeat, request.baseline_reason, seeded)
    price = recorded_price(case.cost, evidence.created_at)
    entry = entry.model_copy(update={"price": price})
    also, outcome = case.baselines.head, closed.decision.outcome.value
    return successor(
        trusted, compared_entry(entry, trusted, request.settings, outcome=outcome, also=also)
    )


def _entry(
    request: GateRequest,
    evidence: EvidenceSet,
    repeat: Comparison,
    reason: str,
    seeded: SeedResults,
) -> BaselineEntry:
    """Return the first strict run as an entry of the baseline.

    Raises `BaselineError` if the run is unfit for one.
    """
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
            # only if every read of the training is known may the entry later answer without a run
            "files_sha256": answering_digest(evidence.files_digest, request.settings)
            if evidence.files_digest and reads_known(strict, request.settings)
            else "",
        }
    )


def record_baseline(
    request: GateRequest, adapters: Adapters, reason: str, who: str = ""
) -> Baseline:
    """Repeat the training in strict mode, and return the baseline with the result added.

    `who` is the person who records the result, if known. Raises `BaselineError` for an unfit
    result.
    """
    # read first: training code could change the files in the work tree
    known = work_tree_baseline(request, adapters)
    with prepare(request, adapters, at_a_time=request.recorded_runs) as prepared:
        trainings = Trainings(prepared)
        runs = trainings.together(plan_record(request.recorded_runs))
        repeat = most_telling(repeats_of(runs, request.settings))
        # if strict runs differ with one seed, runs with other seeds prove nothing
        seeded = run_seeds(trainings, runs[0]) if repeat.numerically_equal else ()
        evidence = trainings.ended.evidence(runs, seeded)
    results = recorded_results(evidence, request.settings)
    entry = _entry(request, evidence, repeat, reason, results)
    return with_compared(entry.model_copy(update={"accepted_by": who}), known, request.settings)
