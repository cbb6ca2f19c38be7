"""Walks an interpreted state and names each leaf by its path.

`model` then `layer.weight` is `/model/layer.weight`; index or integer key 3 is `[3]`. In text keys
`~` is written `~0`, `/` is `~1` (RFC 6901) and `[` is `~2`, so no two places share a name.
"""

from __future__ import annotations

from collections.abc import Iterator

from gate.evidence.hostile_file import short_text
from gate.evidence.pickle_calls import StateError, fault
from gate.evidence.pickle_nodes import MapNode, OpaqueNode, SetNode

MAX_DEPTH = 200
MAX_VISITS = 1_000_000
MAX_PATH = 900
MAX_KEY_BITS = 64
Child = tuple[str, object]


def leaves(root: object) -> Iterator[tuple[str, object]]:
    """Each leaf with its path, opaque nodes before what they hold; the order has no meaning.

    Raises `StateError` when the state is nested too deep (or contains itself), is too large, or
    has a key that cannot be a name. Nothing here recurses.
    """
    waiting: list[tuple[str, object, int]] = [("", root, 0)]
    visits = 0
    while waiting:
        path, node, depth = waiting.pop()
        children = _children(node)
        if children is None or isinstance(node, OpaqueNode):
            yield path, node
        for part, child in children or ():
            visits += 1
            _check_limits(path, part, depth, visits)
            waiting.append((path + part, child, depth + 1))


def _check_limits(path: str, part: str, depth: int, visits: int) -> None:
    if depth >= MAX_DEPTH:
        raise fault(f"is nested deeper than {MAX_DEPTH} levels, or contains itself")
    if visits > MAX_VISITS:
        raise fault(f"holds more than {MAX_VISITS:,} values")
    if len(path) + len(part) > MAX_PATH or not part.isprintable():
        raise fault(
            f"key {short_text(part)} is above {MAX_PATH} characters or not printable",
            hint="Save the state under short plain names.",
        )


def _children(node: object) -> Iterator[Child] | None:
    """The named parts of a node, or None when it is a leaf."""
    if isinstance(node, MapNode):
        return _map_children(node)
    if isinstance(node, list | tuple):
        return _numbered("", node)
    if isinstance(node, SetNode):
        # A set has no order of its own: plain values take one from their text.
        return _numbered("", sorted(node.items, key=_set_order))
    return _opaque_children(node) if isinstance(node, OpaqueNode) else None


def _numbered(before: str, items: list[object] | tuple[object, ...]) -> Iterator[Child]:
    return ((f"{before}[{index}]", item) for index, item in enumerate(items))


def _map_children(node: MapNode) -> Iterator[Child]:
    for key, value in node.pairs:
        yield _key_part(key), value
    yield from _numbered("/~attributes", node.attributes)


def _opaque_children(node: OpaqueNode) -> Iterator[Child]:
    yield from _numbered("/~arguments", node.arguments)
    yield from _numbered("/~items", node.items)
    yield from _numbered("/~states", node.states)
    for key, value in node.pairs:
        yield _key_part(key), value


def _set_order(item: object) -> tuple[str, str]:
    if isinstance(item, bool | int | float | str | bytes):
        return type(item).__name__, _plain_text(item)
    return "", ""


def _plain_text(value: float | str | bytes) -> str:
    """Hexadecimal for integers: decimal text of a hostile one takes for ever."""
    return f"{value:x}" if type(value) is int else repr(value)


def text_part(key: str) -> str:
    """A text key as a part of a path."""
    return "/" + key.replace("~", "~0").replace("/", "~1").replace("[", "~2")


def _key_part(key: object) -> str:
    if isinstance(key, str):
        return text_part(key)
    if key is None or isinstance(key, bool | float | bytes):
        return f"[{key!r}]"
    if isinstance(key, int) and key.bit_length() <= MAX_KEY_BITS:
        return f"[{key}]"
    raise _key_fault(key)


def _key_fault(key: object) -> StateError:
    return fault(
        f"has a key of type {type(key).__name__}, which has no plain name",
        hint="Use text or numbers as keys of the saved state.",
    )
