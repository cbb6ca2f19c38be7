"""Assemble all results into the verdict, the one document that every report is made from.

Reports only show what is in the verdict: they decide nothing and make no command of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from gate.baseline.acceptance import InQuarantine, Movement
from gate.baseline.entry import BaselineEntry
from gate.comparison.differences import (
    Comparison,
    EventKind,
    OptimizerSettingChange,
    ToleranceUse,
)
from gate.comparison.performance import performance_of
from gate.comparison.tolerances import tolerance_uses
from gate.diagnosis.diagnosis import CodePlace, Diagnosis
from gate.errors import GateError, RunError
from gate.evidence.capture import state_roots
from gate.evidence.configuration import (
    Configuration,
    ConfigurationChange,
    configuration_changes,
    configuration_of,
    proven_change,
)
from gate.evidence.operator_records import OperatorReport
from gate.evidence.run_evidence import EvidenceSet, MetricSeries, RunEvidence
from gate.evidence.trace import Claim, ShownChange
from gate.isolation.modes import Isolation
from gate.settings.load import settings_digest
from gate.text.json_text import canonical_sha256
from gate.training.runs import RunMode
from gate.verdict import blind_spots, findings, operator_findings, reached_level
from gate.verdict.determinism_budget import determinism_budget
from gate.verdict.environment_findings import environment
from gate.verdict.facts import Decision, Facts, answer_of
from gate.verdict.failure_mode import with_failure_mode
from gate.verdict.next_step import (
    ReaderPlace,
    after_entropy,
    after_fault,
    after_missed_threshold,
    after_unchecked_resume,
    hint_of,
    next_steps,
    reader_place,
    where_not_finite,
    where_nothing_moved,
    where_preprocessing_differs,
    where_provisional,
    where_settings_differ,
)
from gate.verdict.override_findings import entropy_stopped_pass, override_findings
from gate.verdict.reached_level import SeedsOfBrought, excusing, quarantine_findings
from gate.verdict.reasons import not_finite_result, only_renamed
from gate.verdict.request import GateRequest
from gate.verdict.resume_verdict import kill_findings, resume_findings
from gate.verdict.sources import saved_and_asked, splits_by_listing, undeclared_reads
from gate.verdict.verdict import (
    DRIFTS,
    FAULT,
    BaselineFacts,
    Finding,
    NextStep,
    NotFiniteResult,
    NotRun,
    Outcome,
    SeriesSummary,
    Severity,
    Verdict,
)

MAX_SERIES = 20


# No slots: `cached_property` stores its value in the instance dictionary.
@dataclass(frozen=True, kw_only=True)
class Assessment:
    """All results of a call, before they become one document.

    `proposed` is the file name of the entry that this call proposes, empty without one. `change` is
    the part of the change that is shown. `operator_audit_failure` says why the audit is missing.
    """

    evidence: EvidenceSet
    facts: Facts
    decision: Decision
    entry: BaselineEntry | None
    diagnosis: Diagnosis | None
    default_repeat: Comparison | None
    isolation: Isolation
    proposed: str = ""
    movement: Movement | None = None
    change: ShownChange | None = None
    named_unchanged: bool = False
    operator_audit_failure: str = ""
    seeds_problem: str = ""
    seeds_of_brought: SeedsOfBrought = SeedsOfBrought.AS_SEEN
    not_run: tuple[NotRun, ...] = ()

    @property
    def first(self) -> RunEvidence:
        """The first strict run, which is the one that is judged."""
        return self.evidence.runs_of(RunMode.STRICT)[0]

    @cached_property
    def configuration(self) -> Configuration | None:
        """The training's configuration, as far as it was seen."""
        return configuration_of(
            [run.configuration for run in self.evidence.runs_of(RunMode.STRICT)]
        )

    @property
    def configuration_changes(self) -> tuple[ConfigurationChange, ...]:
        """How the configuration differs from the entry's; () where one side has none."""
        before = self.entry.configuration if self.entry is not None else {}
        if not before or self.configuration is None:
            return ()
        # Values that differ between the strict runs themselves say nothing about a change.
        varies = self.configuration.varies
        known = {name: value for name, value in before.items() if name not in varies}
        return configuration_changes(known, self.configuration.values)

    @property
    def told_diagnosis(self) -> Diagnosis | None:
        """The diagnosis, with the configuration key that each optimizer setting comes from."""
        if self.diagnosis is None:
            return None
        settings = tuple(map(self._configured, self.diagnosis.optimizer_settings))
        return self.diagnosis.model_copy(update={"optimizer_settings": settings})

    def _configured(self, setting: OptimizerSettingChange) -> OptimizerSettingChange:
        # Only a configuration value that changed between the same two numbers is proven to be the
        # origin.
        change = proven_change(self.configuration_changes, setting.before, setting.after)
        return setting.model_copy(update={"configured": change.place}) if change else setting

    @cached_property
    def tolerances(self) -> tuple[ToleranceUse, ...]:
        """What each tolerance of the settings applies to."""
        return tolerance_uses(self.first, self.facts.settings.compare.tolerances)

    @cached_property
    def operator_audit(self) -> OperatorReport | None:
        """What the audit counted, or why it could not be taken."""
        return operator_findings.operator_report(self.evidence, self.operator_audit_failure)


