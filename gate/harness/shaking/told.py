"""What the gate is told: that something is varied in this process, or why that is impossible.

Imported by every process of such a run before torch is there, so nothing heavy is imported here.
"""

from __future__ import annotations

import os
import sys

from ..sources.found import SOURCES, VARIED, Source
from ..user_code import CodeLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class CannotVaryError(Exception):
    """Nothing can be varied on the machine or in the training; the text says why."""


def tell_varied(name: str, what: str) -> None:
    """It was made: from here on the training finds `what`."""
    SOURCES.report(Source(VARIED, name, CodeLine(), [], after=what))


def tell_not_varied(name: str, why: str) -> None:
    """It could not be made in this process."""
    SOURCES.report(Source(VARIED, name, CodeLine(), [], before=why))


def put(owner: Any, name: str, function: Any) -> None:
    """Let `function` pass for the one of that name: with its names, and wherever `os` tells it.

    Functions of `os` are those of another module, which pickle and the import system know them by.
    """
    plain = getattr(owner, name)
    for word in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(function, word, getattr(plain, word, None))
    setattr(owner, name, function)
    for known in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
        if plain in known:
            known.add(function)
    home = sys.modules.get(str(plain.__module__))
    if home is not None and getattr(home, name, None) is plain:
        setattr(home, name, function)
