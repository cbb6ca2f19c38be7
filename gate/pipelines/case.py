"""The case of one gate call: the request, the baselines and the runs so far.

Every question about them is a property here: which entry judges, whether the runs are equal, how
they compare with the entry and the base commit, what the decision is. Each answer is computed on
first use and kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from gate.baseline.acceptance import Movement
from gate.baseline.entry import Baseline, BaselineEntry, Baselines
from gate.baseline.movement import movement_of
from gate.baseline.select import Selection, may_stand_alone
from gate.comparison.checks import first_not_finite, never_passes, run_self_test, threshold_results
from gate.comparison.compare import Comparisons, equal_results, runs_of_the_same_work
from gate.comparison.cost import determinism_cost
from gate.comparison.data_moves import data_moves
from gate.comparison.differences import (
    BASELINE_SIDE,
    Comparison,
    DeterminismCost,
    NotFinite,
    SelfTestProbe,
)
from gate.data.data_sets import DataSets, brings_data, same_data
from gate.diagnosis.diagnosis import Diagnosis, ResumeResult
from gate.diagnosis.resume_causes import diagnose_resume
from gate.evidence.evidence_folder import WrittenDocument
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.isolation.modes import Isolation
from gate.pipelines.comparisons import alone, diagnosis_of, most_telling, resume_result, separated
from gate.pipelines.entries import provisional_entry, selected
from gate.pipelines.seed_results import judged, seeds_are_open, seeds_of_brought
from gate.settings.gate_settings import ComparisonSettings
from gate.settings.variations import KillPoint
from gate.training.plan import plan_gate, plan_operator_audit, plan_seeds
from gate.training.runs import BASE_HERE, Commit, PlannedRun, RunMode
from gate.verdict.decision import decide
from gate.verdict.facts import Decision, Facts
from gate.verdict.override_findings import drawn_entropy
from gate.verdict.reached_level import SeedsOfBrought, in_force
from gate.verdict.request import GateRequest
from gate.verdict.verdict import NotRun, Outcome, RecordedRuns, RunPurpose, Verdict, WhyNotRun

PAIR = 2
KILLS = len(KillPoint)
BROUGHT_SIDE = "the pull request's baseline"
Runs = tuple[RunEvidence, ...]


# no slots: `cached_property` keeps its answers in the instance's `__dict__`
@dataclass(frozen=True, kw_only=True)
class Case:
    """The request, baselines and runs of one gate call; adding runs makes a new case.

    `data` is the declared data that head's runs find. `compared` is shared by all cases of a call,
    so that no two results are compared twice.
    """

    request: GateRequest
    baselines: Baselines
    data: DataSets
    runs: Runs
    compared: Comparisons

    def with_runs(self, runs: Runs) -> Case:
        """Return the case with `runs` added at the end."""
        return replace(self, runs=(*self.runs, *runs)) if runs else self

    @cached_property
    def planned(self) -> tuple[PlannedRun, ...]:
        """The planned runs of head, in their order."""
        return plan_gate(self.request.strict_runs, priced=self.request.priced)

    @property
    def skipped(self) -> int:
        """How many planned runs of head were not made."""
        made = {run.run.label for run in self.runs}
        return sum(run.label not in made for run in self.planned)

    def _runs_of(self, mode: RunMode, commit: Commit = Commit.HEAD) -> Runs:
        kind = mode, commit
        return tuple(
            run
            for run in self.runs
            # the base commit in head's environment answers another question, so it is no base run
            if (run.run.mode, run.run.commit) == kind and run.run.label != BASE_HERE
        )

    @property
    def _rules(self) -> ComparisonSettings:
        return self.request.settings.compare

    @cached_property
    def strict(self) -> Runs:
        """The strict runs of head."""
        return self._runs_of(RunMode.STRICT)

    @cached_property
    def default(self) -> Runs:
        """The default runs of head, under the training's own settings."""
        return self._runs_of(RunMode.DEFAULT)

    @cached_property
    def base(self) -> Runs:
        """The strict runs of the base commit, in its own environment if it has one."""
        return self._runs_of(RunMode.STRICT, Commit.BASE)

    @property
    def first(self) -> RunEvidence:
        """The first strict run of head: the run that is judged."""
        return self.strict[0]

    def _between(self, expected: RunEvidence, observed: RunEvidence) -> Comparison:
        return self.compared.of(expected, observed, (expected.run.label, observed.run.label))

    @cached_property
    def repeats(self) -> tuple[Comparison, ...]:
        """The comparisons of the first strict run with each other strict run."""
        return tuple(self._between(self.first, run) for run in self.strict[1:])

    @cached_property
    def differ(self) -> bool:
        """Whether two strict runs of head differ, which decides the outcome."""
        # usually all are equal, and this check is far cheaper than a search for the first
        # divergence
        return any(
            not equal_results(self.first, run)
            and not self._between(self.first, run).numerically_equal
            for run in self.strict[1:]
        )

    @cached_property
    def never_passes(self) -> bool:
        """Whether a strict run of head has a number that never passes, which decides too."""
        return never_passes(self.strict, self._rules.allow_not_finite)

    @property
    def outcome_known(self) -> bool:
        """Whether no further run of head can change the outcome."""
        return self.differ or self.never_passes

    @cached_property
    def selection(self) -> Selection:
        """The entry of the trusted baseline that judges, or why none does."""
        return selected(self.request.settings, self.first, self.baselines.base, self.data)

    @property
    def entry(self) -> BaselineEntry | None:
        """The entry that the first run is compared with.

        It may be an entry of another training, which does not judge.
        """
        return self.selection.entry

    @property
    def judging_entry(self) -> BaselineEntry | None:
        """The entry that judges; None if the entry was recorded from another training."""
        return self.selection.entry if self.selection.same_training else None

    @cached_property
    def against_entry(self) -> Comparison | None:
        """The comparison of the first strict run with the entry; None without an entry."""
        if self.entry is None:
            return None
        return self.compared.of(self.entry, self.first, (BASELINE_SIDE, self.first.run.label))

    @cached_property
    def brought_entry(self) -> BaselineEntry | None:
        """The entry for this run and its data in the pull request's own baseline, or None."""
        settings, proposed = self.request.settings, self.baselines.head
        selection = selected(settings, self.first, proposed, self.data)
        entry = selection.entry if selection.same_training else None
        # an entry of other data has to be left out even if its bits are equal: accepted as
        # baseline, it would make the next run report that its data moved
        return entry if entry is not None and same_data(entry.data, self.data) else None

    @property
    def against_brought(self) -> Comparison | None:
        """The comparison of the first strict run with the pull request's own entry, or None."""
        proposed = self.brought_entry
        if proposed is None:
            return None
        return self.compared.of(proposed, self.first, (BROUGHT_SIDE, self.first.run.label))

    @cached_property
    def one_run(self) -> RecordedRuns | None:
        """What the entry says of its runs, if one strict run suffices because it equals the entry.

        None if any question is open. Then all planned runs are made.
        """
        entry, against, request = self.judging_entry, self.against_entry, self.request
        # default runs measure the cost, which needs two strict runs
        if not request.one_may_do or len(self.strict) != 1 or self.default or self.never_passes:
            return None
        # a baseline that the pull request includes must be reproduced by two equal runs
        if entry is None or against is None or self.baselines.head is not None:
            return None
        equal = against.numerically_equal and against.same_environment
        if not equal or not may_stand_alone(entry, self.data, request.settings):
            return None
        return RecordedRuns(runs=entry.equal_runs, recorded_at=entry.recorded_at)

    @property
    def base_run(self) -> Comparison | None:
        """The comparison of head with the base commit on this machine; None without its run."""
        return self._between(self.base[0], self.first) if self.base else None

    @property
    def base_repeat(self) -> Comparison | None:
        """The comparison of two runs of the base commit; None if it ran less than twice."""
        return self._between(*self.base[:2]) if self.base[1:] else None

    @cached_property
    def base_here_run(self) -> RunEvidence | None:
        """The run of the base commit in head's environment, if the base has its own; else None."""
        return next((run for run in self.runs if run.run.label == BASE_HERE), None)

    @property
    def base_here(self) -> Comparison | None:
        """The comparison of head with the base commit, both in head's environment, or None."""
        here = self.base_here_run
        return self._between(here, self.first) if here is not None else None

    @property
    def base_moved(self) -> Comparison | None:
        """The comparison of the base commit in its own environment and in head's, or None."""
        here = self.base_here_run
        return self._between(self.base[0], here) if here is not None and self.base else None

    @property
    def default_repeat(self) -> Comparison | None:
        """The comparison of two default runs; None if there are fewer."""
        return self._between(*self.default[:2]) if self.default[1:] else None

    @cached_property
    def not_finite(self) -> NotFinite | None:
        """The first number of head or base that never passes, or None."""
        return first_not_finite((*self.strict, *self.base), self._rules.allow_not_finite)

    @cached_property
    def self_test(self) -> tuple[SelfTestProbe, ...]:
        """The planted faults, and whether the comparators saw each.

        Empty if a run has a number that never passes: that is an error already.
        """
        return () if self.not_finite else run_self_test(self.first, self._rules)

    @cached_property
    def like_strict(self) -> tuple[Comparison, ...]:
        """The comparisons of the first strict run with each default run that does the same work."""
        return runs_of_the_same_work(self.first, self.default, self._rules)

    @cached_property
    def cost(self) -> DeterminismCost | None:
        """What determinism costs; None if the default runs that price it were not made."""
        if not (self.default[1:] and self.strict[1:]):
            return None
        return determinism_cost(self.strict[:2], self.default, self.request.settings.cost)

    @property
    def seeds_are_open(self) -> bool:
        """Whether the policy's level or a proposed entry depends on runs with further seeds."""
        if not self.request.settings.policy.level.needs_seeds or self.differ:
            return False
        # such a number is an error already, which further seeds cannot change
        if first_not_finite(self.strict, self._rules.allow_not_finite):
            return False
        return seeds_are_open(self.selection, self.against_entry, self.brought_entry)


