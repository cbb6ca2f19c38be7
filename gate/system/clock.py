"""The time of day, for documents."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class SystemClock:
    """The machine's clock, as the port `Clock`."""

    def now(self) -> datetime:
        """The current time in UTC, whole seconds: what a document shows is what it holds."""
        return datetime.now(UTC).replace(microsecond=0)

    def seconds(self) -> float:
        """The kernel's monotonic clock, the same for all processes of the machine."""
        return time.monotonic()


class Clock(Protocol):
    """The time of day, for documents, and a clock for durations."""

    def now(self) -> datetime:
        """The current time in UTC, whole seconds."""
        ...

    def seconds(self) -> float:
        """Seconds since any fixed moment, for durations: it never goes back."""
        ...
