"""Puts ears on everything that turns a knob: torch's setters, thread counts, variables, seeds."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..settings import VARIABLES, HarnessSettings
from ..user_code import called_by_torch, calling_frame, unseen_by_warnings
from . import seed_hooks
from .guard import Guard, Watched, watched_variable
from .knobs import KEEP, OFF, SWITCHES, wanted
from .override_log import Event

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
_cudnn: Final[Any] = torch.backends.cudnn
# Bound before it is watched, so that putting it back is never taken for another turn.
_set_num_threads: Final = torch.set_num_threads
ALIASES: Final = ("manual_seed", "seed")  # of torch, in torch.random


def watched_settings(settings: HarnessSettings) -> dict[str, Watched]:
    """What the guard is to watch: every knob with a word of its own, and the threads."""
    knobs = wanted(settings)
    found = {
        name: Watched("switch", knobs[name], switch.read, switch.set)
        for name, switch in SWITCHES.items()
        if knobs[name] != KEEP
    }
    found["threads"] = Watched(
        "threads",
        str(settings.threads),
        lambda: str(torch.get_num_threads()),
        lambda text: _set_num_threads(int(text)),
    )
    for name, variable in VARIABLES.items():
        if knobs.get(name, KEEP) not in {KEEP, OFF}:
            found[name] = watched_variable(variable, knobs[name])
    return found


def install(watched: dict[str, Watched], guard: Callable[[], Guard | None]) -> None:
    """Watch the setters; `guard` gives the one of this process, a forked child's its own."""
    for name in watched:
        if name in SETTERS:
            _wrap(torch._C, SETTERS[name], name, guard)  # noqa: SLF001 - the public ones end here
        if name in PROPERTIES:
            _wrap_property(PROPERTIES[name], name, guard)
    _wrap(torch, "set_num_threads", "threads", guard)
    _watch_variables({VARIABLES[name]: name for name in watched if name in VARIABLES}, guard)


def watch_seeds(tell: Callable[[Event], None], step: Callable[[], int]) -> None:
    """Hear of every seeding, also of what happened before torch was imported."""
    for owner, name in SEEDING:
        seed_hooks.watch(owner, name)
    for name in ALIASES:
        setattr(torch.random, name, getattr(torch, name))

    def hear(call: seed_hooks.SeedCall) -> None:
        kind = "entropy" if call.entropy else "reseed"
        event = Event(kind, call.generator, "", call.value, call.place, step())
        scope = "private" if call.private else "global"
        tell(event._replace(importing=call.importing, scope=scope))

    _watch_loaders()
    seed_hooks.LISTENERS.listen(hear)


def _watch_loaders() -> None:
    """Hear of the seed of a generator that a DataLoader is given, when it begins to yield.

    `torch.Generator` itself is a class of C that lets nothing be replaced.
    """
    kind: Any = _BaseDataLoaderIter
    plain = kind.__init__

    @functools.wraps(plain)
    def init(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, loader, *args, **kwargs)
        owners = (loader, getattr(loader, "sampler", None))
        found = {id(one): one for one in (getattr(owner, "generator", None) for owner in owners)}
        for generator in found.values():
            if isinstance(generator, torch.Generator) and generator is not torch.default_generator:
                # torch makes the loader's own iterator, but the generator came from the script
                call = seed_hooks.SeedCall(
                    *("torch.Generator", generator.initial_seed(), calling_frame(1)),
                    entropy=False,
                    private=True,
                )
                seed_hooks.LISTENERS.tell(call)

    kind.__init__ = unseen_by_warnings(init)


def _told_by(plain: Callable[..., Any], name: str, guard: Callable[[], Guard | None]) -> Any:
    """The setter, with the guard told of what it changed."""

    def setter(*args: Any, **kwargs: Any) -> Any:
        # Torch gives each of its data workers one thread.
        of_worker = name == "threads" and called_by_torch(calling_frame(1))
        watching = None if of_worker else guard()
        if watching is None:
            return plain(*args, **kwargs)
        before = watching.reading(name)
        result = plain(*args, **kwargs)
        watching.turned(name, before, calling_frame(1))
        return result

    setter.__name__ = getattr(plain, "__name__", name)
    setter.__doc__ = plain.__doc__
    return unseen_by_warnings(setter)


def _wrap(owner: Any, attribute: str, name: str, guard: Callable[[], Guard | None]) -> None:
    plain = getattr(owner, attribute, None)
    if plain is not None:
        setattr(owner, attribute, _told_by(plain, name, guard))


def _wrap_property(attribute: str, name: str, guard: Callable[[], Guard | None]) -> None:
    held = vars(type(_cudnn)).get(attribute)
    if held is not None and hasattr(held, "setter"):
        held.setter = _told_by(held.setter, name, guard)


def _watch_variables(names: dict[str, str], guard: Callable[[], Guard | None]) -> None:
    """Hear of assignments to `os.environ`, from its own class: every way of writing ends there."""
    kind: Any = type(os.environ)
    for method in ("__setitem__", "__delitem__"):
        setattr(kind, method, _watching(getattr(kind, method), names, guard))


def _watching(
    plain: Callable[..., None], names: dict[str, str], guard: Callable[[], Guard | None]
) -> Callable[..., None]:
    def write(self: Any, key: Any, *value: Any) -> None:
        name = names.get(key) if isinstance(key, str) else None
        watching = guard() if name is not None else None
        if name is None or watching is None:
            plain(self, key, *value)
            return
        before = watching.reading(name)
        plain(self, key, *value)
        watching.turned(name, before, calling_frame(1))

    return write
