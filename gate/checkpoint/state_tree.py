"""Walk an interpreted state, and name each leaf by its path.

`layer.weight` in `model` is `/model/layer.weight`. Position 3 of a sequence is `[3]`, a key that is
not text `{3}`, and a member of a set `<3>`. In text keys `~` is written `~0`, `/` is `~1` (RFC
6901), `[` is `~2`, `{` is `~3` and `<` is `~4`, so no two places share a name. docs/digest.md
specifies all of this.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator

from gate.checkpoint.byte_sources import ColumnMajor, FlippedSigns, little_endian
from gate.checkpoint.leaves import (
    COMPLEX_DTYPES,
    ELEMENT_BYTES,
    HeldBytes,
    Leaf,
    TensorLeaf,
    TensorSource,
    ValueLeaf,
)
from gate.checkpoint.pickle.calls import (
    AttributedNode,
    GlobalNode,
    MapNode,
    OpaqueNode,
    PartsNode,
    SetNode,
    StateError,
    StorageNode,
    TensorNode,
    fault,
)
from gate.checkpoint.pickle.tensor_nodes import ArrayNode, DtypeNode, HeldTensor
from gate.text.digests import field
from gate.text.untrusted_text import short_text


def value_leaf(path: str, node: object) -> ValueLeaf:
    """Return a plain value, an empty container, a name or an opaque object as a leaf."""
    kind, data = _kind_and_bytes(node)
    return ValueLeaf(path, kind, data)


def _kind_and_bytes(node: object) -> tuple[str, bytes]:  # noqa: PLR0911 - one line for each kind
    if node is None:
        return "none", b""
    # `bool` is a subclass of `int`, and True and 1 are different values of a state
    if isinstance(node, bool):
        return "bool", bytes((node,))
    if isinstance(node, int):
        # one bit more than the number needs, for the sign
        return "int", node.to_bytes(node.bit_length() // 8 + 1, "little", signed=True)
    if isinstance(node, float):
        # the bits distinguish 0.0 from -0.0, and one NaN from another
        return "float", struct.pack("<d", node)
    if isinstance(node, str):
        # a pickle may contain half of a surrogate pair, which strict UTF-8 cannot encode
        return "text", node.encode("utf-8", "surrogatepass")
    if isinstance(node, bytes):
        return "bytes", node
    if isinstance(node, GlobalNode):
        return "name", node.shown.encode("utf-8", "surrogatepass")
    if isinstance(node, OpaqueNode):
        return "object", node.made_by.encode("utf-8", "surrogatepass")
    return _empty_kind(node), b""


def _empty_kind(node: object) -> str:
    """Return the kind of an empty container; a container with members is not a leaf."""
    if isinstance(node, MapNode):
        return "empty map"
    return "empty set" if isinstance(node, SetNode) else "empty sequence"


SourceOf = Callable[[TensorNode], TensorSource]
REAL_DTYPES = frozenset(("F16", "BF16", "F32", "F64"))


def node_leaves(root: object, source_of: SourceOf) -> list[Leaf]:
    """Return every leaf of a state; `source_of` returns the source of a tensor's bytes.

    Raises `StateError` for a state that cannot be walked, and any error of `source_of`.
    """
    return [
        # fast path for nearly all leaves of a large state: a tensor without flipped signs
        TensorLeaf(path, node.dtype, node.shape, source_of(node))
        if type(node) is TensorNode and not node.conjugated and not node.negated
        else _leaf(path, node, source_of)
        for path, node in leaves(root)
    ]


def below(prefix: str, leaves: Iterable[Leaf]) -> list[Leaf]:
    """Return the same leaves with a prefix before their paths."""
    return [leaf._replace(path=prefix + leaf.path) for leaf in leaves]


def no_storages(tensor: TensorNode) -> TensorSource:
    """Raise `StateError`: the source of a tensor in a file format without storages."""
    del tensor
    raise fault("refers to a storage, but this file format has none")


def _leaf(path: str, node: object, source_of: SourceOf) -> Leaf:
    if isinstance(node, StorageNode):
        node = TensorNode(node, node.dtype, 0, (node.length,), (1,))
    if isinstance(node, TensorNode):
        return TensorLeaf(path, node.dtype, node.shape, _with_signs(node, source_of(node)))
    if isinstance(node, HeldTensor):
        return TensorLeaf(path, node.dtype, node.shape, _held_source(node))
    return value_leaf(path, node)


def _held_source(tensor: HeldTensor) -> TensorSource:
    source = little_endian(HeldBytes(tensor.data), tensor.dtype, tensor.order)
    if tensor.by_column and len(tensor.shape) > 1 and tensor.data:
        return ColumnMajor(source, tensor.shape, ELEMENT_BYTES[tensor.dtype])
    return source


def _with_signs(tensor: TensorNode, source: TensorSource) -> TensorSource:
    """Return the bytes of the tensor's values.

    Torch may store the original bytes with a mark that signs are to be flipped.
    """
    if not tensor.conjugated and not tensor.negated:
        return source
    width = ELEMENT_BYTES[tensor.dtype]
    if tensor.dtype in COMPLEX_DTYPES:
        # with both marks the sign of the imaginary part is flipped twice, which is not at all
        flips = (tensor.negated, tensor.negated != tensor.conjugated)
        return FlippedSigns(source, width // 2, flips)
    if tensor.dtype in REAL_DTYPES and not tensor.conjugated:
        return FlippedSigns(source, width, (True,))
    raise fault(
        f"holds a tensor of {tensor.dtype} that is marked as conjugated or negated",
        hint="Save tensor.resolve_conj().resolve_neg().",
    )


MAX_DEPTH = 200
MAX_VISITS = 1_000_000
# Limits for all leaves together. Through the memo a single value or key of the pickle can occur in
# many places, so the size of the file does not limit them.
MAX_VALUE_BYTES = 128 * 1024 * 1024
MAX_PATH_CHARACTERS = 64 * 1024 * 1024
MAX_SET_NESTING = 8
MAX_PATH = 900
MAX_KEY_BITS = 64
Child = tuple[str, object]
ESCAPED = frozenset("~/[{<")
ESCAPES = str.maketrans({"~": "~0", "/": "~1", "[": "~2", "{": "~3", "<": "~4"})


class _Budget:
    """How many values, bytes and path characters one walk may still produce.

    Walks inside a set share the budget of the outer walk.
    """

    def __init__(self) -> None:
        self.visits = MAX_VISITS
        self.value_bytes = MAX_VALUE_BYTES
        self.path_characters = MAX_PATH_CHARACTERS

    def check(self, count: int) -> None:
        """Raise `StateError` if `count` more values are too many, before they are built."""
        if count > self.visits:
            raise fault(f"holds more than {MAX_VISITS:,} values")

    def take_children(self, path: str, children: list[Child]) -> None:
        """Count the children of `path`; raises `StateError` if all paths together are too long."""
        self.visits -= len(children)
        self.path_characters -= len(path) * len(children)
        if self.path_characters < 0:
            raise fault(f"has paths of more than {MAX_PATH_CHARACTERS:,} characters together")

    def take_value(self, node: object) -> None:
        """Count the bytes of a value; raises `StateError` if all values together are too large."""
        if isinstance(node, str):
            self.value_bytes -= len(node) if node.isascii() else 4 * len(node)
        elif isinstance(node, bytes):
            self.value_bytes -= len(node)
        elif isinstance(node, int):
            self.value_bytes -= node.bit_length() // 8
        if self.value_bytes < 0:
            raise fault(f"holds more than {MAX_VALUE_BYTES:,} bytes of texts and numbers")


def leaves(root: object) -> Iterator[tuple[str, object]]:
    """Yield each leaf with its path: plain values, tensors, empty containers and opaque nodes.

    An opaque node is a leaf, and its contents are leaves below it. The order has no meaning.

    Raises `StateError` if the state is nested too deep (or contains itself), is too large, or has a
    key that cannot be a name. Only sets inside sets recurse, to at most 8 levels.
    """
    return _walk(root, _Budget(), 0)


def _walk(root: object, budget: _Budget, set_nesting: int) -> Iterator[tuple[str, object]]:
    waiting: list[tuple[str, object, int]] = [("", root, 0)]
    while waiting:
        path, node, depth = waiting.pop()
        if isinstance(node, ArrayNode | DtypeNode):
            node = node.value()
        children = _children(node, budget, set_nesting)
        if not children or isinstance(node, OpaqueNode):
            budget.take_value(node)
            yield path, node
        if not children:
            continue
        budget.check(len(children))
        budget.take_children(path, children)
        # Through the memo a container can contain itself. Only the limit on depth ends such a walk.
        if depth >= MAX_DEPTH:
            raise fault(f"is nested deeper than {MAX_DEPTH} levels, or contains itself")
        _check_names(path, children)
        for part, child in children:
            # Tensors are most of a state and have no children, so they are yielded at once.
            if type(child) is TensorNode:
                yield path + part, child
            else:
                waiting.append((path + part, child, depth + 1))


def _check_names(path: str, children: list[Child]) -> None:
    """Raise `StateError` for a name that is too long or not printable.

    All names are checked at once first; the loop only finds the bad one.
    """
    parts = [part for part, _ in children]
    if "".join(parts).isprintable() and len(path) + max(map(len, parts)) <= MAX_PATH:
        return
    for part in parts:
        if len(path) + len(part) > MAX_PATH or not part.isprintable():
            raise _bad_name(part)


def _bad_name(part: str) -> StateError:
    return fault(
        f"key {short_text(part)} is above {MAX_PATH} characters or not printable",
        hint="Save the state under short plain names; one that contains itself has no end of them.",
    )


def _children(node: object, budget: _Budget, set_nesting: int) -> list[Child] | None:
    """Return the children of a node with their part of the path, or None for a leaf."""
    if isinstance(node, MapNode):
        budget.check(len(node.pairs))
        _check_keys(node)
        return _map_children(node)
    if isinstance(node, list | tuple):
        budget.check(len(node))
        return [(f"[{index}]", item) for index, item in enumerate(node)]
    if isinstance(node, SetNode):
        return _set_children(node, budget, set_nesting)
    if isinstance(node, AttributedNode):
        return _attributed_children(node)
    return _opaque_children(node) if isinstance(node, OpaqueNode) else None


def _check_keys(node: MapNode | OpaqueNode) -> None:
    """Refuse keys that are equal in a dictionary but differ in paths, such as 1, 1.0 and True."""
    numbers = [key for key, _ in node.pairs if isinstance(key, int | float)]
    if len(set(numbers)) != len(numbers):
        raise fault(
            "has a map with two equal keys, and only one of them is loaded",
            hint="Use text as keys of the saved state.",
        )


def _attributed_children(node: AttributedNode) -> list[Child]:
    """Return the tensor itself, with an empty part of the path, and its class and attributes."""
    kind: list[Child] = [] if node.kind is None else [("/~class", node.kind)]
    return [("", node.tensor), *kind, *_numbered("/~attributes", node.attributes)]


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
    _check_keys(node)
    return [
        *_numbered("/~new" if node.is_new else "/~arguments", node.arguments),
        *_numbered("/~keywords", node.keywords),
        *_numbered("/~items", node.items),
        *_numbered("/~states", node.states),
        *((_key_part(key), value) for key, value in node.pairs),
    ]


def _numbered(before: str, items: list[object] | tuple[object, ...]) -> list[Child]:
    return [(f"{before}[{index}]", item) for index, item in enumerate(items)]


def _set_children(node: SetNode, budget: _Budget, set_nesting: int) -> list[Child]:
    """Return the members of a set in the order of their content, because a set has no order."""
    if set_nesting >= MAX_SET_NESTING:
        raise fault(f"nests sets deeper than {MAX_SET_NESTING} levels")
    budget.check(len(node.items))
    contents = [_content(item, budget, set_nesting + 1) for item in node.items]
    if len({equal for _, equal in contents}) != len(contents):
        raise fault(
            "has a set with two equal members, and only one of them is loaded",
            hint="Save a list in place of the set.",
        )
    members = sorted(zip(contents, node.items, strict=True), key=lambda member: member[0][0])
    return [(f"<{index}>", item) for index, (_, item) in enumerate(members)]


def _content(member: object, budget: _Budget, set_nesting: int) -> tuple[bytes, bytes]:
    """Return all leaves of a set's member as bytes that can be sorted, and a second form of them.

    The second form writes equal numbers alike, because 1, 1.0 and True are the same member of a
    set.
    """
    if member is None or isinstance(member, bool | int | float | str | bytes):
        budget.take_value(member)
        return _row("", member), _row("", _as_number(member))
    rows: list[bytes] = []
    equal: list[bytes] = []
    for path, node in _walk(member, budget, set_nesting):
        if isinstance(node, TensorNode | StorageNode | HeldTensor | PartsNode):
            raise fault(
                "holds a set of tensors, whose order depends on memory addresses",
                hint="Save a list or a dictionary instead of the set.",
            )
        rows.append(_row(path, node))
        equal.append(_row(path, _as_number(node)))
    return b"".join(sorted(rows)), b"".join(sorted(equal))


def _as_number(value: object) -> object:
    """Return equal numbers as the same integer, and any other value unchanged."""
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


def _row(path: str, node: object) -> bytes:
    leaf = value_leaf(path, node)
    return field(path.encode()) + field(leaf.kind.encode()) + field(leaf.data)


def text_part(key: str) -> str:
    """Return a text key as a part of a path."""
    return "/" + (key if ESCAPED.isdisjoint(key) else key.translate(ESCAPES))


def _key_part(key: object) -> str:
    if isinstance(key, str):
        return "/" + key if key.isidentifier() else text_part(key)
    # The `repr` keeps 1, 1.0 and True apart: they are one key in a dictionary and three in a
    # pickle.
    if key is None or isinstance(key, bool | float):
        return f"{{{key!r}}}"
    if isinstance(key, bytes) and len(key) <= MAX_PATH // 2:
        return f"{{x{key.hex()}}}"
    if isinstance(key, int) and key.bit_length() <= MAX_KEY_BITS:
        return f"{{{key}}}"
    raise _key_fault(key)


def _key_fault(key: object) -> StateError:
    return fault(
        f"has a key of type {type(key).__name__}, which cannot be a name",
        hint="Use text or numbers as keys of the saved state.",
    )
