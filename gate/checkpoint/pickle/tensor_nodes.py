"""Calls in a pickle for NumPy values, and for tensors that are more than one run of elements.

An array becomes a tensor, and a scalar becomes the plain number. Anything else becomes an object
with what it is made from.

Source: `ndarray.__reduce__`, `dtype.__reduce__` and `numpy.lib.format` of NumPy 1.26 and 2.4;
`torch/_utils.py` and `torch/nested/_internal/nested_tensor.py` of torch 2.13.
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
    AttributedNode,
    Call,
    GlobalNode,
    MapNode,
    OpaqueNode,
    PartsNode,
    TensorNode,
    check_dtype,
    check_location,
    check_no_gradients,
    fault,
    is_empty_map,
    opaque_call,
    rebuild_quantized,
    torch_dtype,
)
from gate.checkpoint.pickle.tensor_attributes import TENSOR_ATTRIBUTES
from gate.text.untrusted_text import short_text

# the number of dimensions that every supported NumPy allows
MAX_DIMENSIONS = 32
BIG_ENDIAN = ">"
# NumPy's codes for the kind of an element and its number of bytes
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
    """A NumPy dtype; its byte order is in the state that BUILD adds later."""

    code: str
    states: list[object] = field(default_factory=list)

    def order(self, width: int) -> str:
        """Return the byte order: `<` or `>` for numbers of `width` bytes, `|` for single bytes.

        Raises `StateError` unless the dtype has exactly the state that NumPy writes.
        """
        match self.states:
            case [(3, "<" | ">" | "|" as order, None, None, None, -1, -1, 0)]:
                if (order == "|") == (width == 1):
                    return str(order)
        raise fault("holds a NumPy dtype with an invalid state")

    def value(self) -> object:
        """Return the dtype as an object, because a dtype on its own is no number."""
        return OpaqueNode("numpy.dtype", (self.code,), states=self.states)


@dataclass(slots=True, eq=False)
class ArrayNode:
    """A NumPy array; it is empty until BUILD adds its state."""

    states: list[object] = field(default_factory=list)

    def value(self) -> object:
        """Return the array as a `HeldTensor`, or as an object if its elements are not numbers."""
        match self.states:
            case [(1, tuple() as shape, DtypeNode() as dtype, bool() as by_column, data)]:
                return _array_value(shape, dtype, data, by_column=by_column)
        raise fault("holds a NumPy array with an invalid state")


@dataclass(frozen=True, slots=True, eq=False)
class HeldTensor:
    """A tensor whose bytes are inside the pickle.

    `order` is the byte order of the numbers. `by_column` is true for column-major (Fortran) order
    of the elements.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    order: str
    by_column: bool


def _array_value(
    shape: tuple[object, ...], dtype: DtypeNode, data: object, *, by_column: bool
) -> object:
    """Return an array from its parts; raises `StateError` if they do not fit each other."""
    sizes = _sizes(shape)
    known = NUMPY_DTYPES.get(dtype.code)
    if known is None or not isinstance(data, bytes):
        # The elements are objects. What they are made from is compared, and the array itself is not
        # rebuilt.
        items = data if isinstance(data, list) else [data]
        if isinstance(data, list) and len(data) != math.prod(sizes):
            raise fault("holds a NumPy array whose shape does not fit its elements")
        pairs: list[tuple[object, object]] = [("shape", sizes), ("by_column", by_column)]
        return OpaqueNode("numpy.ndarray", (dtype,), items=items, pairs=pairs)
    # Shape and bytes come from different places in the pickle, so check before reading by shape.
    if len(data) != math.prod(sizes) * ELEMENT_BYTES[known]:
        raise fault(
            f"holds a NumPy array of {len(data):,} bytes, which do not fit its shape and dtype"
        )
    order = dtype.order(ELEMENT_BYTES[known])
    return HeldTensor(known, sizes, data, order, by_column)


def _sizes(shape: tuple[object, ...]) -> tuple[int, ...]:
    sizes = tuple(size for size in shape if type(size) is int and 0 <= size < MAX_INTEGER)
    if len(sizes) != len(shape) or len(sizes) > MAX_DIMENSIONS:
        raise fault("a NumPy array's shape has a value that is not a size from 0")
    return sizes


def _number(dtype: str, data: bytes, order: str) -> object:
    """Return a NumPy scalar as Python's own number of the same value."""
    if len(data) != ELEMENT_BYTES[dtype]:
        raise fault("holds a NumPy number whose bytes do not fit its dtype")
    # `|` means no byte order, for elements of one byte
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
            # the byte order is not among the arguments but in the state of BUILD
            # (`dtype.__reduce__`)
            return DtypeNode(code)
    return None


