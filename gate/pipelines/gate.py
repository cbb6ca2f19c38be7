"""The gate on one page: run, judge, record; each hands one package's product to the next."""

from __future__ import annotations

from dataclasses import dataclass

from gate.baseline.record import propose_entry, successor
from gate.baseline.select import Selection, key_place
from gate.codec.entry_names import entry_name
from gate.comparison.compare import compare_environments, compare_results
from gate.comparison.finiteness import first_not_finite
from gate.comparison.measuring.cost import determinism_cost
from gate.comparison.measuring.performance import performance_of
from gate.comparison.same_work import missed_share, on_one_cpu_thread, runs_of_the_same_work
from gate.comparison.self_test import run_self_test
from gate.comparison.thresholds import threshold_results
from gate.comparison.tolerances import tolerance_uses
from gate.diagnosis.first_divergence import diagnose_drift, diagnose_repeat
from gate.errors import EvidenceError, RunError
from gate.execution.plan import (
    plan_base,
    plan_base_here,
    plan_gate,
    plan_operator_audit,
    plan_record,
)
from gate.pipelines.baselines import Baselines, read_baselines, work_tree_baseline
from gate.pipelines.entries import (
    movement,
    provisional_entry,
    rules_in_force,
    selected,
    settled,
    with_settled,
)
from gate.pipelines.runs import Adapters, Session
from gate.records.baseline import MAX_RUN_URL, Baseline, BaselineEntry
from gate.records.comparison import BASELINE_SIDE, Comparison, EnvironmentChange
from gate.records.observed.evidence import EvidenceSet, RunEvidence
from gate.records.observed.operator_audit import OperatorReport
from gate.records.request import GateRequest
from gate.records.runs import Commit, Isolation, RunMode
from gate.records.sections.quarantine import Quarantine
from gate.records.verdict import Diagnosis, Outcome, Verdict
from gate.settings.load import settings_digest, training_settings
from gate.verdict.assemble import Assessment, assemble
from gate.verdict.blind_spots import rare_faults
from gate.verdict.decision import Decision, Facts, base_run_decides, decide, needs_base_run
from gate.verdict.operators import operator_report
from gate.verdict.overrides import suspected_seeds, suspected_settings

RARE = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Gated:
    """What a gate call found: the verdict, what it rests on, and the entry it would propose."""

    verdict: Verdict
    evidence: EvidenceSet
    baseline: Baseline | None
    proposed: BaselineEntry | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """A gate call's runs, not judged; `operator_audit_failure` says why that one is missing."""

    evidence: EvidenceSet
    isolation: Isolation
    operator_audit_failure: str = ""


def gate(request: GateRequest, adapters: Adapters) -> Gated:
    """Run the training, run the base commit where only that can decide, and judge."""
    # what decides is read before any training code runs
    baselines = read_baselines(request, adapters)
    ran = train_all(request, adapters, baselines)
    return judge(
        request,
        baselines,
        ran.evidence,
        ran.isolation,
        operator_audit_failure=ran.operator_audit_failure,
    )


def train_all(request: GateRequest, adapters: Adapters, baselines: Baselines) -> Ran:
    """All runs of a gate call, the base commit's too where only those can decide."""
    with Session(request, adapters) as session:
        # one at a time: runs beside each other would share
        # cores, and neither time nor noise would be theirs
        runs = tuple(session.run(planned) for planned in plan_gate(request.strict_runs))
        runs += _base_runs(session, runs[0], baselines.trusted)
        # after the runs that are judged: what it does to the machine must not reach them
        counted, failure = (
            _operator_audit_run(session) if request.settings.operator_audit else ((), "")
        )
        evidence = session.evidence((*runs, *counted))
        return Ran(evidence=evidence, isolation=session.isolation, operator_audit_failure=failure)


def _base_runs(
    session: Session, run: RunEvidence, trusted: Baseline | None
) -> tuple[RunEvidence, ...]:
    """The base commit's runs where only those can decide, each side in its own environment."""
    request, own = session.request, session.own_environments
    now = session.adapters.clock.now().isoformat()
    if not _needs_base_run(request, run, trusted, now, own_environments=own):
        return ()
    environment = Commit.BASE if own else Commit.HEAD
    base = tuple(session.run(planned) for planned in plan_base(environment))
    against = _against_run(base[0], run, request)
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


