"""Sketches: sixteen sums of each weight and buffer, from which a distance to it can be estimated.

A baseline keeps digests, and two digests say only that something differs. A sketch costs 64 bytes
and is linear, so the difference of two sketches is the sketch of the difference: each element goes
into one of 16 sums under a fixed random sign, and the squares of the sums add up to the squared
norm in the mean (M. Charikar and others, Finding Frequent Items in Data Streams, 2002). A tensor of
16 elements or fewer is its own sketch, and a scaled tensor has its exact distance; otherwise the
estimate of a norm is within a factor of 2 in 999 of 1,000 cases.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Sequence
from functools import lru_cache, partial
from hashlib import shake_256
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gate.checkpoint.leaves import Leaf, TensorLeaf
from gate.checkpoint.parts import MODEL, part_of
from gate.checkpoint.tensor_hashing import run_all

SUMS: Final = 16
SKETCH_LENGTH: Final = SUMS * 8
# elements that share one pattern of signs; each block turns the signs of its sums again
BLOCK: Final = 64 * 1024
STORED: Final = {"F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8"}
LARGEST: Final = float(np.finfo(np.float32).max)

Numbers = NDArray[np.float64]


def sketches(leaves: Sequence[Leaf], threads: int, most: int) -> dict[str, str]:
    """The sketch of each weight and buffer of floating-point numbers, by its path.

    At most `most` of them, in the order given. One with a number that is not finite has
    none. Raises whatever reading the sources raises.
    """
    found: dict[Hashable, str] = {}
    places: dict[str, Hashable] = {}
    tasks = []
    for leaf in leaves:
        if not isinstance(leaf, TensorLeaf) or not is_sketched(leaf.path, leaf.dtype):
            continue
        key: Hashable = (leaf.source.identity, leaf.dtype)
        if key not in found:
            if len(found) == most:
                break
            found[key] = ""
            tasks.append(partial(_sketch_into, found, key, leaf))
        places[leaf.path] = key
    run_all(tasks, threads)
    return {path: found[key] for path, key in places.items() if found[key]}


def is_sketched(path: str, dtype: str) -> bool:
    """Whether the leaf at this path, without a prefix, is of the kind that has one."""
    return dtype in STORED and part_of(path, dtype, tensor=True) == MODEL


def relative_distance(left: str, right: str) -> float | None:
    """The norm of the difference over the larger norm, 0 to 2; None where a sketch is missing."""
    if not left or not right:
        return None
    one, other = _unpacked(left), _unpacked(right)
    larger = max(math.hypot(*one), math.hypot(*other))
    if larger == 0:
        return 0.0
    # divided first: the sum of two finite norms may not be finite
    return min(2.0, math.hypot(*(a / larger - b / larger for a, b in zip(one, other, strict=True))))


def _unpacked(sketch: str) -> tuple[float, ...]:
    return struct.unpack(f"<{SUMS}f", bytes.fromhex(sketch))


def _sketch_into(found: dict[Hashable, str], key: Hashable, leaf: TensorLeaf) -> None:
    sums = np.zeros(SUMS)
    width = np.dtype(STORED[leaf.dtype]).itemsize * BLOCK
    held = bytearray()
    number = 0
    for piece in leaf.source.pieces(width):
        # most pieces are whole blocks; what lies in several files may come in others
        if not held and len(piece) == width:
            _add(sums, _numbers(leaf.dtype, piece), number)
            number += 1
            continue
        held += piece
        while len(held) >= width:
            _add(sums, _numbers(leaf.dtype, held[:width]), number)
            number += 1
            del held[:width]
    if held:
        _add(sums, _numbers(leaf.dtype, held), number)
    if np.isfinite(sums).all() and float(np.abs(sums).max()) <= LARGEST:
        found[key] = struct.pack(f"<{SUMS}f", *sums.tolist()).hex()


def _numbers(dtype: str, data: memoryview | bytearray) -> Numbers:
    stored: NDArray[Any] = np.frombuffer(data, STORED[dtype])
    if dtype == "BF16":
        # the upper half of a float32
        stored = (stored.astype("<u4") << 16).view("<f4")
    return stored.astype(np.float64)


def _add(sums: Numbers, numbers: Numbers, block: int) -> None:
    """Element i of a block belongs to sum i modulo 16, so a small tensor is its own sketch."""
    with np.errstate(all="ignore"):
        numbers *= _signs(0)[: len(numbers)]
        whole = len(numbers) - len(numbers) % SUMS
        turned = numbers[:whole].reshape(-1, SUMS).sum(axis=0)
        turned[: len(numbers) - whole] += numbers[whole:]
        sums += turned * _signs(block + 1)[:SUMS]


@lru_cache(maxsize=2)
def _signs(number: int) -> Numbers:
    """Signs that every machine and every version draws alike: +1 or -1 for each bit of a hash."""
    length = BLOCK if number == 0 else SUMS
    bits = shake_256(b"repro-gate sketch %d" % number).digest(length // 8)
    drawn = np.unpackbits(np.frombuffer(bits, np.uint8)).astype(np.float64)
    return drawn * 2.0 - 1.0
