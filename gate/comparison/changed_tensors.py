"""Find which of many pairs of tensors differ, and by how much, on all cores and with little memory.

The C library's `memcmp` runs on the mapped files themselves. ctypes releases the interpreter lock
during a foreign call, so all cores compare at once. Comparing two `bytes` would hold the lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from gate.checkpoint.leaves import FileSpan, TensorLeaf, TensorSource
from gate.checkpoint.tensor_hashing import SMALL_BYTES, WINDOW_BYTES, run_all
from gate.checkpoint.untrusted_files import grouped
from gate.comparison.state_difference import NumberDifference

if TYPE_CHECKING:
    from gate.comparison.tensor_numbers import TensorNumbers


_memcmp = ctypes.CDLL(None).memcmp
# Without these types ctypes passes an address as a C int, which truncates it to 32 bits.
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int
STRETCH_BYTES: Final = 4 * 1024 * 1024
# For sources whose bytes are not contiguous in a file.
PIECE_BYTES: Final = 256 * 1024


class Stretch(NamedTuple):
    """The same part of two tensors, from byte `start` on; valid until the next one is taken."""

    start: int
    left: memoryview
    right: memoryview

    @property
    def equal(self) -> bool:
        """Whether both sides have the same bytes."""
        return not _memcmp(_address(self.left), _address(self.right), len(self.left))


def _address(view: memoryview) -> int:
    # The ctypes object that shares the memory is freed at once, so the view can be released.
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def in_file(left: TensorSource, right: TensorSource) -> bool:
    """Return whether both sources are contiguous in a file, so any stretch can be read alone."""
    return isinstance(left, FileSpan) and isinstance(right, FileSpan)


def stretches(left: TensorSource, right: TensorSource) -> Iterator[Stretch]:
    """Yield two sources of the same size in order, in stretches of whole elements."""
    if isinstance(left, FileSpan) and isinstance(right, FileSpan):
        yield from mapped_stretches(left, right, 0, left.size_bytes)
        return
    start = 0
    sides = (_filled(side, memoryview(bytearray(PIECE_BYTES))) for side in (left, right))
    for first, second in zip(*sides, strict=True):
        yield Stretch(start, first, second)
        start += len(first)


def mapped_stretches(left: FileSpan, right: FileSpan, first: int, end: int) -> Iterator[Stretch]:
    """Yield the stretches from byte `first` to `end` of two sources in files."""
    for start in range(first, end, STRETCH_BYTES):
        length = min(STRETCH_BYTES, end - start)
        with (
            left.opened.mapped(left.start + start, length) as left_window,
            right.opened.mapped(right.start + start, length) as right_window,
        ):
            yield Stretch(start, left_window, right_window)


def _filled(source: TensorSource, buffer: memoryview) -> Iterator[memoryview]:
    """Fill the buffer repeatedly from pieces of any size; yield it each time it is full."""
    held = 0
    for piece in source.pieces(len(buffer)):
        rest = piece
        while rest:
            taken = rest[: len(buffer) - held]
            buffer[held : held + len(taken)] = taken
            held += len(taken)
            rest = rest[len(taken) :]
            if held == len(buffer):
                yield buffer
                held = 0
    if held:
        yield buffer[:held]


def equal_sources(left: TensorSource, right: TensorSource) -> bool:
    """Return whether two sources of one size have equal bytes; stop at the first difference."""
    return all(stretch.equal for stretch in stretches(left, right))


class TensorPair(NamedTuple):
    """Two tensors of one type and shape."""

    left: TensorLeaf
    right: TensorLeaf

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """A key that is equal for pairs of the same bytes, so shared tensors are compared once."""
        return self.left.source.identity, self.right.source.identity, self.left.dtype

    @property
    def splits(self) -> bool:
        """Whether several threads may share the work on the pair."""
        large = self.left.source.size_bytes > STRETCH_BYTES
        return large and in_file(self.left.source, self.right.source)


def changed_tensors(pairs: Sequence[TensorPair], threads: int) -> list[TensorPair]:
    """Return the pairs whose bytes differ, in the given order."""
    differing: set[Hashable] = set()
    small: list[_SmallPair] = []
    large: dict[Hashable, TensorPair] = {}
    names: list[Hashable] = []
    for number, pair in enumerate(pairs):
        left, right = pair.left.source, pair.right.source
        if (
            isinstance(left, FileSpan)
            and isinstance(right, FileSpan)
            and left.size_bytes <= SMALL_BYTES
        ):
            # The file's id and the place come first, so that sorting puts neighbours in one file
            # together.
            small.append(_SmallPair(id(left.opened), left.start, number, left, right))
            names.append(number)
        else:
            names.append(pair.identity)
            large[pair.identity] = pair
    small.sort()
    tasks: list[Callable[[], object]] = [
        *(task for name, pair in large.items() for task in _tasks(name, pair, differing)),
        *(partial(_compare_window, window, differing) for window in grouped(small, _are_near)),
    ]
    run_all(tasks, threads)
    return [pair for pair, name in zip(pairs, names, strict=True) if name in differing]


def _tasks(
    name: Hashable, pair: TensorPair, differing: set[Hashable]
) -> Iterator[Callable[[], object]]:
    """Yield the comparisons to make for one tensor that is not small."""
    if not pair.splits:
        yield partial(_compare_whole, name, pair, differing)
        return
    for start in range(0, pair.left.source.size_bytes, STRETCH_BYTES):
        yield partial(_compare_stretch, name, pair, start, differing)


class _SmallPair(NamedTuple):
    """Two small tensors in files; sorting puts neighbours in the left file next to each other."""

    file: int
    place: int
    number: int
    left: FileSpan
    right: FileSpan


def _are_near(first: _SmallPair, _: _SmallPair, pair: _SmallPair) -> bool:
    """Return whether one read of each file covers both pairs."""
    return (
        pair.file == first.file
        and pair.right.opened is first.right.opened
        and pair.left.start - first.left.start <= WINDOW_BYTES
        and abs(pair.right.start - first.right.start) <= WINDOW_BYTES
    )


def _compare_window(window: Sequence[_SmallPair], differing: set[Hashable]) -> None:
    left, left_first = _read([pair.left for pair in window])
    right, right_first = _read([pair.right for pair in window])
    for pair in window:
        left_start, right_start = pair.left.start - left_first, pair.right.start - right_first
        size_bytes = pair.left.size_bytes
        if (
            left[left_start : left_start + size_bytes]
            != right[right_start : right_start + size_bytes]
        ):
            differing.add(pair.number)


def _read(spans: Sequence[FileSpan]) -> tuple[bytes, int]:
    """Return the bytes around all spans of one file, and the position where they start."""
    first = min(span.start for span in spans)
    end = max(span.start + span.size_bytes for span in spans)
    return spans[0].opened.read_at(first, end - first), first


def _compare_whole(name: Hashable, pair: TensorPair, differing: set[Hashable]) -> None:
    if not equal_sources(pair.left.source, pair.right.source):
        differing.add(name)


def _compare_stretch(
    name: Hashable, pair: TensorPair, first: int, differing: set[Hashable]
) -> None:
    """Compare one stretch of a large tensor, unless the tensor is known to differ."""
    # The set needs no lock: at worst a stretch is compared for nothing.
    if name not in differing and not all(stretch.equal for stretch in _stretch(pair, first)):
        differing.add(name)


def _stretch(pair: TensorPair, first: int) -> Iterator[Stretch]:
    left, right = pair.left.source, pair.right.source
    if isinstance(left, FileSpan) and isinstance(right, FileSpan):
        end = min(first + STRETCH_BYTES, left.size_bytes)
        yield from mapped_stretches(left, right, first, end)


def number_differences(pairs: Sequence[TensorPair], threads: int) -> list[NumberDifference | None]:
    """Return how much the numbers of differing tensors differ; None for a type without numbers."""
    if not pairs:
        return []
    # Import late: this module is slow to import, and most comparisons find no difference.
    from gate.comparison.tensor_numbers import TensorNumbers, has_numbers  # noqa: PLC0415

    differences: list[NumberDifference | None] = [None] * len(pairs)
    known = [(index, pair) for index, pair in enumerate(pairs) if has_numbers(pair.left.dtype)]

    def work(index: int, pair: TensorPair) -> None:
        numbers = TensorNumbers(pair.left.dtype, pair.left.shape)
        run_all(adding(pair, numbers), threads if pair.splits else 1)
        differences[index] = numbers.result()

    # Small tensors run in parallel, one per thread. Large ones run one by one, each on all threads.
    run_all([partial(work, *item) for item in known if not item[1].splits], threads)
    for index, pair in known:
        if pair.splits:
            work(index, pair)
    return differences


def adding(pair: TensorPair, numbers: TensorNumbers) -> list[Callable[[], object]]:
    """Return the tasks that add a pair, in any order: one per stretch if the pair splits."""
    if not pair.splits:
        return [partial(_add_all, pair, numbers)]
    starts = range(0, pair.left.source.size_bytes, STRETCH_BYTES)
    return [partial(_add_stretch, pair, start, numbers) for start in starts]


def _add_all(pair: TensorPair, numbers: TensorNumbers) -> None:
    for stretch in stretches(pair.left.source, pair.right.source):
        numbers.add(*stretch)


def _add_stretch(pair: TensorPair, first: int, numbers: TensorNumbers) -> None:
    for stretch in _stretch(pair, first):
        numbers.add(*stretch)
