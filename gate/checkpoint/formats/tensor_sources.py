"""Sources of tensors whose elements are not simply consecutive: chunks, strides, views."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from gate.checkpoint.byte_sources import gathered
from gate.checkpoint.leaves import ELEMENT_BYTES, FileSpan, TensorSource
from gate.checkpoint.pickle.calls import TensorNode, fault
from gate.checkpoint.untrusted_files import UntrustedFile

MAX_CELLS = 1_000_000
MAX_BLOCK_BYTES = 256 * 1024**2
Sizes = tuple[int, ...]


class Box(NamedTuple):
    """A part of a tensor; the box's own elements are in row-major order."""

    offsets: Sizes
    sizes: Sizes
    source: TensorSource


def assembled(shape: Sizes, width: int, boxes: Sequence[Box]) -> TensorSource:
    """Return the source of a tensor that consists of boxes, with elements of `width` bytes.

    Raises `StateError` if the boxes overlap, leave a hole, or are too many.
    """
    filled = [box for box in boxes if math.prod(box.sizes)]
    cuts = _cuts(shape, filled)
    order = _cells(cuts, filled) if math.prod(shape) else []
    # `_cells` has checked that the only box covers the whole tensor
    if len(filled) == 1:
        return filled[0].source
    return ChunkedSource(shape, width, tuple(filled), cuts, tuple(order))


def _cuts(shape: Sizes, boxes: Sequence[Box]) -> tuple[Sizes, ...]:
    """Return for each dimension the positions at which a box begins or ends, and its own ends."""
    return tuple(
        tuple(sorted({
            0, whole,
            *(box.offsets[axis] for box in boxes),
            *(box.offsets[axis] + box.sizes[axis] for box in boxes),
        }))
        for axis, whole in enumerate(shape)
    )  # fmt: skip


def _cells(cuts: tuple[Sizes, ...], boxes: Sequence[Box]) -> list[int]:
    """Return the number of the box in each cell between the cuts, in row-major order."""
    counts = tuple(len(places) - 1 for places in cuts)
    # n boxes can cut d dimensions into (2 n + 1) ** d cells, so a little metadata could take any
    # amount of memory.
    if math.prod(counts) > MAX_CELLS:
        raise fault("holds a tensor in too many chunks of irregular shapes")
    numbers = [{place: number for number, place in enumerate(places)} for places in cuts]
    # Count cells between cuts and not elements: the work depends on the boxes and not on the
    # claimed shape.
    order = [-1] * math.prod(counts)
    for number, box in enumerate(boxes):
        cells = (
            range(known[start], known[start + size])
            for known, start, size in zip(numbers, box.offsets, box.sizes, strict=True)
        )
        for cell in product(*cells):
            index = _index(counts, cell)
            if order[index] >= 0:
                raise fault("holds a tensor whose chunks overlap")
            order[index] = number
    if -1 in order:
        raise fault("holds a tensor whose chunks leave a hole")
    return order


def _index(counts: Sequence[int], cell: Sequence[int]) -> int:
    """Return the number of a cell in row-major order."""
    index = 0
    for count, place in zip(counts, cell, strict=True):
        index = index * count + place
    return index


class ChunkedSource(NamedTuple):
    """Boxes that fill a tensor without overlap; `order` has the number of the box in each cell."""

    shape: Sizes
    width: int
    boxes: tuple[Box, ...]
    cuts: tuple[Sizes, ...]
    order: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The number of bytes of the whole tensor."""
        return math.prod(self.shape) * self.width

    @property
    def identity(self) -> Hashable:
        """The places of all boxes."""
        return self.shape, self.width, tuple((box[:2], box.source.identity) for box in self.boxes)

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield pieces as `TensorSource` does.

        In memory are one or two pieces, and the boxes that cannot be read at any position.
        """
        if not self.order:
            return
        # after the last dimension that is cut, a row of a box is a row of the tensor
        axis = max((axis for axis, places in enumerate(self.cuts) if places[1:-1]), default=0)
        readers = [_reader(box) for box in self.boxes]
        if axis == 0:
            for part in self._parts((), 0, readers):
                yield from _run(part, part.position(()), size)
            return
        known: dict[Sizes, list[_Part]] = {}
        bands = self.cuts[axis - 1]
        for before in product(*map(range, self.shape[: axis - 1])):
            outer = tuple(map(_cell_of, self.cuts, before))
            for number in range(len(bands) - 1):
                cell = (*outer, number)
                if cell not in known:
                    known[cell] = self._parts(cell, axis, readers)
                rows = range(bands[number], bands[number + 1])
                yield from _rows(known[cell], before, rows, size)

    def _parts(self, outer: Sizes, axis: int, readers: list[_Reader]) -> list[_Part]:
        """Return what the cells at `outer` add, one after the other, to each row along `axis`."""
        counts = [len(places) - 1 for places in self.cuts]
        # no dimension after `axis` is cut, so the cells of a row are next to each other
        first = _index(counts[: axis + 1], (*outer, 0))
        cells = self.order[first : first + counts[axis]]
        inner = math.prod(self.shape[axis + 1 :]) * self.width
        places = self.cuts[axis]
        return [
            _Part(self.boxes[number], readers[number], axis, start, (end - start) * inner, inner)
            for number, start, end in zip(cells, places, places[1:], strict=False)
        ]