def assemble(assessment: Assessment, request: GateRequest) -> Verdict:
    """Collect the findings and return the complete verdict."""
    evidence, facts, decision = assessment.evidence, assessment.facts, assessment.decision
    about_baseline = _about_baseline(assessment, request)
    verdict = Verdict(
        outcome=decision.outcome,
        passes=decision.passes,
        over_budget=decision.over_budget,
        missed_threshold=decision.missed_threshold,
        level=decision.level,
        thresholds=facts.thresholds,
        judged=facts.judged if decision.outcome in DRIFTS else None,
        cause=decision.cause,
        next_steps=_next_steps(assessment, request),
        commit=evidence.commit,
        base_commit=evidence.base_commit,
        base_branch=request.base_branch,
        created_at=evidence.created_at,
        changed_files=evidence.changed_files,
        workdir=request.repository_path(request.settings.train.workdir),
        settings_from=request.settings_from,
        isolation=assessment.isolation.of_a_run,
        imported_evidence=request.imported_runs,
        answers=decision.answers,
        findings=_findings(assessment, request, decision, about_baseline),
        # With a single strict run nothing was compared, so `repeat` is empty.
        repeat=facts.repeat if facts.strict_runs > 1 else None,
        baseline=facts.baseline,
        base_run=facts.base_run,
        nothing_moved=facts.nothing_moved,
        nearest_entry=facts.nearest,
        other_settings=facts.other_settings,
        provisional=facts.provisional,
        quarantine=_quarantine(facts),
        excused=decision.excused,
        movement=assessment.movement,
        brought=request.environment_change,
        baseline_facts=about_baseline,
        diagnosis=assessment.told_diagnosis,
        cost=facts.cost,
        performance=performance_of(evidence.runs, request.settings.cost),
        recorder=evidence.runs_of(RunMode.STRICT)[-1].recorder,
        self_test=facts.self_test,
        equal_runs=blind_spots.equal_runs(facts),
        one_run=facts.one_run,
        not_finite=_traced_not_finite(assessment),
        change=assessment.change,
        named_unchanged=assessment.named_unchanged,
        tolerances=tuple(map(_shortened, assessment.tolerances)),
        policy_changes=request.policy_changes,
    )
    verdict = verdict.model_copy(update=_seen(assessment, request))
    return with_failure_mode(verdict, passed_before=_passed_before(verdict, request))


def _not_finite(facts: Facts) -> NotFiniteResult | None:
    """Return the number that is not finite, and whether this commit introduced it."""
    if facts.not_finite is None:
        return None
    first = facts.repeat.first
    not_finite = not_finite_result(
        facts.not_finite,
        (facts.baseline, facts.base_run),
        comparable=facts.same_training and not facts.data_moved and not facts.nothing_moved,
        in_base=facts.base_not_finite,
    )
    starts_differ = first is not None and first.kind is EventKind.INITIAL
    return not_finite.model_copy(update={"starts_differ": starts_differ})


def _traced_not_finite(assessment: Assessment) -> NotFiniteResult | None:
    """Return the same, with the call that made the first such number if a run was traced."""
    not_finite, trace = _not_finite(assessment.facts), assessment.evidence.trace
    if not_finite is None or trace is None or trace.claim is not Claim.NOT_FINITE:
        return not_finite
    return not_finite.model_copy(update={"origin": trace.sentence})


def brings_not_finite(facts: Facts) -> bool:
    """Return whether this commit introduced a number that is not finite."""
    not_finite = _not_finite(facts)
    return not_finite is not None and not_finite.brought


