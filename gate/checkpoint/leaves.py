"""What every format is read into: named leaves, whose bytes are fetched only when they are hashed.

Named tuples, not data classes: a checkpoint may hold hundreds of thousands of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gate.checkpoint.dtypes import RAW_DTYPE
from gate.checkpoint.untrusted_files import UntrustedFile

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
