"""Deterministic JSON text: a compact form for digests, and a form for people who review a diff."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

INDENT = "  "
# values that are always on one line
PLAIN: Final = (str, int, float, type(None))
# one shared encoder: `json.dumps` would make a new one for each of up to a million facts
INLINE = json.JSONEncoder(sort_keys=True, allow_nan=False, ensure_ascii=False)


def canonical_json(value: object) -> bytes:
    """Return ASCII JSON with sorted keys and no spaces, the same bytes for a value everywhere."""
    # NaN is not JSON, and readers disagree about it (RFC 8259, section 6)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def canonical_sha256(value: object) -> str:
    """Return the SHA-256 of the canonical text, in lower-case hex.

    `PackedRecords` count as a list of their records. Only one of them is in memory at a time.
    """
    hasher = hashlib.sha256()
    for piece in _canonical(value):
        hasher.update(piece)
    return hasher.hexdigest()


def _canonical(value: object) -> Iterator[bytes]:
    if isinstance(value, PackedRecords) and value:
        yield from _separated(b"[", ((_canonical_fact(row),) for row in value.facts()), b"]")
    elif isinstance(value, dict) and value:
        yield from _separated(
            b"{", (_canonical_item(key, value[key]) for key in sorted(value)), b"}"
        )
    elif isinstance(value, list | tuple) and value:
        yield from _separated(b"[", map(_canonical, value), b"]")
    else:
        yield canonical_json([] if isinstance(value, PackedRecords) else value)


def _canonical_fact(fact: dict[str, object] | list[str]) -> bytes:
    """Return the canonical text of one record, or of some as lines of JSON.

    Their texts contain no space (see `PackedRecords.facts`), so every space can be removed.
    """
    if isinstance(fact, dict):
        return canonical_json(fact)
    return ",".join(fact).replace(" ", "").encode("ascii")


def _canonical_item(key: str, value: object) -> Iterator[bytes]:
    yield canonical_json(key) + b":"
    yield from _canonical(value)


def _separated(opened: bytes, items: Iterable[Iterable[bytes]], closed: bytes) -> Iterator[bytes]:
    before = opened
    for item in items:
        yield before
        yield from item
        before = b","
    yield closed


def reviewable_json(value: object) -> str:
    """Return indented JSON with sorted keys and one fact a line.

    A record inside a list stays on one line. A metric's point or a tensor's digest is such a
    record, so a changed value is a changed line.
    """
    return "".join(reviewable_pieces(value))


def reviewable_pieces(value: object) -> Iterator[str]:
    """Yield the same text in pieces, none longer than one fact or some lines of numbers.

    `PackedRecords` are written as a list of their records.
    """
    yield from _pieces(value, 0)
    yield "\n"


def _pieces(value: object, depth: int) -> Iterator[str]:
    pad, close = INDENT * (depth + 1), INDENT * depth
    if isinstance(value, PackedRecords) and value:
        yield from _facts(value, pad, depth)
        yield f"\n{close}]"
    elif isinstance(value, dict) and value:
        yield from _of_record(value, pad, depth)
        yield f"\n{close}}}"
    elif isinstance(value, list | tuple) and value:
        before = "[\n"
        for item in value:
            yield from _item(before + pad, item, depth)
            before = ",\n"
        yield f"\n{close}]"
    else:
        yield _inline(value)


def _of_record(record: dict[str, object], pad: str, depth: int) -> Iterator[str]:
    before = "{\n"
    for key in sorted(record):
        begun, value = f"{before}{pad}{_inline(key)}: ", record[key]
        # most values are on the line of their key: avoid a generator for each
        if isinstance(value, PLAIN):
            yield begun + _inline(value)
        else:
            yield begun
            yield from _pieces(value, depth + 1)
        before = ",\n"


def _facts(records: PackedRecords[Any], pad: str, depth: int) -> Iterator[str]:
    before = "[\n"
    for fact in records.facts():
        if isinstance(fact, dict):
            yield from _item(before + pad, fact, depth)
        else:
            # there may be millions of lines: avoid a piece for each
            yield before + pad
            yield f",\n{pad}".join(fact)
        before = ",\n"


def _item(begun: str, item: object, depth: int) -> Iterator[str]:
    if _is_one_fact(item):
        yield begun + _inline(item)
    else:
        yield begun
        yield from _pieces(item, depth + 1)


def _is_one_fact(item: object) -> bool:
    """Return whether an item is a record of plain values, or of short lists such as a shape."""
    if not isinstance(item, dict):
        return not isinstance(item, list | tuple)
    return all(isinstance(part, PLAIN) or _is_short_list(part) for part in item.values())


def _is_short_list(value: object) -> bool:
    if isinstance(value, dict | PackedRecords):
        return False
    return not (isinstance(value, list | tuple) and any(isinstance(p, dict | list) for p in value))


def _inline(value: object) -> str:
    text = INLINE.encode([] if isinstance(value, PackedRecords) else value)
    if text.isprintable():
        return text
    # characters that reorder or hide text must not deceive a reviewer (CVE-2021-42574)
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text)


Row = TypeVar("Row")


# not in `columns.py`, which needs pydantic: writing JSON alone must import nothing slow
class PackedRecords(Sequence[Row]):
    """Immutable records that need not be in memory all at once."""

    __slots__ = ()

    @abstractmethod
    def facts(self) -> Iterator[dict[str, Any] | list[str]]:
        """Yield the records in order: one as a JSON value, or several, each as a line of JSON.

        The keys of a line are sorted, and its texts are ASCII without spaces. A list has at least
        one line, and few enough to keep in memory.
        """


# the context for data between the gate and its own reader; nobody else reads what it writes
PACKED: Final = "packed"
