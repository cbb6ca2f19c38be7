"""What `repro-gate doctor` looked at: facts of a machine, and one finding for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from gate.errors import ExitCode
from gate.records.document import Document
from gate.records.gpu import GpuTried

DOCTOR_SCHEMA: Final = "repro-gate.pipelines.doctor/1"


class CheckResult(StrEnum):
    """How a thing is; only `fail` keeps the gate from answering."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Examined(Document):
    """One thing that was looked at: how it is, what was found, and what to do about it."""

    name: str
    health: CheckResult
    found: str
    fix: str = ""


class DoctorReport(Document):
    """All that was looked at, in the order in which a gate call would meet it."""

    schema_version: Literal["repro-gate.pipelines.doctor/1"] = DOCTOR_SCHEMA
    version: str
    examined: tuple[Examined, ...]

    @property
    def exit_code(self) -> ExitCode:
        """0 when nothing fails; a warning is no failure."""
        failed = any(entry.health is CheckResult.FAIL for entry in self.examined)
        return ExitCode.ERROR if failed else ExitCode.PASS


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSeen:
    """What the training's own Python says of itself, from where trainings run.

    `parts`, `packages` and `origins` are those of an environment, as a baseline keeps them; `gpus`
    the devices that torch can use, by name and memory, and `tried` what came of asking for them;
    `shm_bytes` the size of /dev/shm there, None where there is none.
    It is the training's word: printable, bounded, and nothing more.
    """

    parts: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    tried: GpuTried = field(default_factory=GpuTried)
    shm_bytes: int | None = None
    problem: str = ""
    hint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSeen:
    """What the API answered to a token: status codes, 0 where nothing was asked.

    `comment_status` is the answer to a comment without a text, `contents_status` that to a branch
    without a name, which no server can write. With a `problem` there was no answer to judge, and
    `fix` says what can be done.
    """

    repository_status: int = 0
    comment_status: int = 0
    contents_status: int = 0
    problem: str = ""
    fix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateSeen:
    """A settings file of the work tree; `baseline` is the folder's path from the root."""

    config: str
    gate_id: str
    baseline: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CloneSeen:
    """The repository as far as the gate needs it."""

    shallow: bool
    base: str = ""
    base_missing: bool = False
    credentials: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandSeen:
    """What the training command names, and whether a clean checkout of the commit has it.

    `script` is empty where the command names none by its path; `script_exists` says whether the
    work tree has it; `ignored` are paths that lie there and that git ignores.
    """

    program: str
    program_missing: bool = False
    script: str = ""
    script_missing: bool = False
    script_exists: bool = False
    ignored: tuple[str, ...] = ()
