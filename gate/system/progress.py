"""Where a person sees that work goes on."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Progress(Protocol):
    """Where a person sees that work goes on."""

    def step(self, text: str) -> None:
        """Say that something begins."""
        ...

    def output(self, line: bytes) -> None:
        """Show one line of the training's output; the line is untrusted."""
        ...

    def running(self, text: str) -> AbstractContextManager[None]:
        """Show `text` and the time it takes while the body runs."""
        ...
