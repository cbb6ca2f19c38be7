"""Records findings that may make two runs differ: one for each line of the user's code, capped.

Hooks report findings before torch is imported; these wait for a subscriber. Every Python process of
a training imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ..user_code import CodeLine

ENTROPY, CLOCK, PROCESS, ORDER = "entropy", "clock", "process", "order"
ADDRESS, THREAD, DRAW, PRECISION = "address", "thread", "draw", "precision"
COMPLETION, READ, SPLIT = "completion", "read", "split"
# outside of what the verdict covers: an environment variable that is not set, a file that the
# script saves
VARIABLE, SAVED = "variable", "saved"
# a file of the commit that the change under test touches
OPENED = "opened"
# creates a scheduler of torch
SCHEDULE = "schedule"
# may read files that no hook sees: C code, another program, the network, the kernel's files
UNSEEN = "unseen"
# only in runs with a variation: that it is active, and the lines that read it
VARIED, READING = "varied", "reading"
# the value of `before` for a reading that was found by searching the code at the end
IN_CODE = "code"
# Per process. One kind or one line of a script must not use up all places.
MAX_FOUND = 150
MAX_OF_A_KIND = 40


class SourceRecord:
    """A finding: kind, name of the call, and the user's line and stack.

    `before` and `after` depend on the kind: the values of a switch, digests of an order, or the
    name of a thread.
    """

    __slots__ = ("after", "before", "call", "kind", "place", "stack")

    def __init__(
        self,
        kind: str,
        call: str,
        place: CodeLine,
        stack: list[str],
        *,
        before: str = "",
        after: str = "",
    ) -> None:
        self.kind = kind
        self.call = call
        self.place = place
        self.stack = stack
        self.before = before
        self.after = after


class Sources:
    """Passes each finding to the subscriber once; keeps findings until there is one."""

    def __init__(self) -> None:
        self._waiting: list[SourceRecord] = []
        self._callback: Callable[[SourceRecord], None] | None = None
        self._known: set[tuple[str, ...]] = set()
        self._of_kind: dict[str, int] = {}

    def full(self, kind: str) -> bool:
        """Whether no further finding of this kind is accepted."""
        return self._of_kind.get(kind, 0) >= MAX_OF_A_KIND or len(self._known) >= MAX_FOUND

    def report(self, source: SourceRecord) -> None:
        """Pass on a new finding, as far as the limits allow."""
        key = (source.kind, source.call, str(source.place), source.before)
        if key in self._known or self.full(source.kind):
            return
        self._known.add(key)
        self._of_kind[source.kind] = self._of_kind.get(source.kind, 0) + 1
        if self._callback is not None:
            self._callback(source)
        else:
            self._waiting.append(source)

    def found_at(self, kind: str, call: str, frame: FrameType, **words: str) -> None:
        """Report a call that the user's frame makes."""
        from ..user_code import caller_of, user_stack

        self.report(SourceRecord(kind, call, caller_of(frame).place, user_stack(frame), **words))

    def subscribe(self, callback: Callable[[SourceRecord], None]) -> None:
        """Pass all waiting findings, and each later one, to `callback`."""
        self._callback = callback
        for source in self._waiting:
            callback(source)
        self._waiting.clear()


SOURCES = Sources()
