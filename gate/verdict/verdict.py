"""The verdict: one outcome, the findings that led to it, and the evidence they rest on."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.baseline.acceptance import InQuarantine, Movement, ProvisionalEntry, RecordedPrice
from gate.comparison.differences import (
    Comparison,
    DeterminismCost,
    EnvironmentChange,
    EventKind,
    KnobCosts,
    NotFinite,
    OtherSetting,
    SelfTestProbe,
    ThresholdResult,
    ToleranceUse,
)
from gate.comparison.level_records import LevelResult, Performance
from gate.data.data_sets import DataMoves, DataSets, UnrepeatedData
from gate.diagnosis.diagnosis import CodePlace, Diagnosis, ResumeResult, ResumeState
from gate.errors import ExitCode
from gate.evidence.configuration import MAX_CHANGES, Configuration, ConfigurationChange
from gate.evidence.lock_files import NOTHING_BROUGHT, BroughtEnvironment
from gate.evidence.operator_records import OperatorReport
from gate.evidence.run_evidence import (
    MetricSource,
    RecorderCost,
    StateName,
    States,
)
from gate.evidence.trace import ShownChange
from gate.isolation.modes import IsolationMode, RunIsolation
from gate.settings.levels import ReachedLevel
from gate.settings.policy_change import PolicyChange
from gate.text.document import Document, Timestamp
from gate.training.environment import Environment
from gate.training.runs import Commit, RunMode, RunRecord
from gate.training.timeline import Timeline


class RunPurpose(StrEnum):
    """The purpose of a group of runs."""

    DEFAULT_RUNS = "default-runs"
    STRICT_RUNS = "strict-runs"
    SEEDS = "seeds"
    OPERATOR_AUDIT = "operator-audit"
    RESUME = "resume"


class WhyNotRun(StrEnum):
    """Why a call left out some runs.

    - `not-priced`: `cost.when` asks for no cost measurement in this call.
    - `not-nightly`: `resume.when` asks for no resume in this call.
    - `runs-differ`: two strict runs differ, so no further run can change the outcome.
    - `not-finite`: a strict run has a NaN or an infinity, which never passes.
    - `reproduced`: the first strict run equals the baseline, and `runs.when_reproduced` then asks
      for no other.
    - `unaffected`: `runs.unaffected` asks for no run at all.
    """

    NOT_PRICED = "not-priced"
    NOT_NIGHTLY = "not-nightly"
    RUNS_DIFFER = "runs-differ"
    NOT_FINITE = "not-finite"
    REPRODUCED = "reproduced"
    UNAFFECTED = "unaffected"


class NotRun(Document):
    """The runs of one part that were left out, and why."""

    part: RunPurpose
    why: WhyNotRun
    runs: int = Field(ge=1)


class ClusterSource(StrEnum):
    """Why the same code, data and seed may give different numbers on a cluster."""

    REDUCTION = "reduction-order"
    NEIGHBOURS = "neighbours"
    WORKERS = "elastic-workers"
    HARDWARE = "unlike-hardware"
    PLACEMENT = "placement"


class SourceStatus(StrEnum):
    """What the evidence shows about a source of nonreproducibility.

    - `eliminated`: a fact shows that the source cannot change a number.
    - `bounded`: it may change numbers, and runs exposed to it differ by no more than a figure.
    - `recorded`: what is known about it is recorded, but nothing bounds it.
    - `not-exercised`: these runs do not have it.
    """

    ELIMINATED = "eliminated"
    BOUNDED = "bounded"
    RECORDED = "recorded"
    NOT_EXERCISED = "not-exercised"


class SourceState(Document):
    """The state of one source; `because` is the fact behind it, without a full stop.

    `figure` is the largest relative difference of a metric between runs of one kind. `runs` is the
    number of runs of this commit behind it. They are None and 0 where nothing bounds the source.
    """

    kind: ClusterSource
    state: SourceStatus
    because: str
    figure: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    runs: int = Field(default=0, ge=0)


DeterminismBudget = Annotated[tuple[SourceState, ...], Field(max_length=len(ClusterSource))]


# The code of the finding that says why nothing was judged.
FAULT: Final = "fault"
# The code of the finding that declared data differs from the baseline's.
DATA_MOVED: Final = "data-moved"
# The codes of the findings that part of a run was not compared.
NOT_COMPARED: Final = frozenset({"left-out", "metric-not-compared"})
# Changing one of these settings makes a different training, so a result without it proves nothing.
TRAINING_SECTIONS: Final = frozenset({"train", "determinism", "variants", "preprocess", "data"})
# These settings of the training bound a run and change no number of its result.
NO_NUMBER: Final = frozenset({"train.timeout_seconds", "train.output_limit_bytes"})
VERDICT_SCHEMA: Final = "repro-gate.verdict/1"


class Outcome(StrEnum):
    """The outcomes of the decision table; docs/architecture.md has its rows."""

    REPRODUCED = "reproduced"
    WITHIN_TOLERANCE = "within-tolerance"
    CODE_DRIFT = "code-drift"
    ENVIRONMENT_DRIFT = "environment-drift"
    DEPENDENCY_DRIFT = "dependency-drift"
    DATA_DRIFT = "data-drift"
    BASELINE_CHANGE = "baseline-change"
    NO_BASELINE = "no-baseline"
    NOT_COMPARABLE = "not-comparable"
    NONDETERMINISTIC = "nondeterministic"
    RESUME_DIFFERS = "resume-differs"
    ERROR = "error"


class FailureMode(StrEnum):
    """What went wrong, under the names that operators count by; docs/runbooks.md explains each.

    A failed verdict has a mode only where typed facts prove it, else `none`. It is never a guess.
    """

    NONE = "none"
    RANDOM = "F1"
    OPERATOR = "F2"
    LIBRARY = "F3"
    DATA = "F4"
    DISTRIBUTED = "F5"
    ARITHMETIC = "F6"
    CHECKPOINT = "F7"
    FLAKY = "F8"


# The runs agree with each other, but differ from the result that they are compared with.
DRIFTS: Final = frozenset(
    (Outcome.CODE_DRIFT, Outcome.ENVIRONMENT_DRIFT, Outcome.DEPENDENCY_DRIFT, Outcome.DATA_DRIFT)
)


# the outcomes that pass unless cost, a threshold or the policy stops them
USUALLY_PASS: Final = frozenset(
    (Outcome.REPRODUCED, Outcome.WITHIN_TOLERANCE, Outcome.BASELINE_CHANGE)
)


def judged_words(outcome: Outcome, *, passes: bool) -> str:
    """Return the outcome, and whether it passed where the outcome alone would suggest otherwise."""
    if passes is (outcome in USUALLY_PASS):
        return outcome.value
    return f"{outcome.value}, {'passed' if passes else 'failed'}"


def led_by_settings(outcome: Outcome, diagnosis: Diagnosis | None) -> bool:
    """Return whether a setting of the run leads a difference although the environment moved."""
    led = diagnosis is not None and diagnosis.kind is not EventKind.ENVIRONMENT
    return led and outcome is Outcome.ENVIRONMENT_DRIFT


class Severity(StrEnum):
    """How prominently a finding is shown."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


