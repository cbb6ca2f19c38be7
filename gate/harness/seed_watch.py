"""Listens to whoever seeds a random stream again: with which number, and from which line.

`random` and `numpy.random` are watched from their import on, often long before torch: what is
heard until then waits for the listener. Imported by processes without torch too, so nothing heavy
is imported here.
"""

from __future__ import annotations

import time

from .callers import called_by_torch, calling_frame, place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

MAX_WAITING = 1000
CLOCK_UNITS = (1, 1_000, 1_000_000, 1_000_000_000)
WRAPPED_UNITS = CLOCK_UNITS[:2]  # finer ones, cut to 32 bits, are anywhere within two seconds
NEAR_SECONDS = 2
NEEDS_SEED = {"random": ("seed",), "numpy.random": ("seed", "default_rng")}


class SeedCall:
    """One call: `entropy` says that the number came from the machine or its clock."""

    __slots__ = ("entropy", "file", "line", "stream", "value")

    def __init__(self, stream: str, value: object, file: str, line: int, *, given: bool) -> None:
        self.stream = stream
        self.value = "none given" if not given else str(value)[:100]
        self.entropy = not given or from_clock(value)
        self.file = file
        self.line = line


class Listeners:
    """Who hears of a call; before there is one, calls wait."""

    def __init__(self) -> None:
        self._waiting: list[SeedCall] = []
        self._hear: Callable[[SeedCall], None] | None = None

    def tell(self, call: SeedCall) -> None:
        """Hand a call on, or keep it."""
        if self._hear is not None:
            self._hear(call)
        elif len(self._waiting) < MAX_WAITING:
            self._waiting.append(call)

    def listen(self, hear: Callable[[SeedCall], None]) -> None:
        """Hear everything that has waited, and all that comes."""
        self._hear = hear
        for call in self._waiting:
            hear(call)
        self._waiting.clear()


LISTENERS = Listeners()


def watch_module(module: ModuleType) -> None:
    """Watch what seeds the streams of `random` or `numpy.random`."""
    for name in NEEDS_SEED[module.__name__]:
        watch(module, name)


def watch(module: Any, name: str, *, stream: str = "") -> None:
    """Replace a seeding function of a module by one that tells and does the same."""
    plain: Callable[..., Any] = getattr(module, name)
    told_as = stream or f"{module.__name__}.{name}"

    def seeding(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        caller = calling_frame(1)
        # Torch seeds its data workers itself, from the stream that the training was given.
        if not called_by_torch(caller):
            value = args[0] if args else next(iter(kwargs.values()), None)
            # A seed that is given to a generator of one's own touches no common stream.
            own = name == "default_rng" and value is not None and not from_clock(value)
            if not own:
                file, line, _ = place_of(caller)
                LISTENERS.tell(SeedCall(told_as, value, file, line, given=value is not None))
        return result

    seeding.__name__ = name
    seeding.__qualname__ = name
    seeding.__doc__ = plain.__doc__
    seeding.__module__ = module.__name__
    setattr(module, name, seeding)


def from_clock(value: object) -> bool:
    """Whether a number is this moment, in any usual unit and also when cut to 32 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    now = time.time()
    whole = any(abs(value - now * unit) <= NEAR_SECONDS * unit for unit in CLOCK_UNITS)
    return whole or any(
        abs(value - int(now * unit) % 2**32) <= NEAR_SECONDS * unit for unit in WRAPPED_UNITS
    )
