"""Check that everything a pickle calls and imports is part of the state that it ends with.

An object that a pickle creates and drops is in no digest. Loading the file would still create it,
and so run the code that it is made by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gate.checkpoint.pickle.calls import (
    AttributedNode,
    GlobalNode,
    MapNode,
    OpaqueNode,
    SetNode,
    fault,
)
from gate.checkpoint.pickle.tensor_nodes import ArrayNode, DtypeNode
from gate.text.untrusted_text import short_text

# Modules of calls that stand for plain values, so their names are in no leaf.
PLAIN_MODULES: Final = frozenset({
    "_codecs", "builtins", "collections", "numpy", "numpy.core.multiarray", "numpy.core.numeric",
    "torch", "torch._tensor", "torch._utils", "torch.cuda", "torch.nested._internal.nested_tensor",
    "torch.nn.parameter", "torch.serialization", "torch.storage",
})  # fmt: skip
# torch.compile notes this range of a size in the cache of a jagged tensor, which is left out.
DROPPED: Final = frozenset({"torch._dynamo.decorators:_DimRange"})


def check_reached(root: object, objects: Iterable[OpaqueNode], names: Iterable[GlobalNode]) -> None:
    """Raise `StateError` for an object or a name that the final state does not contain."""
    made = {id(node): node for node in objects if node.made_by not in DROPPED}
    needed = {name.shown for name in names if name.module not in PLAIN_MODULES} - DROPPED
    if not made and not needed:
        return
    for node in _reachable(root):
        if isinstance(node, OpaqueNode):
            made.pop(id(node), None)
            needed.discard(node.made_by)
        elif isinstance(node, GlobalNode):
            needed.discard(node.shown)
    dropped = sorted({node.made_by for node in made.values()} | needed)
    if dropped:
        raise fault(
            f"uses {short_text(dropped[0].replace(':', '.'))} when it is loaded, for nothing that "
            "is part of the state",
            hint="This checkpoint may run code when it is loaded: do not load it anywhere, and "
            "check what the change does.",
        )


def _reachable(root: object) -> Iterator[object]:
    """Yield every node below `root` once.

    It does not recurse, because a pickle may nest its values as deep as it likes.
    """
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is None or isinstance(node, bool | int | float | str | bytes) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        waiting.extend(_below(node))


def _below(node: object) -> Iterator[object]:
    match node:
        case list() | tuple():
            yield from node
        case SetNode():
            yield from node.items
        case MapNode():
            yield from (part for pair in node.pairs for part in pair)
            yield from node.attributes
        case OpaqueNode():
            yield from node.arguments
            yield from (part for pair in node.pairs for part in pair)
            for more in (node.keywords, node.items, node.states):
                yield from more
        case AttributedNode():
            yield from (node.tensor, node.kind, *node.attributes)
        case ArrayNode() | DtypeNode():
            yield from node.states
