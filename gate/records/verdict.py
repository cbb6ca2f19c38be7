"""The answer: one outcome, the findings that led to it, and what they rest on."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from gate.errors import ExitCode
from gate.records.baseline import KnobCosts
from gate.records.census import CensusReport
from gate.records.comparison import Comparison, DeterminismCost
from gate.records.deciders import DeciderChange
from gate.records.document import Document, Timestamp
from gate.records.evidence import Environment, RecorderCost
from gate.records.runs import RunRecord

VERDICT_SCHEMA: Final = "repro-gate.verdict/1"


class Outcome(StrEnum):
    """The rows of the lattice; see docs/architecture.md."""

    REPRODUCED = "reproduced"
    WITHIN_TOLERANCE = "within-tolerance"
    CODE_DRIFT = "code-drift"
    ENVIRONMENT_DRIFT = "environment-drift"
    BASELINE_CHANGE = "baseline-change"
    NO_BASELINE = "no-baseline"
    NOT_COMPARABLE = "not-comparable"
    NONDETERMINISTIC = "nondeterministic"
    ERROR = "error"


class Severity(StrEnum):
    """How loudly a finding is told."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


class Finding(Document):
    """One thing worth telling: a stable code, a sentence, and what to do about it."""

    code: str
    severity: Severity
    message: str
    remedy: str = ""


class CanaryProbe(Document):
    """A planted fault and whether the comparators caught it."""

    name: str
    caught: bool


class Diagnosis(Document):
    """Where two runs part first and what class of cause that points to.

    `stream` is the first stream that differs: environment, steps, loss, parameters, state, metric.
    """

    first_step: int | None
    stream: str
    subject: str
    cause: str
    remedy: str


class BaselineFacts(Document):
    """Which baseline entry was used, and how old it is."""

    commit: str
    recorded_at: Timestamp
    age_days: int
    stale: bool
    checkpoint_root: str
    from_base: bool
    knob_costs: KnobCosts | None = None


class SeriesSummary(Document):
    """A metric over the steps, short enough for a comment: values are for drawing only."""

    name: str
    source: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]
    last_decimal: str


class Verdict(Document):
    """The document `verdict.json`, and all that a report may show.

    `fault_details` holds lines of a fault, such as the last output of a training that failed.
    """

    schema_version: Literal["repro-gate.verdict/1"] = VERDICT_SCHEMA
    outcome: Outcome
    passes: bool
    cause: str
    next_command: str
    commit: str
    base_commit: str | None = None
    created_at: Timestamp
    changed_files: tuple[str, ...] = ()
    settings_from: str = "head"
    isolation: str = "none"
    findings: tuple[Finding, ...] = ()
    repeat: Comparison | None = None
    baseline: Comparison | None = None
    base_run: Comparison | None = None
    baseline_facts: BaselineFacts | None = None
    diagnosis: Diagnosis | None = None
    cost: DeterminismCost | None = None
    recorder: RecorderCost | None = None
    canary: tuple[CanaryProbe, ...] = ()
    environment: Environment | None = None
    checkpoint_root: str = ""
    snapshot_digest: str = ""
    settings_digest: str = ""
    series: tuple[SeriesSummary, ...] = ()
    runs: tuple[RunRecord, ...] = ()
    not_exercised: tuple[str, ...] = ()
    fault_details: tuple[str, ...] = ()
    census: CensusReport | None = None
    decider_changes: tuple[DeciderChange, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """0 only for a verified pass; an error is 3, every other outcome that fails is 1."""
        if self.passes:
            return ExitCode.PASS
        return ExitCode.ERROR if self.outcome is Outcome.ERROR else ExitCode.FAIL