def judge(
    request: GateRequest,
    baselines: Baselines,
    evidence: EvidenceSet,
    isolation: Isolation,
    *,
    operator_audit_failure: str = "",
) -> Gated:
    """Compare what was run with itself, with the baseline and with the base; decide."""
    first = evidence.runs_of(RunMode.STRICT)[0]
    selection = selected(request, first, baselines.trusted)
    rules = rules_in_force(request, selection.entry, evidence.created_at)
    facts = _facts(request, baselines, evidence, selection, rules)
    decision = decide(facts)
    unfit = (
        facts.not_finite
        or evidence.changed_files
        or decision.outcome is Outcome.NONDETERMINISTIC
        or not facts.repeat.numerically_equal
    )
    entry = None if unfit else _entry(request, evidence, facts.repeat, request.baseline_reason)
    proposed = _proposal(request, baselines, entry, decision.outcome) if entry is not None else None
    default = evidence.runs_of(RunMode.DEFAULT)
    assessment = Assessment(
        evidence=evidence,
        facts=facts,
        decision=decision,
        entry=selection.entry,
        diagnosis=_diagnosis(decision, evidence),
        default_repeat=_repeat(default, request) if default else None,
        isolation=isolation,
        settings_digest=settings_digest(request.settings),
        proposed=entry_name(proposed) if proposed is not None else "",
        movement=movement(request, facts.baseline, selection.entry)
        if decision.outcome is Outcome.BASELINE_CHANGE
        else None,
        tolerances=tolerance_uses(first, request.settings.compare.tolerances),
        rare_faults=_rare_faults(facts),
        performance=performance_of(evidence.runs, request.settings.cost),
        operator_audit=operator_report(evidence, operator_audit_failure),
    )
    verdict = assemble(assessment, request)
    return Gated(verdict=verdict, evidence=evidence, baseline=baselines.trusted, proposed=proposed)


def _facts(
    request: GateRequest,
    baselines: Baselines,
    evidence: EvidenceSet,
    selection: Selection,
    rules: tuple[Quarantine, ...],
) -> Facts:
    """Every comparison that the outcome depends on."""
    settings, compare = request.settings, request.settings.compare
    strict = evidence.runs_of(RunMode.STRICT)
    first, second = strict[:2]
    repeats = _repeats(strict, request)
    default, base = evidence.runs_of(RunMode.DEFAULT), evidence.runs_of(RunMode.STRICT, Commit.BASE)
    here = evidence.base_here
    not_finite = first_not_finite((*strict, *base), compare.allow_not_finite)
    return Facts(
        settings=settings,
        repeat=_most_telling(repeats),
        strict_runs=len(strict),
        unequal=sum(not one.numerically_equal for one in repeats),
        self_test=() if not_finite else run_self_test(first, compare),
        not_finite=not_finite,
        like_strict=runs_of_the_same_work(first, default, compare),
        baseline=_against_entry(selection.entry, first, request),
        same_training=selection.same_training,
        other_settings=selection.other_settings,
        proposed=_proposed(request, first, baselines.brought),
        base_run=_against_run(base[0], first, request) if base else None,
        base_repeat=_repeat(base, request) if base else None,
        own_environments=any(run.run.environment is Commit.BASE for run in base),
        base_here=_against_run(here, first, request) if here else None,
        base_moved=_against_run(base[0], here, request) if here and base else None,
        nearest=_separated(selection.nearest, first, request),
        provisional=provisional_entry(request, first, baselines.trusted, baselines.brought),
        quarantine=rules,
        same_code=selection.entry is not None and selection.entry.commit in baselines.same_code,
        thresholds=threshold_results(first, settings.policy.thresholds),
        cost=determinism_cost((first, second), default, settings.cost),
    )


def _rare_faults(facts: Facts) -> tuple[str, ...]:
    """What the equal runs leave open, where they are equal at all."""
    if not facts.repeat.numerically_equal:
        return ()
    strict = facts.strict_runs
    runs = strict + len(facts.like_strict)
    every = missed_share(runs, RARE) if facts.like_strict else None
    return rare_faults((strict, runs), missed_share(strict, RARE), every)


def _diagnosis(decision: Decision, evidence: EvidenceSet) -> Diagnosis | None:
    """Why the comparison that decided came out as it did, where that is not a pass."""
    if decision.decided is None or decision.passes:
        return None
    if decision.outcome is not Outcome.NONDETERMINISTIC:
        return diagnose_drift(decision.decided)
    strict = evidence.runs_of(RunMode.STRICT)
    alone = all(map(on_one_cpu_thread, strict))
    # one thread leaves no order open, whatever is overridden
    settings = () if alone else suspected_settings(strict)
    return diagnose_repeat(
        decision.decided, (*settings, *suspected_seeds(strict)), one_cpu_thread=alone
    )


