"""What the gate is told: that something is varied in this process, or why that is impossible.

Imported by every process of such a run before torch is there, so nothing heavy is imported here.
"""

from __future__ import annotations

from .sources.found import SOURCES, VARIED, Source
from .user_code import CodeLine


class CannotVaryError(Exception):
    """Nothing can be varied on the machine or in the training; the text says why."""


def tell_varied(name: str, what: str) -> None:
    """It was made: from here on the training finds `what`."""
    SOURCES.report(Source(VARIED, name, CodeLine(), [], after=what))


def tell_not_varied(name: str, why: str) -> None:
    """It could not be made in this process."""
    SOURCES.report(Source(VARIED, name, CodeLine(), [], before=why))
