"""What one process counted: operators by step and place, and what strict mode refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .user_code import CodeLine

MAX_USES = 1000
MAX_REFUSALS = 100
MAX_SPANS = 500
Span = list[int]


class OperatorCounts:
    """Counts by operator and place. `step` gives the step in progress, from 1.

    Beyond `MAX_USES` different uses the rest is only counted in `dropped`.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._uses: dict[tuple[str, ...], list[Span]] = {}
        self._refused: dict[tuple[str, str], dict[str, Any]] = {}
        self._dropped = 0
        self._lock = threading.Lock()

    def count(self, source: str, operator: str, device: str, place: CodeLine) -> None:
        """One call; `source` is `alert` when torch said it and `call` when the harness saw it."""
        direction = "backward" if place.backward else "forward"
        key = (source, operator, device, direction, place.file, str(place.line))
        with self._lock:
            if key not in self._uses and len(self._uses) >= MAX_USES:
                self._dropped += 1
                return
            self._add(self._uses.setdefault(key, []), self._step())

    def _add(self, spans: list[Span], step: int) -> None:
        """Keep `[first step, last step, calls in each]`: equal steps share one entry."""
        if spans and spans[-1][0] == spans[-1][1] == step:
            spans[-1][2] += 1
            return
        if len(spans) > 1 and spans[-2][1] + 1 == spans[-1][0] and spans[-2][2] == spans[-1][2]:
            last = spans.pop()
            spans[-1][1] = last[1]
        if len(spans) < MAX_SPANS:
            spans.append([step, step, 1])
        else:
            self._dropped += 1

    def refuse(self, operator: str, place: CodeLine) -> bool:
        """Strict mode did not let this operator run; False when that is known already."""
        key = (operator, str(place))
        with self._lock:
            if key in self._refused or len(self._refused) >= MAX_REFUSALS:
                return False
            self._refused[key] = {
                "operator": operator,
                "file": place.file,
                "line": place.line,
                "step": self._step(),
            }
        return True

    @property
    def refusals(self) -> list[dict[str, Any]]:
        """What was refused, in the order in which it happened."""
        return list(self._refused.values())

    @property
    def uses(self) -> list[dict[str, Any]]:
        """What was counted, in the order of first calls."""
        return [
            {
                "source": source,
                "operator": operator,
                "device": device,
                "direction": direction,
                "file": file,
                "line": int(line),
                "spans": spans,
            }
            for (source, operator, device, direction, file, line), spans in self._uses.items()
        ]

    @property
    def dropped(self) -> int:
        """Calls that found no room."""
        return self._dropped
