"""Where a tensor's logical bytes come from when its elements do not simply are in a row."""

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
    """A part of a tensor; its own elements are in row-major order."""

    offsets: Sizes
    sizes: Sizes
    source: TensorSource


def assembled(shape: Sizes, width: int, boxes: Sequence[Box]) -> TensorSource:
    """The source of a tensor of elements of `width` bytes.

    Raises `StateError` when the boxes overlap, leave a hole, or are too many.
    """
    filled = [box for box in boxes if math.prod(box.sizes)]
    cuts = _cuts(shape, filled)
    order = _cells(cuts, filled) if math.prod(shape) else []
    # the cells have shown that it covers the tensor, so its bytes are the tensor's
    if len(filled) == 1:
        return filled[0].source
    return ChunkedSource(shape, width, tuple(filled), cuts, tuple(order))


def _cuts(shape: Sizes, boxes: Sequence[Box]) -> tuple[Sizes, ...]:
    """Where any box begins or ends, for each dimension, its own begin and end among them."""
    return tuple(
        tuple(sorted({
            0, whole,
            *(box.offsets[axis] for box in boxes),
            *(box.offsets[axis] + box.sizes[axis] for box in boxes),
        }))
        for axis, whole in enumerate(shape)
    )  # fmt: skip


def _cells(cuts: tuple[Sizes, ...], boxes: Sequence[Box]) -> list[int]:
    """Which box fills each cell between the cuts, in row-major order."""
    counts = tuple(len(places) - 1 for places in cuts)
    # n boxes can cut d dimensions into (2 n + 1) ** d cells: little metadata, any amount of memory
    if math.prod(counts) > MAX_CELLS:
        raise fault("holds a tensor in too many chunks of irregular shapes")
    numbers = [{place: number for number, place in enumerate(places)} for places in cuts]
    # cells between cuts and not elements: the work follows the boxes, never the shape that is
    # claimed
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
    """The number of a cell in row-major order."""
    index = 0
    for count, place in zip(counts, cell, strict=True):
        index = index * count + place
    return index


class ChunkedSource(NamedTuple):
    """Boxes that fill a tensor without overlap; `order` tells the box of each cell."""

    shape: Sizes
    width: int
    boxes: tuple[Box, ...]
    cuts: tuple[Sizes, ...]
    order: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Of the whole tensor."""
        return math.prod(self.shape) * self.width

    @property
    def identity(self) -> Hashable:
        """The places of all boxes."""
        return self.shape, self.width, tuple((box[:2], box.source.identity) for box in self.boxes)

    def pieces(self, size: int) -> Iterator[memoryview]:
        """As in `TensorSource`; memory is a piece or two, and what cannot be read at a place."""
        if not self.order:
            return
        # behind the last dimension that is cut, a row of a box is a row of the tensor
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
        """What the cells at `outer` add, one after the other, to each row along `axis`."""
        counts = [len(places) - 1 for places in self.cuts]
        # no dimension behind the axis is cut, so the cells of the row lie next to each other
        first = _index(counts[: axis + 1], (*outer, 0))
        cells = self.order[first : first + counts[axis]]
        inner = math.prod(self.shape[axis + 1 :]) * self.width
        places = self.cuts[axis]
        return [
            _Part(self.boxes[number], readers[number], axis, start, (end - start) * inner, inner)
            for number, start, end in zip(cells, places, places[1:], strict=False)
        ]


def _cell_of(places: Sizes, position: int) -> int:
    """The cell between the cuts that a position is in."""
    return bisect_right(places, position) - 1


class _Reader(NamedTuple):
    """Reads a box at any place: from its file, or from memory where that is not possible."""

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
    # a source with strides only streams from its start, so it has to be in memory to be read
    # anywhere
    if box.source.size_bytes > MAX_BLOCK_BYTES:
        raise fault("holds a chunk with strides that is too large to gather")
    return _Reader(None, gathered(box.source))


class _Part(NamedTuple):
    """What one cell adds to each row: `run_bytes` from `start` along the axis."""

    box: Box
    reader: _Reader
    axis: int
    start: int
    run_bytes: int
    inner_bytes: int

    def position(self, row: Sizes) -> int:
        """Where the run of a row is in the box."""
        index = 0
        for size, offset, place in zip(self.box.sizes, self.box.offsets, row, strict=False):
            index = index * size + place - offset
        index = index * self.box.sizes[self.axis] + self.start - self.box.offsets[self.axis]
        return index * self.inner_bytes

    @property
    def step_bytes(self) -> int:
        """From one row of the box to the next."""
        return self.box.sizes[self.axis] * self.inner_bytes


def _rows(parts: list[_Part], before: Sizes, rows: range, size: int) -> Iterator[memoryview]:
    """The rows of a band; as many neighbours as fit into a piece are read at once."""
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
    """Some rows, put together from all parts; a piece at most, but for what is in between."""
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

    And whether they are in row-major order without gaps, which is so when there is none.
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
