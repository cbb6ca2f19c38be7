"""Tensor sources that convert another source: byte order, signs, compression, element order."""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Iterator
from typing import Final, NamedTuple

from gate.checkpoint.leaves import COMPLEX_DTYPES, ELEMENT_BYTES, PIECE_BYTES, TensorSource
from gate.checkpoint.untrusted_files import UntrustedFile

FLIPPED: Final = bytes(byte ^ 0x80 for byte in range(256))
INPUT_BYTES = 64 * 1024
WRONG_CRC: Final = "its bytes do not match the CRC-32 in the archive"
DAMAGED_HINT: Final = (
    "The file changed after it was saved. Copy it again from where it was saved, or run the "
    "training again and check the disk."
)
MAX_GATHERED_BYTES = 1024**3


class SwappedBytes(NamedTuple):
    """Big-endian numbers of `width` bytes, converted to little-endian."""

    source: TensorSource
    width: int

    @property
    def size_bytes(self) -> int:
        """The size of the original source."""
        return self.source.size_bytes

    @property
    def identity(self) -> Hashable:
        """The identity of the source, and the conversion."""
        return "swapped", self.source.identity, self.width

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield pieces as `TensorSource` does; each has whole numbers."""
        for piece in whole_numbers(self.source, size, self.width):
            swapped = bytearray(len(piece))
            for place in range(self.width):
                swapped[place :: self.width] = piece[self.width - 1 - place :: self.width]
            yield memoryview(swapped)


def little_endian(source: TensorSource, dtype: str, order: str) -> TensorSource:
    """Return the elements of a source in little-endian order.

    `order` is the byte order of the source: `<`, `>`, or `|` for single bytes.
    """
    width = ELEMENT_BYTES[dtype] // (2 if dtype in COMPLEX_DTYPES else 1)
    return SwappedBytes(source, width) if order == ">" and width > 1 else source


class FlippedSigns(NamedTuple):
    """Floating-point parts of `width` bytes with flipped signs; `flips` repeats over the parts."""

    source: TensorSource
    width: int
    flips: tuple[bool, ...]

    @property
    def size_bytes(self) -> int:
        """The size of the original source."""
        return self.source.size_bytes

    @property
    def identity(self) -> Hashable:
        """The identity of the source, and the conversion."""
        return "flipped", self.source.identity, self.width, self.flips

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield pieces as `TensorSource` does; each has whole elements."""
        step = self.width * len(self.flips)
        for piece in whole_numbers(self.source, size, step):
            flipped = bytearray(piece)
            for part, flip in enumerate(self.flips):
                if flip:
                    # the sign is the highest bit of the last byte of a little-endian number
                    signs = slice((part + 1) * self.width - 1, None, step)
                    flipped[signs] = flipped[signs].translate(FLIPPED)
            yield memoryview(flipped)


def whole_numbers(source: TensorSource, size: int, width: int) -> Iterator[bytes]:
    """Yield the bytes of a source in pieces that are multiples of `width`."""
    held = b""
    for piece in source.pieces(max(width, size - size % width)):
        data = held + bytes(piece)
        # A source may end a piece inside a number, whose other half comes with the next piece.
        end = len(data) - len(data) % width
        held = data[end:]
        if end:
            yield data[:end]


class Inflated(NamedTuple):
    """Deflated bytes in a file, unpacked piece by piece without the first `skipped` bytes.

    `crc` is the CRC-32 of all unpacked bytes, or None if the archive has none.
    """

    opened: UntrustedFile
    start: int
    stored_bytes: int
    full_bytes: int
    skipped: int
    crc: int | None

    @property
    def size_bytes(self) -> int:
        """The number of unpacked bytes that are not skipped."""
        return self.full_bytes - self.skipped

    @property
    def identity(self) -> Hashable:
        """The place in the file."""
        return "inflated", id(self.opened), self.start, self.skipped

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield pieces as `TensorSource` does.

        Raises `EvidenceError` if the length or the checksum differs from what the archive says.
        """
        position = crc = 0
        for data in self._unpacked(min(size, PIECE_BYTES)):
            piece = memoryview(data)[max(0, self.skipped - position) :]
            position += len(data)
            crc = zlib.crc32(data, crc)
            if position > self.full_bytes:
                raise self.opened.fault("a compressed entry unpacks to more than it claims")
            if piece:
                yield piece
        if position != self.full_bytes:
            raise self.opened.fault("a compressed entry unpacks to less than it claims")
        if self.crc not in {None, crc}:
            raise self.opened.fault(f"is damaged: {WRONG_CRC}", hint=DAMAGED_HINT)

    def _unpacked(self, size: int) -> Iterator[bytes]:
        # a negative value means no zlib header: a zip archive has raw deflate data (RFC 1951)
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            for offset in range(0, self.stored_bytes, INPUT_BYTES):
                length = min(INPUT_BYTES, self.stored_bytes - offset)
                data = self.opened.read_at(self.start + offset, length)
                while data:
                    # The output of each call is limited, so a bomb is noticed one piece after the
                    # size that it claims.
                    yield inflater.decompress(data, size)
                    data = inflater.unconsumed_tail
                    if inflater.eof:
                        return
            # the rest that the limit on a piece has held back
            while not inflater.eof and (rest := inflater.decompress(b"", size)):
                yield rest
        except zlib.error as error:
            raise self.opened.fault("a compressed entry cannot be unpacked") from error


class ColumnMajor(NamedTuple):
    """Elements of `width` bytes in column-major (Fortran) order, converted to row-major order."""

    source: TensorSource
    shape: tuple[int, ...]
    width: int

    @property
    def size_bytes(self) -> int:
        """The size of the original source."""
        return self.source.size_bytes

    @property
    def identity(self) -> Hashable:
        """The identity of the source, and how it is walked."""
        return "column-major", self.source.identity, self.shape, self.width

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield pieces as `TensorSource` does; the whole tensor is in memory meanwhile."""
        import numpy as np  # noqa: PLC0415 - slow to import, and most states have no such tensor

        elements: np.ndarray[tuple[int, ...], np.dtype[np.void]] = np.ndarray(
            shape=self.shape,
            dtype=np.dtype((np.void, self.width)),
            buffer=gathered(self.source),
            order="F",
        )
        at_once = max(1, size // self.width)
        for first in range(0, elements.size, at_once):
            yield memoryview(elements.flat[first : first + at_once].tobytes())


def column_major(
    opened: UntrustedFile, source: TensorSource, shape: tuple[int, ...], width: int
) -> TensorSource:
    """Return a source of the same elements in row-major order.

    Raises `EvidenceError` if they are too large to be gathered in memory.
    """
    # with at most one dimension longer than 1, both orders are the same bytes
    if sum(size != 1 for size in shape) <= 1 or not math.prod(shape):
        return source
    if source.size_bytes > MAX_GATHERED_BYTES:
        raise opened.fault(
            "an array in Fortran order is too large to gather",
            hint="Save numpy.ascontiguousarray(array).",
        )
    return ColumnMajor(source, shape, width)


def gathered(source: TensorSource) -> bytearray:
    """Return all bytes of a source; the caller has checked their number."""
    data = bytearray()
    for piece in source.pieces(PIECE_BYTES):
        data += piece
    return data