def _array(arguments: Arguments) -> object:
    match arguments:
        case (GlobalNode(module="numpy", name="ndarray"), *_):
            return ArrayNode()
    return None


def _scalar(arguments: Arguments) -> object:
    match arguments:
        case (DtypeNode() as dtype, bytes() as data) if dtype.code in NUMPY_DTYPES:
            known = NUMPY_DTYPES[dtype.code]
            return _number(known, data, dtype.order(ELEMENT_BYTES[known]))
        case (DtypeNode() as dtype, value):
            return OpaqueNode("numpy.scalar", (dtype, value))
    return None


def _from_buffer(arguments: Arguments) -> object:
    """Return the array of a protocol 5 pickle, which gives its bytes, dtype, shape and order."""
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


LAYOUT: Final = "torch."
PARAMETER: Final = GlobalNode("torch.nn.parameter", "Parameter")
# a class with slots has two states: the instance's dictionary, and the slots
STATES: Final = ("dictionary", "slots")
VIEW_OF: Final = ("dtype", "offset", "shape", "strides", "conjugated", "negated")
STORAGE_OF: Final = ("key", "dtype", "elements", "first", "length", "quantized", "view")
COMPRESSED: Final = {
    "sparse_csr": ("row_offsets", "columns"),
    "sparse_csc": ("column_offsets", "rows"),
    "sparse_bsr": ("row_offsets", "columns"),
    "sparse_bsc": ("column_offsets", "rows"),
}
# classes that add nothing to a tensor's value
PLAIN_CLASSES: Final = frozenset({
    ("torch", "Tensor"), ("torch._tensor", "Tensor"), ("torch.nn", "Parameter"),
    ("torch.nn.parameter", "Parameter"), ("torch.nn.parameter", "Buffer"),
})  # fmt: skip
JAGGED: Final = ("torch.nested._internal.nested_tensor", "NestedTensor")
# Torch computes these values of a jagged tensor on demand. It stores them as the size of an empty
# tensor, so there are no elements to compare.
JAGGED_CACHE: Final = frozenset(("min_seqlen", "max_seqlen"))
JAGGED_ARGUMENTS: Final = frozenset((
    "values", "offsets", "lengths", "_ragged_idx", "_metadata_cache", "requires_grad",
))  # fmt: skip
JAGGED_PARTS: Final = {
    "_values": "values", "_offsets": "offsets", "_lengths": "lengths", "_ragged_idx": "_ragged_idx",
    "_metadata_cache": "_metadata_cache",
}  # fmt: skip
QUANTIZED_TENSORS = ("per_tensor_affine", "per_tensor_symmetric")
QUANTIZED_CHANNELS = (
    "per_channel_affine", "per_channel_symmetric", "per_channel_affine_float_qparams",
)  # fmt: skip


def _parts(made_by: str, **parts: object) -> PartsNode:
    return PartsNode(made_by, (), pairs=list(parts.items()))


def _layout(arguments: Arguments) -> object:
    """Return a layout as a name."""
    match arguments:
        case (str() as name,) if name.startswith(LAYOUT):
            return GlobalNode("torch", name.removeprefix(LAYOUT))
    return None


def _sparse(arguments: Arguments) -> object:
    match arguments:
        case (
            GlobalNode(module="torch", name="sparse_coo"),
            (
                TensorNode(dtype="I64") as indices,
                TensorNode() as values,
                tuple() as size,
                *coalesced,
            ),
        ) if len(coalesced) <= 1:
            # A tensor that is not coalesced may have an index several times. Equal matrices could
            # then have different bytes.
            if coalesced and coalesced[0] is not True:
                raise fault(
                    "holds a sparse tensor that is not coalesced, so its elements have no order",
                    hint="Save tensor.coalesce().",
                )
            return _parts("torch.sparse_coo", size=size, indices=indices, values=values)
        case (
            GlobalNode(module="torch", name=layout),
            (
                TensorNode(dtype="I32" | "I64") as offsets,
                TensorNode(dtype="I32" | "I64") as indices,
                TensorNode() as values,
                tuple() as size,
            ),
        ) if layout in COMPRESSED:
            first, second = COMPRESSED[layout]
            parts = {first: offsets, second: indices}
            return _parts(f"torch.{layout}", size=size, values=values, **parts)
    raise fault(
        "holds a sparse tensor of an unknown layout",
        hint="Save tensor.to_dense(), or a COO, CSR, CSC, BSR or BSC tensor.",
    )


