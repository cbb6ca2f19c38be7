"""Count NaN and infinity in tensors, and compute sketches that estimate how far tensors are apart.

Most states have no such elements, so each piece is summed first. The sum is finite unless an
element is not finite or the sum overflows. Only then are the elements counted. Bit patterns of the
narrow types: P. Micikevicius and others, FP8 Formats for Deep Learning, 2022; the FNUZ types as
StableHLO specifies them; E8M0 in OCP Microscaling Formats 1.0.

A baseline keeps digests, and two digests say only that something differs. A sketch of 136 bytes
says by how much. Its first 16 numbers are linear, so the difference of two sketches is the sketch
of the difference. Each element is added to one of 16 sums with a fixed random sign, and the squares
of the sums add up to the squared norm on average (M. Charikar and others, Finding Frequent Items in
Data Streams, 2002). A tensor of up to 16 elements is its own sketch, and the distance to a scaled
copy is exact. For all others the estimate of a norm is within a factor of 2 in 999 of 1,000 cases.

The signs are public, so somebody can construct different weights with the same sums. The norms of
the 16 groups and the smallest and largest number are therefore part of the sketch. They are not
linear: by the triangle inequality, their differences only bound the distance from below. So they
never make an honest result look farther away than it is. Weights that were made to agree in all of
these numbers still pass, such as two swapped weights.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from hashlib import shake_256
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gate.checkpoint.leaves import PIECE_BYTES, Leaf, TensorLeaf
from gate.checkpoint.parts import MODEL, OTHER, part_of
from gate.checkpoint.tensor_hashing import run_all

Pieces = NDArray[Any]
NUMPY_FLOATS: Final = {
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "C32": "<f2", "C64": "<f4", "C128": "<f8",
}  # fmt: skip
# For types that NumPy lacks: the type of their bits, the exponent bits (all set for infinity and
# NaN), and the bits of infinity alone.
MASKED: Final = {"BF16": ("<u2", 0x7F80, 0x7F80), "F8_E5M2": ("u1", 0x7C, 0x7C)}
NAN_PATTERNS: Final = {
    "F8_E4M3": (0x7F, 0xFF),
    "F8_E4M3FNUZ": (0x80,),
    "F8_E5M2FNUZ": (0x80,),
    "F8_E8M0": (0xFF,),
}
FLOAT_VALUE = "float"


class NotFiniteLeaf(NamedTuple):
    """A leaf with NaN or infinity, and the number of each."""

    path: str
    nan: int
    infinite: int


def not_finite_leaves(
    leaves: Sequence[Leaf], threads: int, *, sentinels: bool = False
) -> tuple[NotFiniteLeaf, ...]:
    """Return every leaf with a NaN or an infinity, sorted by path.

    Sources of the same bytes are counted once. With `sentinels`, an infinity outside model,
    optimizer and random state is ignored: in checkpoints of scripts, schedulers and callbacks write
    it for "no best value yet". Raises any error of reading the sources.
    """
    counts: dict[Hashable, tuple[int, int]] = {}
    places: list[tuple[str, Hashable]] = []
    tasks: list[Callable[[], object]] = []
    for leaf in leaves:
        if not isinstance(leaf, TensorLeaf):
            not_finite = _value_counts(leaf.kind, leaf.data)
            if not_finite != (0, 0):
                key: Hashable = ("value", leaf.path)
                counts[key] = not_finite
                places.append((leaf.path, key))
        elif _is_float(leaf.dtype):
            # the key includes the dtype, because one storage may be viewed as two types
            key = (leaf.source.identity, leaf.dtype)
            if key not in counts:
                counts[key] = (0, 0)
                tasks.append(partial(_count_into, counts, key, leaf))
            places.append((leaf.path, key))
    run_all(tasks, threads)
    passed_over = {leaf.path for leaf in leaves if _part(leaf) == OTHER} if sentinels else ()
    counted = (NotFiniteLeaf(path, *counts[key]) for path, key in places)
    return tuple(
        sorted(
            leaf for leaf in counted if leaf.nan or (leaf.infinite and leaf.path not in passed_over)
        )
    )


def _part(leaf: Leaf) -> str:
    if isinstance(leaf, TensorLeaf):
        return part_of(leaf.path, leaf.dtype, tensor=True)
    return part_of(leaf.path, leaf.kind, tensor=False)


def _value_counts(kind: str, data: bytes) -> tuple[int, int]:
    if kind != FLOAT_VALUE:
        return 0, 0
    (value,) = struct.unpack("<d", data)
    return int(math.isnan(value)), int(math.isinf(value))


def _is_float(dtype: str) -> bool:
    return dtype in NUMPY_FLOATS or dtype in MASKED or dtype in NAN_PATTERNS


def _count_into(counts: dict[Hashable, tuple[int, int]], key: Hashable, leaf: TensorLeaf) -> None:
    nan = infinite = 0
    for piece in leaf.source.pieces(PIECE_BYTES):
        piece_counts = _counted(leaf.dtype, piece)
        nan, infinite = nan + piece_counts[0], infinite + piece_counts[1]
    counts[key] = nan, infinite


def _counted(dtype: str, piece: memoryview) -> tuple[int, int]:
    if dtype in NUMPY_FLOATS:
        return _of_floats(np.frombuffer(piece, NUMPY_FLOATS[dtype]))
    if dtype in MASKED:
        stored, exponent, infinity = MASKED[dtype]
        bits = np.frombuffer(piece, stored)
        # Compare bits as integers, because NumPy lacks these types. NaN and infinity have all
        # exponent bits set.
        special = int(np.count_nonzero((bits & exponent) == exponent))
        if not special:
            return 0, 0
        # without the sign bit, to count both infinities
        magnitude = bits & np.iinfo(bits.dtype).max >> 1
        infinite = int(np.count_nonzero(magnitude == infinity))
        return special - infinite, infinite
    bits = np.frombuffer(piece, "u1")
    return sum(int(np.count_nonzero(bits == pattern)) for pattern in NAN_PATTERNS[dtype]), 0


def _of_floats(numbers: Pieces) -> tuple[int, int]:
    with np.errstate(all="ignore"):
        # A float16 sum overflows at 65,504. Without float32, every large tensor would be read
        # twice.
        if np.isfinite(numbers.sum(dtype=np.float32 if numbers.itemsize == 2 else None)):  # noqa: PLR2004 - bytes of float16
            return 0, 0
    return int(np.count_nonzero(np.isnan(numbers))), int(np.count_nonzero(np.isinf(numbers)))


SUMS: Final = 16
# the numbers in a sketch: the sums, the norms of the groups, the smallest and the largest number
FIGURES: Final = 2 * SUMS + 2
# The number of elements that share one pattern of signs. Each block also has random signs for its
# sums.
BLOCK: Final = 64 * 1024
STORED: Final = {"F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8"}
LARGEST: Final = float(np.finfo(np.float32).max)

Numbers = NDArray[np.float64]
Figures = tuple[float, ...]


def sketches(leaves: Sequence[Leaf], threads: int, most: int) -> dict[str, str]:
    """Return the sketch of each floating-point weight and buffer, by its path.

    The result has at most `most` different sketches, in the order of the leaves. A leaf with a
    number that is not finite has none. Raises any error of reading the sources.
    """
    by_key: dict[Hashable, str] = {}
    places: dict[str, Hashable] = {}
    tasks = []
    for leaf in leaves:
        if not isinstance(leaf, TensorLeaf) or not is_sketched(leaf.path, leaf.dtype):
            continue
        key: Hashable = (leaf.source.identity, leaf.dtype)
        if key not in by_key:
            if len(by_key) == most:
                break
            by_key[key] = ""
            tasks.append(partial(_sketch_into, by_key, key, leaf))
        places[leaf.path] = key
    run_all(tasks, threads)
    return {path: by_key[key] for path, key in places.items() if by_key[key]}


def is_sketched(path: str, dtype: str) -> bool:
    """Return whether a leaf at this path, given without prefix, is of a kind that has a sketch."""
    return dtype in STORED and part_of(path, dtype, tensor=True) == MODEL


def relative_distance(left: str, right: str) -> float | None:
    """Return the estimated norm of the difference over the larger norm, from 0 to 2.

    The result is None if a sketch is missing.
    """
    if not left or not right:
        return None
    first, second = _unpacked(left), _unpacked(right)
    # NaN compares as false with every limit. Without this check, an edited sketch would be near to
    # everything.
    if not all(map(math.isfinite, (*first, *second))):
        return 2.0
    distance = max(_by_sums(first[:SUMS], second[:SUMS]), _at_least(first[SUMS:], second[SUMS:]))
    return min(2.0, distance)


def _by_sums(left: Figures, right: Figures) -> float:
    larger = max(math.hypot(*left), math.hypot(*right))
    # divide first: a difference of two finite numbers may overflow
    return math.hypot(*(a / larger - b / larger for a, b in _pairs(left, right))) if larger else 0.0


def _at_least(left: Figures, right: Figures) -> float:
    """Return a lower bound of the distance, from the norms of the groups and the two extremes."""
    larger = max(math.hypot(*left[:SUMS]), math.hypot(*right[:SUMS]))
    if not larger:
        return 0.0
    apart = [abs(a / larger - b / larger) for a, b in _pairs(left, right)]
    return max(math.hypot(*apart[:SUMS]), *apart[SUMS:])


def _pairs(left: Figures, right: Figures) -> Iterable[tuple[float, float]]:
    return zip(left, right, strict=True)


def _unpacked(sketch: str) -> Figures:
    return struct.unpack(f"<{FIGURES}f", bytes.fromhex(sketch))


@dataclass(slots=True)
class _Figures:
    """The numbers of a sketch while blocks are added."""

    sums: Numbers = field(default_factory=lambda: np.zeros(SUMS))
    squares: Numbers = field(default_factory=lambda: np.zeros(SUMS))
    least: float = math.inf
    largest: float = -math.inf

    def packed(self) -> str:
        """Return the sketch as hexadecimal, or an empty text if float32 cannot hold a number."""
        figures = np.concatenate((self.sums, np.sqrt(self.squares), (self.least, self.largest)))
        if not np.isfinite(figures).all() or float(np.abs(figures).max()) > LARGEST:
            return ""
        return struct.pack(f"<{FIGURES}f", *figures.tolist()).hex()


def _sketch_into(by_key: dict[Hashable, str], key: Hashable, leaf: TensorLeaf) -> None:
    figures = _Figures()
    width = np.dtype(STORED[leaf.dtype]).itemsize * BLOCK
    held = bytearray()
    number = 0
    for piece in leaf.source.pieces(width):
        # Most pieces are whole blocks. A tensor that is spread over files may come in pieces of
        # other sizes.
        if not held and len(piece) == width:
            _add(figures, _numbers(leaf.dtype, piece), number)
            number += 1
            continue
        held += piece
        while len(held) >= width:
            _add(figures, _numbers(leaf.dtype, held[:width]), number)
            number += 1
            del held[:width]
    if held:
        _add(figures, _numbers(leaf.dtype, held), number)
    by_key[key] = figures.packed()


def _numbers(dtype: str, data: memoryview | bytearray) -> Numbers:
    stored: NDArray[Any] = np.frombuffer(data, STORED[dtype])
    if dtype == "BF16":
        # a bfloat16 is the upper half of a float32
        stored = (stored.astype("<u4") << 16).view("<f4")
    return stored.astype(np.float64)


def _add(figures: _Figures, numbers: Numbers, block: int) -> None:
    """Add one block of numbers to the figures.

    Element i of a block belongs to sum i modulo 16, so a tensor of up to 16 elements is its own
    sketch.
    """
    with np.errstate(all="ignore"):
        figures.least = min(figures.least, float(numbers.min()))
        figures.largest = max(figures.largest, float(numbers.max()))
        whole = len(numbers) - len(numbers) % SUMS
        rows, rest = numbers[:whole].reshape(-1, SUMS), numbers[whole:]
        figures.squares += np.einsum("ij,ij->j", rows, rows)
        figures.squares[: len(rest)] += rest * rest
        # In place: `rows` and `rest` are views and get the signs too. The squares are already
        # computed.
        numbers *= _signs(0)[: len(numbers)]
        turned = rows.sum(axis=0)
        turned[: len(rest)] += rest
        figures.sums += turned * _signs(block + 1)[:SUMS]


@lru_cache(maxsize=2)
def _signs(number: int) -> Numbers:
    """Return signs (+1 or -1) from the bits of a hash, which are the same on every machine."""
    length = BLOCK if number == 0 else SUMS
    bits = shake_256(b"repro-gate sketch %d" % number).digest(length // 8)
    drawn = np.unpackbits(np.frombuffer(bits, np.uint8)).astype(np.float64)
    return drawn * 2.0 - 1.0
