"""Deterministic JSON text: one form for digests, one for people who review a diff."""

from __future__ import annotations

import json

INDENT = "  "
# one for all: `json.dumps` makes a new one for each of what may be a million facts
INLINE = json.JSONEncoder(sort_keys=True, allow_nan=False, ensure_ascii=False)


def canonical_json(value: object) -> bytes:
    """Sorted keys, no spaces, ASCII: the same value gives the same bytes on every machine."""
    # NaN is no JSON, and two readers would make two things of it (RFC 8259, section 6)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def reviewable_json(value: object) -> str:
    """Indented, keys sorted, one fact a line: a record inside a list keeps to one line.

    A metric's point or a tensor's digest is such a record, so a changed value is a changed line.
    """
    return _render(value, 0) + "\n"


def _render(value: object, depth: int) -> str:
    pad, close = INDENT * (depth + 1), INDENT * depth
    if isinstance(value, dict) and value:
        rows = [f"{pad}{_inline(key)}: {_render(value[key], depth + 1)}" for key in sorted(value)]
        return "{\n" + ",\n".join(rows) + f"\n{close}}}"
    if isinstance(value, list | tuple) and value:
        rows = [pad + _render_item(item, depth + 1) for item in value]
        return "[\n" + ",\n".join(rows) + f"\n{close}]"
    return _inline(value)


def _render_item(item: object, depth: int) -> str:
    return _inline(item) if _is_one_fact(item) else _render(item, depth)


def _is_one_fact(item: object) -> bool:
    """A record of plain values (or of short lists of them, such as a shape)."""
    if not isinstance(item, dict):
        return not isinstance(item, list | tuple)
    return all(
        not isinstance(part, dict)
        and not (isinstance(part, list | tuple) and any(isinstance(p, dict | list) for p in part))
        for part in item.values()
    )


def _inline(value: object) -> str:
    return INLINE.encode(value)
