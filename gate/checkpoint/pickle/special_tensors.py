"""Tensors that are more than one run of elements: what they consist of stands below their path.

Source: `torch/_utils.py` and `torch/nested/_internal/nested_tensor.py` of torch 2.13.
"""

from __future__ import annotations

from typing import Final

from gate.checkpoint.pickle.calls import (
    TENSOR_CALLS,
    Arguments,
    Call,
    fault,
    rebuild_quantized,
)
from gate.checkpoint.pickle.nodes import GlobalNode, MapNode, OpaqueNode, TensorNode
from gate.checkpoint.pickle.tensor_nodes import ArrayNode

COMPRESSED: Final = {
    "torch.sparse_csr": ("row_offsets", "columns"),
    "torch.sparse_csc": ("column_offsets", "rows"),
    "torch.sparse_bsr": ("row_offsets", "columns"),
    "torch.sparse_bsc": ("column_offsets", "rows"),
}
QUANTIZED_TENSORS = ("per_tensor_affine", "per_tensor_symmetric")
QUANTIZED_CHANNELS = (
    "per_channel_affine", "per_channel_symmetric", "per_channel_affine_float_qparams",
)  # fmt: skip


def _parts(made_by: str, **parts: object) -> OpaqueNode:
    return OpaqueNode(made_by, (), pairs=list(parts.items()))


def _layout(arguments: Arguments) -> object:
    """A layout is its name."""
    match arguments:
        case (str() as name,):
            return name
    return None


def _sparse(arguments: Arguments) -> object:
    match arguments:
        case ("torch.sparse_coo", (indices, values, tuple() as size, *coalesced)):
            # one index may stand there several times, so equal matrices can have different bytes
            if coalesced == [False]:
                raise fault(
                    "holds a sparse tensor that is not coalesced, so its elements have no order",
                    hint="Save tensor.coalesce().",
                )
            return _parts("torch.sparse_coo", size=size, indices=indices, values=values)
        case (str() as layout, (offsets, indices, values, tuple() as size)) if layout in COMPRESSED:
            first, second = COMPRESSED[layout]
            return _parts(layout, size=size, values=values, **{first: offsets, second: indices})
    raise fault(
        "holds a sparse tensor of an unknown layout",
        hint="Save tensor.to_dense(), or a COO, CSR, CSC, BSR or BSC tensor.",
    )


def _quantized(arguments: Arguments) -> object:
    elements, kind = rebuild_quantized(arguments)
    match arguments[4:5]:
        case ((GlobalNode(module="torch", name=scheme), scale, zero),) if (
            scheme in QUANTIZED_TENSORS
        ):
            return _parts(
                f"torch.{scheme}", dtype=kind, int_repr=elements, scale=scale, zero_point=zero
            )
        case ((GlobalNode(module="torch", name=scheme), scales, zeros, int() as axis),) if (
            scheme in QUANTIZED_CHANNELS
        ):
            return _parts(
                f"torch.{scheme}", dtype=kind, int_repr=elements, scale=scales, zero_point=zeros,
                axis=axis,
            )  # fmt: skip
    raise fault(
        "holds a quantized tensor of an unknown scheme",
        hint="Save tensor.dequantize(), or a tensor quantized per tensor or per channel.",
    )


def _nested(arguments: Arguments) -> object:
    match arguments:
        case (buffer, sizes, strides, offsets):
            return _parts(
                "torch.nested", values=buffer, sizes=sizes, strides=strides, offsets=offsets
            )
    return None


def _jagged(arguments: Arguments) -> object:
    """Caches of lengths and gradients are left out: they follow from the rest."""
    match arguments:
        case (MapNode() as told,):
            known = {key: value for key, value in told.pairs if isinstance(key, str)}
            return _parts(
                "torch.jagged",
                **{name.strip("_"): known.get(name) for name in (
                    "values", "offsets", "lengths", "_ragged_idx",
                )},
            )  # fmt: skip
    return None


def _subclass(arguments: Arguments) -> object:
    """A subclass that torch wraps around one of these calls; its attributes are caches."""
    match arguments:
        case (GlobalNode() as function, _, tuple() as inner, *_):
            rebuild = SPECIAL_CALLS.get(function.key) or TENSOR_CALLS.get(function.key)
            # never itself: torch wraps once, and a pickle could nest it deeper than the stack is
            return rebuild(inner) if rebuild and rebuild is not _subclass else None
    return None


def _from_numpy(arguments: Arguments) -> object:
    """Some devices save their tensors as NumPy arrays, those of bfloat16 in another dtype."""
    match arguments:
        case (ArrayNode() as array, GlobalNode(module="torch", name=name), *_):
            # NumPy has no bfloat16, so torch writes float32 there: other bytes than the tensor's
            return array if name != "bfloat16" else None
    return None


def _same(arguments: Arguments) -> object:
    """A parameter is its tensor: whether it asks for gradients is no part of its value."""
    match arguments:
        case (TensorNode() | OpaqueNode() | ArrayNode() as tensor, *_):
            return tensor
    return None


SPECIAL_CALLS: Final[dict[tuple[str, str], Call]] = {
    ("torch.serialization", "_get_layout"): _layout,
    ("torch._utils", "_rebuild_sparse_tensor"): _sparse,
    ("torch._utils", "_rebuild_sparse_csr_tensor"): _sparse,
    ("torch._utils", "_rebuild_qtensor"): _quantized,
    ("torch._utils", "_rebuild_nested_tensor"): _nested,
    ("torch.nested._internal.nested_tensor", "_rebuild_njt"): _jagged,
    ("torch._utils", "_rebuild_device_tensor_from_numpy"): _from_numpy,
    ("torch._utils", "_rebuild_parameter"): _same,
    ("torch._utils", "_rebuild_parameter_with_state"): _same,
    ("torch._tensor", "_rebuild_from_type_v2"): _subclass,
}
