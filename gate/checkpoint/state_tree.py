"""Walks an interpreted state and names each leaf by its path.

`model` then `layer.weight` is `/model/layer.weight`; position 3 of a sequence is `[3]`, a key that
is no text `{3}`, a member of a set `<3>`. In text keys `~` is written `~0`, `/` is `~1` (RFC 6901),
`[` is `~2`, `{` is `~3` and `<` is `~4`, so no two places share a name.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.checkpoint.hostile_file import short_text
from gate.checkpoint.numpy_nodes import ArrayNode, DtypeNode
from gate.checkpoint.pickle_calls import StateError, fault
from gate.checkpoint.pickle_nodes import MapNode, OpaqueNode, SetNode, TensorNode

MAX_DEPTH = 200
MAX_VISITS = 1_000_000
MAX_PATH = 900
MAX_KEY_BITS = 64
Child = tuple[str, object]
ESCAPED = frozenset("~/[{<")
ESCAPES = str.maketrans({"~": "~0", "/": "~1", "[": "~2", "{": "~3", "<": "~4"})


def leaves(root: object) -> Iterator[tuple[str, object]]:
    """Each leaf with its path: plain values, tensors, empty containers, and opaque nodes.

    An opaque node is a leaf and what it holds are leaves below it. The order has no meaning.
    Raises `StateError` when the state is nested too deep (or contains itself), is too large, or
    has a key that cannot be a name. Nothing here recurses.
    """
    waiting: list[tuple[str, object, int]] = [("", root, 0)]
    visits = 0
    while waiting:
        path, node, depth = waiting.pop()
        if isinstance(node, ArrayNode | DtypeNode):
            node = node.value()
        children = _children(node)
        if not children or isinstance(node, OpaqueNode):
            yield path, node
        if not children:
            continue
        visits += len(children)
        if depth >= MAX_DEPTH:
            raise fault(f"is nested deeper than {MAX_DEPTH} levels, or contains itself")
        if visits > MAX_VISITS:
            raise fault(f"holds more than {MAX_VISITS:,} values")
        _check_names(path, children)
        for part, child in children:
            # tensors are most of a state, and have no children
            if type(child) is TensorNode:
                yield path + part, child
            else:
                waiting.append((path + part, child, depth + 1))


def _check_names(path: str, children: list[Child]) -> None:
    """All at once, and one by one only where that finds a fault."""
    parts = [part for part, _ in children]
    if "".join(parts).isprintable() and len(path) + max(map(len, parts)) <= MAX_PATH:
        return
    for part in parts:
        if len(path) + len(part) > MAX_PATH or not part.isprintable():
            raise _bad_name(part)


def _bad_name(part: str) -> StateError:
    return fault(
        f"key {short_text(part)} is above {MAX_PATH} characters or not printable",
        hint="Save the state under short plain names.",
    )


def _children(node: object) -> list[Child] | None:
    """The named parts of a node, or None when it is a leaf."""
    if isinstance(node, MapNode):
        return _map_children(node)
    if isinstance(node, list | tuple):
        return [(f"[{index}]", item) for index, item in enumerate(node)]
    if isinstance(node, SetNode):
        # A set has no order of its own: plain values take one from their text.
        members = sorted(node.items, key=_set_order)
        return [(f"<{index}>", item) for index, item in enumerate(members)]
    return _opaque_children(node) if isinstance(node, OpaqueNode) else None


def _map_children(node: MapNode) -> list[Child]:
    keys = [key for key, _ in node.pairs if type(key) is str]
    if len(keys) == len(node.pairs) and ESCAPED.isdisjoint("".join(keys)):
        children = [(f"/{key}", value) for key, value in node.pairs]
    else:
        children = [(_key_part(key), value) for key, value in node.pairs]
    if node.attributes:
        children += _numbered("/~attributes", node.attributes)
    return children


def _opaque_children(node: OpaqueNode) -> list[Child]:
    return [
        *_numbered("/~arguments", node.arguments),
        *_numbered("/~items", node.items),
        *_numbered("/~states", node.states),
        *((_key_part(key), value) for key, value in node.pairs),
    ]


def _numbered(before: str, items: list[object] | tuple[object, ...]) -> list[Child]:
    return [(f"{before}[{index}]", item) for index, item in enumerate(items)]


def _set_order(item: object) -> tuple[str, str]:
    if isinstance(item, bool | int | float | str | bytes):
        return type(item).__name__, _plain_text(item)
    return "", ""


def _plain_text(value: float | str | bytes) -> str:
    """Hexadecimal for integers: decimal text of a hostile one takes for ever."""
    return f"{value:x}" if type(value) is int else repr(value)


def text_part(key: str) -> str:
    """A text key as a part of a path."""
    return "/" + (key if ESCAPED.isdisjoint(key) else key.translate(ESCAPES))


def _key_part(key: object) -> str:
    if isinstance(key, str):
        return "/" + key if key.isidentifier() else text_part(key)
    if key is None or isinstance(key, bool | float | bytes):
        return f"{{{key!r}}}"
    if isinstance(key, int) and key.bit_length() <= MAX_KEY_BITS:
        return f"{{{key}}}"
    raise _key_fault(key)


def _key_fault(key: object) -> StateError:
    return fault(
        f"has a key of type {type(key).__name__}, which has no plain name",
        hint="Use text or numbers as keys of the saved state.",
    )
