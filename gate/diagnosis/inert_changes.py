"""Leave out changes that no program can notice: other comments, and the order of imports.

Beside a line that moves a result they would only be a second candidate. A line that may be inside a
string of several lines stays a candidate, whatever it looks like.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath
from typing import Final

from gate.system.git.changes import MAX_LINE_CHARACTERS, Change, ChangedLines

PYTHON: Final = ".py"
# Their comments begin with a number sign, at the start of a line or after a blank.
SETTINGS: Final = (".yaml", ".yml", ".toml")
UNQUOTED: Final = re.compile(r"(?:[^\"'#]|\"(?:[^\"\\]|\\.)*+\"|'(?:[^'\\]|\\.)*+')*+")
ITEM: Final = r"[\w.]+(?: as \w+)?"
IMPORT: Final = re.compile(
    rf"import (?P<modules>{ITEM}(?:, {ITEM})*+)|from (?P<module>\w[\w.]*+) import [\w, ]++",
    re.ASCII,
)
DOCSTRING: Final = re.compile(r'\s*+"""(?:[^"\\]|\\.)*+"""')
# The comment that says how Python has to decode the file (PEP 263).
ENCODING: Final = re.compile(r"coding[:=]")
STANDARD: Final = sys.stdlib_module_names
# Importing these earlier or later draws no random number and sets nothing that a training uses.
IN_ANY_ORDER: Final = STANDARD | {"numpy", "torch", "torchvision", "tqdm", "yaml"}
# Text of several lines is between two of the same (Python, TOML), or begins with one (YAML).
QUOTES: Final = (b'"""', b"'''")
BLOCK: Final = re.compile(rb"[:-] +[|>][-+0-9]*+ *+(?:#[^\n]*+)?\n")
# Files beyond this number are not read: all their hunks stay.
MAX_READ_FILES: Final = 50


def without_inert(change: Change, read: Callable[[str], bytes | None]) -> Change:
    """Return the change with only the hunks that may change what a program does.

    `read` returns a file of the head commit, or None if it cannot be read.
    """
    same = [hunk for hunk in change.hunks if _same_code(hunk)]
    names = list(dict.fromkeys(hunk.file for hunk in same))[:MAX_READ_FILES]
    contents = {name: read(name) for name in names}
    inert = frozenset(hunk for hunk in same if not _may_be_text(hunk, contents.get(hunk.file)))
    kept = [hunk for hunk in change.hunks if hunk not in inert]
    reordered = frozenset(_reordered_imports(kept))
    hunks = tuple(hunk for hunk in kept if hunk not in reordered)
    return change.model_copy(update={"hunks": hunks})


def _may_be_text(hunk: ChangedLines, content: bytes | None) -> bool:
    """Return whether the hunk may be inside a string of several lines of this head file.

    Quotes are only counted: this process may hold the key, so it parses no changed file (T5). A
    quote in a comment makes the count odd, and a YAML block may have ended above: either leaves one
    candidate too many. The base file is not needed: where the head has no string around a line, the
    hunk that removed it is a candidate.
    """
    if content is None:
        return True
    above = hunk.first if hunk.removed else hunk.first - 1
    lines = content.split(b"\n", above)[:above]
    text = b"\n".join((*lines, b""))
    return any(text.count(quote) % 2 for quote in QUOTES) or bool(
        not hunk.file.endswith(PYTHON) and BLOCK.search(text)
    )


def _is_whole(hunk: ChangedLines) -> bool:
    """Return whether the hunk has all lines of both sides in full."""
    lines = (*hunk.before, *hunk.after)
    whole = (hunk.gone, hunk.new) == (len(hunk.before), len(hunk.after))
    return bool(lines) and whole and max(map(len, lines)) < MAX_LINE_CHARACTERS


def _same_code(hunk: ChangedLines) -> bool:
    """Return whether both sides differ only in comments, blank lines and an added docstring."""
    suffix = PurePosixPath(hunk.file).suffix
    if suffix not in {PYTHON, *SETTINGS} or not _is_whole(hunk):
        return False
    before, after = (
        [code for line in side if (code := _without_comment(line))]
        for side in (hunk.before, hunk.after)
    )
    if suffix == PYTHON and not (before and after):
        # Beside other code such a line might be an argument.
        return all(map(DOCSTRING.fullmatch, (*before, *after)))
    return before == after


def _without_comment(line: str) -> str:
    match = UNQUOTED.match(line)
    code = match[0] if match else ""
    rest = line[len(code) :]
    commented = rest.startswith("#") and (not code or code[-1].isspace())
    if ENCODING.search(rest):
        return line
    return code.rstrip() if not rest or commented else line


def _reordered_imports(hunks: Iterable[ChangedLines]) -> Iterator[ChangedLines]:
    """Yield the hunks of files that only reorder imports, or that import a standard module."""
    by_file: dict[str, list[ChangedLines]] = {}
    for hunk in hunks:
        if hunk.file.endswith(PYTHON) and _is_whole(hunk) and _only_imports(hunk):
            by_file.setdefault(hunk.file, []).append(hunk)
    return (hunk for own in by_file.values() if _is_reordering(own) for hunk in own)


def _only_imports(hunk: ChangedLines) -> bool:
    lines = [line for line in map(_without_comment, (*hunk.before, *hunk.after)) if line]
    return bool(lines) and all(_modules(line) <= IN_ANY_ORDER for line in lines)


def _modules(line: str) -> frozenset[str]:
    """Return the packages that a line imports; for any other line, one that does not exist."""
    match = IMPORT.fullmatch(line)
    if match is None:
        return frozenset(("",))
    named = match["module"] or match["modules"]
    return frozenset(item.split()[0].partition(".")[0] for item in named.split(", "))


def _is_reordering(hunks: list[ChangedLines]) -> bool:
    gone = Counter(filter(None, (_without_comment(line) for hunk in hunks for line in hunk.before)))
    new = Counter(filter(None, (_without_comment(line) for hunk in hunks for line in hunk.after)))
    # A name may be given to something else by `as` and `from`, but not by a plain import.
    return all(
        line.startswith("import ") and " as " not in line and _modules(line) <= STANDARD
        for line in (*(gone - new), *(new - gone))
    )
