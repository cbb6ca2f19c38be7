"""Amounts of data as a reader wants them: three digits and a unit."""

from __future__ import annotations

from typing import Final

UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")
STEP: Final = 1000.0


def shown_bytes(count: float) -> str:
    """`1.2 GB` and its like, in powers of 1000."""
    unit = 0
    while count >= STEP - 0.5 and unit < len(UNITS) - 1:
        count /= STEP
        unit += 1
    digits = 0 if unit == 0 or count >= 100 else 1  # noqa: PLR2004 - three digits
    return f"{count:.{digits}f} {UNITS[unit]}"


def shown_rate(count: float, seconds: float) -> str:
    """`85 MB/s` and its like."""
    return f"{shown_bytes(count / max(seconds, 1e-3))}/s"
