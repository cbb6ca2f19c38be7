"""Watches the knobs that the harness has set: who overrides them, where, and at which step.

A setting that was overridden and restored within one step is recorded as `closed`: around one
operator `use_deterministic_algorithms(False)` is legal, and what lies between is a suspended
determinism. One that still stands at the end of the step is told then. Under `restore` a switch is
put back at once, except for that one, which is put back at the end of the step.

Variables are judged at the end of a step only: libraries empty the environment and fill it again
around a call (`mock.patch.dict`, `clear_environment` of accelerate), and no code that reads them
later sees that. What is started meanwhile without one is reported by `children.py`.

Each hook is a function in the place of the plain one, which it calls. That alone would not be
enough: C code and a setter that a version of torch adds pass by every hook, so the guard reads all
settings again at the end of each step.
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
# Of the lines of all kinds: a data set may make a generator for each of its samples.
MAX_PRIVATE_LINES = 100
MAX_TEXT = 200


class OverrideEvent(NamedTuple):
    """One override. `closed`: the script reverted it within the step; `restored`: the harness did.

    `importing`: a library did it while the line imported it. `scope` is `global` or `private` for a
    seed: whether it went to a common generator or to a generator of the script's own. `stack` holds
    the user's innermost frames as text.
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
        """Whether no common generator was touched."""
        return self.scope == "private"


class OverrideLog:
    """Writes events as they come; `total` counts those that were not written, too."""

    def __init__(self, output: Output) -> None:
        self.total = 0
        self._output = output
        self._written = 0
        self._private = 0
        self._of_place: Counter[tuple[str, str, str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, event: OverrideEvent) -> None:
        """Count an event and write its line, unless its place or the log has had enough.

        `OSError` when it cannot be written.
        """
        with self._lock:
            self.total += 1
            key = (event.kind, event.name, event.after, str(event.place))
            if event.scope is not None:
                # each seed is another value; one line with a thousand of them is one place
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
    """A setting: how it is read, put back, and what it should be; the name of a variable."""

    kind: str
    expected: str
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
        """The setting as it is now."""
        return self._settings[name].read()

    def note_change(self, name: str, before: str, frame: FrameType | None) -> None:
        """Somebody called what sets this; `before` is what it was."""
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
            # told when it is taken back, or else when the step ends: only then it is known which
            self._open[name] = event

    def poll(self) -> None:
        """At the end of a step: record what is still overridden, and what no hook saw."""
        polled = self._settings
        if not self._open and not self._reported and self._variables_stand():
            polled = self._switches
        for name, setting in polled.items():
            now = setting.read()
            if now == setting.expected:
                if name in self._open or name in self._reported:
                    self._close(name)
                continue
            # one that no hook saw has no line: C code did it, or a setter that is not known
            event = self._open.setdefault(name, self._event(name, setting.expected, now, None))
            if name not in self._reported:
                self._reported.add(name)
                self._report(event._replace(restored=self._restores))
            if self._restores:
                setting.set(setting.expected)
                self._forget(name)

    def _variables_stand(self) -> bool:
        """Whether all variables are as wanted; one by one by name they would be most of a poll."""
        held: dict[bytes, bytes] = getattr(os.environ, "_data", {})
        return all(held.get(variable, b"") == asked for variable, asked in self._variables)

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


def guarded_variable(variable: str, expected: str) -> GuardedSetting:
    """A variable of this process; an absent one reads as the empty text."""

    def put(text: str) -> None:
        os.environ[variable] = text

    return GuardedSetting(
        ENVIRONMENT, expected, lambda: os.environ.get(variable, ""), put, variable
    )


# The setters of torch through which its public functions, properties and contexts go. One that a
# version of torch lacks is passed over: the poll at each step still sees the setting.
SETTERS: Final = {
    "deterministic_algorithms": "_set_deterministic_algorithms",
    "memory_fill": "_set_deterministic_fill_uninitialized_memory",
    "cudnn_deterministic": "_set_cudnn_deterministic",
    "cudnn_benchmark": "_set_cudnn_benchmark",
    "attention_cudnn": "_set_sdp_use_cudnn",
    "attention_flash": "_set_sdp_use_flash",
    "attention_mem_efficient": "_set_sdp_use_mem_efficient",
}
# Properties of torch.backends that hold on to a setter of their own.
PROPERTIES: Final = {"cudnn_deterministic": "deterministic", "cudnn_benchmark": "benchmark"}
SEEDING: Final = (
    (torch, "manual_seed"),
    (torch, "seed"),
    (torch.cuda, "manual_seed"),
    (torch.cuda, "manual_seed_all"),
    (torch.cuda, "seed"),
    (torch.cuda, "seed_all"),
)
# `seed` takes one from the machine.
GENERATOR_METHODS: Final = ("manual_seed", "seed")
_cudnn: Final[Any] = torch.backends.cudnn
# Bound before it is hooked, so that putting it back is never taken for another turn.
_set_num_threads: Final = torch.set_num_threads
CLOCK: Final = "clock"
ALIASES: Final = ("manual_seed", "seed")  # of torch, in torch.random


def guarded_settings(settings: HarnessSettings) -> dict[str, GuardedSetting]:
    """What the guard is to keep: every knob with a word of its own, and the threads."""
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
    """Hook the setters; `guard` gives the one of this process, a forked child's its own."""
    for name in guarded:
        if name in SETTERS:
            _hook(torch._C, SETTERS[name], name, guard)  # noqa: SLF001 - the public ones end here
        if name in PROPERTIES:
            _hook_property(PROPERTIES[name], name, guard)
    _hook(torch, "set_num_threads", "threads", guard)
    _hook_environ({VARIABLES[name]: name for name in guarded if name in VARIABLES}, guard)


def hook_seeds(report: Callable[[OverrideEvent], None], step: Callable[[], int]) -> None:
    """Report every seeding, also those from before torch was imported."""
    for owner, name in SEEDING:
        seed_hooks.hook(owner, name)
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
    """`seed` or `manual_seed` of `torch.Generator`, which also reports the call."""
    seeds_itself = plain.__name__ == "seed"

    def seeding(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(self, *args, **kwargs)
        frame = calling_frame(1)
        # what torch does for a function of its own is reported there
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
    """The setter, with the guard told of what it changed."""

    def setter(*args: Any, **kwargs: Any) -> Any:
        # Torch gives each of its data workers one thread.
        of_worker = name == "threads" and called_by_torch(calling_frame(1))
        active = None if of_worker else guard()
        if active is None:
            return plain(*args, **kwargs)
        # read before and after, not taken from the arguments: torch may refuse, or set it already
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
    # looked up in the class, where it is the property's own object and not the value of the flag
    held = vars(type(_cudnn)).get(attribute)
    if held is not None and hasattr(held, "setter"):
        held.setter = _hooked_setter(held.setter, name, guard)


def _hook_environ(names: dict[str, str], guard: Callable[[], Guard | None]) -> None:
    """Hook assignments to `os.environ` in its own class: every way of writing ends there."""
    kind: Any = type(os.environ)
    for method in ("__setitem__", "__delitem__"):
        setattr(kind, method, _hooked_write(getattr(kind, method), names, guard))


def _hooked_write(
    plain: Callable[..., None], names: dict[str, str], guard: Callable[[], Guard | None]
) -> Callable[..., None]:
    def write(self: Any, key: Any, *value: Any) -> None:
        name = names.get(key) if isinstance(key, str) else None
        active = guard() if name is not None else None
        if name is None or active is None:
            plain(self, key, *value)
            return
        before = active.reading(name)
        plain(self, key, *value)
        active.note_change(name, before, calling_frame(1))

    return write