def _entry(
    request: GateRequest, evidence: EvidenceSet, repeat: Comparison, reason: str
) -> BaselineEntry:
    """The first strict run as an entry of the baseline; `BaselineError` where it is unfit."""
    strict = evidence.runs_of(RunMode.STRICT)
    entry = propose_entry(
        evidence,
        repeat,
        training=training_settings(request.settings),
        not_finite=first_not_finite(strict, request.settings.compare.allow_not_finite),
        reason=reason,
    )
    return entry.model_copy(
        update={
            "equal_runs": len(strict),
            "missed_faults": round(missed_share(len(strict), RARE), 4),
            "run_url": request.run_url[:MAX_RUN_URL],
        }
    )


def _proposal(
    request: GateRequest, baselines: Baselines, entry: BaselineEntry, outcome: Outcome
) -> BaselineEntry:
    """What would become of the entry beside those that are there."""
    also, trusted = baselines.brought, baselines.trusted
    return successor(trusted, settled(entry, trusted, request, outcome=outcome.value, also=also))


def record_baseline(
    request: GateRequest, adapters: Adapters, reason: str, who: str = ""
) -> Baseline:
    """Repeat a training under strict settings; a result that is fit goes into the baseline.

    `who` records it, as far as that is known.
    """
    # what a training may have touched is not read after it
    known = work_tree_baseline(request, adapters)
    with Session(request, adapters) as session:
        planned = plan_record(request.recorded_runs)
        evidence = session.evidence(tuple(session.run(run) for run in planned))
    repeat = _most_telling(_repeats(evidence.runs, request))
    entry = _entry(request, evidence, repeat, reason).model_copy(update={"accepted_by": who})
    return with_settled(entry, known, request)


def _most_telling(repeats: tuple[Comparison, ...]) -> Comparison:
    """The first that differs, else the first whose environment moved, else the first."""
    apart = (one for one in repeats if not one.numerically_equal)
    moved = (one for one in repeats if one.environment)
    return next(apart, next(moved, repeats[0]))


def _repeat(runs: tuple[RunEvidence, ...], request: GateRequest) -> Comparison:
    """The first two runs of one kind against each other."""
    return _repeats(runs[:2], request)[0]


def _repeats(runs: tuple[RunEvidence, ...], request: GateRequest) -> tuple[Comparison, ...]:
    """The first run of one kind against each other one."""
    first, *others = runs
    return tuple(
        compare_results(first, run, request.settings.compare, (first.run.label, run.run.label))
        for run in others
    )


def _proposed(
    request: GateRequest, run: RunEvidence, brought: Baseline | None
) -> Comparison | None:
    """The run against the baseline that the pull request itself brings, when it brings one."""
    selection = selected(request, run, brought)
    if selection.entry is None or not selection.same_training:
        return None
    names = ("the pull request's baseline", run.run.label)
    return compare_results(selection.entry, run, request.settings.compare, names)


def _against_entry(
    entry: BaselineEntry | None, run: RunEvidence, request: GateRequest
) -> Comparison | None:
    if entry is None:
        return None
    return compare_results(entry, run, request.settings.compare, (BASELINE_SIDE, run.run.label))


def _separated(
    nearest: BaselineEntry | None, run: RunEvidence, request: GateRequest
) -> tuple[EnvironmentChange, ...]:
    """What separates an entry that cannot judge the run, in the order of the key."""
    if nearest is None:
        return ()
    comparable = request.settings.compare.comparable_environment
    changes = compare_environments(nearest.environment, run.environment, comparable)
    return tuple(sorted(changes, key=lambda change: key_place(change.part)))


def _against_run(expected: RunEvidence, run: RunEvidence, request: GateRequest) -> Comparison:
    names = (expected.run.label, run.run.label)
    return compare_results(expected, run, request.settings.compare, names)


def _needs_base_run(
    request: GateRequest,
    run: RunEvidence,
    trusted: Baseline | None,
    now: str,
    *,
    own_environments: bool,
) -> bool:
    """Whether the environment moved so that the base commit, run here, has something to say."""
    if request.base_commit is None or not request.settings.policy.run_base_on_drift:
        return False
    selection = selected(request, run, trusted)
    against = _against_entry(selection.entry, run, request)
    return (
        against is not None
        and selection.same_training
        and needs_base_run(
            against,
            request.settings,
            own_environments=own_environments,
            quarantine=rules_in_force(request, selection.entry, now),
        )
    )
