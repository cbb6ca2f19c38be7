"""Memory: of this process on the host, and of its training on a GPU."""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from .. import harness_cuda

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

    def read(self, devices: harness_cuda.Devices) -> int:
        """The training's peak in bytes until now, over these devices; 0 without any."""
        now = harness_cuda.peak_bytes(devices)
        if now > self._with_harness_bytes:
            self.training_bytes = now
        return max(self.training_bytes, harness_cuda.allocated_bytes(devices))

    def of_the_harness(self, devices: harness_cuda.Devices) -> AbstractContextManager[None]:
        """What the body allocates is not the training's."""
        return self._apart(devices) if devices else _NOTHING

    @contextmanager
    def _apart(self, devices: harness_cuda.Devices) -> Iterator[None]:
        self.training_bytes = self.read(devices)
        try:
            yield
        finally:
            self._with_harness_bytes = harness_cuda.peak_bytes(devices)
