"""The gate on one page: run, judge, record; each hands one package's product to the next."""

from __future__ import annotations

from dataclasses import dataclass

from gate.baseline.record import propose_entry, with_entry
from gate.baseline.select import Selection, select_entry
from gate.comparison.compare import compare_environments, compare_results
from gate.comparison.finiteness import first_not_finite
from gate.comparison.measuring.cost import determinism_cost
from gate.comparison.measuring.performance import performance_of
from gate.comparison.same_work import runs_of_the_same_work
from gate.comparison.self_test import run_self_test
from gate.comparison.thresholds import threshold_results
from gate.comparison.tolerances import tolerance_uses
from gate.errors import EvidenceError, RunError
from gate.execution.plan import (
    plan_base,
    plan_base_here,
    plan_gate,
    plan_operator_audit,
    plan_record,
)
from gate.pipelines.baselines import Baselines, read_baselines, work_tree_baseline
from gate.pipelines.judging.explanation import diagnosis_of, rare_faults_of
from gate.pipelines.judging.seed_results import (
    entry_results,
    judged,
    recorded_results,
    seeds_are_open,
    seeds_of_brought,
    unfit_seeds,
)
from gate.pipelines.judging.seed_runs import run_seeds
from gate.pipelines.runs import Adapters, Session
from gate.records.baseline import Baseline, BaselineEntry
from gate.records.comparison import BASELINE_SIDE, Comparison, EnvironmentChange
from gate.records.observed.environment import DEVICE
from gate.records.observed.evidence import EvidenceSet, RunEvidence
from gate.records.observed.operator_audit import OperatorReport
from gate.records.observed.seeds import SeedResults
from gate.records.request import GateRequest
from gate.records.runs import Commit, Isolation, RunMode
from gate.records.verdict import Outcome, Verdict
from gate.settings.load import settings_digest, training_settings
from gate.verdict.assemble import Assessment, assemble
from gate.verdict.decision import Facts, base_run_decides, decide, needs_base_run
from gate.verdict.operators import operator_report


@dataclass(frozen=True, kw_only=True, slots=True)
class Gated:
    """What a gate call found: the verdict, what it rests on, and the baseline it would propose."""

    verdict: Verdict
    evidence: EvidenceSet
    baseline: Baseline | None
    proposed: Baseline | None


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
        seeded = run_seeds(session, runs[0]) if _needs_seeds(request, runs, baselines) else ()
        # after the runs that are judged: what it does to the machine must not reach them
        counted, failure = (
            _operator_audit_run(session) if request.settings.operator_audit else ((), "")
        )
        evidence = session.evidence((*runs, *counted), seeded)
        return Ran(evidence=evidence, isolation=session.isolation, operator_audit_failure=failure)


def _base_runs(
    session: Session, run: RunEvidence, trusted: Baseline | None
) -> tuple[RunEvidence, ...]:
    """The base commit's runs where only those can decide, each side in its own environment."""
    request, own = session.request, session.own_environments
    if not _needs_base_run(request, run, trusted, own_environments=own):
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
    selection = _select(request, first, baselines.trusted)
    trusted = selection.entry if selection.same_training else None
    brought = _brought(request, first, baselines.brought)
    seeds = seeds_of_brought(brought, trusted, evidence, request.settings)
    # with other results of seeds than were seen here it is not reproduced
    facts = _facts(request, baselines, evidence, selection, brought if seeds.seen else None)
    decision = decide(facts)
    seeds_problem = unfit_seeds(evidence, request.settings)
    unrepeated = decision.outcome is Outcome.NONDETERMINISTIC
    entry = (
        None
        if unrepeated or seeds_problem or evidence.changed_files
        else _proposal(request, evidence, facts, selection)
    )
    proposed = None if entry is None else with_entry(baselines.trusted, entry)
    assessment = Assessment(
        evidence=evidence,
        facts=facts,
        decision=decision,
        entry=selection.entry,
        diagnosis=diagnosis_of(decision, evidence),
        default_repeat=_default_repeat(evidence, request),
        isolation=isolation,
        settings_digest=settings_digest(request.settings),
        proposed=proposed is not None,
        tolerances=tolerance_uses(first, request.settings.compare.tolerances),
        rare_faults=rare_faults_of(facts),
        performance=performance_of(evidence.runs, request.settings.cost),
        operator_audit=operator_report(evidence, operator_audit_failure),
        seeds_problem=seeds_problem,
        seeds_of_brought=seeds,
    )
    verdict = assemble(assessment, request)
    return Gated(verdict=verdict, evidence=evidence, baseline=baselines.trusted, proposed=proposed)


def _proposal(
    request: GateRequest, evidence: EvidenceSet, facts: Facts, selection: Selection
) -> BaselineEntry | None:
    """The entry that this result would become; None where it may not become one."""
    if facts.not_finite or not facts.repeat.numerically_equal:
        return None
    seeded = entry_results(selection.entry, facts.baseline, evidence, request.settings)
    return _entry(request, evidence, facts.repeat, request.baseline_reason, seeded)


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
    first, second = strict[:2]
    trusted = selection.entry if selection.same_training else None
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
        proposed=_proposed(request, first, brought),
        base_run=_against_run(base[0], first, request) if base else None,
        base_repeat=_repeat(base, request) if base else None,
        own_environments=any(run.run.environment is Commit.BASE for run in base),
        base_here=_against_run(here, first, request) if here else None,
        base_moved=_against_run(base[0], here, request) if here and base else None,
        nearest=_separated(selection.nearest, first, request),
        same_code=selection.entry is not None and selection.entry.commit in baselines.same_code,
        thresholds=threshold_results(first, settings.policy.thresholds),
        judged=judged(trusted, evidence, settings),
        cost=determinism_cost((first, second), default, settings.cost),
    )