class Finding(Document):
    """A remark beside the outcome: a stable code, a sentence, a remedy and perhaps a line."""

    code: str
    severity: Severity
    message: str
    remedy: str = ""
    code_place: CodePlace | None = None


class Answer(StrEnum):
    """The answer that a comparison gives, by the rules of the decision.

    `refused` is within tolerance, but the policy requires equal bits.
    """

    EQUAL = "equal"
    INSIDE = "inside"
    REFUSED = "refused"
    OUTSIDE = "outside"
    NOT_COMPARABLE = "not-comparable"
    NOT_COMPARED = "not-compared"

    @property
    def good(self) -> bool:
        """Whether this answer allows a pass."""
        return self in {Answer.EQUAL, Answer.INSIDE}


class Answers(Document):
    """The answer to each question, as the decision has it; reports show these and no others.

    `base_here` is about the base commit in the change's environment, if the base commit also ran in
    its own environment.
    """

    repeat: Answer = Answer.NOT_COMPARED
    baseline: Answer = Answer.NOT_COMPARED
    base_run: Answer = Answer.NOT_COMPARED
    base_repeat: Answer = Answer.NOT_COMPARED
    base_here: Answer = Answer.NOT_COMPARED


class NotFiniteResult(Document):
    """A NaN or infinity of the commit under test, and what the other side has in its place.

    `expected` is the number of the baseline, or of the base commit that ran here; empty where there
    is none. `brought`: machine and packages are those of a finite result, so this commit introduced
    it. `in_base`: the base commit, run here, is not finite either. `starts_differ`: two runs start
    from different weights. `origin` names the traced call that made the first such number, in a
    sentence without a full stop.
    """

    number: NotFinite
    origin: str = ""
    expected: str = ""
    brought: bool = False
    in_base: bool = False
    starts_differ: bool = False


class EqualRuns(Document):
    """How many runs of the commit are equal, and the share of faults that they miss.

    The share is for faults that strike one run in ten.
    """

    runs: int
    missed: float


class RecordedRuns(Document):
    """The equal runs that the baseline's entry was recorded from, and when.

    Where one strict run of a call is enough, it equals these runs.
    """

    runs: int = Field(ge=2, le=10)
    recorded_at: Timestamp

    @property
    def described(self) -> str:
        """For example `1 run here, equal to 2 recorded on 2026-11-20`."""
        return f"1 run here, equal to {self.runs} recorded on {self.recorded_at[:10]}"