def _cell_of(places: Sizes, position: int) -> int:
    """Return the cell between the cuts that contains a position."""
    return bisect_right(places, position) - 1


class _Reader(NamedTuple):
    """Reads a box at any position, from its file or from memory."""

    span: FileSpan | None
    held: bytearray

    def into(self, start: int, view: memoryview) -> None:
        if self.span is None:
            view[:] = memoryview(self.held)[start : start + len(view)]
        else:
            self.span.opened.read_into(self.span.start + start, view)


def _reader(box: Box) -> _Reader:
    if isinstance(box.source, FileSpan):
        return _Reader(box.source, bytearray())
    # A source with strides can only be read from its start. To read it at any position it must be
    # in memory.
    if box.source.size_bytes > MAX_BLOCK_BYTES:
        raise fault("holds a chunk with strides that is too large to gather")
    return _Reader(None, gathered(box.source))


class _Part(NamedTuple):
    """What one cell adds to each row: `run_bytes` bytes, from `start` along the axis."""

    box: Box
    reader: _Reader
    axis: int
    start: int
    run_bytes: int
    inner_bytes: int

    def position(self, row: Sizes) -> int:
        """Return the position in the box at which the bytes for a row begin."""
        index = 0
        for size, offset, place in zip(self.box.sizes, self.box.offsets, row, strict=False):
            index = index * size + place - offset
        index = index * self.box.sizes[self.axis] + self.start - self.box.offsets[self.axis]
        return index * self.inner_bytes

    @property
    def step_bytes(self) -> int:
        """The number of bytes from one row of the box to the next."""
        return self.box.sizes[self.axis] * self.inner_bytes


def _rows(parts: list[_Part], before: Sizes, rows: range, size: int) -> Iterator[memoryview]:
    """Yield the rows of a band; neighbouring rows that fit into one piece are read at once."""
    row_bytes = sum(part.run_bytes for part in parts)
    at_once = max(1, size // max(1, row_bytes))
    for first in range(rows.start, rows.stop, at_once):
        count = min(at_once, rows.stop - first)
        if count > 1:
            yield _block(parts, (*before, first), count, row_bytes)
            continue
        for part in parts:
            yield from _run(part, part.position((*before, first)), size)


def _run(part: _Part, position: int, size: int) -> Iterator[memoryview]:
    for start in range(0, part.run_bytes, size):
        view = memoryview(bytearray(min(size, part.run_bytes - start)))
        part.reader.into(position + start, view)
        yield view


def _block(parts: list[_Part], row: Sizes, count: int, row_bytes: int) -> memoryview:
    """Return several rows, put together from all parts.

    The result is at most one piece. Each part is read with the bytes between its rows.
    """
    block = memoryview(bytearray(count * row_bytes))
    column = 0
    for part in parts:
        span = (count - 1) * part.step_bytes + part.run_bytes
        held = memoryview(bytearray(span))
        part.reader.into(part.position(row), held)
        for number in range(count):
            start = number * part.step_bytes
            target = number * row_bytes + column
            block[target : target + part.run_bytes] = held[start : start + part.run_bytes]
        column += part.run_bytes
    return block


MAX_STRIDED_BYTES = 1024**3
MAX_STRIDED_ELEMENTS = 1_000_000_000
KEPT_GEOMETRIES = 4096


class StridedSpan(NamedTuple):
    """A view with strides: its bytes are read into memory, and walked in row-major order."""

    span: FileSpan
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    element_bytes: int

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all elements, even if several share the same bytes in the file."""
        return math.prod(self.shape) * self.element_bytes

    @property
    def identity(self) -> Hashable:
        """The place in the file, and how it is walked."""
        return self.span.identity, self.shape, self.strides_bytes, self.element_bytes

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield pieces as `TensorSource` does; the whole range is in memory meanwhile."""
        import numpy as np  # noqa: PLC0415 - slow to import, and most states have no such tensor

        buffer = bytearray(self.span.size_bytes)
        self.span.opened.read_into(self.span.start, memoryview(buffer))
        # NumPy checks again that shape and strides stay inside the buffer.
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
    """Return the source of a tensor whose storage begins at `storage_start`.

    Raises `EvidenceError` for a tensor that reaches outside its storage, and for one that must be
    gathered in memory and is too large for that.
    """
    width = ELEMENT_BYTES[tensor.dtype]
    # the first element of a part is counted in elements of the storage's own type
    offset = tensor.offset * width + tensor.storage.first * ELEMENT_BYTES[tensor.storage.dtype]
    start = storage_start + offset
    elements, span, in_a_row = _geometry(tensor.shape, tensor.strides)
    if not elements:
        # An empty view is never read, so its offset does not matter. Torch writes some with an
        # offset after the end of the storage.
        return FileSpan(opened, storage_start, 0)
    # Strides are only a claim too: outside its storage, a view would show the bytes of other
    # storages.
    if offset + span * width > storage_bytes:
        raise opened.fault("a tensor reaches outside its storage")
    if in_a_row:
        return FileSpan(opened, start, elements * width)
    # with a stride of 0, a single element can be a tensor of any size
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
    """Return the number of elements, the number in the range that they span, and a flag.

    The flag is true if the elements are in row-major order without gaps. It is true for an empty
    tensor.
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