def _quarantine(facts: Facts) -> InQuarantine | None:
    """Return the rule that covers the difference from the entry; None where nothing differs."""
    against = facts.baseline
    if against is None or not facts.same_training or answer_of(against, facts.settings).good:
        return None
    rule = excusing(against, facts.quarantine, facts.settings)
    if rule is None:
        return None
    return InQuarantine(metrics=rule.metrics, reason=rule.reason, until=rule.until)


def _seen(assessment: Assessment, request: GateRequest) -> dict[str, object]:
    """Return the verdict's fields on the runs themselves, which no decision changes."""
    evidence, facts, run = assessment.evidence, assessment.facts, assessment.first
    return {
        # `data_moved` already says which part moved, and a data set may have many parts.
        "data": tuple(data_set.model_copy(update={"parts": ()}) for data_set in evidence.data),
        "data_moved": facts.data_moved,
        "data_brought": facts.data_brought,
        "unrepeated": facts.unrepeated,
        "resume": facts.resume,
        "environment": run.environment,
        "checkpoint_root": run.checkpoint.root,
        "states": state_roots(run, evidence),
        "snapshot_digest": evidence.snapshot_digest,
        "settings_digest": settings_digest(request.settings),
        "configuration": assessment.configuration,
        "configuration_changes": assessment.configuration_changes,
        "series": tuple(_summaries(run.metrics[:MAX_SERIES])),
        "runs": tuple(run_evidence.run for run_evidence in evidence.runs),
        "not_exercised": _not_exercised(assessment, request),
        "determinism_budget": determinism_budget(
            evidence,
            strict=facts.repeat,
            default=assessment.default_repeat,
            baseline=facts.baseline,
        ),
        "operator_audit": assessment.operator_audit,
        "not_run": assessment.not_run,
    }


def _shortened(use: ToleranceUse) -> ToleranceUse:
    """Return the tolerance with few metric names: the training chose them, perhaps many."""
    return use.model_copy(update={"metrics": use.metrics[:MAX_SERIES]})


def _not_exercised(assessment: Assessment, request: GateRequest) -> tuple[str, ...]:
    """Return what this verdict makes no claim about."""
    settings, run = request.settings, assessment.first
    return (
        *findings.not_exercised(run),
        *saved_and_asked(run, settings, request.repository_path(settings.train.workdir)),
        *blind_spots.rare_faults(assessment.facts),
        *operator_findings.beyond_the_flag(assessment.operator_audit),
    )


def _next_steps(assessment: Assessment, request: GateRequest) -> tuple[NextStep, ...]:
    """Return the next steps; commands are made here, because here the outcome is known."""
    decision = assessment.decision
    not_finite = _not_finite(assessment.facts)
    if not_finite is not None and decision.outcome is Outcome.ERROR:
        place = _place(assessment, request)
        return where_not_finite(place, not_finite, own_settings=request.settings_from != "base")
    if decision.missed_threshold:
        return after_missed_threshold()
    if assessment.facts.unrepeated is not None:
        return where_preprocessing_differs()
    if (
        not decision.passes
        and decision.outcome is Outcome.ENVIRONMENT_DRIFT
        and assessment.facts.nothing_moved
    ):
        return where_nothing_moved(reader_place(request, assessment.proposed))
    unconfirmed = assessment.facts.provisional
    if unconfirmed is not None and decision.outcome is Outcome.NO_BASELINE:
        return where_provisional(
            reader_place(request, assessment.proposed),
            repeated=unconfirmed.repeated,
            proposed=bool(assessment.proposed),
        )
    return _by_outcome(assessment, request)


def _place(assessment: Assessment, request: GateRequest) -> ReaderPlace:
    """Return the reader's place, with the change that is shown and the commit of the entry."""
    entry = assessment.entry
    other = entry is not None and entry.commit != assessment.evidence.commit
    return replace(
        reader_place(request, assessment.proposed),
        change=assessment.change,
        recorded_from=entry.commit if entry is not None and other else "",
    )


def _by_outcome(assessment: Assessment, request: GateRequest) -> tuple[NextStep, ...]:
    decision, facts = assessment.decision, assessment.facts
    place, proposed = _place(assessment, request), bool(assessment.proposed)
    if decision.other_training and facts.other_settings:
        return where_settings_differ(place, facts.other_settings, proposed=proposed)
    fault = None if facts.resume is None else facts.resume.fault
    if decision.outcome is Outcome.ERROR and fault is not None:
        return after_unchecked_resume(fault.hint)
    draw = facts.entropy
    if decision.by_chance and draw is not None:
        return after_entropy(draw.call, draw.place)
    # Accepting a drift as the new baseline would not help: it would miss the threshold again.
    missed = decision.outcome in DRIFTS and any(not threshold.met for threshold in facts.thresholds)
    return next_steps(
        decision.outcome,
        replace(
            place,
            not_its_own=_not_its_own(assessment, request),
            pins=_pins(decision, facts),
            missed=missed,
            renamed=0 if decision.decided is None else only_renamed(decision.decided),
            preprocessed=_only_preprocessed(facts),
        ),
        passes=decision.passes,
        over_budget=decision.over_budget,
        proposed=proposed,
        diagnosis=assessment.diagnosis,
    )


