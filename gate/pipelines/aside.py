"""Folders of runs that are over, kept until the call ends."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from gate.system.files.port import Files


class Aside:
    """Takes folders out of the way below `folder`, which is removed with all else of the call."""

    def __init__(self, files: Files, folder: Path) -> None:
        """Nothing is touched."""
        self._files = files
        self._folder = folder
        self._numbers = count()

    def put(self, path: Path) -> None:
        """Free a path; nothing there is fine."""
        self._files.set_aside(path, self._folder / str(next(self._numbers)))
