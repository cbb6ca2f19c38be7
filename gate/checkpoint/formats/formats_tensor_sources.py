"""Where a tensor's logical bytes come from when its elements do not simply lie in a row."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import NamedTuple

from gate.checkpoint.dtypes import ELEMENT_BYTES
from gate.checkpoint.leaves import FileSpan, TensorSource
from gate.checkpoint.pickle.nodes import TensorNode
from gate.checkpoint.untrusted_files import UntrustedFile

MAX_STRIDED_BYTES = 1024**3
MAX_STRIDED_ELEMENTS = 1_000_000_000
KEPT_GEOMETRIES = 4096


class StridedSpan(NamedTuple):
    """A view with steps: its span is read into memory, then walked in row-major order."""

    span: FileSpan
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    element_bytes: int

    @property
    def size_bytes(self) -> int:
        """Of the logical elements, however few bytes they stand on."""
        return math.prod(self.shape) * self.element_bytes

    @property
    def identity(self) -> Hashable:
        """The place, and how it is walked."""
        return self.span.identity, self.shape, self.strides_bytes, self.element_bytes

    def pieces(self, size: int) -> Iterator[memoryview]:
        """As in `TensorSource`; the whole span is in memory meanwhile."""
        import numpy as np  # noqa: PLC0415 - slow to import, and most states have no such tensor

        buffer = bytearray(self.span.size_bytes)
        self.span.opened.read_into(self.span.start, memoryview(buffer))
        # numpy checks again that shape and strides stay inside the buffer.
        elements: np.ndarray[tuple[int, ...], np.dtype[np.void]] = np.ndarray(
            shape=self.shape,
            dtype=np.dtype((np.void, self.element_bytes)),
            buffer=buffer,
            strides=self.strides_bytes,
        )
        at_once = max(1, size // self.element_bytes)
        for first in range(0, elements.size, at_once):
            yield memoryview(elements.flat[first : first + at_once].tobytes())


def tensor_source(
    opened: UntrustedFile, tensor: TensorNode, storage_start: int, storage_bytes: int
) -> TensorSource:
    """The source of a tensor whose storage lies at `storage_start`.

    Raises `EvidenceError` for a tensor that reaches outside its storage, or that must be gathered
    in memory and is too large for that.
    """
    width = ELEMENT_BYTES[tensor.dtype]
    # a part of a storage counts the elements of the storage's own type
    offset = tensor.offset * width + tensor.storage.first * ELEMENT_BYTES[tensor.storage.dtype]
    start = storage_start + offset
    elements, span, in_a_row = _geometry(tensor.shape, tensor.strides)
    if not elements:
        # wherever it points, nothing is read: torch writes empty views behind their storage
        return FileSpan(opened, storage_start, 0)
    # strides are a claim too: outside its storage a view would show the bytes of its neighbours
    if offset + span * width > storage_bytes:
        raise opened.fault("a tensor reaches outside its storage")
    if in_a_row:
        return FileSpan(opened, start, elements * width)
    # with a stride of 0 a single element is a tensor of any size
    if elements > MAX_STRIDED_ELEMENTS or span * width > MAX_STRIDED_BYTES:
        raise opened.fault(
            "an expanded or strided tensor is too large to gather",
            hint="Save tensor.contiguous(), or a clone of the part that matters.",
        )
    return StridedSpan(
        span=FileSpan(opened, start, span * width),
        shape=tensor.shape,
        strides_bytes=tuple(stride * width for stride in tensor.strides),
        element_bytes=width,
    )


@lru_cache(maxsize=KEPT_GEOMETRIES)
def _geometry(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int, bool]:
    """How many elements there are, how many from the first to the last one touched, both included.

    And whether they lie in row-major order without gaps, which is so when there is none.
    """
    elements = math.prod(shape)
    if not elements:
        return 0, 0, True
    span = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    return elements, span, _contiguous(shape, strides)


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
