"""Hostile text made safe for a terminal and for the log of a CI job.

A terminal obeys control characters and ANSI sequences; a runner obeys `::command::` at the start of
a line and `##[command]` anywhere in one. Neither may hear a training speak.
"""

from __future__ import annotations

import re
import unicodedata

LINE_LIMIT = 1000
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Default_Ignorable_Code_Point of Unicode beyond those categories: invisible, and skipped by
# culture-aware comparisons, so one of them could hide a command from us but not from the runner.
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)
_DOUBLE_COLON = re.compile(r":(?=:)")
_COMMAND_BRACKET = re.compile(r"##(?=\[)")


def safe_line(text: str | bytes, *, limit: int = LINE_LIMIT) -> str:
    """One line that shows as itself: colours removed, other control characters spelt out.

    Bytes are read as UTF-8, broken ones replaced. At most `limit` characters of the text count.
    """
    line = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    plain = _IGNORABLE.sub("", _ANSI.sub("", line[:limit].replace("\t", "    ")))
    shown = "".join(_shown(character) for character in plain)
    return _COMMAND_BRACKET.sub("# #", _DOUBLE_COLON.sub(": ", shown)).rstrip()


def safe_block(text: str) -> str:
    """Several lines, each made safe; for a fault whose details quote the training."""
    return "\n".join(safe_line(line) for line in text.splitlines())


def _shown(character: str) -> str:
    if unicodedata.category(character) in _HIDDEN:
        return character.encode("unicode_escape").decode("ascii")
    return character
