"""Makes leaves of an interpreted state, whatever file it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gate.checkpoint.byte_sources import ColumnMajor, FlippedSigns, little_endian
from gate.checkpoint.dtypes import COMPLEX_DTYPES, ELEMENT_BYTES
from gate.checkpoint.leaves import HeldBytes, Leaf, TensorLeaf, TensorSource
from gate.checkpoint.pickle.calls import fault
from gate.checkpoint.pickle.nodes import StorageNode, TensorNode
from gate.checkpoint.pickle.tensor_nodes import HeldTensor
from gate.checkpoint.plain_values import value_leaf
from gate.checkpoint.state_tree import leaves as tree_leaves

SourceOf = Callable[[TensorNode], TensorSource]
REAL_DTYPES = frozenset(("F16", "BF16", "F32", "F64"))


def node_leaves(root: object, source_of: SourceOf) -> list[Leaf]:
    """Every leaf of a state; `source_of` tells where the bytes of a tensor lie.

    Raises `StateError` for a state that cannot be walked, and whatever `source_of` raises.
    """
    return [_leaf(path, node, source_of) for path, node in tree_leaves(root)]


def below(prefix: str, leaves: Iterable[Leaf]) -> list[Leaf]:
    """The same leaves under another path."""
    return [leaf._replace(path=prefix + leaf.path) for leaf in leaves]


def no_storages(tensor: TensorNode) -> TensorSource:
    """The sources of a file that has no place for storages."""
    del tensor
    raise fault("refers to a storage, but it is no file that has any")


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
    """The bytes that the tensor means: torch may only note that signs are to be flipped."""
    if not tensor.conjugated and not tensor.negated:
        return source
    width = ELEMENT_BYTES[tensor.dtype]
    if tensor.dtype in COMPLEX_DTYPES:
        # the imaginary part is turned twice where both are set, and so not at all
        flips = (tensor.negated, tensor.negated != tensor.conjugated)
        return FlippedSigns(source, width // 2, flips)
    if tensor.dtype in REAL_DTYPES and not tensor.conjugated:
        return FlippedSigns(source, width, (True,))
    raise fault(
        f"holds a tensor of {tensor.dtype} that is marked as conjugated or negated",
        hint="Save tensor.resolve_conj().resolve_neg().",
    )