def _only_preprocessed(facts: Facts) -> bool:
    """Return whether the only data that moved is the output of preprocessing."""
    made = facts.settings.preprocess
    moved = {move.name for move in facts.data_moved}
    return made is not None and moved == {made.out}


def _not_its_own(assessment: Assessment, request: GateRequest) -> bool:
    """Return whether the base commit gives this result here too, without help from the change.

    Then this pull request did not move the result.
    """
    brings = bool(request.environment_change.files) or assessment.facts.data_brought
    return assessment.decision.answers.base_run.good and not brings


def _pins(decision: Decision, facts: Facts) -> tuple[str, ...]:
    """Return the moved packages as pins, at the version of the other side."""
    proposed = decision.outcome is Outcome.DEPENDENCY_DRIFT
    against = facts.base_run if proposed else facts.baseline
    changes = against.environment if against is not None else ()
    return tuple(pin for change in changes for pin in change.pins)


def _about_baseline(assessment: Assessment, request: GateRequest) -> BaselineFacts | None:
    """Return what the report says about the entry, or None without one."""
    if assessment.entry is None:
        return None
    return findings.baseline_facts(
        assessment.entry,
        assessment.entry.age_days(assessment.evidence.created_at),
        stale_after_days=request.settings.baseline.stale_after_days,
        from_base=request.pull_request,
    )


def _findings(
    assessment: Assessment,
    request: GateRequest,
    decision: Decision,
    about_baseline: BaselineFacts | None,
) -> tuple[Finding, ...]:
    """Return what a reader should know beside the outcome, in the order of the report."""
    evidence, facts = assessment.evidence, assessment.facts
    strict = evidence.runs_of(RunMode.STRICT)
    run = strict[0]
    changed_files = tuple(dict.fromkeys(change.file for change in request.policy_changes))
    new_baseline = (
        request.repository_path(request.settings.baseline.path)
        if decision.outcome is Outcome.BASELINE_CHANGE
        else ""
    )
    return (
        # First of the warnings: everything below it describes a device that was not meant.
        *findings.gpu_missed(evidence),
        *findings.dirty_tree(evidence),
        *_blind_spots(assessment),
        *findings.changed_by_pull_request(changed_files, new_baseline),
        *findings.imported_runs(imported=request.imported_runs, from_fork=request.from_fork),
        *findings.settings_origin(request.settings_from, pull_request=request.pull_request),
        *operator_findings.weaker_level(facts.settings, run),
        *operator_findings.refused_and_went_on(run),
        *operator_findings.operator_audit_failed(assessment.operator_audit),
        *findings.uninstrumented_subprocesses(run),
        *findings.weaker_children(run),
        *resume_findings(facts),
        *kill_findings(facts.resume),
        *environment(facts.baseline, evidence),
        *findings.replicas_differ(run),
        *findings.moved_data(facts),
        *undeclared_reads(strict, facts.settings),
        *splits_by_listing(run),
        *findings.stale_baseline(about_baseline),
        *_in_quarantine(assessment, request),
        *_of_the_runs(assessment),
        *findings.budget_not_applied(facts.settings.cost, priced=request.priced),
        *reached_level.unfit_seed_findings(assessment.seeds_problem),
        *reached_level.seeds_of_entry(assessment.seeds_of_brought),
        *_isolation(assessment.isolation, request),
        *override_findings(strict, repeats=facts.repeat.numerically_equal),
        *entropy_stopped_pass(facts.entropy, by_chance=decision.by_chance),
        *findings.beside_the_verdict(
            evidence, request.settings.train.checkpoint, request.history.problem
        ),
    )


