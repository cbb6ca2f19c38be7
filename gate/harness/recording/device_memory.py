"""The largest amount of device memory that the training itself had allocated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .. import cuda


class PeakMemory:
    """Torch's own peak, as far as the training and not the harness's scratch memory made it.

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

    @contextmanager
    def of_the_harness(self, devices: cuda.Devices) -> Iterator[None]:
        """What the body allocates is not the training's."""
        self.training_bytes = self.read(devices)
        try:
            yield
        finally:
            self._with_harness_bytes = cuda.peak_bytes(devices)
