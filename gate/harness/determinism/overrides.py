"""Watches the knobs that the harness has set: which line overrides one, and at which step.

A setting that was overridden and restored within one step is recorded as `closed`. That is legal
for `use_deterministic_algorithms(False)` around one operator: the lines in between are a suspended
determinism. A setting that is still overridden at the end of the step is reported then. Under
`restore` a switch is set again at once. Deterministic algorithms are the exception: they are set
again at the end of the step.

Variables are judged at the end of a step only. Libraries empty the environment and fill it again
around a call (`mock.patch.dict`, `clear_environment` of accelerate). Code that reads a variable
later sees no difference. `children.py` reports a process that is started meanwhile without a
variable.

Each hook replaces a function and calls the plain one. Hooks alone are not enough: C code, and a
setter that a new version of torch adds, pass by all of them. So the guard reads all settings again
at the end of each step.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NamedTuple

import torch

from ..c_classes import replace_method
from ..output import Output
from ..settings import VARIABLES, HarnessSettings
from ..user_code import (
    Caller,
    CodeLine,
    called_by_torch,
    caller_of,
    calling_frame,
    unseen_by_warnings,
    user_stack,
)
from . import seed_hooks
from .process_knobs import KEEP, OFF, SWITCHES, requested

MAX_LINES = 200
MAX_LINES_OF_ONE_PLACE = 3
# included in `MAX_LINES`; a data set may create a generator for each of its samples
MAX_PRIVATE_LINES = 100
MAX_TEXT = 200


class OverrideEvent(NamedTuple):
    """One override of a knob, or one seeding.

    `closed` is true if the script reverted it within the step, `restored` if the harness did.
    `importing` is true if a library did it while the line imported that library. `scope` belongs to
    a seed: `global` for a common generator, `private` for one of the script's own. `stack` has the
    user's innermost frames as text.
    """

    kind: str
    name: str
    before: str
    after: str
    place: CodeLine
    step: int
    closed: bool = False
    restored: bool = False
    importing: bool = False
    scope: str | None = None
    stack: tuple[str, ...] = ()

    @property
    def private(self) -> bool:
        """Whether only a generator of the script's own was seeded."""
        return self.scope == "private"


class OverrideLog:
    """Writes events as they come; `total` also counts those beyond the limits."""

    def __init__(self, output: Output) -> None:
        self.total = 0
        self._output = output
        self._written = 0
        self._private = 0
        self._of_place: Counter[tuple[str, str, str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, event: OverrideEvent) -> None:
        """Count an event and write its line, unless its place or the log has reached a limit.

        Raises `OSError` when it cannot be written.
        """
        with self._lock:
            self.total += 1
            key = (event.kind, event.name, event.after, str(event.place))
            if event.scope is not None:
                # Ignore the value of a seed: a line that seeds with a thousand numbers is one
                # place.
                key = (event.kind, event.name, "", str(event.place))
            self._of_place[key] += 1
            if self._of_place[key] > MAX_LINES_OF_ONE_PLACE or self._written >= MAX_LINES:
                return
            if event.private and self._private >= MAX_PRIVATE_LINES:
                return
            self._written += 1
            self._private += event.private
        self._output.append_line(
            "overrides",
            {
                "step": event.step,
                "kind": event.kind,
                "name": event.name[:MAX_TEXT],
                "before": event.before[:MAX_TEXT],
                "after": event.after[:MAX_TEXT],
                "file": event.place.file[-MAX_TEXT:],
                "line": event.place.line,
                "closed": event.closed,
                "restored": event.restored,
                "importing": event.importing,
                "scope": event.scope,
                "stack": [frame[-MAX_TEXT:] for frame in event.stack],
            },
        )


MAY_BE_OPENED = "deterministic_algorithms"
ENVIRONMENT = "environment"
RESTORE = "restore"
_NOBODY = Caller(CodeLine(), through_context=False, importing=False)


class GuardedSetting(NamedTuple):
    """A setting: its kind, the value it should have, and how to read and set it.

    `variable` is the name of an environment variable; empty for a switch.
    """

    kind: str
    expected: str
    read: Callable[[], str]
    set: Callable[[str], None]
    variable: str = ""


class Guard:
    """Compares settings with their expected values and reports overrides.

    `report` takes each event; `step` returns the number of the step in progress.
    """

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
            (os.fsencode(setting.variable), os.fsencode(setting.expected))
            for setting in settings.values()
            if setting.variable
        ]
        self._restores = mode == RESTORE
        self._report = report
        self._step = step
        self._open: dict[str, OverrideEvent] = {}
        self._reported: set[str] = set()

    def reading(self, name: str) -> str:
        """Return the present value of the setting."""
        return self._settings[name].read()

    def note_change(self, name: str, before: str, frame: FrameType | None) -> None:
        """Handle a call of a setter of this setting; `before` is its value before the call."""
        setting = self._settings[name]
        after = setting.read()
        if after == before:
            return
        if after == setting.expected:
            self._close(name)
            return
        event = self._event(name, before, after, frame)
        at_once = name != MAY_BE_OPENED and setting.kind != ENVIRONMENT
        if self._restores and at_once:
            setting.set(setting.expected)
            self._report(event._replace(restored=True))
        elif name not in self._open:
            # Reported when the script takes it back, or else at the end of the step: only then is
            # it clear whether it is a suspension.
            self._open[name] = event

    def poll(self) -> None:
        """At the end of a step, report settings that are still overridden, hook or not."""
        polled = self._settings
        # the environment is unchanged, so reading the switches is enough
        if not self._open and not self._reported and self._variables_stand():
            polled = self._switches
        for name, setting in polled.items():
            now = setting.read()
            if now == setting.expected:
                if name in self._open or name in self._reported:
                    self._close(name)
                continue
            # No hook saw it, so there is no line: C code did it, or an unknown setter.
            event = self._open.setdefault(name, self._event(name, setting.expected, now, None))
            if name not in self._reported:
                self._reported.add(name)
                self._report(event._replace(restored=self._restores))
            if self._restores:
                setting.set(setting.expected)
                self._forget(name)

    def _variables_stand(self) -> bool:
        """Whether all variables have their values, in one pass over the environment's own table.

        Reading them one by one by name would take most of the time of a poll.
        """
        held: dict[bytes, bytes] = getattr(os.environ, "_data", {})
        return all(held.get(variable, b"") == asked for variable, asked in self._variables)

    def _close(self, name: str) -> None:
        """Note that the setting has its expected value again."""
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


