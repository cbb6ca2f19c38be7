"""The logical bytes of a tensor: row-major elements, whatever its strides are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gate.evidence.dtypes import ELEMENT_BYTES
from gate.evidence.hostile_file import CHUNK_BYTES, HostileFile
from gate.evidence.pickle_nodes import TensorNode

MAX_TENSOR_BYTES = 64 * 1024**3
MAX_STRIDED_BYTES = 1024**3
MAX_STRIDED_ELEMENTS = 1_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorPlace:
    """Where a tensor's storage lies in the file."""

    tensor: TensorNode
    storage_start: int
    storage_bytes: int

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return ELEMENT_BYTES[self.tensor.dtype]

    @property
    def elements(self) -> int:
        """How many elements the shape has; a 0-d tensor has one."""
        return math.prod(self.tensor.shape)

    @property
    def span(self) -> int:
        """Elements from the first to the last one that the tensor touches, both included."""
        tensor = self.tensor
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
        return last + 1 if self.elements else 0

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        expected = 1
        for size, stride in zip(
            reversed(self.tensor.shape), reversed(self.tensor.strides), strict=True
        ):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


def check_place(opened: HostileFile, place: TensorPlace) -> None:
    """Refuse a tensor that reaches outside its storage, or is too large to hash.

    A strided tensor is gathered in memory, so its span has a tighter limit than a contiguous one.
    """
    end = (place.tensor.offset + place.span) * place.element_bytes
    if end > place.storage_bytes:
        raise opened.fault("a tensor reaches outside its storage")
    if place.elements * place.element_bytes > MAX_TENSOR_BYTES:
        raise opened.fault(f"a tensor has more than {MAX_TENSOR_BYTES:,} bytes")
    if place.elements and not place.contiguous:
        too_many = place.elements > MAX_STRIDED_ELEMENTS
        if too_many or place.span * place.element_bytes > MAX_STRIDED_BYTES:
            raise opened.fault(
                "an expanded or strided tensor is too large to gather",
                hint="Save tensor.contiguous(), or a clone of the part that matters.",
            )


def logical_pieces(opened: HostileFile, place: TensorPlace) -> Iterator[bytes]:
    """The tensor's bytes in pieces of about 1 MiB; call `check_place` first."""
    if not place.elements:
        return
    start = place.storage_start + place.tensor.offset * place.element_bytes
    span_bytes = place.span * place.element_bytes
    if place.contiguous:
        yield from opened.pieces(start, span_bytes)
        return
    # numpy checks again that shape and strides stay inside the buffer.
    elements: np.ndarray[tuple[int, ...], np.dtype[np.void]] = np.ndarray(
        shape=place.tensor.shape,
        dtype=np.dtype((np.void, place.element_bytes)),
        buffer=opened.read_at(start, span_bytes),
        strides=tuple(stride * place.element_bytes for stride in place.tensor.strides),
    )
    at_once = CHUNK_BYTES // place.element_bytes
    for first in range(0, place.elements, at_once):
        yield elements.flat[first : first + at_once].tobytes()
