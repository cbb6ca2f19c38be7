"""The answer: one outcome, the findings that led to it, and what they rest on."""

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


class Part(StrEnum):
    """Runs of one purpose."""

    DEFAULT_RUNS = "default-runs"
    STRICT_RUNS = "strict-runs"
    SEEDS = "seeds"
    OPERATOR_AUDIT = "operator-audit"
    RESUME = "resume"


class WhyNotRun(StrEnum):
    """`not-priced`: `cost.when` asks for no price in this call; `runs-differ`: two strict runs.

    `not-nightly`: `resume.when` asks for no resume in it. `not-finite`: a strict run has a number
    that never passes. `reproduced`: the first strict run equals the baseline, and
    `runs.when_reproduced` asks for no other then. `unaffected`: `runs.unaffected` asks for none.
    """

    NOT_PRICED = "not-priced"
    NOT_NIGHTLY = "not-nightly"
    RUNS_DIFFER = "runs-differ"
    NOT_FINITE = "not-finite"
    REPRODUCED = "reproduced"
    UNAFFECTED = "unaffected"


class NotRun(Document):
    """So many runs of a part that were not made."""

    part: Part
    why: WhyNotRun
    runs: int = Field(ge=1)


class ClusterSource(StrEnum):
    """Why the same code, data and seed may give other numbers on a cluster."""

    REDUCTION = "reduction-order"
    NEIGHBOURS = "neighbours"
    WORKERS = "elastic-workers"
    HARDWARE = "unlike-hardware"
    PLACEMENT = "placement"


class SourceStatus(StrEnum):
    """What the evidence shows of a source.

    `eliminated`: a fact shows that it cannot move a number. `bounded`: it may, and runs that had it
    differ by no more than a figure. `recorded`: what is known of it is kept, and nothing bounds it.
    `not-exercised`: these runs do not have it.
    """

    ELIMINATED = "eliminated"
    BOUNDED = "bounded"
    RECORDED = "recorded"
    NOT_EXERCISED = "not-exercised"


class SourceState(Document):
    """One source; `because` is the fact that the state rests on, without a full stop.

    `figure` is the largest relative difference of a metric between runs of one kind, and `runs` how
    many runs of this commit it comes from; None and 0 where nothing bounds the source.
    """

    kind: ClusterSource
    state: SourceStatus
    because: str
    figure: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    runs: int = Field(default=0, ge=0)


DeterminismBudget = Annotated[tuple[SourceState, ...], Field(max_length=len(ClusterSource))]


# the code of the finding that says why nothing was judged
FAULT: Final = "fault"
# of the finding that declared data is not what the baseline was recorded with
DATA_MOVED: Final = "data-moved"
# of the findings that something of a run was not compared
NOT_COMPARED: Final = frozenset({"left-out", "metric-not-compared"})
# settings of the training: a result says nothing of other ones
TRAINING_SECTIONS: Final = frozenset({"train", "determinism", "variants", "preprocess", "data"})
NO_NUMBER: Final = frozenset({"train.timeout_seconds", "train.output_limit_bytes"})
VERDICT_SCHEMA: Final = "repro-gate.verdict/1"


class Outcome(StrEnum):
    """The rows of the decision table; see docs/architecture.md."""

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
    """What went wrong, by the names that operators count by; docs/runbooks.md has a page for each.

    A verdict that does not pass carries one where typed facts prove it, and `none` where they do
    not: never a guess.
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


# a different result than the one that it is compared with, which the runs agree on
DRIFTS: Final = frozenset(
    (Outcome.CODE_DRIFT, Outcome.ENVIRONMENT_DRIFT, Outcome.DEPENDENCY_DRIFT, Outcome.DATA_DRIFT)
)


def led_by_settings(outcome: Outcome, diagnosis: Diagnosis | None) -> bool:
    """Whether a setting of the run leads a difference where the environment moved as well."""
    led = diagnosis is not None and diagnosis.kind is not EventKind.ENVIRONMENT
    return led and outcome is Outcome.ENVIRONMENT_DRIFT


class Severity(StrEnum):
    """How prominently a finding is shown."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


