"""What every format is read into: named leaves, whose bytes are fetched when asked for.

Both checkpoint readers speak this one vocabulary, so the same weights have the same digests however
they were saved. `RAW` is our own, for whole files; `F4_X2` is a byte with two numbers, where
safetensors counts the numbers (`F4`).

Named tuples, not data classes: a checkpoint may hold hundreds of thousands of them.
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
# The bytes of a file whose content is not understood.
RAW_DTYPE: Final = "RAW"

# `torch.<name>` in a pickle.
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

# `torch.<name>` as the type of a storage; UntypedStorage counts bytes.
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

# The integers that quantized storages hold, each in a whole number of bytes.
QUANTIZED_STORAGES: Final = {"QInt8Storage": "I8", "QUInt8Storage": "U8", "QInt32Storage": "I32"}


PIECE_BYTES = 1024 * 1024


class TensorSource(Protocol):
    """The logical bytes of a tensor: elements in row-major order, little-endian."""

    @property
    def size_bytes(self) -> int:
        """How many there are."""
        ...

    @property
    def identity(self) -> Hashable:
        """Equal for sources of the same bytes, so that shared ones are hashed once."""
        ...

    def pieces(self, size: int) -> Iterator[memoryview]:
        """All bytes in order, in pieces of `size` (the last may be shorter).

        A piece is valid until the next one is taken.
        """
        ...


class FileSpan(NamedTuple):
    """Bytes that lie together in one file."""

    opened: UntrustedFile
    start: int
    size_bytes: int

    @property
    def identity(self) -> Hashable:
        """The place."""
        # an id may be given again after its file is gone; these stay open as long as their leaves
        # live
        return id(self.opened), self.start, self.size_bytes

    def pieces(self, size: int) -> Iterator[memoryview]:
        """As in `TensorSource`; memory is one piece."""
        buffer = memoryview(bytearray(min(size, self.size_bytes)))
        for start in range(0, self.size_bytes, size):
            view = buffer[: min(size, self.size_bytes - start)]
            self.opened.read_into(self.start + start, view)
            yield view


class HeldBytes(NamedTuple):
    """Bytes that stand inside another structure and are in memory already."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        """How many there are."""
        return len(self.data)

    @property
    def identity(self) -> Hashable:
        """The bytes themselves."""
        return self.data

    def pieces(self, size: int) -> Iterator[memoryview]:
        """As in `TensorSource`."""
        view = memoryview(self.data)
        for start in range(0, len(view), size):
            yield view[start : start + size]


class TensorLeaf(NamedTuple):
    """A tensor under its path; `dtype` is a name of `dtypes.ELEMENT_BYTES`, or `RAW`."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    source: TensorSource


class ValueLeaf(NamedTuple):
    """A plain value under its path; `kind` and `data` are those of docs/digest.md."""

    path: str
    kind: str
    data: bytes


Leaf = TensorLeaf | ValueLeaf


def is_tensor(leaf: Leaf) -> bool:
    """Whether a leaf holds numbers; a file whose content is not understood holds none."""
    return isinstance(leaf, TensorLeaf) and leaf.dtype != RAW_DTYPE


def kind_of(leaf: Leaf) -> str:
    """The dtype of a tensor, the kind of a value."""
    return leaf.dtype if isinstance(leaf, TensorLeaf) else leaf.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class StateContent:
    """A checkpoint as leaves with distinct paths, in no particular order.

    `shown` names it in errors, `format` what was recognised, `notes` are sentences about what a
    reader should know. `parameter_names` has, for the place of a parameter's state in an optimizer,
    the leaf that is the parameter: for a reader only.
    """

    shown: str
    format: str
    leaves: tuple[Leaf, ...]
    notes: tuple[str, ...] = ()
    parameter_names: Mapping[str, str] = field(default_factory=dict)
