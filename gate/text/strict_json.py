"""Reads untrusted JSON strictly: no duplicate keys, no NaN, no deep nesting.

Python's own parser keeps the last of two equal keys, accepts NaN and Infinity, and fails on deep
nesting with RecursionError. The first two let one reader see a different document from the next.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, NoReturn

from gate.errors import DocumentError

MAX_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 32
AGAIN = (
    "Check that this is the right file; if so, restore it from version control or create it again."
)
INSIDE: Final = object()
# An unterminated string reaches to the end of the text, so no second attempt is needed. The
# possessive `*+` (Python 3.11) never gives back what has matched, so the time stays linear.
STRINGS = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)', re.DOTALL)
NO_BRACKETS = re.compile(r"[^\[\]{}]+")
INNERMOST = re.compile(r"\[\]|\{\}")


def parse_json(
    data: bytes, source: str, *, max_bytes: int = MAX_BYTES, non_finite: bool = False
) -> object:
    """Read one JSON value; `source` names the file in every error.

    `non_finite` keeps NaN and Infinity as numbers. A training's metric may be one, and dropping or
    refusing its line would hide that.

    Raises `DocumentError` for data that is too large, not UTF-8, not JSON, nested deeper than
    `MAX_DEPTH`, or has a duplicate key.
    """
    return _parsed(
        data, source, max_bytes, _distinct_keys, float if non_finite else _refuse_constant
    )


def outline_of_json(
    data: bytes, source: str, *, max_bytes: int = MAX_BYTES
) -> dict[str, object] | None:
    """Check JSON by the same rules and return only the outermost object, or None if it is none.

    Each object inside it is replaced by `INSIDE`, so checking needs little memory, however large
    the document is. Raises as `parse_json` does.
    """
    last: dict[str, object] = {}

    def keep_the_last(pairs: list[tuple[str, object]]) -> object:
        nonlocal last
        last = _distinct_keys(pairs)
        return INSIDE

    # the parser reports objects as they end, so the outermost one comes last
    outline = _parsed(data, source, max_bytes, keep_the_last, _refuse_constant)
    return last if outline is INSIDE else None


def _parsed(
    data: bytes,
    source: str,
    max_bytes: int,
    of_pairs: Callable[[list[tuple[str, object]]], object],
    of_constant: Callable[[str], object],
) -> object:
    if len(data) > max_bytes:
        raise DocumentError(
            f"{source}: {len(data):,} bytes, the limit is {max_bytes:,}",
            hint="This is not the expected file; create it again.",
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError(f"{source}: not UTF-8 at byte {error.start}", hint=AGAIN) from error
    if not text.strip():
        raise DocumentError(f"{source}: not valid JSON: it is empty", hint=AGAIN)
    # before parsing: a RecursionError inside the C scanner says nothing about the file
    _check_depth(text, source)
    try:
        value: object = json.loads(text, object_pairs_hook=of_pairs, parse_constant=of_constant)
    except ValueError as error:
        raise DocumentError(
            f"{source}: not valid JSON: {error}",
            hint=AGAIN,
        ) from error
    return value


def _check_depth(text: str, source: str) -> None:
    """Refuse deep nesting before parsing, because the parser recurses.

    It removes strings, then all else but brackets, then the innermost pairs once for each level.
    """
    # the common case: so few brackets cannot nest too deep
    if sum(map(text.count, "[]{}")) <= MAX_DEPTH:
        return
    left = NO_BRACKETS.sub("", STRINGS.sub("", text))
    # each pass removes the innermost pairs, so what is left after the last pass is nested deeper
    for _ in range(MAX_DEPTH):
        shorter = INNERMOST.sub("", left)
        if len(shorter) == len(left):
            break
        left = shorter
    if INNERMOST.search(left) or len(left) > MAX_DEPTH:
        raise DocumentError(f"{source}: nested deeper than {MAX_DEPTH} levels", hint=AGAIN)


def _distinct_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    distinct = dict(pairs)
    # RFC 8259, section 4: what readers do with two equal keys is unpredictable
    if len(distinct) < len(pairs):
        known = set[str]()
        for key, _ in pairs:
            if key in known:
                message = f"key {key[:80]!r} is given twice"
                raise ValueError(message)
            known.add(key)
    return distinct


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is not a JSON number"
    raise ValueError(message)
