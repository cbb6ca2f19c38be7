"""Hooks into whatever overrides a knob: torch's setters, thread counts, variables, seeds.

Each hook is a function in the place of the plain one, which it calls. That alone would not be
enough: C code and a setter that a version of torch adds pass by every hook, so the guard reads all
settings again at the end of each step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import torch

from ..c_classes import replace_method
from ..settings import VARIABLES, HarnessSettings
from ..user_code import called_by_torch, calling_frame, unseen_by_warnings
from . import seed_hooks
from .guard import Guard, GuardedSetting, guarded_variable
from .knobs import KEEP, OFF, SWITCHES, wanted
from .override_log import OverrideEvent

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
    knobs = wanted(settings)
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
