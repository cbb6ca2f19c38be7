"""The results of `repro-gate doctor`: one record for each check, and the report of all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from gate.errors import ExitCode
from gate.text.document import Document

DOCTOR_SCHEMA: Final = "repro-gate.doctor/1"


class CheckResult(StrEnum):
    """The result of a check; only `fail` keeps the gate from giving a verdict.

    `todo` is an open step of the set-up, such as the first baseline.
    """

    OK = "ok"
    TODO = "todo"
    WARN = "warn"
    FAIL = "fail"


class Examined(Document):
    """One check: its result, what was found, and how to fix it."""

    name: str
    health: CheckResult
    found: str
    fix: str = ""


class DoctorReport(Document):
    """All checks, in the order in which a gate call would meet them."""

    schema_version: Literal["repro-gate.doctor/1"] = DOCTOR_SCHEMA
    version: str
    examined: tuple[Examined, ...]

    @property
    def exit_code(self) -> ExitCode:
        """0 if no check fails; warnings and open steps do not count."""
        failed = any(entry.health is CheckResult.FAIL for entry in self.examined)
        return ExitCode.ERROR if failed else ExitCode.PASS


@dataclass(frozen=True, kw_only=True, slots=True)
class GateSeen:
    """A settings file of the work tree; `baseline` is its folder's path from the root."""

    config: str
    gate_id: str
    baseline: str