def _of_the_runs(assessment: Assessment) -> tuple[Finding, ...]:
    """Return findings on what the runs leave open."""
    facts, run = assessment.facts, assessment.first
    # A killed run has already shown whether overwriting does harm.
    killed = facts.resume is not None and (facts.resume.torn or facts.resume.survives_kills)
    overwritten = (
        () if killed else findings.checkpoint_overwritten(run, facts.settings.train.checkpoint)
    )
    return (
        *findings.repeated_alone(assessment.evidence),
        *findings.default_mode(assessment.default_repeat),
        *findings.hidden_state(facts.repeat),
        *findings.weaker_source(run),
        *findings.ended_early(run, facts.settings.train.max_steps),
        *findings.checkpoint_incomplete(run, facts.settings.train.checkpoint),
        *overwritten,
    )


def _isolation(isolation: Isolation, request: GateRequest) -> tuple[Finding, ...]:
    """Return findings on what isolates the training, and on what does not."""
    return (
        *findings.isolation(isolation),
        *findings.device_groups(isolation),
        *findings.writable_paths(isolation),
        *findings.credentials_left(request.credentials_left),
        *findings.reading(isolation),
    )


def _in_quarantine(assessment: Assessment, request: GateRequest) -> tuple[Finding, ...]:
    decision = assessment.decision
    return quarantine_findings(
        request.settings.baseline.quarantine,
        assessment.entry,
        assessment.evidence.created_at,
        holds=decision.answers.baseline.good,
        excused=decision.excused,
    )


def _blind_spots(assessment: Assessment) -> tuple[Finding, ...]:
    settings, run = assessment.facts.settings, assessment.first
    return (
        *blind_spots.tolerances(assessment.tolerances, run),
        *blind_spots.unused_settings(run, settings.compare.allow_not_finite),
        *blind_spots.admitted_by_settings(run, settings),
        *blind_spots.constant_infinities(run),
        *blind_spots.left_out(run),
        *blind_spots.passed_over(run),
        *blind_spots.only_printed(run),
        *blind_spots.unbounded_tensors(assessment.facts, assessment.decision.outcome),
    )


def _summaries(metrics: tuple[MetricSeries, ...]) -> Iterator[SeriesSummary]:
    # Most metrics have the same steps, so they share one tuple.
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    for series in metrics:
        steps = tuple(series.points.steps)
        yield _summary(series, known.setdefault(steps, steps))


def _summary(series: MetricSeries, steps: tuple[int, ...]) -> SeriesSummary:
    values = series.points.values
    return SeriesSummary(
        name=series.name,
        source=series.source.value,
        steps=steps,
        # JSON cannot represent NaN. Charts show a gap there.
        values=tuple(value if math.isfinite(value) else None for value in values),
        last_decimal=series.points[-1].decimal if series.points else "",
    )


def _passed_before(verdict: Verdict, request: GateRequest) -> bool:
    """Return whether the history of this gate has a pass of the same commit.

    If this verdict has an environment, it must be the same one: a different machine may give a
    different result. The history stores only a prefix of the environment's digest.
    """
    parts = None if verdict.environment is None else canonical_sha256(verdict.environment.parts)
    return any(
        line.passes
        and line.commit == verdict.commit
        and (parts is None or (line.environment and parts.startswith(line.environment)))
        for line in request.history.lines
    )


def error_verdict(
    request: GateRequest,
    commit: str,
    created_at: str,
    fault: GateError,
    change: ShownChange | None = None,
) -> Verdict:
    """Return the verdict when a fault stopped the check: never a pass, never a divergence (T4)."""
    verdict = fault_verdict(commit, created_at, fault).model_copy(
        update={
            "next_steps": after_fault(fault, reader_place(request)),
            "change": change,
            "base_commit": request.base_commit,
            "base_branch": request.base_branch,
            "settings_from": request.settings_from,
            "policy_changes": request.policy_changes,
            "workdir": request.repository_path(request.settings.train.workdir),
        }
    )
    return with_failure_mode(verdict, passed_before=_passed_before(verdict, request))


def fault_verdict(commit: str, created_at: str, fault: GateError) -> Verdict:
    """Return the verdict for a fault before even the settings could be read."""
    return Verdict(
        outcome=Outcome.ERROR,
        passes=False,
        cause=fault.message,
        commit=commit,
        created_at=created_at,
        findings=(
            Finding(
                code=FAULT,
                severity=Severity.ERROR,
                message=fault.message,
                remedy=fault.hint,
                code_place=fault_place(fault),
            ),
        ),
        fault_details=fault.details,
        next_steps=hint_of(fault),
    )


def fault_place(fault: GateError) -> CodePlace | None:
    """Return the line of the training's own code that raised, or None where it is not known."""
    return CodePlace.known(fault.file, fault.line) if isinstance(fault, RunError) else None
