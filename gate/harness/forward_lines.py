"""Which line made each node of the graph, so that an operator of a backward pass has a line."""

from __future__ import annotations

from typing import Any, Final, Protocol

import torch

MAX_NODES: Final = 500_000


class Line(Protocol):
    """A file and a line of it."""

    @property
    def file(self) -> str:
        """As a user knows it."""

    @property
    def line(self) -> int:
        """From 1."""


class ForwardLines:
    """The line and module of the forward call behind each node of the graph.

    The autograd part of an operator makes its node before the dispatcher reaches the mode, so the
    newest number is that call's own. A thread counts for itself.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, int, str]] = {}
        self._last = _newest_node()

    def note(self, place: Line, module: str = "") -> None:
        """A forward call; one that made no node has none of its own."""
        newest = _newest_node()
        if newest != self._last:
            if len(self._known) >= MAX_NODES:
                self._known.clear()
            self._last = newest
            self._known.setdefault(newest, (place.file, place.line, module))

    def of(self, node: Any) -> tuple[str, int, str]:
        """File, line and module; empty where the forward call was not seen."""
        return self._known.get(node._sequence_nr(), ("", 0, ""))  # noqa: SLF001 - no public name


def _newest_node() -> int:
    number: int = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined] # noqa: SLF001 - no public name
    return number - 1
