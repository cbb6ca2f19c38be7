"""How many elements of each leaf are NaN or infinite, counted piece by piece in constant memory.

Most states hold none, so each piece is added up first: a sum of numbers is finite unless one of
them is not, or they run over. Only then are elements looked at one by one. Bit patterns of the
narrow types: P. Micikevicius and others, FP8 Formats for Deep Learning, 2022; the FNUZ types as
StableHLO specifies them; E8M0 in OCP Microscaling Formats 1.0.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gate.checkpoint.leaves import PIECE_BYTES, Leaf, TensorLeaf
from gate.checkpoint.parts import OTHER, part_of
from gate.checkpoint.tensor_hashing import run_all

Pieces = NDArray[Any]
NUMPY_FLOATS: Final = {
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "C32": "<f2", "C64": "<f4", "C128": "<f8",
}  # fmt: skip
# of the others: the type of their bits, the bits of an infinity or NaN, those of infinity alone
MASKED: Final = {"BF16": ("<u2", 0x7F80, 0x7F80), "F8_E5M2": ("u1", 0x7C, 0x7C)}
NAN_PATTERNS: Final = {
    "F8_E4M3": (0x7F, 0xFF),
    "F8_E4M3FNUZ": (0x80,),
    "F8_E5M2FNUZ": (0x80,),
    "F8_E8M0": (0xFF,),
}
FLOAT_VALUE = "float"


class NotFiniteLeaf(NamedTuple):
    """A leaf that holds such elements, and how many of each kind."""

    path: str
    nan: int
    infinite: int


def not_finite_leaves(
    leaves: Sequence[Leaf], threads: int, *, sentinels: bool = False
) -> tuple[NotFiniteLeaf, ...]:
    """Every leaf with a NaN or an infinity, sorted by path; equal sources are counted once.

    With `sentinels` an infinity outside model, optimizer and random state is passed over: in what
    scripts save, schedulers and callbacks write it for "no best value yet". Raises whatever reading
    the sources raises.
    """
    counts: dict[Hashable, tuple[int, int]] = {}
    places: list[tuple[str, Hashable]] = []
    tasks: list[Callable[[], object]] = []
    for leaf in leaves:
        if not isinstance(leaf, TensorLeaf):
            found = _value_counts(leaf.kind, leaf.data)
            if found != (0, 0):
                key: Hashable = ("value", leaf.path)
                counts[key] = found
                places.append((leaf.path, key))
        elif _is_float(leaf.dtype):
            # with the type: one storage may be looked at as two
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
        found = _counted(leaf.dtype, piece)
        nan, infinite = nan + found[0], infinite + found[1]
    counts[key] = nan, infinite


def _counted(dtype: str, piece: memoryview) -> tuple[int, int]:
    if dtype in NUMPY_FLOATS:
        return _of_floats(np.frombuffer(piece, NUMPY_FLOATS[dtype]))
    if dtype in MASKED:
        stored, exponent, infinity = MASKED[dtype]
        bits = np.frombuffer(piece, stored)
        special = int(np.count_nonzero((bits & exponent) == exponent))
        if not special:
            return 0, 0
        # without the sign bit: both infinities
        magnitude = bits & np.iinfo(bits.dtype).max >> 1
        infinite = int(np.count_nonzero(magnitude == infinity))
        return special - infinite, infinite
    bits = np.frombuffer(piece, "u1")
    return sum(int(np.count_nonzero(bits == pattern)) for pattern in NAN_PATTERNS[dtype]), 0


def _of_floats(numbers: Pieces) -> tuple[int, int]:
    with np.errstate(all="ignore"):
        # a sum of float16 in float16 runs over at 65,504, and every large tensor would be looked at
        # twice
        if np.isfinite(numbers.sum(dtype=np.float32 if numbers.itemsize == 2 else None)):  # noqa: PLR2004 - bytes of float16
            return 0, 0
    return int(np.count_nonzero(np.isnan(numbers))), int(np.count_nonzero(np.isinf(numbers)))