class Finding(Document):
    """One thing worth reporting: a stable code, a sentence, what to do about it, and where."""

    code: str
    severity: Severity
    message: str
    remedy: str = ""
    code_place: CodePlace | None = None


class Answer(StrEnum):
    """What a comparison came to, by the rules that decide.

    `refused` lies inside the tolerance where the policy requires equal bits.
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
    """The answer to each question, as the decision has it; a report shows these and no others.

    `base_here` is about the base commit in the change's environment, where it has run in its own
    environment too.
    """

    repeat: Answer = Answer.NOT_COMPARED
    baseline: Answer = Answer.NOT_COMPARED
    base_run: Answer = Answer.NOT_COMPARED
    base_repeat: Answer = Answer.NOT_COMPARED
    base_here: Answer = Answer.NOT_COMPARED


class NotFiniteResult(Document):
    """Such a number of the commit under test, and what the other side has there.

    `expected` is the baseline's number, or that of the base commit that ran here, empty where it
    has none. `brought`: the machine and the packages are those of a result that is finite.
    `in_base`: the base commit, run here, is not finite either. `starts_differ`: two runs start from
    different weights. `origin` says which call of a traced run gives the first one, in a sentence
    without a full stop.
    """

    number: NotFinite
    origin: str = ""
    expected: str = ""
    brought: bool = False
    in_base: bool = False
    starts_differ: bool = False


class EqualRuns(Document):
    """How many runs of the commit are equal, and the share of faults they miss.

    Of faults that strike one run in ten.
    """

    runs: int
    missed: float


class RecordedRuns(Document):
    """The equal runs that the baseline's entry was recorded from, and when.

    Where one strict run of a call is enough, it equals these.
    """

    runs: int = Field(ge=2, le=10)
    recorded_at: Timestamp

    @property
    def described(self) -> str:
        """For example `1 run here, equal to 2 recorded on 2026-11-20`."""
        return f"1 run here, equal to {self.runs} recorded on {self.recorded_at[:10]}"


class RecordedPass(Document):
    """The entry of the baseline that answers for a commit which was not run.

    `entry` is the name of its file, `commit` what was trained then, in `runs` equal runs.
    `files_sha256` covers the files that the training gets, of that commit and of this one, and the
    settings. Where the entry came from on GitHub, and out of which package, are claims, empty where
    not known.
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
        """Such as `2 equal runs recorded on 2026-11-20 of commit 1234567`."""
        when = f"recorded on {self.recorded_at[:10]}"
        return f"{self.runs} equal runs {when} of commit {self.commit[:7]}"


class NextStep(Document):
    """Something to do next, and the command for it where there is one.

    `accepts`: it takes the new result over as the baseline.
    """

    text: str
    command: str = ""
    accepts: bool = False


class BaselineFacts(Document):
    """Which baseline entry was used, how old it is, and what it says of where it comes from."""

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
    missed_faults: float = 0.82
    recordings: int = 1
    accepted_by: str = ""
    run_url: str = ""
    package_sha256: str = ""


class SeriesSummary(Document):
    """A metric over the steps, short enough for a comment: values are for drawing only."""

    name: str
    source: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]
    last_decimal: str


