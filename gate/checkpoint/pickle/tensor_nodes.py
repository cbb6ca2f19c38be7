"""What NumPy writes into a pickle, and tensors that are more than one run of elements.

Source: `ndarray.__reduce__`, `dtype.__reduce__` and `numpy.lib.format` of NumPy 1.26 and 2.4. An
array becomes a tensor, a scalar the plain number, anything else an object with what it was made of.

Source: `torch/_utils.py` and `torch/nested/_internal/nested_tensor.py` of torch 2.13.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Final

from gate.checkpoint.leaves import ELEMENT_BYTES
from gate.checkpoint.pickle.calls import (
    MAX_INTEGER,
    TENSOR_CALLS,
    Arguments,
    Call,
    GlobalNode,
    MapNode,
    OpaqueNode,
    TensorNode,
    fault,
    opaque_call,
    rebuild_quantized,
)

# What every NumPy can have.
MAX_DIMENSIONS = 32
BIG_ENDIAN = ">"
# Kind and bytes of an element, as NumPy spells it.
NUMPY_DTYPES: Final = {
    "b1": "BOOL", "?": "BOOL", "u1": "U8", "i1": "I8", "u2": "U16", "i2": "I16", "u4": "U32",
    "i4": "I32", "u8": "U64", "i8": "I64", "f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64",
    "c16": "C128",
}  # fmt: skip
FLOATS: Final = {"F16": "e", "F32": "f", "F64": "d"}
COMPLEX_NUMBER: Final = GlobalNode("builtins", "complex")
COMPLEX: Final = {"C64": "2f", "C128": "2d"}


@dataclass(slots=True, eq=False)
class DtypeNode:
    """A NumPy dtype; the state that follows tells its order of bytes."""

    code: str
    states: list[object] = field(default_factory=list)

    @property
    def order(self) -> str:
        """`<`, `>` or `|`."""
        match self.states:
            case [(_, "<" | ">" | "|" as order, *_)]:
                return str(order)
        return "<"

    def value(self) -> object:
        """An object: a dtype on its own is no number."""
        return OpaqueNode("numpy.dtype", (self.code,), states=self.states)


@dataclass(slots=True, eq=False)
class ArrayNode:
    """A NumPy array; it is empty until its state follows."""

    states: list[object] = field(default_factory=list)

    def value(self) -> object:
        """The array as a `HeldTensor`, or as an object when its elements are no numbers."""
        match self.states:
            case [(_, tuple() as shape, DtypeNode() as dtype, bool() as by_column, data)]:
                return _array_value(shape, dtype, data, by_column=by_column)
        raise fault("holds a NumPy array with an invalid state")


@dataclass(frozen=True, slots=True, eq=False)
class HeldTensor:
    """A tensor whose bytes stand inside the pickle, in the order of bytes and elements there."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    order: str
    by_column: bool


def _array_value(
    shape: tuple[object, ...], dtype: DtypeNode, data: object, *, by_column: bool
) -> object:
    """An array from its parts; `StateError` when they do not fit each other."""
    sizes = _sizes(shape)
    known = NUMPY_DTYPES.get(dtype.code)
    if known is None or not isinstance(data, bytes):
        # elements that are objects: what they are made of is compared, the array itself is not
        # rebuilt
        items = data if isinstance(data, list) else [data]
        if isinstance(data, list) and len(data) != math.prod(sizes):
            raise fault("holds a NumPy array whose shape does not fit its elements")
        pairs: list[tuple[object, object]] = [("shape", sizes), ("by_column", by_column)]
        return OpaqueNode("numpy.ndarray", (dtype,), items=items, pairs=pairs)
    # before anything is read by shape: the two come from different places in the pickle
    if len(data) != math.prod(sizes) * ELEMENT_BYTES[known]:
        raise fault(
            f"holds a NumPy array of {len(data):,} bytes, which do not fit its shape and dtype"
        )
    return HeldTensor(known, sizes, data, dtype.order, by_column)


def _sizes(shape: tuple[object, ...]) -> tuple[int, ...]:
    sizes = tuple(size for size in shape if type(size) is int and 0 <= size < MAX_INTEGER)
    if len(sizes) != len(shape) or len(sizes) > MAX_DIMENSIONS:
        raise fault("a NumPy array's shape has a value that is not a size from 0")
    return sizes


def _number(dtype: str, data: bytes, order: str) -> object:
    """A scalar: the same value as Python's own number."""
    if len(data) != ELEMENT_BYTES[dtype]:
        raise fault("holds a NumPy number whose bytes do not fit its dtype")
    # `|` is the order of elements of one byte, which have none
    sign = BIG_ENDIAN if order == BIG_ENDIAN else "<"
    if dtype in COMPLEX:
        return opaque_call(COMPLEX_NUMBER, struct.unpack(sign + COMPLEX[dtype], data))
    if dtype in FLOATS:
        number: float = struct.unpack(sign + FLOATS[dtype], data)[0]
        return number
    if dtype == "BOOL":
        return data != b"\0"
    return int.from_bytes(
        data, "big" if order == BIG_ENDIAN else "little", signed=dtype.startswith("I")
    )


def _dtype(arguments: Arguments) -> object:
    match arguments:
        case (str() as code, *_):
            # the order of bytes is not here but in the state that BUILD adds (`dtype.__reduce__`)
            return DtypeNode(code.lstrip("<>|="))
    return None


def _array(arguments: Arguments) -> object:
    match arguments:
        case (GlobalNode(module="numpy", name="ndarray"), *_):
            return ArrayNode()
    return None


def _scalar(arguments: Arguments) -> object:
    match arguments:
        case (DtypeNode() as dtype, bytes() as data) if dtype.code in NUMPY_DTYPES:
            return _number(NUMPY_DTYPES[dtype.code], data, dtype.order)
        case (DtypeNode() as dtype, value):
            return OpaqueNode("numpy.scalar", (dtype, value))
    return None


def _from_buffer(arguments: Arguments) -> object:
    """Protocol 5 writes the bytes first, then dtype, shape and order."""
    match arguments:
        case (bytes() as data, DtypeNode() as dtype, tuple() as shape, "C" | "F" as order):
            return ArrayNode(states=[(1, shape, dtype, order == "F", data)])
    return None


NUMPY_CALLS: Final[dict[tuple[str, str], Call]] = {
    ("numpy", "dtype"): _dtype,
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
}


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
