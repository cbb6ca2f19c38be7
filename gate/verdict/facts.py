"""What an outcome depends on, and what a decision says."""

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
    """Whether two results are one by the rules of the settings."""
    return comparison.numerically_equal or (comparison.comparable and inside(comparison, settings))


def inside(comparison: Comparison, settings: GateSettings) -> bool:
    """Metrics within tolerance, and weights and buffers within a limit of their own.

    Without such a limit a tolerance of metrics lets tensors differ, since weights cannot stay equal
    where the loss may move; without any tolerance the gate is exact. What has another type or
    shape is another model, however near its numbers are.
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
    """What two runs of one commit come to."""
    if comparison is None:
        return Answer.NOT_COMPARED
    # no tolerance: two runs of one commit
    return Answer.EQUAL if comparison.numerically_equal else Answer.OUTSIDE


def answer_of(comparison: Comparison | None, settings: GateSettings) -> Answer:
    """What one comparison comes to by the rules of the settings."""
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
    """A line of the training's own that draws from what no seed sets, and by which call."""

    call: str
    place: str
    code_place: CodePlace | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All that an outcome depends on.

    `repeat` compares the first strict run with the first of the others that differs from it, else
    with the second; `unequal` counts those of the `strict_runs` that differ. `one_run`: there is no
    second, since the first equals these runs of the entry. `like_strict` compares
    the first with every other run that does the same work. `baseline` compares the first strict run
    with the chosen entry; `other_settings` names the settings that the entry was recorded with a
    different value of. `proposed` compares it with the entry that the pull request itself brings;
    `base_run` and `base_repeat` compare head with base and base with base on this machine; where
    the pull request brings an environment of its own (`own_environments`), each ran in its own, and
    `base_here` compares head with the base commit in head's environment, `base_moved` the base
    commit in the two. `same_code`: the entry was recorded from the very same files.
    `nearest` is what separates the nearest entry where none can judge a run here; `provisional` is
    the entry of this environment where it may not judge yet, and whether this run repeats it.
    `not_finite` is the first number that is NaN or infinite, and `base_not_finite` says that the
    base commit, run here, has one too. `quarantine` are the rules of the settings that hold for the
    chosen entry today. `judged` is what came of a level that several seeds decide. `data_moved`
    is how declared data moved since the entry was recorded, and `data_brought` says that the change
    moved it; `unrepeated` is what the preprocessing command wrote differently when it ran again.
    `resume` is what an interrupted and a resumed run came to.
    `entropy` is the first line of a strict run that draws from what no seed sets.
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
        """Whether neither the code nor the environment is another than the baseline's."""
        same_environment = self.baseline is not None and self.baseline.same_environment
        return self.same_code and same_environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """An outcome, whether it passes, the one sentence that says why, and each question's answer.

    `over_budget` tells that nothing but the price of determinism keeps it from passing,
    `missed_threshold` that nothing but a threshold does, `by_chance` that nothing but a draw of
    entropy does. `level` is what was reached. `decided`
    is the comparison that the outcome rests on: what a diagnosis is made of. `excused` tells that
    a quarantine left the judgement to the base commit, and that it agrees. `other_training`: the
    entry was recorded under other settings, which the base commit, run under these, does not show.
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
    """A decision that does not pass."""
    return Decision(outcome=outcome, passes=False, cause=cause, decided=decided)


def passed(outcome: Outcome, cause: str, decided: Comparison | None = None) -> Decision:
    """A decision that passes."""
    return Decision(outcome=outcome, passes=True, cause=cause, decided=decided)


def within_tolerance(facts: Facts, cause: str) -> Decision:
    """Within tolerance, by the baseline or by the base commit that ran here."""
    decided = facts.base_run or facts.baseline
    # the outcome keeps its name: it is the policy that refuses, and a reader should see that
    if facts.settings.policy.require_bitwise:
        cause = f"{cause}, but the policy requires equal bits"
        return failed(Outcome.WITHIN_TOLERANCE, cause, decided)
    return passed(Outcome.WITHIN_TOLERANCE, cause, decided)
