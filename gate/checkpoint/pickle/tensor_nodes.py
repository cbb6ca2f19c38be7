"""What NumPy's arrays, scalars and dtypes are in a pickle, whichever NumPy wrote it.

Source: `ndarray.__reduce__`, `dtype.__reduce__` and `numpy.lib.format` of NumPy 1.26 and 2.4. An
array becomes a tensor, a scalar the plain number, anything else an object with what it was made of.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Final

from gate.checkpoint.dtypes import ELEMENT_BYTES
from gate.checkpoint.pickle.calls import MAX_INTEGER, Arguments, Call, fault, opaque_call
from gate.checkpoint.pickle.nodes import GlobalNode, OpaqueNode

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
