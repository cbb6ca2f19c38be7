"""The common form of every format: named leaves, whose bytes are read only when asked for.

All checkpoint readers use these dtypes and kinds, so equal weights have equal digests however they
were saved. `RAW` is our own dtype, for whole files. `F4_X2` is a byte with two 4-bit numbers, as
torch counts them; safetensors counts the numbers (`F4`).

The leaves are named tuples and not data classes, because a checkpoint may have hundreds of
thousands of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from gate.checkpoint.untrusted_files import UntrustedFile

ELEMENT_BYTES: Final = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "F4_X2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "C32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
    "C128": 16,
}
COMPLEX_DTYPES: Final = frozenset(("C32", "C64", "C128"))
# the dtype of a file whose content is not understood
RAW_DTYPE: Final = "RAW"

# the names `torch.<name>` of dtypes in a pickle
TORCH_DTYPES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "complex32": "C32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "complex128": "C128",
    "float4_e2m1fn_x2": "F4_X2",
}

# the names `torch.<name>` of storage types; UntypedStorage counts bytes
TORCH_STORAGES: Final = {
    "UntypedStorage": "U8",
    "BoolStorage": "BOOL",
    "ByteStorage": "U8",
    "CharStorage": "I8",
    "ShortStorage": "I16",
    "IntStorage": "I32",
    "LongStorage": "I64",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "FloatStorage": "F32",
    "DoubleStorage": "F64",
    "ComplexFloatStorage": "C64",
    "ComplexDoubleStorage": "C128",
}

# quantized storages contain integers, each in a whole number of bytes
QUANTIZED_STORAGES: Final = {"QInt8Storage": "I8", "QUInt8Storage": "U8", "QInt32Storage": "I32"}


PIECE_BYTES = 1024 * 1024


class TensorSource(Protocol):
    """The bytes of a tensor's elements: row-major order, little-endian."""

    @property
    def size_bytes(self) -> int:
        """The number of bytes."""
        ...

    @property
    def identity(self) -> Hashable:
        """A key that is equal for sources of the same bytes, so that they are hashed once."""
        ...

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield all bytes in order, in pieces of `size` bytes; the last one may be shorter.

        A piece is valid only until the next one is taken.
        """
        ...


class FileSpan(NamedTuple):
    """Consecutive bytes of one file."""

    opened: UntrustedFile
    start: int
    size_bytes: int

    @property
    def identity(self) -> Hashable:
        """The place in the file."""
        # Python may reuse an id after its object is gone. These files stay open as long as their
        # leaves exist.
        return id(self.opened), self.start, self.size_bytes

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield pieces as `TensorSource` does; only one piece is in memory."""
        buffer = memoryview(bytearray(min(size, self.size_bytes)))
        for start in range(0, self.size_bytes, size):
            view = buffer[: min(size, self.size_bytes - start)]
            self.opened.read_into(self.start + start, view)
            yield view


class HeldBytes(NamedTuple):
    """Bytes that are inside another structure, and in memory already."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        """The number of bytes."""
        return len(self.data)

    @property
    def identity(self) -> Hashable:
        """The bytes themselves."""
        return self.data

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield pieces as `TensorSource` does."""
        view = memoryview(self.data)
        for start in range(0, len(view), size):
            yield view[start : start + size]


class TensorLeaf(NamedTuple):
    """A tensor at its path; `dtype` is a key of `ELEMENT_BYTES`, or `RAW`."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    source: TensorSource


class ValueLeaf(NamedTuple):
    """A plain value at its path; docs/digest.md defines `kind` and `data`."""

    path: str
    kind: str
    data: bytes


Leaf = TensorLeaf | ValueLeaf


def is_tensor(leaf: Leaf) -> bool:
    """Return whether a leaf contains numbers; a file of unknown content does not."""
    return isinstance(leaf, TensorLeaf) and leaf.dtype != RAW_DTYPE


def kind_of(leaf: Leaf) -> str:
    """Return the dtype of a tensor, or the kind of a value."""
    return leaf.dtype if isinstance(leaf, TensorLeaf) else leaf.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class StateContent:
    """A checkpoint as leaves with distinct paths, in no particular order.

    `shown` is its name in errors, and `format` the detected format. `notes` are sentences for the
    reader of a report. `parameter_names` maps the place of a parameter's optimizer state to the
    leaf that is the parameter; it is for readers only.
    """

    shown: str
    format: str
    leaves: tuple[Leaf, ...]
    notes: tuple[str, ...] = ()
    parameter_names: Mapping[str, str] = field(default_factory=dict)