def _quantized(arguments: Arguments) -> object:
    elements, kind = rebuild_quantized(arguments)
    match arguments[4:5]:
        case ((GlobalNode(module="torch", name=scheme), float() as scale, int() as zero),) if (
            scheme in QUANTIZED_TENSORS
        ):
            made = _parts(
                f"torch.{scheme}", dtype=kind, int_repr=elements, scale=scale, zero_point=zero
            )
        case ((GlobalNode(module="torch", name=scheme), scales, zeros, int() as axis),) if (
            scheme in QUANTIZED_CHANNELS
        ):
            made = _parts(
                f"torch.{scheme}", dtype=kind, int_repr=elements, scale=_numbers(scales),
                zero_point=_numbers(zeros), axis=axis,
            )  # fmt: skip
        case _:
            raise fault(
                "holds a quantized tensor of an unknown scheme",
                hint="Save tensor.dequantize(), or a tensor quantized per tensor or per channel.",
            )
    # exactly one argument for `requires_grad` and one for the hooks
    check_no_gradients(*arguments[5:])
    return made


def _numbers(values: object) -> object:
    """Return the scales of channels: a tensor, or a tuple of numbers as older torch wrote them."""
    if isinstance(values, TensorNode):
        return values
    if isinstance(values, list | tuple):
        return tuple(values)
    raise fault("holds a quantized tensor whose scales are not a tensor")


def _nested(arguments: Arguments) -> object:
    match arguments:
        case (TensorNode() as buffer, TensorNode() as sizes, TensorNode() as strides, offsets):
            return _parts(
                "torch.nested", values=buffer, sizes=sizes, strides=strides,
                offsets=_numbers(offsets),
            )  # fmt: skip
    return None


def _jagged(arguments: Arguments) -> object:
    """Return a jagged tensor as its parts.

    The cache of lengths and `requires_grad` are left out: the cache follows from the other parts.
    """
    match arguments:
        case (MapNode() as state,):
            known = _named_values(state)
        case _:
            return None
    if known is None or not known.keys() <= JAGGED_ARGUMENTS:
        return None
    _check_cache(known.get("_metadata_cache"))
    return _parts(
        "torch.jagged",
        **{name.strip("_"): known.get(name) for name in (
            "values", "offsets", "lengths", "_ragged_idx",
        )},
    )  # fmt: skip


def _subclass(arguments: Arguments) -> object:
    """Return a tensor of a subclass, or one with attributes, around one of the other calls.

    The arguments are the inner call, the class, the inner arguments and the state.
    """
    match arguments:
        case (GlobalNode() as function, kind, tuple() as inner, state):
            rebuild = SPECIAL_CALLS.get(function.key) or TENSOR_CALLS.get(function.key)
        case _:
            return None
    # Torch wraps a tensor only once. A pickle could nest this call deeper than Python's stack, so a
    # nested call stays an opaque object.
    made = rebuild(inner) if rebuild and rebuild is not _subclass else None
    if isinstance(made, PartsNode) and made.made_by == "torch.jagged":
        return _attributed(made, kind, _without_parts(inner, state))
    if made is not None:
        return _attributed(made, kind, state)
    # an unknown class, which keeps its whole state as an opaque object; refuse bad attributes all
    # the same
    _attributes(None, state)
    return None


def _attributed(tensor: object, kind: object, state: object) -> object:
    """Return the tensor, with its class and attributes if it has any that count."""
    if not isinstance(tensor, TensorNode | PartsNode | HeldTensor) or not isinstance(
        kind, GlobalNode
    ):
        return None
    plain = kind.key in PLAIN_CLASSES or (kind.key == JAGGED and isinstance(tensor, PartsNode))
    attributes = _attributes(tensor, state)
    if attributes is None:
        return None
    if plain and not attributes:
        return tensor
    return AttributedNode(tensor, None if plain else kind, attributes)


def _attributes(tensor: object, state: object) -> tuple[MapNode, ...] | None:
    """Return the attributes that a state sets, from the instance's dictionary and from the slots.

    Returns None for a state that only a method of the class can read. Raises `StateError` for an
    attribute that would change what the tensor is.
    """
    parts = state if isinstance(state, tuple) and len(state) == len(STATES) else (state,)
    attributes = [
        MapNode([pair for pair in part.pairs if not _is_told_again(tensor, *pair)])
        for part in parts
        if isinstance(part, MapNode)
    ]
    if any(part is not None and _named_values(part) is None for part in parts):
        return None
    return tuple(part for part in attributes if part.pairs)


