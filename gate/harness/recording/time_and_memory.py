"""Times of work that may still be queued on a device, and memory of host and GPU.

A mark is a moment of the training's own time line. On the CPU that is the host's clock. Where
parameters lie on a GPU it is an event that the device passes after the work queued so far: the
host runs ahead of the device, so its clock would tell when work was handed over, not when it was
done, and waiting at each step would take away what runs side by side (the next batch is read while
the device computes). Between two events lies the longer of what host and device took, as in the
training alone; a span of the harness's own in between is measured, and taken off, in the same way.
"""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from .. import cuda
from ..settings import perf_counter

_NO_EVENTS: Final[dict[torch.device, Any]] = {}


class TimeMark(NamedTuple):
    """A moment: the host's clock in seconds, and an event for each device in use."""

    host_seconds: float
    events: dict[torch.device, Any]


class HarnessSpan(NamedTuple):
    """A part of a step that the harness took for itself, for one group of streams or for none."""

    group: str
    begun: TimeMark
    ended: TimeMark


class StepClock:
    """Marks and spans of the step that is under way, in one process."""

    def __init__(self) -> None:
        self.devices: cuda.Devices = ()
        self._spans: list[HarnessSpan] = []

    def follow(self, devices: cuda.Devices) -> None:
        """From now on, mark the time lines of these devices too."""
        self.devices = cuda.sorted_by_index((*self.devices, *devices))

    def mark(self) -> TimeMark:
        """The moment that it is now; nothing is waited for."""
        if not self.devices:
            return TimeMark(perf_counter(), _NO_EVENTS)
        events = {device: cuda.timed_event(device) for device in self.devices}
        return TimeMark(perf_counter(), events)

    def spent_since(self, begun: TimeMark, group: str = "") -> None:
        """Keep the time from this mark to now apart, as `span` does."""
        self._spans.append(HarnessSpan(group, begun, self.mark()))

    @contextmanager
    def span(self, group: str = "") -> Iterator[None]:
        """Keep the body's time apart; the empty group is what no thinning can avoid."""
        begun = self.mark()
        try:
            yield
        finally:
            self.spent_since(begun, group)

    def take_spans(self) -> tuple[HarnessSpan, ...]:
        """The spans since the last call."""
        spans, self._spans = tuple(self._spans), []
        return spans


def has_reached(mark: TimeMark) -> bool:
    """Whether the devices have come so far; asking does not wait."""
    return all(event.query() for event in mark.events.values())


def wait_for(mark: TimeMark) -> None:
    """Return when the devices have come so far."""
    for event in mark.events.values():
        event.synchronize()


def seconds_between(earlier: TimeMark, later: TimeMark) -> float | None:
    """Seconds on the device, the longest where there are several, or on the host without one.

    Waits for what has not been reached. None where a device came into use in between: it
    has no earlier moment to count from.
    """
    if not earlier.events and not later.events:
        return later.host_seconds - earlier.host_seconds
    shared = earlier.events.keys() & later.events.keys()
    if not shared:
        # the host's clock would tell when the work was queued, which is too early by any amount
        return None if later.events else later.host_seconds - earlier.host_seconds
    wait_for(earlier)
    wait_for(later)
    elapsed = [earlier.events[device].elapsed_time(later.events[device]) for device in shared]
    milliseconds: float = max(0.0, *elapsed)
    return milliseconds / 1000


class StepTimes(NamedTuple):
    """The moments of one step.

    `before` is the harness's work about the step before, None at the first: it begins where that
    step's own work was done. `done` is when this one's was; `inside` are the harness's spans since,
    `after` those that followed, until `observed`.
    """

    before: HarnessSpan | None
    inside: tuple[HarnessSpan, ...]
    done: TimeMark
    after: tuple[HarnessSpan, ...]
    observed: TimeMark

    def whole_seconds(self) -> float | None:
        """From the step before to this one, with the harness's work; None for the first."""
        return None if self.before is None else seconds_between(self.before.begun, self.done)

    def harness_seconds(self) -> float:
        """The harness's work therein.

        On a device what it really delayed the step by may be less: a wide pause of the device hides
        short work. So what a step took is certain only where this is little.
        """
        return _total((*((self.before,) if self.before else ()), *self.inside))

    def observe_seconds(self) -> float:
        """What looking at this step took: before its update, and after it."""
        return _total(self.inside) + (seconds_between(self.done, self.observed) or 0.0)

    def group_seconds(self) -> dict[str, float]:
        """The parts of that which belong to a group of streams."""
        totals: dict[str, float] = {}
        for span in (*self.inside, *self.after):
            if span.group:
                totals[span.group] = totals.get(span.group, 0.0) + _total((span,))
        return totals


def _total(spans: tuple[HarnessSpan, ...]) -> float:
    return sum(seconds_between(span.begun, span.ended) or 0.0 for span in spans)


KIB = 1024
_NOTHING = nullcontext()
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = resource.getpagesize()


def peak_resident_bytes() -> int:
    """The largest resident set so far.

    Linux carries `ru_maxrss` over from the process that started this one, which may have been
    larger (getrusage(2), execve(2)); `VmHWM` belongs to this program alone.
    """
    about = Path("/proc/self/status")
    text = about.read_text(encoding="ascii", errors="replace") if about.is_file() else ""
    high_water = re.search(r"^VmHWM:\s*(\d+) kB$", text, re.MULTILINE)
    if high_water:
        return int(high_water[1]) * KIB
    unit = 1 if sys.platform == "darwin" else KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes() -> int:
    """The resident set now; 0 where the system has no /proc."""
    try:
        with _STATM.open("rb", buffering=0) as file:
            return int(file.read(200).split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


class DevicePeak:
    """The largest amount of device memory that the training itself had allocated.

    That is torch's own peak as far as the training and not the harness's scratch memory made it.

    Torch keeps one peak, which is never reset here, since the script may read it. So it is read
    before and after each piece of the harness's own work: what it rises by in between is the
    harness's. A later peak of the training's that stays below that one cannot be told; then its
    last known one, lower by no more than the scratch memory, stands.
    """

    def __init__(self) -> None:
        self.training_bytes = 0
        self._with_harness_bytes = 0

    def read(self, devices: cuda.Devices) -> int:
        """The training's peak in bytes until now, over these devices; 0 without any."""
        now = cuda.peak_bytes(devices)
        if now > self._with_harness_bytes:
            self.training_bytes = now
        return max(self.training_bytes, cuda.allocated_bytes(devices))

    def of_the_harness(self, devices: cuda.Devices) -> AbstractContextManager[None]:
        """What the body allocates is not the training's."""
        return self._apart(devices) if devices else _NOTHING

    @contextmanager
    def _apart(self, devices: cuda.Devices) -> Iterator[None]:
        self.training_bytes = self.read(devices)
        try:
            yield
        finally:
            self._with_harness_bytes = cuda.peak_bytes(devices)