class Verdict(Document):
    """The document `verdict.json`, and all that a report may show.

    `workdir` is the training's folder in the repository.
    `over_budget`: nothing but the price of determinism keeps it from passing; `missed_threshold`:
    nothing but a threshold. `failure_mode` is what is proven of a verdict that does not pass, and
    `runbook` the page of this project that says what to do about it. `level` is what the result
    came to, None where it came to nothing;
    `judged` is how one that several seeds decide was reached, or why it was not.
    `nothing_moved`: neither the code nor the environment is another than the baseline's.
    `nearest_entry` is what separates the nearest entry where none can judge a run here.
    `other_settings` are those of the training that the entry was recorded with another value of.
    `provisional` is the entry that may not judge yet. `quarantine` is the rule that covers the
    result, and `excused` says that the base commit judged instead and agrees. `movement` is how far
    a new baseline is from the old one. `data` is the declared data, `data_moved` how it moved since
    the baseline was recorded, and `data_brought` says that the change moved it; `unrepeated` is
    what the preprocessing command wrote differently when it ran again.
    `change` is what of the pull request belongs beside the difference or the fault, where that is
    known; `named_unchanged` says that the named line is certainly none of it.
    `not_finite` is the number that never passes, where there is one.
    `equal_runs` says how much equal runs of this call leave open, None where two of them differ.
    `one_run`: this call made one strict run, which equals the baseline's entry of exactly this
    environment, and these are the runs that the entry was recorded from. That two runs of this
    commit are equal was not shown then. `unaffected`: nothing was run, since all that the training
    gets is what it was when this entry was recorded.
    `resume` is what an interrupted and a resumed run came to, None where none was made.
    `determinism_budget` is the state of each source of nonreproducibility of a cluster.
    `checkpoint_root` is over the states of all ranks; `states` has the roots of what is packed.
    `fault_details` holds lines of a fault, such as the last output of a training that failed.
    `base_branch` is the branch that the change is to be merged into, empty where none is known.
    `imported_evidence`: another job made the runs, so `isolation` is what that job says of them,
    and `timeline` is None. `not_run` is what this call left out.
    `configuration` is what the training parsed, composed and read, None where nothing of it was
    seen; `configuration_changes` is what of it differs from the baseline's entry.
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
        """The one number that people are shown: `repro-gate digest package.tar` prints it first.

        `checkpoint_root` is over every rank and what the script saved too, so it is that of no
        file. Empty where nothing was captured.
        """
        captured = (state.root for state in self.states if state.name is StateName.CAPTURED)
        return next(captured, "")

    @property
    def main_series(self) -> SeriesSummary | None:
        """The loss that the harness saw, else any loss, else the first metric that there is."""
        losses = [series for series in self.series if series.name.endswith("loss")]
        # the loss that was differentiated goes before one that is merely called so
        seen = [series for series in losses if series.source == MetricSource.HARNESS.value]
        return next(iter((*seen, *losses, *self.series)), None)

    @property
    def untried_settings(self) -> tuple[str, ...]:
        """Settings of the training that the pull request changes: no run of this call had them."""
        if self.settings_from != "base":
            return ()
        return tuple(
            change.what
            for change in self.policy_changes
            if change.what.partition(".")[0] in TRAINING_SECTIONS and change.what not in NO_NUMBER
        )

    @property
    def compared_all(self) -> bool:
        """Whether all that a run logged and captured was compared."""
        return not any(
            finding.code in NOT_COMPARED and finding.severity is not Severity.NOTICE
            for finding in self.findings
        )

    @property
    def torn_alone(self) -> bool:
        """Whether it fails since a kill inside the save leaves nothing to resume from."""
        differs, resume = self.outcome is Outcome.RESUME_DIFFERS, self.resume
        return differs and resume is not None and resume.state is not ResumeState.DIFFERS

    @property
    def held_back(self) -> bool:
        """Whether the result itself would pass, and something beside it keeps it from that."""
        return self.over_budget or self.missed_threshold

    @property
    def nothing_to_compare(self) -> bool:
        """Whether equal runs lack nothing but an entry of the baseline to be compared with."""
        return self.outcome is Outcome.NO_BASELINE and self.provisional is None

    @property
    def strict_runs(self) -> int:
        """How many strict runs of the commit under test were made."""
        return sum(run.mode is RunMode.STRICT and run.commit is Commit.HEAD for run in self.runs)

    @property
    def exit_code(self) -> ExitCode:
        """0 only for a verified pass; an error is 3, every other outcome that fails is 1."""
        if self.passes:
            return ExitCode.PASS
        return ExitCode.ERROR if self.outcome is Outcome.ERROR else ExitCode.FAIL
