"""The document of `repro-gate reproduce`: a package run again, judged by its own numbers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.comparison.differences import Comparison
from gate.comparison.level_records import LevelResult
from gate.comparison.spread_record import MetricSpread
from gate.data.data_sets import DataMoves
from gate.diagnosis.diagnosis import Diagnosis
from gate.errors import ExitCode
from gate.system.git.changes import ChangedLines
from gate.text.records_document import Document, Timestamp

REPRODUCTION_SCHEMA: Final = "repro-gate.reproduction/1"
MAX_CHANGED_LINES: Final = 1000


class ReproductionOutcome(StrEnum):
    """What came of it.

    `within-tolerance` is by the tolerances of the package's own settings; `within-spread` by how
    the numbers varied, then or here; `not-repeatable`: the runs here are not equal to each other.
    """

    REPRODUCED = "reproduced"
    WITHIN_TOLERANCE = "within-tolerance"
    WITHIN_SPREAD = "within-spread"
    DIFFERS = "differs"
    NOT_REPEATABLE = "not-repeatable"

    @property
    def good(self) -> bool:
        """Whether the package counts as reproduced."""
        return self in {
            ReproductionOutcome.REPRODUCED,
            ReproductionOutcome.WITHIN_TOLERANCE,
            ReproductionOutcome.WITHIN_SPREAD,
        }


class CodeSource(StrEnum):
    """Where the code came from: a clone, or the package itself."""

    CLONE = "clone"
    PACKAGE = "package"


class EnvironmentPart(Document):
    """A part of the environment, then and here; `details` names what moved of it."""

    name: str
    then: str
    here: str
    same: bool
    details: tuple[str, ...] = ()


class SealChecked(Document):
    """Who sealed the package, by key id or by identity; both empty where nothing was checked."""

    key_id: str = ""
    identity: str = ""

    @property
    def checked(self) -> bool:
        """Whether a seal was verified."""
        return bool(self.key_id or self.identity)


class Reproduction(Document):
    """What a package said then and what it came to here.

    `commit` is the package's; `code` names another one that was run in its place, or
    `work tree`, and is empty for the package's own. `wall_seconds` is the time from the first look
    at the package to the answer, trainings included. `same_code`: the files that were trained are
    those of then; else `changed_lines` of another commit, or `changed_files` of a work tree, say
    what is not. `judged` is there where the package's level is judged by several seeds.
    """

    schema_version: Literal["repro-gate.reproduction/1"] = REPRODUCTION_SCHEMA
    outcome: ReproductionOutcome
    commit: str
    code: str = ""
    same_code: bool
    changed_lines: Annotated[tuple[ChangedLines, ...], Field(max_length=MAX_CHANGED_LINES)] = ()
    changed_files: Annotated[tuple[str, ...], Field(max_length=MAX_CHANGED_LINES)] = ()
    source: CodeSource
    package_sha256: str
    seal: SealChecked
    made_at: Timestamp
    created_at: Timestamp
    wall_seconds: float = Field(ge=0, allow_inf_nan=False)
    runs: int = Field(ge=2)
    environment: tuple[EnvironmentPart, ...]
    data_moved: DataMoves = ()
    comparison: Comparison
    repeat: Comparison
    spread: tuple[MetricSpread, ...] = ()
    judged: LevelResult | None = None
    diagnosis: Diagnosis | None = None

    @property
    def moved(self) -> tuple[EnvironmentPart, ...]:
        """The parts of the environment that are not as then."""
        return tuple(part for part in self.environment if not part.same)

    @property
    def exit_code(self) -> ExitCode:
        """0 where it is reproduced, as a gate call has it."""
        return ExitCode.PASS if self.outcome.good else ExitCode.FAIL