class RecordedPass(Document):
    """The baseline entry that answers for a commit which was not run.

    `entry` is its file name. `commit` was trained when it was recorded, in `runs` equal runs.
    `files_sha256` covers the settings and the files that the training gets; both commits have this
    digest. `run_url` and `package_sha256` are unverified claims about the origin, empty where
    unknown.
    """

    entry: str = Field(max_length=300)
    commit: str = Field(max_length=64)
    recorded_at: Timestamp
    runs: int = Field(ge=2, le=10)
    files_sha256: str = Field(max_length=64)
    run_url: str = ""
    package_sha256: str = ""

    @property
    def described(self) -> str:
        """For example `2 equal runs recorded on 2026-11-20 of commit 1234567`."""
        when = f"recorded on {self.recorded_at[:10]}"
        return f"{self.runs} equal runs {when} of commit {self.commit[:7]}"


class NextStep(Document):
    """Something to do next, with its command if there is one.

    `accepts`: the step accepts the new result as the baseline.
    """

    text: str
    command: str = ""
    accepts: bool = False


class BaselineFacts(Document):
    """Which baseline entry was used, how old it is, and what it claims about its origin."""

    commit: str
    recorded_at: Timestamp
    age_days: int
    stale: bool
    checkpoint_digest: str
    from_base: bool
    knob_costs: KnobCosts | None = None
    price: RecordedPrice | None = None
    reason: str = ""
    equal_runs: int = 2
    # Two runs miss 0.1² + 0.9² of the faults that strike one run in ten.
    missed_faults: float = 0.82
    recordings: int = 1
    accepted_by: str = ""
    run_url: str = ""
    package_sha256: str = ""


class SeriesSummary(Document):
    """A metric over the steps, short enough for a comment; its values are only for charts."""

    name: str
    source: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]
    last_decimal: str


