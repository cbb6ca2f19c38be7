"""Times of work that may still be queued on a device, and memory of host and GPU.

A mark is a moment on the training's own time line. On the CPU that is the host's clock. Where
parameters are on a GPU it is a CUDA event, which the device passes after the work queued so far.
The host runs ahead of the device, so its clock would show when work was queued and not when it was
done. Waiting at each step would destroy overlap: the host reads the next batch while the device
computes. The time between two events is the longer of the host's and the device's, as in the
training alone. The harness's own spans in between are measured and subtracted in the same way.
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
    """Time inside a step that the harness used, for one group of fingerprints or for none."""

    group: str
    begun: TimeMark
    ended: TimeMark


class StepClock:
    """Marks and spans of the step in progress, in one process."""

    def __init__(self) -> None:
        self.devices: cuda.Devices = ()
        self._spans: list[HarnessSpan] = []

    def follow(self, devices: cuda.Devices) -> None:
        """Mark the time lines of these devices too from now on."""
        self.devices = cuda.sorted_by_index((*self.devices, *devices))

    def mark(self) -> TimeMark:
        """Return the present moment, without waiting for a device."""
        if not self.devices:
            return TimeMark(perf_counter(), _NO_EVENTS)
        events = {device: cuda.timed_event(device) for device in self.devices}
        return TimeMark(perf_counter(), events)

    def spent_since(self, begun: TimeMark, group: str = "") -> None:
        """Count the time from this mark until now as the harness's, like `span`."""
        self._spans.append(HarnessSpan(group, begun, self.mark()))

    @contextmanager
    def span(self, group: str = "") -> Iterator[None]:
        """Count the block's time as the harness's; no group means that sampling cannot avoid it."""
        begun = self.mark()
        try:
            yield
        finally:
            self.spent_since(begun, group)

    def take_spans(self) -> tuple[HarnessSpan, ...]:
        """Return the spans since the last call."""
        spans, self._spans = tuple(self._spans), []
        return spans


def has_reached(mark: TimeMark) -> bool:
    """Whether the devices have passed the mark; does not wait."""
    return all(event.query() for event in mark.events.values())


def wait_for(mark: TimeMark) -> None:
    """Block until the devices have passed the mark."""
    for event in mark.events.values():
        event.synchronize()


def seconds_between(earlier: TimeMark, later: TimeMark) -> float | None:
    """Return the seconds on the device that took longest, or on the host without a device.

    Waits until both marks are passed. Returns None if a device came into use between the marks,
    since it has no earlier event to count from.
    """
    if not earlier.events and not later.events:
        return later.host_seconds - earlier.host_seconds
    shared = earlier.events.keys() & later.events.keys()
    if not shared:
        # the host's clock shows when work was queued, which may be long before it is done
        return None if later.events else later.host_seconds - earlier.host_seconds
    wait_for(earlier)
    wait_for(later)
    elapsed = [earlier.events[device].elapsed_time(later.events[device]) for device in shared]
    milliseconds: float = max(0.0, *elapsed)
    return milliseconds / 1000


class StepTimes(NamedTuple):
    """The moments of one step.

    `before` is the harness's work after the previous step, None at the first; it begins where that
    step's own work was done. `done` is the moment when this step's work was done. `inside` are the
    harness's spans between these two, `after` those between `done` and `observed`.
    """

    before: HarnessSpan | None
    inside: tuple[HarnessSpan, ...]
    done: TimeMark
    after: tuple[HarnessSpan, ...]
    observed: TimeMark

    def whole_seconds(self) -> float | None:
        """Return the time since the previous step, with the harness's work; None for the first."""
        return None if self.before is None else seconds_between(self.before.begun, self.done)

    def harness_seconds(self) -> float:
        """Return the time of the harness's work inside `whole_seconds`.

        On a device the real delay may be smaller, since a long pause of the device hides short
        work. So a step's time is certain only if the harness's work was short.
        """
        return _total((*((self.before,) if self.before else ()), *self.inside))

    def observe_seconds(self) -> float:
        """Return the time that observing this step took, before and after its update."""
        return _total(self.inside) + (seconds_between(self.done, self.observed) or 0.0)

    def group_seconds(self) -> dict[str, float]:
        """Return the observation time of each group of fingerprints."""
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
    """Return the largest resident set of this program so far.

    Linux carries `ru_maxrss` over from the process that started this one, which may have been
    larger (getrusage(2), execve(2)). `VmHWM` belongs to this program alone.
    """
    about = Path("/proc/self/status")
    text = about.read_text(encoding="ascii", errors="replace") if about.is_file() else ""
    high_water = re.search(r"^VmHWM:\s*(\d+) kB$", text, re.MULTILINE)
    if high_water:
        return int(high_water[1]) * KIB
    # macOS counts in bytes, Linux in KiB
    unit = 1 if sys.platform == "darwin" else KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes() -> int:
    """Return the resident set now, in bytes; 0 if the system has no /proc."""
    try:
        with _STATM.open("rb", buffering=0) as file:
            return int(file.read(200).split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


class DevicePeak:
    """The largest amount of device memory that the training itself had allocated.

    torch keeps one peak, which includes the harness's scratch memory. The harness never resets it,
    since the script may read it. So the peak is read before and after each piece of the harness's
    own work, and what it rises by in between is the harness's. A later peak of the training below
    that value cannot be seen. The last known one then stays; it is too low by the scratch memory at
    most.
    """

    def __init__(self) -> None:
        self.training_bytes = 0
        self._with_harness_bytes = 0

    def read(self, devices: cuda.Devices) -> int:
        """Return the training's peak in bytes so far, over these devices; 0 without any."""
        now = cuda.peak_bytes(devices)
        # only the training can raise the peak above its value at the end of the harness's last work
        if now > self._with_harness_bytes:
            self.training_bytes = now
        # a peak hidden below the harness's is known at least by what is still allocated
        return max(self.training_bytes, cuda.allocated_bytes(devices))

    def of_the_harness(self, devices: cuda.Devices) -> AbstractContextManager[None]:
        """Do not count what the block allocates as the training's."""
        return self._apart(devices) if devices else _NOTHING

    @contextmanager
    def _apart(self, devices: cuda.Devices) -> Iterator[None]:
        self.training_bytes = self.read(devices)
        try:
            yield
        finally:
            self._with_harness_bytes = cuda.peak_bytes(devices)