def _is_told_again(tensor: object, name: object, value: object) -> bool:
    """Return whether an attribute only repeats what the tensor already is.

    Some classes, such as the 4-bit parameters of bitsandbytes, have such attributes in their state.
    Raises `StateError` for any other attribute that tensors themselves have: it would change the
    tensor, or hide what it is.
    """
    match name, value:
        case "data", TensorNode() if isinstance(tensor, TensorNode):
            view = _same_view(tensor, value)
        case "requires_grad", bool():
            view = True
        case "grad" | "_grad" | "_backward_hooks", _:
            view = value is None or (name == "_backward_hooks" and is_empty_map(value))
        case _:
            view = False
    if view or not isinstance(name, str):
        return view
    if name in TENSOR_ATTRIBUTES or name.startswith("__"):
        raise fault(
            f"holds a tensor whose attribute {short_text(name)} would change it when it is loaded",
            hint="Set no attribute that tensors have themselves, or save tensor.detach().clone().",
        )
    return False


def _same_view(left: TensorNode, right: TensorNode) -> bool:
    return all(getattr(left, name) == getattr(right, name) for name in VIEW_OF) and all(
        getattr(left.storage, name) == getattr(right.storage, name) for name in STORAGE_OF
    )


def _named_values(node: object) -> dict[str, object] | None:
    """Return the values of a map by name, or None if a key is not a text or occurs twice."""
    if not isinstance(node, MapNode) or node.attributes:
        return None
    values = {key: value for key, value in node.pairs if isinstance(key, str)}
    return values if len(values) == len(node.pairs) else None


def _without_parts(arguments: Arguments, state: object) -> object:
    """Return the state of a jagged tensor without its parts, which the arguments contain already.

    Raises `StateError` if a part in the state differs from the one in the arguments.
    """
    given_values = _named_values(arguments[0]) or {}
    values = _named_values(state)
    if values is None:
        return state
    rest: list[tuple[object, object]] = []
    for name, value in values.items():
        if name not in JAGGED_PARTS:
            rest.append((name, value))
        elif not _is_one(value, given_values.get(JAGGED_PARTS[name])):
            raise fault(f"holds a jagged tensor whose {short_text(name)} is given twice")
    return MapNode(rest)


def _is_one(left: object, right: object) -> bool:
    """Return whether both are the same object of the pickle, or equal integers."""
    return left is right or (type(left) is type(right) is int and left == right)


def _check_cache(cache: object) -> None:
    values = {} if cache is None else _named_values(cache)
    if values is None or not values.keys() <= JAGGED_CACHE:
        raise fault("holds a jagged tensor with a cache that torch does not write")
    for value in values.values():
        tensor = value.tensor if isinstance(value, AttributedNode) else value
        if not isinstance(tensor, TensorNode) or 0 not in tensor.shape:
            raise fault("holds a jagged tensor with a cache that torch does not write")


def _from_numpy(arguments: Arguments) -> object:
    """Return a tensor that some devices save as a NumPy array.

    Returns None for a bfloat16 tensor, which stays an opaque object.
    """
    match arguments:
        case (ArrayNode() as array, kind, device, gradient):
            held = array.value()
        case _:
            return None
    check_location(device)
    check_no_gradients(gradient)
    if not isinstance(held, HeldTensor):
        return None
    # NumPy has no bfloat16, so torch writes float32: the bytes are not those of the tensor
    if (held.dtype, torch_dtype(kind)) == ("F32", "BF16"):
        return None
    check_dtype(held.dtype, kind)
    return held


def _parameter(arguments: Arguments) -> object:
    """Return the tensor of a parameter; `requires_grad` is not part of its value."""
    match arguments:
        case (tensor, gradient, hooks, *rest) if len(rest) <= 1:
            pass
        case _:
            return None
    check_no_gradients(gradient, hooks)
    state = rest[0] if rest else None
    return _attributed(tensor, PARAMETER, state)


SPECIAL_CALLS: Final[dict[tuple[str, str], Call]] = {
    ("torch.serialization", "_get_layout"): _layout,
    ("torch._utils", "_rebuild_sparse_tensor"): _sparse,
    ("torch._utils", "_rebuild_sparse_csr_tensor"): _sparse,
    ("torch._utils", "_rebuild_qtensor"): _quantized,
    ("torch._utils", "_rebuild_nested_tensor"): _nested,
    ("torch.nested._internal.nested_tensor", "_rebuild_njt"): _jagged,
    ("torch._utils", "_rebuild_device_tensor_from_numpy"): _from_numpy,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _subclass,
}
