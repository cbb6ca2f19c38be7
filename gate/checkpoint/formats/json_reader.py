"""Reads plain JSON into the leaves that the same values have in a pickle."""

from __future__ import annotations

from gate.checkpoint.leaves import StateContent
from gate.checkpoint.node_leaves import no_storages, node_leaves
from gate.checkpoint.pickle.calls import StateError
from gate.checkpoint.pickle.nodes import MapNode
from gate.checkpoint.untrusted_files import UntrustedFile
from gate.text.strict_json import parse_json

FORMAT = "JSON"
MAX_JSON_BYTES = 64 * 1024 * 1024
# The vocabulary of a language model has more: as a file it is better compared by its bytes.
MAX_VALUES = 300_000
BEGINNINGS = (b"{", b"[")
BLANKS = b" \t\r\n"


def is_json(head: bytes) -> bool:
    """Whether a file that begins with these bytes is meant as an object or a list."""
    return head.lstrip(BLANKS).startswith(BEGINNINGS)


def read_json(opened: UntrustedFile) -> StateContent:
    """Every value as a leaf; NaN and infinities count, since trainers write them.

    Raises `EvidenceError` (or `DocumentError`, which `open_untrusted` turns into one) naming the
    file and what is wrong with it.
    """
    if opened.size_bytes > MAX_JSON_BYTES:
        raise opened.fault(f"JSON larger than {MAX_JSON_BYTES:,} bytes")
    data = opened.read_at(0, opened.size_bytes)
    # counted before anything is built of it: an empty list costs two bytes here and 56 there
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise opened.fault(f"JSON with more than {MAX_VALUES:,} values")
    # trainers write NaN as a word that JSON does not have; refusing it would hide a diverged loss
    value = parse_json(data, opened.shown, max_bytes=MAX_JSON_BYTES, non_finite=True)
    try:
        leaves = tuple(node_leaves(_node(value), no_storages))
    except StateError as error:
        raise opened.fault(error.message, hint=error.hint) from error
    return StateContent(shown=opened.shown, format=FORMAT, leaves=leaves)


def _node(value: object) -> object:
    """Objects as maps; the parser has bounded how deep they are nested."""
    if isinstance(value, dict):
        return MapNode([(key, _node(item)) for key, item in value.items()])
    return [_node(item) for item in value] if isinstance(value, list) else value