def guarded_variable(variable: str, expected: str) -> GuardedSetting:
    """Return a guarded environment variable; an absent one reads as the empty text."""

    def put(text: str) -> None:
        os.environ[variable] = text

    return GuardedSetting(
        ENVIRONMENT, expected, lambda: os.environ.get(variable, ""), put, variable
    )


# The C setters that torch's public functions, properties and contexts call. One that this version
# lacks is skipped: the poll at each step still reads the setting.
SETTERS: Final = {
    "deterministic_algorithms": "_set_deterministic_algorithms",
    "memory_fill": "_set_deterministic_fill_uninitialized_memory",
    "cudnn_deterministic": "_set_cudnn_deterministic",
    "cudnn_benchmark": "_set_cudnn_benchmark",
    "attention_cudnn": "_set_sdp_use_cudnn",
    "attention_flash": "_set_sdp_use_flash",
    "attention_mem_efficient": "_set_sdp_use_mem_efficient",
}
# properties of torch.backends that keep a reference to a setter of their own
PROPERTIES: Final = {"cudnn_deterministic": "deterministic", "cudnn_benchmark": "benchmark"}
SEEDING: Final = (
    (torch, "manual_seed"),
    (torch, "seed"),
    (torch.cuda, "manual_seed"),
    (torch.cuda, "manual_seed_all"),
    (torch.cuda, "seed"),
    (torch.cuda, "seed_all"),
)
# `seed` takes a number from the machine
GENERATOR_METHODS: Final = ("manual_seed", "seed")
_cudnn: Final[Any] = torch.backends.cudnn
# taken before it is hooked, so that restoring threads is not reported as an override
_set_num_threads: Final = torch.set_num_threads
CLOCK: Final = "clock"
ALIASES: Final = ("manual_seed", "seed")  # of torch, in torch.random


def guarded_settings(settings: HarnessSettings) -> dict[str, GuardedSetting]:
    """Return what the guard watches: every knob with a value of its own, and the threads."""
    knobs = requested(settings)
    guarded = {
        name: GuardedSetting("switch", knobs[name], switch.read, switch.set)
        for name, switch in SWITCHES.items()
        if knobs[name] != KEEP
    }
    guarded["threads"] = GuardedSetting(
        "threads",
        str(settings.threads),
        lambda: str(torch.get_num_threads()),
        lambda text: _set_num_threads(int(text)),
    )
    for name, variable in VARIABLES.items():
        if knobs.get(name, KEEP) not in {KEEP, OFF}:
            guarded[name] = guarded_variable(variable, knobs[name])
    return guarded


