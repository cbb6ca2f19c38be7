"""Deterministic JSON text: one form for digests, one for people who review a diff."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

INDENT = "  "
# what is on one line wherever it stands
PLAIN: Final = (str, int, float, type(None))
# one for all: `json.dumps` makes a new one for each of what may be a million facts
INLINE = json.JSONEncoder(sort_keys=True, allow_nan=False, ensure_ascii=False)


def canonical_json(value: object) -> bytes:
    """Sorted keys, no spaces, ASCII: the same value gives the same bytes on every machine."""
    # NaN is no JSON, and two readers would make two things of it (RFC 8259, section 6)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def canonical_sha256(value: object) -> str:
    """SHA-256 of the canonical text, in lower-case hex; `Facts` in it are a list of their records.

    Of long rows one record at a time is in memory.
    """
    hasher = hashlib.sha256()
    for piece in _canonical(value):
        hasher.update(piece)
    return hasher.hexdigest()


def _canonical(value: object) -> Iterator[bytes]:
    if isinstance(value, Facts) and value:
        yield from _separated(b"[", ((_canonical_fact(row),) for row in value.facts()), b"]")
    elif isinstance(value, dict) and value:
        yield from _separated(
            b"{", (_canonical_item(key, value[key]) for key in sorted(value)), b"}"
        )
    elif isinstance(value, list | tuple) and value:
        yield from _separated(b"[", map(_canonical, value), b"]")
    else:
        yield canonical_json([] if isinstance(value, Facts) else value)


def _canonical_fact(fact: dict[str, object] | list[str]) -> bytes:
    """In lines of numbers is no space that counts."""
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
    """Indented, keys sorted, one fact a line: a record inside a list keeps to one line.

    A metric's point or a tensor's digest is such a record, so a changed value is a changed line.
    """
    return "".join(reviewable_pieces(value))


def reviewable_pieces(value: object) -> Iterator[str]:
    """The same text in pieces, none longer than one fact or some lines of numbers.

    `Facts` in it are a list of their records.
    """
    yield from _pieces(value, 0)
    yield "\n"


def _pieces(value: object, depth: int) -> Iterator[str]:
    pad, close = INDENT * (depth + 1), INDENT * depth
    if isinstance(value, Facts) and value:
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
        # most values stand on the line of their key: no generator for each
        if isinstance(value, PLAIN):
            yield begun + _inline(value)
        else:
            yield begun
            yield from _pieces(value, depth + 1)
        before = ",\n"


def _facts(facts: Facts[Any], pad: str, depth: int) -> Iterator[str]:
    before = "[\n"
    for fact in facts.facts():
        if isinstance(fact, dict):
            yield from _item(before + pad, fact, depth)
        else:
            # there may be millions of lines: no piece for each
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
    """A record of plain values (or of short lists of them, such as a shape)."""
    if not isinstance(item, dict):
        return not isinstance(item, list | tuple)
    return all(isinstance(part, PLAIN) or _is_short_list(part) for part in item.values())


def _is_short_list(value: object) -> bool:
    if isinstance(value, dict | Facts):
        return False
    return not (isinstance(value, list | tuple) and any(isinstance(p, dict | list) for p in value))


def _inline(value: object) -> str:
    text = INLINE.encode([] if isinstance(value, Facts) else value)
    if text.isprintable():
        return text
    # what turns or hides text must not do so where somebody reviews it (CVE-2021-42574)
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text)


Row = TypeVar("Row")


# Apart from `columns.py`, which needs pydantic: writing JSON alone imports nothing slow.
class Facts(Sequence[Row]):
    """Records that never change, of which no more than one has to be in memory."""

    __slots__ = ()

    @abstractmethod
    def facts(self) -> Iterator[dict[str, Any] | list[str]]:
        """The records in their order: one as JSON has it, or some, each as a line of JSON.

        The keys of a line are sorted, and no text in it has a space or more than ASCII. There is
        one line at least, and no more than can be held.
        """


# between the gate and its own reading process: what is written in this context, it alone reads
PACKED: Final = "packed"