def _entry(
    request: GateRequest,
    evidence: EvidenceSet,
    repeat: Comparison,
    reason: str,
    seeded: SeedResults,
) -> BaselineEntry:
    """The first strict run as an entry of the baseline; `BaselineError` where it is unfit."""
    strict = evidence.runs_of(RunMode.STRICT)
    return propose_entry(
        evidence,
        repeat,
        training=training_settings(request.settings),
        not_finite=first_not_finite(strict, request.settings.compare.allow_not_finite),
        reason=reason,
        seeded=seeded,
    )


def record_baseline(request: GateRequest, adapters: Adapters, reason: str) -> Baseline:
    """Repeat a training under strict settings; a result that is fit goes into the baseline."""
    # what a training may have touched is not read after it
    known = work_tree_baseline(request, adapters)
    with Session(request, adapters) as session:
        runs = tuple(session.run(run) for run in plan_record(request.strict_runs))
        repeat = _most_telling(_repeats(runs, request))
        # of a training that does not repeat itself, no other seed says anything
        seeded = run_seeds(session, runs[0]) if repeat.numerically_equal else ()
        evidence = session.evidence(runs, seeded)
    results = recorded_results(evidence, request.settings)
    return with_entry(known, _entry(request, evidence, repeat, reason, results))


def _default_repeat(evidence: EvidenceSet, request: GateRequest) -> Comparison | None:
    default = evidence.runs_of(RunMode.DEFAULT)
    return _repeat(default, request) if default else None


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


def _select(request: GateRequest, run: RunEvidence, baseline: Baseline | None) -> Selection:
    comparable = request.settings.compare.comparable_environment
    training = training_settings(request.settings)
    return select_entry(baseline, run.environment, training, comparable)


def _brought(
    request: GateRequest, run: RunEvidence, brought: Baseline | None
) -> BaselineEntry | None:
    """The entry for this run of the baseline that the pull request itself brings."""
    selection = _select(request, run, brought)
    return selection.entry if selection.same_training else None


def _proposed(
    request: GateRequest, run: RunEvidence, brought: BaselineEntry | None
) -> Comparison | None:
    if brought is None:
        return None
    names = ("the pull request's baseline", run.run.label)
    return compare_results(brought, run, request.settings.compare, names)


def _against_entry(
    entry: BaselineEntry | None, run: RunEvidence, request: GateRequest
) -> Comparison | None:
    if entry is None:
        return None
    return compare_results(entry, run, request.settings.compare, (BASELINE_SIDE, run.run.label))


def _separated(
    nearest: BaselineEntry | None, run: RunEvidence, request: GateRequest
) -> tuple[EnvironmentChange, ...]:
    """What separates an entry that cannot judge the run, the accelerator first."""
    if nearest is None:
        return ()
    comparable = request.settings.compare.comparable_environment
    changes = compare_environments(nearest.environment, run.environment, comparable)
    return tuple(sorted(changes, key=lambda change: change.part != DEVICE))


def _against_run(expected: RunEvidence, run: RunEvidence, request: GateRequest) -> Comparison:
    names = (expected.run.label, run.run.label)
    return compare_results(expected, run, request.settings.compare, names)


def _needs_seeds(request: GateRequest, runs: tuple[RunEvidence, ...], baselines: Baselines) -> bool:
    """Whether the policy's level, or the entry that is proposed, hangs on runs of more seeds."""
    heads = tuple(run for run in runs if run.run.commit is Commit.HEAD)
    strict = tuple(run for run in heads if run.run.mode is RunMode.STRICT)
    if not request.settings.policy.level.needs_seeds or not _fit(strict, request):
        return False
    trusted = _select(request, strict[0], baselines.trusted)
    against = _against_entry(trusted.entry, strict[0], request)
    brought = _brought(request, strict[0], baselines.brought)
    return seeds_are_open(trusted, against, brought)


def _fit(strict: tuple[RunEvidence, ...], request: GateRequest) -> bool:
    """Whether strict runs are equal, and hold no number that never passes."""
    equal = all(one.numerically_equal for one in _repeats(strict, request))
    return equal and not first_not_finite(strict, request.settings.compare.allow_not_finite)


def _needs_base_run(
    request: GateRequest, run: RunEvidence, trusted: Baseline | None, *, own_environments: bool
) -> bool:
    """Whether the environment moved so that the base commit, run here, has something to say."""
    if request.base_commit is None or not request.settings.policy.run_base_on_drift:
        return False
    selection = _select(request, run, trusted)
    against = _against_entry(selection.entry, run, request)
    return (
        against is not None
        and selection.same_training
        and needs_base_run(against, request.settings, own_environments=own_environments)
    )
