"""Which of the eight failure modes typed facts prove: one total table, and a pure function.

`docs/runbooks.md` has the same table for readers. A class of cause says something else where two
runs of one commit differ than where runs agree and the result moved: there a random draw that
changed is no nondeterminism. Where two modes fit, or none is proven, it is `none`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gate.comparison.differences import SOFTWARE_PARTS
from gate.diagnosis.diagnosis import CauseClass
from gate.verdict.override_findings import ENTROPY_DRAWN
from gate.verdict.verdict import FailureMode, Outcome, Verdict

_NONE: Final = FailureMode.NONE
# class: (two runs of one commit differ, they agree and the result is another one)
BY_CLASS: Final[Mapping[CauseClass, tuple[FailureMode, FailureMode]]] = MappingProxyType(
    {
        CauseClass.ENVIRONMENT: (_NONE, _NONE),
        CauseClass.DEPENDENCY: (FailureMode.LIBRARY, FailureMode.LIBRARY),
        CauseClass.RUN_SETTINGS: (_NONE, _NONE),
        CauseClass.DATA: (FailureMode.DATA, FailureMode.DATA),
        CauseClass.STRUCTURE: (_NONE, _NONE),
        CauseClass.SEED: (FailureMode.RANDOM, _NONE),
        CauseClass.DATA_ORDER: (FailureMode.DATA, FailureMode.DATA),
        CauseClass.RANDOM_STATE: (FailureMode.RANDOM, _NONE),
        CauseClass.UNINITIALISED_MEMORY: (FailureMode.OPERATOR, _NONE),
        CauseClass.OPERATOR: (FailureMode.OPERATOR, _NONE),
        # of the script's own threads, or inside an operator: nothing tells which
        CauseClass.THREAD_RACE: (_NONE, _NONE),
        CauseClass.KERNEL: (FailureMode.OPERATOR, _NONE),
        CauseClass.PRECISION: (FailureMode.ARITHMETIC, FailureMode.ARITHMETIC),
        CauseClass.OPTIMIZER: (_NONE, _NONE),
        CauseClass.COLLECTIVE: (FailureMode.DISTRIBUTED, _NONE),
        CauseClass.MESSAGE_RACE: (FailureMode.DISTRIBUTED, _NONE),
        CauseClass.CHECKPOINT: (FailureMode.CHECKPOINT, _NONE),
        CauseClass.RESUME: (FailureMode.CHECKPOINT, FailureMode.CHECKPOINT),
        CauseClass.CODE: (_NONE, _NONE),
    }
)
# what an outcome proves by itself
BY_OUTCOME: Final[Mapping[Outcome, FailureMode]] = MappingProxyType(
    {
        Outcome.DATA_DRIFT: FailureMode.DATA,
        Outcome.DEPENDENCY_DRIFT: FailureMode.LIBRARY,
        Outcome.RESUME_DIFFERS: FailureMode.CHECKPOINT,
    }
)
# parts that an image or a package manager brings; the driver's libraries come with the driver
INSTALLED: Final = SOFTWARE_PARTS | {"driver"}
# one commit may come to two of these by no change of the repository or of the machine
FLAKES: Final = frozenset((Outcome.ERROR, Outcome.NONDETERMINISTIC))


def with_failure_mode(verdict: Verdict, *, passed_before: bool = False) -> Verdict:
    """The verdict with its failure mode, and with the page that says what to do about it."""
    mode = failure_mode(verdict, passed_before=passed_before)
    return verdict.model_copy(update={"failure_mode": mode, "runbook": runbook(mode)})


def runbook(mode: FailureMode) -> str:
    """Where the runbook of a mode is, in this project's repository; empty for `none`."""
    return "" if mode is _NONE else f"docs/runbooks.md#{mode.value.lower()}"


def failure_mode(verdict: Verdict, *, passed_before: bool = False) -> FailureMode:
    """The mode that the facts of a verdict prove; `none` for a pass.

    `passed_before`: the history has a pass of the same commit, in the same environment where this
    verdict came as far as to have one.
    """
    # a price or a threshold stopped it: the result itself is a good one
    if verdict.passes or verdict.held_back:
        return _NONE
    proven = _proven(verdict)
    if proven is _NONE and passed_before and verdict.outcome in FLAKES:
        return FailureMode.FLAKY
    return proven


def _proven(verdict: Verdict) -> FailureMode:
    outcome = verdict.outcome
    # a draw that no seed sets, and nothing else, kept this result from passing
    if any(finding.code == ENTROPY_DRAWN for finding in verdict.findings):
        return FailureMode.RANDOM
    if outcome in BY_OUTCOME:
        return BY_OUTCOME[outcome]
    if outcome is Outcome.NONDETERMINISTIC:
        # the preprocessing command wrote other data when it ran again
        return FailureMode.DATA if verdict.unrepeated is not None else _of_class(verdict, 0)
    if outcome is Outcome.ENVIRONMENT_DRIFT:
        return _of_environment(verdict)
    if outcome in {Outcome.CODE_DRIFT, Outcome.WITHIN_TOLERANCE}:
        return _of_class(verdict, 1)
    return _NONE


def _of_class(verdict: Verdict, column: int) -> FailureMode:
    cause_class = verdict.diagnosis.cause_class if verdict.diagnosis is not None else None
    return _NONE if cause_class is None else BY_CLASS[cause_class][column]


def _of_environment(verdict: Verdict) -> FailureMode:
    """One commit on one machine with two results is a flake; else the base commit has to show it.

    Only where it gives the same result here, and nothing but what is installed moved, is that the
    cause.
    """
    if verdict.nothing_moved:
        cause_class = _of_class(verdict, 1)
        return FailureMode.FLAKY if cause_class is _NONE else cause_class
    if verdict.baseline is None or not verdict.answers.base_run.good:
        return _NONE
    moved = {change.part for change in verdict.baseline.environment}
    return FailureMode.LIBRARY if moved and moved <= INSTALLED else _NONE