@dataclass(frozen=True, kw_only=True)
class ClosedCase:
    """A case whose runs have ended and whose evidence is written, so that it can be decided.

    `documents` are the files that the evidence was written to. `operator_audit_failure` says why
    the audit is missing. A diagnosis uses the traces in `evidence`.
    """

    case: Case
    evidence: EvidenceSet
    documents: tuple[WrittenDocument, ...]
    isolation: Isolation
    operator_audit_failure: str = ""

    @cached_property
    def seeds_of_brought(self) -> SeedsOfBrought:
        """Whether the seeds of the pull request's own entry match the results of this call."""
        case = self.case
        settings = case.request.settings
        return seeds_of_brought(case.brought_entry, case.judging_entry, self.evidence, settings)

    @cached_property
    def resume(self) -> ResumeResult | None:
        """The result of the interrupted and the resumed run, or None if they are not due."""
        case, request = self.case, self.case.request
        due = request.resumes and not case.outcome_known
        return resume_result(self.evidence, case.first, request.settings, due=due)

    @cached_property
    def facts(self) -> Facts:
        """Everything that the outcome depends on, as one record."""
        case, evidence = self.case, self.evidence
        settings, entry = case.request.settings, case.judging_entry
        return Facts(
            settings=settings,
            # with a number that never passes, one run decides, so no repeat may exist
            repeat=most_telling(case.repeats) if case.repeats else alone(case.first),
            strict_runs=len(case.strict),
            unequal=sum(not repeat.numerically_equal for repeat in case.repeats),
            one_run=case.one_run,
            self_test=case.self_test,
            not_finite=case.not_finite,
            base_not_finite=first_not_finite(case.base, settings.compare.allow_not_finite)
            is not None,
            like_strict=case.like_strict,
            baseline=case.against_entry,
            same_training=case.selection.same_training,
            other_settings=case.selection.other_settings,
            # if this call saw other results of seeds, the pull request's entry is not reproduced
            proposed=case.against_brought if self.seeds_of_brought.seen else None,
            base_run=case.base_run,
            base_repeat=case.base_repeat,
            own_environments=any(run.run.environment is Commit.BASE for run in case.base),
            base_here=case.base_here,
            base_moved=case.base_moved,
            nearest=separated(case.selection.nearest, case.first, settings),
            provisional=provisional_entry(
                settings, case.first, case.baselines, case.data, case.compared
            ),
            quarantine=in_force(settings.baseline.quarantine, case.entry, evidence.created_at),
            same_code=case.entry is not None and case.entry.commit in case.baselines.same_code,
            thresholds=threshold_results(case.first, settings.policy.thresholds),
            judged=judged(entry, evidence, settings),
            entropy=drawn_entropy(case.strict),
            cost=case.cost,
            data_moved=data_moves(entry.data, case.data) if entry is not None else (),
            data_brought=brings_data(evidence.base_data, case.data),
            unrepeated=evidence.unrepeated,
            resume=self.resume,
        )

    @cached_property
    def decision(self) -> Decision:
        """The outcome and its reasons."""
        return decide(self.facts)

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """Why the deciding comparison differs; None if the outcome needs no explanation."""
        resume = self.resume
        if self.decision.outcome is Outcome.RESUME_DIFFERS and resume is not None:
            return diagnose_resume(resume)
        return diagnosis_of(self.decision, self.evidence)

    @property
    def movement(self) -> Movement | None:
        """How far the run is from the entry that the pull request replaces, or None."""
        if self.decision.outcome is not Outcome.BASELINE_CHANGE:
            return None
        case, against, entry = self.case, self.case.against_entry, self.case.entry
        if against is None or entry is None:
            return None
        tolerances = case.request.settings.compare.tolerances
        # the figures come from this call's own comparison, not from the pull request
        return movement_of(against, tolerances, replaced=entry.metrics, commit=entry.commit)

    @property
    def not_run(self) -> tuple[NotRun, ...]:
        """The runs that this call could have made and did not, each group with its reason."""
        case, request = self.case, self.case.request
        unpriced = self._missing(plan_gate(request.strict_runs, priced=True), RunMode.DEFAULT)
        parts = (
            [] if request.priced else [(RunPurpose.DEFAULT_RUNS, WhyNotRun.NOT_PRICED, unpriced)]
        )
        resume = request.settings.resume
        of_resume = PAIR + KILLS * (resume is not None and resume.kill_while_saving)
        unresumed = resume is not None and not request.resumes
        parts += [(RunPurpose.RESUME, WhyNotRun.NOT_NIGHTLY, of_resume)] if unresumed else []
        if case.one_run is not None:
            further = self._missing(case.planned, RunMode.STRICT)
            parts += [(RunPurpose.STRICT_RUNS, WhyNotRun.REPRODUCED, further)]
        if case.outcome_known:
            why = WhyNotRun.RUNS_DIFFER if case.differ else WhyNotRun.NOT_FINITE
            asked = request.settings.operator_audit and not self.operator_audit_failure
            audit = (plan_operator_audit(),) if asked else ()
            seeds = plan_seeds(request.settings) if not self.evidence.seeded else ()
            stopped = (
                (RunPurpose.STRICT_RUNS, self._missing(case.planned, RunMode.STRICT)),
                (RunPurpose.DEFAULT_RUNS, self._missing(case.planned, RunMode.DEFAULT)),
                (RunPurpose.SEEDS, len(seeds)),
                (RunPurpose.OPERATOR_AUDIT, self._missing(audit, RunMode.AUDIT)),
                (RunPurpose.RESUME, of_resume if request.resumes and self.resume is None else 0),
            )
            parts += [(part, why, runs) for part, runs in stopped]
        return tuple(NotRun(part=part, why=why, runs=runs) for part, why, runs in parts if runs)

    def _missing(self, planned: tuple[PlannedRun, ...], mode: RunMode) -> int:
        labels = {run.run.label for run in self.evidence.runs}
        return sum(run.mode is mode and run.label not in labels for run in planned)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gated:
    """What a gate call found: the verdict, its evidence, and the entry that it proposes.

    `documents` are the files that the evidence was written to.
    """

    verdict: Verdict
    evidence: EvidenceSet
    documents: tuple[WrittenDocument, ...]
    baseline: Baseline | None
    proposed: BaselineEntry | None


def open_case(request: GateRequest, baselines: Baselines, data: DataSets) -> Case:
    """Return the case before its first run."""
    compared = Comparisons(request.settings.compare)
    return Case(request=request, baselines=baselines, data=data, runs=(), compared=compared)


def case_of(
    request: GateRequest,
    baselines: Baselines,
    evidence: EvidenceSet,
    isolation: Isolation,
    documents: tuple[WrittenDocument, ...] = (),
) -> ClosedCase:
    """Return the case of finished evidence, from this call or from another job."""
    case = open_case(request, baselines, evidence.data).with_runs(evidence.runs)
    return ClosedCase(case=case, evidence=evidence, documents=documents, isolation=isolation)
