"""The time of day for documents, and a clock for durations."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class SystemClock:
    """The `Clock` of this machine."""

    def now(self) -> datetime:
        """Return the time in UTC without fractions, so that a shown time equals the stored one."""
        return datetime.now(UTC).replace(microsecond=0)

    def seconds(self) -> float:
        """Return the kernel's monotonic clock, which all processes of the machine share."""
        return time.monotonic()


class Clock(Protocol):
    """The time of day for documents, and a clock for durations; tests have another one."""

    def now(self) -> datetime:
        """Return the current time in UTC, in whole seconds."""
        ...

    def seconds(self) -> float:
        """Return seconds since an arbitrary moment, for durations: they never go back."""
        ...
