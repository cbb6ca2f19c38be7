"""Map typed facts to one of the eight failure modes: one total table, and a pure function.

`docs/runbooks.md` has the same table for readers. A class of cause has two meanings. Where two runs
of one commit differ, a random draw is nondeterminism. Where runs agree and the result moved, a
changed draw is not. If two modes fit, or none is proven, the mode is `none`.
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
# Each value is (mode where two runs of one commit differ, mode where they agree but the result is
# different).
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
        # The race may be in the script's own threads or inside an operator. No fact shows which.
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
# These outcomes prove a mode without a diagnosis.
BY_OUTCOME: Final[Mapping[Outcome, FailureMode]] = MappingProxyType(
    {
        Outcome.DATA_DRIFT: FailureMode.DATA,
        Outcome.DEPENDENCY_DRIFT: FailureMode.LIBRARY,
        Outcome.RESUME_DIFFERS: FailureMode.CHECKPOINT,
    }
)
# Parts that an image or a package manager installs. The driver's libraries come with the driver.
INSTALLED: Final = SOFTWARE_PARTS | {"driver"}
# One commit may get two of these without any change of the repository or the machine.
FLAKES: Final = frozenset((Outcome.ERROR, Outcome.NONDETERMINISTIC))


def with_failure_mode(verdict: Verdict, *, passed_before: bool = False) -> Verdict:
    """Return the verdict with its failure mode and the page that says what to do about it."""
    mode = failure_mode(verdict, passed_before=passed_before)
    return verdict.model_copy(update={"failure_mode": mode, "runbook": runbook(mode)})


def runbook(mode: FailureMode) -> str:
    """Return the path of a mode's runbook in this project's repository; "" for `none`."""
    return "" if mode is _NONE else f"docs/runbooks.md#{mode.value.lower()}"


def failure_mode(verdict: Verdict, *, passed_before: bool = False) -> FailureMode:
    """Return the failure mode that the facts of a verdict prove; `none` for a pass.

    `passed_before`: the history has a pass of the same commit. If this verdict has an environment,
    that pass was in the same one.
    """
    # Only the cost or a threshold stopped it: the result itself is good.
    if verdict.passes or verdict.held_back:
        return _NONE
    proven = _proven(verdict)
    if proven is _NONE and passed_before and verdict.outcome in FLAKES:
        return FailureMode.FLAKY
    return proven


def _proven(verdict: Verdict) -> FailureMode:
    outcome = verdict.outcome
    # Only a draw that no seed sets kept this result from passing.
    if any(finding.code == ENTROPY_DRAWN for finding in verdict.findings):
        return FailureMode.RANDOM
    if outcome in BY_OUTCOME:
        return BY_OUTCOME[outcome]
    if outcome is Outcome.NONDETERMINISTIC:
        # Preprocessing wrote different data the second time.
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
    """Return the mode of an environment drift.

    Two results of one commit on one machine are a flake. Otherwise the base commit has to give the
    same result here, and only installed parts may have moved. Then the libraries are the cause.
    """
    if verdict.nothing_moved:
        cause_class = _of_class(verdict, 1)
        return FailureMode.FLAKY if cause_class is _NONE else cause_class
    if verdict.baseline is None or not verdict.answers.base_run.good:
        return _NONE
    moved = {change.part for change in verdict.baseline.environment}
    return FailureMode.LIBRARY if moved and moved <= INSTALLED else _NONE