def install(guarded: dict[str, GuardedSetting], guard: Callable[[], Guard | None]) -> None:
    """Hook the setters; `guard` returns the guard of this process, also in a forked child."""
    for name in guarded:
        if name in SETTERS:
            _hook(torch._C, SETTERS[name], name, guard)  # noqa: SLF001 - the public ones end here
        if name in PROPERTIES:
            _hook_property(PROPERTIES[name], name, guard)
    _hook(torch, "set_num_threads", "threads", guard)
    _hook_environ({VARIABLES[name]: name for name in guarded if name in VARIABLES}, guard)


def hook_seeds(report: Callable[[OverrideEvent], None], step: Callable[[], int]) -> None:
    """Report every seeding, including those from before torch was imported."""
    for owner, name in SEEDING:
        seed_hooks.hook_seeding(owner, name)
    # torch.random exports the same functions, which would still be the plain ones
    for name in ALIASES:
        setattr(torch.random, name, getattr(torch, name))

    def report_call(call: seed_hooks.SeedCall) -> None:
        kind = "entropy" if call.entropy else "reseed"
        before = CLOCK if call.clock else ""
        event = OverrideEvent(kind, call.generator, before, call.value, call.place, step())
        scope = "private" if call.private else "global"
        report(event._replace(importing=call.importing, scope=scope, stack=call.stack))

    for name in GENERATOR_METHODS:
        replace_method(torch.Generator, name, _hooked_generator(getattr(torch.Generator, name)))
    seed_hooks.SEED_CALLS.subscribe(report_call)


def _hooked_generator(plain: Callable[..., Any]) -> Any:
    """Return `seed` or `manual_seed` of `torch.Generator` with a report of the call."""
    seeds_itself = plain.__name__ == "seed"

    def seeding(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(self, *args, **kwargs)
        frame = calling_frame(1)
        # a function of torch that seeds through this method reports the call itself
        if not called_by_torch(frame):
            private = self is not torch.default_generator
            call = seed_hooks.SeedCall(
                *(f"torch.Generator.{plain.__name__}", self.initial_seed(), frame),
                entropy=seeds_itself,
                private=private,
            )
            seed_hooks.SEED_CALLS.report(call)
        return result

    seeding.__name__ = seeding.__qualname__ = plain.__name__
    seeding.__doc__ = plain.__doc__
    return unseen_by_warnings(seeding)


def _hooked_setter(plain: Callable[..., Any], name: str, guard: Callable[[], Guard | None]) -> Any:
    """Return the setter with a note to the guard about what it changed."""

    def setter(*args: Any, **kwargs: Any) -> Any:
        # torch itself gives each of its data workers one thread
        of_worker = name == "threads" and called_by_torch(calling_frame(1))
        active = None if of_worker else guard()
        if active is None:
            return plain(*args, **kwargs)
        # Read before and after instead of looking at the arguments: torch may refuse them, or have
        # that value already.
        before = active.reading(name)
        result = plain(*args, **kwargs)
        active.note_change(name, before, calling_frame(1))
        return result

    setter.__name__ = getattr(plain, "__name__", name)
    setter.__doc__ = plain.__doc__
    return unseen_by_warnings(setter)


def _hook(owner: Any, attribute: str, name: str, guard: Callable[[], Guard | None]) -> None:
    plain = getattr(owner, attribute, None)
    if plain is not None:
        setattr(owner, attribute, _hooked_setter(plain, name, guard))


def _hook_property(attribute: str, name: str, guard: Callable[[], Guard | None]) -> None:
    # in the class this is the property object; in an instance it would be the value of the flag
    held = vars(type(_cudnn)).get(attribute)
    if held is not None and hasattr(held, "setter"):
        held.setter = _hooked_setter(held.setter, name, guard)


def _hook_environ(names: dict[str, str], guard: Callable[[], Guard | None]) -> None:
    """Hook assignments to `os.environ` in its class, where every way to write ends."""
    kind: Any = type(os.environ)
    for method in ("__setitem__", "__delitem__"):
        setattr(kind, method, _hooked_write(getattr(kind, method), names, guard))


def _hooked_write(
    plain: Callable[..., None], names: dict[str, str], guard: Callable[[], Guard | None]
) -> Callable[..., None]:
    def write(self: Any, key: Any, *value: Any) -> None:
        # scripts write many variables: only those of knobs cost more than this look-up
        name = names.get(key) if isinstance(key, str) else None
        active = guard() if name is not None else None
        if name is None or active is None:
            plain(self, key, *value)
            return
        before = active.reading(name)
        plain(self, key, *value)
        active.note_change(name, before, calling_frame(1))

    return write
