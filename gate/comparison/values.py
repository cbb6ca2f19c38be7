"""A plain value of a saved state for a person: short, escaped, never raw."""

from __future__ import annotations

import math
import struct
from typing import Final

from gate.checkpoint.leaves import ValueLeaf
from gate.text.untrusted_text import short_text

SHOWN_BYTES: Final = 24
# Decimal text of a longer integer takes time that grows with the square of its length.
DECIMAL_BYTES: Final = 32
TEXT_KINDS: Final = frozenset(("text", "name", "object"))
MAX_TEXT_BYTES: Final = 4 * 200


def shown_value(leaf: ValueLeaf) -> str:
    """The kind of a value and what it is, in at most some hundred printable characters."""
    if leaf.kind == "none" or leaf.kind.startswith("empty"):
        return leaf.kind
    return f"{leaf.kind} {_shown_data(leaf)}"


def _shown_data(leaf: ValueLeaf) -> str:
    number = number_of(leaf)
    if number is not None:
        return repr(bool(number)) if leaf.kind == "bool" else repr(number)
    if leaf.kind in TEXT_KINDS:
        # cut first: a text may be as long as the file
        return short_text(leaf.data[:MAX_TEXT_BYTES].decode("utf-8", "replace"))
    shown = leaf.data[:SHOWN_BYTES].hex()
    return f"0x{shown}" + (f"... ({len(leaf.data):,} bytes)" if shown != leaf.data.hex() else "")


def number_of(leaf: ValueLeaf) -> float | int | None:
    """The number that a value is, or None when it is none, or too long to be written out."""
    if leaf.kind == "float" and len(leaf.data) == struct.calcsize("<d"):
        return float(struct.unpack("<d", leaf.data)[0])
    if leaf.kind in ("int", "bool") and len(leaf.data) <= DECIMAL_BYTES:
        return int.from_bytes(leaf.data, "little", signed=leaf.kind == "int")
    return None


def relative_gap(left: ValueLeaf, right: ValueLeaf) -> float:
    """The difference of two numbers over the larger magnitude; 1 where there is none to take."""
    one, other = number_of(left), number_of(right)
    if one is None or other is None or not (math.isfinite(one) and math.isfinite(other)):
        return 1.0
    scale = max(abs(one), abs(other))
    return float(abs(one / scale - other / scale)) if scale else 0.0
