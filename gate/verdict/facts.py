"""The facts that an outcome depends on, the rules that read them, and the decision they lead to."""

from __future__ import annotations

from dataclasses import dataclass, field

from gate.baseline.acceptance import ProvisionalEntry
from gate.comparison.differences import (
    Comparison,
    DeterminismCost,
    EnvironmentChange,
    NotFinite,
    OtherSetting,
    SelfTestProbe,
    ThresholdResult,
)
from gate.comparison.level_records import LevelResult
from gate.data.data_sets import DataMoves, UnrepeatedData
from gate.diagnosis.diagnosis import CodePlace, ResumeResult
from gate.settings.gate_settings import GateSettings
from gate.settings.levels import Quarantine, ReachedLevel
from gate.verdict.verdict import Answer, Answers, Outcome, RecordedRuns


def agree(comparison: Comparison, settings: GateSettings) -> bool:
    """Return whether two results count as the same under the settings."""
    return comparison.numerically_equal or (comparison.comparable and inside(comparison, settings))


def inside(comparison: Comparison, settings: GateSettings) -> bool:
    """Return whether metrics are within tolerance, and weights and buffers within their own limit.

    Without a limit for tensors, a tolerance for metrics also lets tensors differ: weights cannot
    stay equal where the loss may move. Without any tolerance, nothing may differ. A different type
    or shape is a different model, however near its numbers are.
    """
    compare = settings.compare
    tensors_may_differ = bool(compare.tolerances)
    if compare.tensors is not None:
        tensors_may_differ = compare.tensors.relative > 0
    tensors_differ = bool(comparison.tensors or comparison.step_faults)
    return (
        comparison.metrics_within
        and not comparison.retyped
        and comparison.first_tensor_beyond is None
        and (tensors_may_differ or not tensors_differ)
    )


def repeat_answer(comparison: Comparison | None) -> Answer:
    """Return the answer for two runs of one commit."""
    if comparison is None:
        return Answer.NOT_COMPARED
    # No tolerance applies between two runs of one commit.
    return Answer.EQUAL if comparison.numerically_equal else Answer.OUTSIDE


def answer_of(comparison: Comparison | None, settings: GateSettings) -> Answer:
    """Return the answer that one comparison gives under the settings."""
    if comparison is None:
        return Answer.NOT_COMPARED
    if comparison.numerically_equal:
        return Answer.EQUAL
    if not comparison.comparable:
        return Answer.NOT_COMPARABLE
    if not inside(comparison, settings):
        return Answer.OUTSIDE
    return Answer.REFUSED if settings.policy.require_bitwise else Answer.INSIDE


@dataclass(frozen=True, kw_only=True, slots=True)
class EntropyDraw:
    """A line of the training that draws from a source that no seed sets, and the call it makes."""

    call: str
    place: str
    code_place: CodePlace | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All facts that an outcome depends on.

    Repeating: `repeat` compares the first strict run with the first one that differs from it, else
    with the second. `unequal` counts how many of the `strict_runs` differ. `like_strict` compares
    the first strict run with every other run that does the same work. `one_run`: this call made
    only one strict run, since it equals these runs of the entry. `entropy` is the first line of a
    strict run that draws from a source that no seed sets. `resume` is the result of interrupting
    and resuming.

    Baseline: `baseline` compares the first strict run with the chosen entry. `other_settings` are
    training settings for which the entry has a different value. `proposed` compares with the entry
    that the pull request itself includes. `nearest` is how the nearest entry differs where none can
    judge a run here. `provisional` is this environment's entry if it may not judge yet, and whether
    this run repeats it. `quarantine` are the rules in force today for the chosen entry.
    `same_code`: the entry was recorded from exactly these files.

    Base commit: `base_run` compares head with base, and `base_repeat` base with base, on this
    machine. With `own_environments`, the pull request installs its own environment and each commit
    ran in its own. `base_here` then compares head with base in head's environment, and `base_moved`
    compares base in both environments.

    Data and numbers: `data_moved` is how declared data moved since the entry was recorded, and
    `data_brought` says that this change moved it. `unrepeated` is what preprocessing wrote
    differently the second time. `not_finite` is the first NaN or infinity; `base_not_finite` says
    that the base commit, run here, has one too. `judged` is the result of a level that needs
    several seeds.
    """

    settings: GateSettings
    repeat: Comparison
    self_test: tuple[SelfTestProbe, ...]
    strict_runs: int = 2
    unequal: int = 0
    one_run: RecordedRuns | None = None
    not_finite: NotFinite | None = None
    base_not_finite: bool = False
    like_strict: tuple[Comparison, ...] = ()
    baseline: Comparison | None = None
    same_training: bool = True
    other_settings: tuple[OtherSetting, ...] = ()
    proposed: Comparison | None = None
    base_run: Comparison | None = None
    base_repeat: Comparison | None = None
    own_environments: bool = False
    base_here: Comparison | None = None
    base_moved: Comparison | None = None
    same_code: bool = False
    nearest: tuple[EnvironmentChange, ...] = ()
    provisional: ProvisionalEntry | None = None
    quarantine: tuple[Quarantine, ...] = ()
    cost: DeterminismCost | None = None
    thresholds: tuple[ThresholdResult, ...] = ()
    judged: LevelResult | None = None
    data_moved: DataMoves = ()
    data_brought: bool = False
    unrepeated: UnrepeatedData | None = None
    entropy: EntropyDraw | None = None
    resume: ResumeResult | None = None

    @property
    def nothing_moved(self) -> bool:
        """Whether both code and environment are the baseline's."""
        same_environment = self.baseline is not None and self.baseline.same_environment
        return self.same_code and same_environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """An outcome, whether it passes, one sentence why, and the answer to each question.

    Three fields name a single reason that keeps the result from passing: `over_budget` (the cost of
    determinism), `missed_threshold` (a threshold) and `by_chance` (a draw of entropy). `level` is
    the level that was reached. `decided` is the comparison that the outcome rests on; the diagnosis
    starts from it. `excused`: a quarantine left the judgement to the base commit, and the base
    commit agrees. `other_training`: the entry was recorded under different settings. The base
    commit, run under today's settings, cannot show that.
    """

    outcome: Outcome
    passes: bool
    cause: str
    answers: Answers = field(default_factory=Answers)
    decided: Comparison | None = None
    over_budget: bool = False
    missed_threshold: bool = False
    by_chance: bool = False
    level: ReachedLevel | None = None
    excused: bool = False
    other_training: bool = False


def failed(outcome: Outcome, cause: str, decided: Comparison | None = None) -> Decision:
    """Return a decision that does not pass."""
    return Decision(outcome=outcome, passes=False, cause=cause, decided=decided)


def passed(outcome: Outcome, cause: str, decided: Comparison | None = None) -> Decision:
    """Return a decision that passes."""
    return Decision(outcome=outcome, passes=True, cause=cause, decided=decided)


def within_tolerance(facts: Facts, cause: str) -> Decision:
    """Return the decision for a result within tolerance of the baseline, or of the base run."""
    decided = facts.base_run or facts.baseline
    # The outcome keeps its name, so that a reader sees that the policy refuses it.
    if facts.settings.policy.require_bitwise:
        cause = f"{cause}, but the policy requires equal bits"
        return failed(Outcome.WITHIN_TOLERANCE, cause, decided)
    return passed(Outcome.WITHIN_TOLERANCE, cause, decided)
