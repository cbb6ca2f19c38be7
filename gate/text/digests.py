"""The difference of two texts in unified form, for a person: bounded, and never an error."""

from __future__ import annotations

from difflib import unified_diff
from typing import Final

# comparing takes time that grows with the square of what differs
MAX_LINES: Final = 5000
NO_END: Final = "\\ No newline at end of file\n"


def file_diff(path: str, before: bytes | None, after: bytes | None) -> str:
    """How a file changed; None stands for no file. Binary or long content is named, not shown."""
    old, new = (f"{side}/{path}" for side in "ab")
    names = (old if before is not None else "/dev/null", new if after is not None else "/dev/null")
    sides = [_lines(content) for content in (before, after)]
    if sides[0] is None or sides[1] is None:
        return f"Files {names[0]} and {names[1]} differ\n"
    lines = unified_diff(sides[0], sides[1], *names)
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_END}" for line in lines)


def _lines(content: bytes | None) -> list[str] | None:
    """The lines of a text with their ends; None where it is no text, or has too many."""
    if b"\0" in (content or b""):
        return None
    try:
        # at line feeds alone, as git and patch(1) see lines
        found = (content or b"").decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return None
    lines = [f"{line}\n" for line in found[:-1]] + ([found[-1]] if found[-1] else [])
    return lines if len(lines) <= MAX_LINES else None
