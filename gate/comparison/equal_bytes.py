"""Whether the logical bytes of two tensors are equal, at the speed of memory.

`memcmp` of the C library is called on the mapped files themselves: a foreign call lets other
threads run, so all cores compare at once, which comparing two `bytes` would not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Final, NamedTuple

from gate.checkpoint.leaves import FileSpan, TensorSource

_memcmp = ctypes.CDLL(None).memcmp
# Without types ctypes passes an address as a C int, which cuts it to 32 bits.
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int
STRETCH_BYTES: Final = 4 * 1024 * 1024
# Of sources that do not lie in a row in a file.
PIECE_BYTES: Final = 256 * 1024


class Stretch(NamedTuple):
    """The same part of two tensors, from byte `start` on; valid until the next one is taken."""

    start: int
    left: memoryview
    right: memoryview

    @property
    def equal(self) -> bool:
        """Whether both sides hold the same bytes."""
        return not _memcmp(_address(self.left), _address(self.right), len(self.left))


def _address(view: memoryview) -> int:
    # the object that shares the memory is gone at once, so the view can be released
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def in_file(left: TensorSource, right: TensorSource) -> bool:
    """Whether both lie in a row in a file, so that any stretch can be taken by itself."""
    return isinstance(left, FileSpan) and isinstance(right, FileSpan)


def stretches(left: TensorSource, right: TensorSource) -> Iterator[Stretch]:
    """All of two sources of the same size, in order, in stretches of whole elements."""
    if isinstance(left, FileSpan) and isinstance(right, FileSpan):
        yield from mapped_stretches(left, right, 0, left.size_bytes)
        return
    start = 0
    sides = (_filled(side, memoryview(bytearray(PIECE_BYTES))) for side in (left, right))
    for one, other in zip(*sides, strict=True):
        yield Stretch(start, one, other)
        start += len(one)


def mapped_stretches(left: FileSpan, right: FileSpan, first: int, end: int) -> Iterator[Stretch]:
    """The stretches from byte `first` to `end` of two sources in files."""
    for start in range(first, end, STRETCH_BYTES):
        length = min(STRETCH_BYTES, end - start)
        with (
            left.opened.mapped(left.start + start, length) as one,
            right.opened.mapped(right.start + start, length) as other,
        ):
            yield Stretch(start, one, other)


def _filled(source: TensorSource, buffer: memoryview) -> Iterator[memoryview]:
    """Fill the buffer again and again from pieces of any size; yields what it holds."""
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
    """Whether two sources of the same size hold the same bytes; stops at the first difference."""
    return all(stretch.equal for stretch in stretches(left, right))
