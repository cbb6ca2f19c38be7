"""Operators that the determinism flag refuses or does not cover: allowed, refused or counted.

Three ways, by mode. Strict: torch refuses and the harness notes what. Strict with an allow-list:
torch only warns, and the harness refuses what is not on the list. Operator audit: nothing is
refused, everything is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import uncovered
from .operator_audit import DispatchRecorder
from .operators_operator_audit import OperatorCounts
from .output import Output, Problems
from .refusals import RefusalHooks
from .settings import HarnessSettings
from .user_code import CodeLine, running_line
from .warning_interceptor import WarningInterceptor

_interceptor: WarningInterceptor | None = None
_refusal_hooks: RefusalHooks | None = None
_dispatch_recorder: DispatchRecorder | None = None


class Operators:
    """What one process notes about operators."""

    def __init__(
        self,
        settings: HarnessSettings,
        output: Output,
        problems: Problems,
        step: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._output = output
        self._problems = problems
        self._operator_audit = OperatorCounts(step)

    def on_alert(self, operator: str) -> None:
        """Torch has no deterministic form of this one; in strict mode it must be on the list."""
        place = running_line()
        if not self._settings.strict or operator in self._settings.allowed:
            with self._problems.noting("counting an operator"):
                self._operator_audit.count("alert", operator, "any", place)
            return
        self.refused(operator, place)
        raise RuntimeError(_refusal(operator, place))

    def refused(self, operator: str, place: CodeLine) -> None:
        """Strict mode refused; written at once, for the process may be about to end."""
        if self._operator_audit.refuse(operator, place):
            self.write()

    def on_call(self, operator: str, device: str, place: CodeLine) -> None:
        """The operator audit saw a call of an operator that it looks for."""
        self._operator_audit.count("call", operator, device, place)

    def guarded(self, look: Callable[[], None]) -> None:
        """Look at a call; what fails becomes a problem of the run."""
        with self._problems.noting("counting an operator"):
            look()

    def after_step(self) -> None:
        """In warn-only mode nothing may have silenced torch's notices."""
        if _interceptor is not None and not _interceptor.still_first():
            self._problems.note(
                "the script replaced Python's list of warning filters, so operators without a "
                "deterministic form could run unnoticed"
            )

    def write(self) -> None:
        """Write what there is to tell; a process with nothing to tell writes no file."""
        with self._problems.noting("writing the operator audit"):
            counted = self._counted()
            if self._settings.operator_audit or any(counted.values()):
                document = {"pid": self._output.pid, "rank": self._output.rank, **counted}
                self._output.document_or_complaint("operators", document)

    def _counted(self) -> dict[str, Any]:
        operator_audit = self._settings.operator_audit
        folder = Path(torch.__file__).parent
        return {
            "refused": self._operator_audit.refusals,
            "uses": self._operator_audit.uses,
            "modules": uncovered.imported(self._settings.modules),
            "autotuners": uncovered.autotuned_kernels(),
            "extensions": uncovered.compiled_extensions(folder) if operator_audit else [],
            "dropped": self._operator_audit.dropped,
        }


def _refusal(operator: str, place: CodeLine) -> str:
    """As torch's own words in strict mode, with the line and what would admit it."""
    return (
        f"{operator} does not have a deterministic implementation, but you set strict mode "
        f"(repro-gate, at {place}). To allow it at a weaker level, add it to "
        "determinism.allow_operators."
    )


def install(settings: HarnessSettings, operators: Callable[[], Operators | None]) -> None:
    """Hook in the way that the mode asks for; `operators` gives those of the current process."""
    global _interceptor, _refusal_hooks, _dispatch_recorder
    if settings.warn_only:
        # torch tells some notices once a process, which would leave the other calls uncounted
        torch.set_warn_always(True)
        _interceptor = WarningInterceptor(
            lambda name: _with(operators(), lambda current: current.on_alert(name))
        )
        _interceptor.install()
    elif settings.strict:
        _refusal_hooks = RefusalHooks(
            lambda name, at: _with(operators(), lambda current: current.refused(name, at))
        )
        _refusal_hooks.install()
    if settings.operator_audit:
        _dispatch_recorder = DispatchRecorder(
            settings.operators,
            lambda name, device, place: _with(
                operators(), lambda current: current.on_call(name, device, place)
            ),
            lambda look: _with(operators(), lambda current: current.guarded(look)),
        )
        _dispatch_recorder.__enter__()  # type: ignore[no-untyped-call] # torch's own lacks types


def inspect_error(error: RuntimeError) -> None:
    """A backward pass failed; in strict mode torch may have refused an operator of it."""
    if _refusal_hooks is not None:
        _refusal_hooks.inspect(error, just_raised=True)


def _with(operators: Operators | None, do: Callable[[Operators], None]) -> None:
    if operators is not None:
        do(operators)
