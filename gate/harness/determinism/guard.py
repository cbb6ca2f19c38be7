"""Watches the knobs that the harness has set: who overrides them, where, and at which step.

A setting that was overridden and restored within one step is recorded as `closed`: around one
operator `use_deterministic_algorithms(False)` is legal, and what lies between is a suspended
determinism. One that still stands at the end of the step is told then. Under `restore` a switch is
put back at once, except for that one, which is put back at the end of the step.

Variables are judged at the end of a step only: libraries empty the environment and fill it again
around a call (`mock.patch.dict`, `clear_environment` of accelerate), and no code that reads them
later sees that. What is started meanwhile without one is told by `children.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from ..user_code import Caller, CodeLine, caller_of, user_stack
from .override_log import OverrideEvent

MAY_BE_OPENED = "deterministic_algorithms"
ENVIRONMENT = "environment"
RESTORE = "restore"
_NOBODY = Caller(CodeLine(), through_context=False, importing=False)


class GuardedSetting(NamedTuple):
    """A setting: how it is read, put back, and what it should be; the name of a variable."""

    kind: str
    wanted: str
    read: Callable[[], str]
    set: Callable[[str], None]
    variable: str = ""


class Guard:
    """`report` takes each event, `step` gives the number of the step that is being worked on."""

    def __init__(
        self,
        settings: dict[str, GuardedSetting],
        *,
        mode: str,
        report: Callable[[OverrideEvent], None],
        step: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._switches = {
            name: setting for name, setting in settings.items() if setting.kind != ENVIRONMENT
        }
        self._variables = [
            (os.fsencode(setting.variable), os.fsencode(setting.wanted))
            for setting in settings.values()
            if setting.variable
        ]
        self._restores = mode == RESTORE
        self._report = report
        self._step = step
        self._open: dict[str, OverrideEvent] = {}
        self._reported: set[str] = set()

    def reading(self, name: str) -> str:
        """The setting as it is now."""
        return self._settings[name].read()

    def note_change(self, name: str, before: str, frame: FrameType | None) -> None:
        """Somebody called what sets this; `before` is what it was."""
        setting = self._settings[name]
        after = setting.read()
        if after == before:
            return
        if after == setting.wanted:
            self._close(name)
            return
        event = self._event(name, before, after, frame)
        at_once = name != MAY_BE_OPENED and setting.kind != ENVIRONMENT
        if self._restores and at_once:
            setting.set(setting.wanted)
            self._report(event._replace(restored=True))
        elif name not in self._open:
            # told when it is taken back, or else when the step ends: only then it is known which
            self._open[name] = event

    def poll(self) -> None:
        """At the end of a step: record what is still overridden, and what no hook saw."""
        polled = self._settings
        if not self._open and not self._reported and self._variables_stand():
            polled = self._switches
        for name, setting in polled.items():
            now = setting.read()
            if now == setting.wanted:
                if name in self._open or name in self._reported:
                    self._close(name)
                continue
            # one that no hook saw has no line: C code did it, or a setter that is not known
            event = self._open.setdefault(name, self._event(name, setting.wanted, now, None))
            if name not in self._reported:
                self._reported.add(name)
                self._report(event._replace(restored=self._restores))
            if self._restores:
                setting.set(setting.wanted)
                self._forget(name)

    def _variables_stand(self) -> bool:
        """Whether all variables are as wanted; one by one by name they would be most of a poll."""
        held: dict[bytes, bytes] = getattr(os.environ, "_data", {})
        return all(held.get(variable, b"") == wanted for variable, wanted in self._variables)

    def _close(self, name: str) -> None:
        """The setting is as it should be again."""
        unseen = self._settings[name].kind == ENVIRONMENT
        if name in self._open and name not in self._reported and not unseen:
            self._report(self._open[name]._replace(closed=True))
        self._forget(name)

    def _forget(self, name: str) -> None:
        self._open.pop(name, None)
        self._reported.discard(name)

    def _event(self, name: str, before: str, after: str, frame: FrameType | None) -> OverrideEvent:
        caller = _NOBODY if frame is None else caller_of(frame)
        kind = "context" if caller.through_context else self._settings[name].kind
        event = OverrideEvent(kind, name, before, after, caller.place, self._step())
        return event._replace(importing=caller.importing, stack=tuple(user_stack(frame)))


def guarded_variable(variable: str, wanted: str) -> GuardedSetting:
    """A variable of this process; an absent one reads as the empty text."""

    def put(text: str) -> None:
        os.environ[variable] = text

    return GuardedSetting(ENVIRONMENT, wanted, lambda: os.environ.get(variable, ""), put, variable)
