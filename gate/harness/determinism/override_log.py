"""Overrides of knobs by the training's own code, one line for each place and step, capped."""

from __future__ import annotations

import threading
from collections import Counter
from typing import NamedTuple

from ..output import Output
from ..user_code import CodeLine

MAX_LINES = 200
MAX_LINES_OF_ONE_PLACE = 3
# Of the lines of all kinds: a data set may make a generator for each of its samples.
MAX_PRIVATE_LINES = 100
MAX_TEXT = 200


class OverrideEvent(NamedTuple):
    """One override. `closed`: the script reverted it within the step; `restored`: the harness did.

    `importing`: a library did it while the line imported it. `scope` is `global` or `private` for a
    seed: whether it went to a common generator or to a generator of the script's own. `stack` holds
    the user's innermost frames as text.
    """

    kind: str
    name: str
    before: str
    after: str
    place: CodeLine
    step: int
    closed: bool = False
    restored: bool = False
    importing: bool = False
    scope: str | None = None
    stack: tuple[str, ...] = ()

    @property
    def private(self) -> bool:
        """Whether no common generator was touched."""
        return self.scope == "private"


class OverrideLog:
    """Writes events as they come; `total` counts those that were not written, too."""

    def __init__(self, output: Output) -> None:
        self.total = 0
        self._output = output
        self._written = 0
        self._private = 0
        self._of_place: Counter[tuple[str, str, str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, event: OverrideEvent) -> None:
        """Count an event and write its line, unless its place or the log has had enough.

        `OSError` when it cannot be written.
        """
        with self._lock:
            self.total += 1
            key = (event.kind, event.name, event.after, str(event.place))
            if event.scope is not None:
                # each seed is another value; one line with a thousand of them is one place
                key = (event.kind, event.name, "", str(event.place))
            self._of_place[key] += 1
            if self._of_place[key] > MAX_LINES_OF_ONE_PLACE or self._written >= MAX_LINES:
                return
            if event.private and self._private >= MAX_PRIVATE_LINES:
                return
            self._written += 1
            self._private += event.private
        self._output.append_line(
            "overrides",
            {
                "step": event.step,
                "kind": event.kind,
                "name": event.name[:MAX_TEXT],
                "before": event.before[:MAX_TEXT],
                "after": event.after[:MAX_TEXT],
                "file": event.place.file[-MAX_TEXT:],
                "line": event.place.line,
                "closed": event.closed,
                "restored": event.restored,
                "importing": event.importing,
                "scope": event.scope,
                "stack": [frame[-MAX_TEXT:] for frame in event.stack],
            },
        )