class Verdict(Document):
    """The document `verdict.json`: everything that a report may show.

    Decision: `over_budget` and `missed_threshold` name a single reason that keeps it from passing,
    the cost of determinism or a threshold. `failure_mode` is what is proven about a failed verdict,
    and `runbook` is the page of this project that says what to do about it. `level` is the level
    that the result reached, None where it reached none. `judged` says how a level that needs
    several seeds was reached or missed. `equal_runs` says how many faults the equal runs of this
    call may miss, None where two differ. `one_run`: this call made one strict run, which equals the
    entry of exactly this environment; the entry was recorded from these runs. That two runs of this
    commit are equal was then not shown. `unaffected`: nothing was run, because everything that the
    training gets is unchanged since this entry was recorded. `not_run` is what this call left out.

    Baseline: `nothing_moved`: code and environment are the baseline's. `nearest_entry` is how the
    nearest entry differs where none can judge a run here. `other_settings` are the training
    settings for which the entry has a different value. `provisional` is an entry that may not judge
    yet. `quarantine` is the rule that covers the result. `excused`: the base commit judged instead,
    and agrees. `movement` is how far a new baseline is from the old one.

    Data: `data` is the declared data, `data_moved` how it moved since the baseline was recorded.
    `data_brought`: this change moved it. `unrepeated` is what preprocessing wrote differently the
    second time it ran.

    Diagnosis: `change` is the part of the pull request that belongs beside the difference or fault,
    None where it is not known. `named_unchanged`: the named line is certainly not part of the
    change. `not_finite` is a NaN or infinity, which never passes. `fault_details` are lines about a
    fault, such as the last output of a failed training.

    Runs: `resume` is the result of interrupting and resuming, None if no run was resumed.
    `determinism_budget` is the state of each source of nonreproducibility of a cluster.
    `checkpoint_root` covers the states of all ranks, and `states` has the roots of what is packed.
    `imported_evidence`: another job made the runs, so `isolation` is that job's claim and
    `timeline` is None. `configuration` is what the training parsed, composed and read, None where
    nothing was seen; `configuration_changes` is how it differs from the entry's.

    `workdir` is the training's folder in the repository. `base_branch` is the branch that the
    change is merged into, empty where unknown.
    """

    schema_version: Literal["repro-gate.verdict/1"] = VERDICT_SCHEMA
    outcome: Outcome
    passes: bool
    over_budget: bool = False
    missed_threshold: bool = False
    failure_mode: FailureMode = FailureMode.NONE
    runbook: str = ""
    level: ReachedLevel | None = None
    thresholds: tuple[ThresholdResult, ...] = ()
    judged: LevelResult | None = None
    cause: str
    next_steps: tuple[NextStep, ...] = ()
    commit: str
    base_commit: str | None = None
    base_branch: str = ""
    created_at: Timestamp
    changed_files: tuple[str, ...] = ()
    workdir: str = ""
    settings_from: str = "head"
    isolation: RunIsolation = RunIsolation(mode=IsolationMode.NONE)
    imported_evidence: bool = False
    answers: Answers = Answers()
    findings: tuple[Finding, ...] = ()
    repeat: Comparison | None = None
    baseline: Comparison | None = None
    base_run: Comparison | None = None
    nothing_moved: bool = False
    nearest_entry: tuple[EnvironmentChange, ...] = ()
    other_settings: tuple[OtherSetting, ...] = ()
    provisional: ProvisionalEntry | None = None
    quarantine: InQuarantine | None = None
    excused: bool = False
    movement: Movement | None = None
    data: DataSets = ()
    data_moved: DataMoves = ()
    data_brought: bool = False
    unrepeated: UnrepeatedData | None = None
    resume: ResumeResult | None = None
    change: ShownChange | None = None
    named_unchanged: bool = False
    brought: BroughtEnvironment = NOTHING_BROUGHT
    baseline_facts: BaselineFacts | None = None
    diagnosis: Diagnosis | None = None
    cost: DeterminismCost | None = None
    performance: tuple[Performance, ...] = ()
    recorder: RecorderCost | None = None
    self_test: tuple[SelfTestProbe, ...] = ()
    equal_runs: EqualRuns | None = None
    one_run: RecordedRuns | None = None
    unaffected: RecordedPass | None = None
    not_finite: NotFiniteResult | None = None
    tolerances: tuple[ToleranceUse, ...] = ()
    environment: Environment | None = None
    checkpoint_root: str = ""
    states: States = ()
    snapshot_digest: str = ""
    settings_digest: str = ""
    configuration: Configuration | None = None
    configuration_changes: Annotated[
        tuple[ConfigurationChange, ...], Field(max_length=MAX_CHANGES)
    ] = ()
    series: tuple[SeriesSummary, ...] = ()
    runs: tuple[RunRecord, ...] = ()
    not_exercised: tuple[str, ...] = ()
    determinism_budget: DeterminismBudget = ()
    fault_details: tuple[str, ...] = ()
    operator_audit: OperatorReport | None = None
    policy_changes: tuple[PolicyChange, ...] = ()
    timeline: Timeline | None = None
    not_run: tuple[NotRun, ...] = ()

    @property
    def checkpoint_digest(self) -> str:
        """The one digest that people see, which `repro-gate digest package.tar` prints first.

        `checkpoint_root` also covers every rank and what the script saved, so no file has that
        digest. Empty where nothing was captured.
        """
        captured = (state.root for state in self.states if state.name is StateName.CAPTURED)
        return next(captured, "")

    @property
    def main_series(self) -> SeriesSummary | None:
        """The loss that the harness saw, else any loss, else the first metric."""
        losses = [series for series in self.series if series.name.endswith("loss")]
        # The loss that was differentiated takes precedence over a metric that is merely named so.
        seen = [series for series in losses if series.source == MetricSource.HARNESS.value]
        return next(iter((*seen, *losses, *self.series)), None)

    @property
    def untried_settings(self) -> tuple[str, ...]:
        """Training settings that the pull request changes: no run of this call used them.

        The base commit's settings decide (T2), so the runs used those.
        """
        if self.settings_from != "base":
            return ()
        return tuple(
            change.what
            for change in self.policy_changes
            if change.what.partition(".")[0] in TRAINING_SECTIONS and change.what not in NO_NUMBER
        )

    @property
    def compared_all(self) -> bool:
        """Whether everything that a run logged and captured was compared."""
        return not any(
            finding.code in NOT_COMPARED and finding.severity is not Severity.NOTICE
            for finding in self.findings
        )

    @property
    def torn_alone(self) -> bool:
        """Whether it fails only because a kill inside the save leaves nothing to resume from."""
        differs, resume = self.outcome is Outcome.RESUME_DIFFERS, self.resume
        return differs and resume is not None and resume.state is not ResumeState.DIFFERS

    @property
    def held_back(self) -> bool:
        """Whether the result itself would pass, but its cost or a threshold stops it."""
        return self.over_budget or self.missed_threshold

    @property
    def nothing_to_compare(self) -> bool:
        """Whether equal runs lack only a baseline entry to be compared with."""
        return self.outcome is Outcome.NO_BASELINE and self.provisional is None

    @property
    def strict_runs(self) -> int:
        """The number of strict runs of the commit under test."""
        return sum(run.mode is RunMode.STRICT and run.commit is Commit.HEAD for run in self.runs)

    @property
    def exit_code(self) -> ExitCode:
        """0 only for a verified pass (T4), 3 for an error, 1 for every other outcome that fails."""
        if self.passes:
            return ExitCode.PASS
        return ExitCode.ERROR if self.outcome is Outcome.ERROR else ExitCode.FAIL
