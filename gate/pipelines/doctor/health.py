"""What `repro-gate doctor` looked at: facts of a machine, and one finding for each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from gate.errors import ExitCode
from gate.text.document import Document

DOCTOR_SCHEMA: Final = "repro-gate.doctor/1"


class CheckResult(StrEnum):
    """How a thing is; only `fail` keeps the gate from answering.

    `todo` is a step of setting up that is left, such as the first baseline.
    """

    OK = "ok"
    TODO = "todo"
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

    schema_version: Literal["repro-gate.doctor/1"] = DOCTOR_SCHEMA
    version: str
    examined: tuple[Examined, ...]

    @property
    def exit_code(self) -> ExitCode:
        """0 when nothing fails; a warning is no failure, nor is what is left to do."""
        failed = any(entry.health is CheckResult.FAIL for entry in self.examined)
        return ExitCode.ERROR if failed else ExitCode.PASS


@dataclass(frozen=True, kw_only=True, slots=True)
class GateSeen:
    """A settings file of the work tree; `baseline` is the folder's path from the root."""

    config: str
    gate_id: str
    baseline: str
