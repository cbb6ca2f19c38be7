"""What was found that may make two runs differ: one for each line of the user's code, capped.

Finders begin before torch is there; what they find waits for a subscriber. Imported by every Python
process of a training, so nothing heavy is imported here.
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
# what the verdict does not cover: a variable that is not set, a file that the script saves
VARIABLE, SAVED = "variable", "saved"
# a file of the commit that the change under test touches
OPENED = "opened"
# what may read files that nobody sees: C code, another program, the network, the kernel's own
UNSEEN = "unseen"
# of runs in which something is varied on purpose: that it was, and the lines that read it
VARIED, READING = "varied", "reading"
# what is `before` of a reading that was found by looking through the code, at the end
IN_CODE = "code"
# Of a process: no line of a script is worth more than a hundred others.
MAX_FOUND = 150
MAX_OF_A_KIND = 40


class Source:
    """One: a kind, the call by its name, and the user's line and stack.

    `before` and `after` are words: of a switch what it was and is, of an order its digests, of a
    thread its name.
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
    """Hands each on once; until somebody listens they wait."""

    def __init__(self) -> None:
        self._waiting: list[Source] = []
        self._callback: Callable[[Source], None] | None = None
        self._known: set[tuple[str, ...]] = set()
        self._of_kind: dict[str, int] = {}

    def full(self, kind: str) -> bool:
        """Whether no other of this kind is taken."""
        return self._of_kind.get(kind, 0) >= MAX_OF_A_KIND or len(self._known) >= MAX_FOUND

    def report(self, source: Source) -> None:
        """Hand on what is new, as far as the limits allow."""
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
        """Report what this frame of the user's does."""
        from ..user_code import caller_of, user_stack

        self.report(Source(kind, call, caller_of(frame).place, user_stack(frame), **words))

    def subscribe(self, callback: Callable[[Source], None]) -> None:
        """Hand over all that has waited, and all that comes."""
        self._callback = callback
        for source in self._waiting:
            callback(source)
        self._waiting.clear()


SOURCES = Sources()
