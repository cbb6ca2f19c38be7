"""The changed lines that stand first in a report, as a small diff."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gate.evidence.trace import HowKnown, ShownChange
from gate.report.layout import ShownLines
from gate.system.git.changes import ChangedLines

MOST_LINES: Final = 6
CAPTIONS: Final = {
    HowKnown.NAMED: "Changed in this pull request:",
    HowKnown.RAISED: "This pull request changes the line that raised:",
    HowKnown.FITS: "The change that fits it:",
    HowKnown.READ: "The training reads this changed file:",
    HowKnown.ONLY: "This is all that this pull request changes of code, data and settings:",
    HowKnown.RAN_BEFORE_NAN: (
        "The nearest changed line that ran before the first number that is not finite:"
    ),
    HowKnown.RAN: "The nearest changed line that ran before the difference:",
}


def change_words(change: ShownChange | None) -> ShownLines | None:
    """A caption and the lines with their signs, six at most; the rest is counted."""
    if change is None:
        return None
    each = MOST_LINES // len(change.hunks)
    lines = tuple(line for hunk in change.hunks for line in _hunk(hunk, each))
    return ShownLines(caption=CAPTIONS[change.how], lines=lines)


def _hunk(hunk: ChangedLines, most: int) -> Iterator[str]:
    yield f"@@ {hunk.place} @@"
    # half of the room each, and what one side leaves to the other
    before = hunk.before[: max(most // 2, most - len(hunk.after))]
    after = hunk.after[: most - len(before)]
    yield from (f"-{line}" for line in before)
    yield from (f"+{line}" for line in after)
    left = hunk.gone + hunk.new - len(before) - len(after)
    if left > 0:
        yield f"@@ and {left:,} more line{'' if left == 1 else 's'} @@"
