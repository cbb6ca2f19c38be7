"""The canonical kind and bytes of what is no tensor; docs/digest.md has the table."""

from __future__ import annotations

import struct

from gate.checkpoint.leaves import ValueLeaf
from gate.checkpoint.pickle.nodes import GlobalNode, MapNode, OpaqueNode, SetNode


def value_leaf(path: str, node: object) -> ValueLeaf:
    """A plain value, an empty container, a name or an opaque object as a leaf."""
    kind, data = _kind_and_bytes(node)
    return ValueLeaf(path, kind, data)


def _kind_and_bytes(node: object) -> tuple[str, bytes]:  # noqa: PLR0911 - one line for each kind
    if node is None:
        return "none", b""
    # before int, of which bool is a subclass: True and 1 are different values of a state
    if isinstance(node, bool):
        return "bool", bytes((node,))
    if isinstance(node, int):
        # one bit more than the number needs, for its sign
        return "int", node.to_bytes(node.bit_length() // 8 + 1, "little", signed=True)
    if isinstance(node, float):
        # the bits: they keep 0.0 and -0.0 apart, and one NaN from another
        return "float", struct.pack("<d", node)
    if isinstance(node, str):
        # a pickle can hold half a surrogate pair, which plain UTF-8 cannot write
        return "text", node.encode("utf-8", "surrogatepass")
    if isinstance(node, bytes):
        return "bytes", node
    if isinstance(node, GlobalNode):
        return "name", node.shown.encode("utf-8", "surrogatepass")
    if isinstance(node, OpaqueNode):
        return "object", node.made_by.encode("utf-8", "surrogatepass")
    return _empty_kind(node), b""


def _empty_kind(node: object) -> str:
    """Containers are leaves only while they hold nothing."""
    if isinstance(node, MapNode):
        return "empty map"
    return "empty set" if isinstance(node, SetNode) else "empty sequence"
