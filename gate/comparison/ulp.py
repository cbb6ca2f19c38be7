"""Units in the last place: how far two floats of a type are apart, and how large one unit is.

Every finite float of a type maps to an integer so that neighbours differ by one (IEEE 754: the bit
pattern of a non-negative float is monotone in its value); the distance is the difference. Minus
zero and zero are neighbours of the same two numbers and have distance zero.
"""

from __future__ import annotations

import math
import struct
from typing import Final

import numpy as np

from gate.evidence.run_evidence import FloatType

# Bits of the fraction, and the exponent of the smallest normal number (IEEE 754; bfloat16 has the
# exponents of float32).
FRACTION_BITS: Final[dict[FloatType, tuple[int, int]]] = {
    "float64": (52, -1022),
    "float32": (23, -126),
    "float16": (10, -14),
    "bfloat16": (7, -126),
}

# bfloat16 is the upper half of a float32, so its integer is that half.
_FORMATS: dict[FloatType, tuple[str, str, int]] = {
    "float64": ("<d", "<q", 0),
    "float32": ("<f", "<i", 0),
    "float16": ("<e", "<h", 0),
    "bfloat16": ("<f", "<i", 16),
}


def ulp_distance(a: float, b: float, dtype: FloatType) -> int | None:
    """How many representable numbers of `dtype` lie between a and b; None when one is not finite.

    A value that does not fit the type (a float64 metric judged as float32) counts as not finite.
    """
    if not (math.isfinite(a) and math.isfinite(b)):
        return None
    try:
        return abs(_ordered(a, dtype) - _ordered(b, dtype))
    except OverflowError:
        return None


def _ordered(value: float, dtype: FloatType) -> int:
    float_format, int_format, shift = _FORMATS[dtype]
    # packing as `<f` raises OverflowError for what the type cannot hold: it has no place on this
    # line
    (pattern,) = struct.unpack(int_format, struct.pack(float_format, value))
    bits: int = pattern >> shift
    lowest = int.from_bytes(b"\x80", "big") << (struct.calcsize(int_format) * 8 - 8 - shift)
    # negative floats count the other way: sign and magnitude to an ordinary integer
    return bits if bits >= 0 else -(bits + lowest)


def ulp_size(value: float, dtype: FloatType) -> float:
    """The distance from a finite number to its next neighbour of the type."""
    fraction, smallest = FRACTION_BITS[dtype]
    exponent = max(int(np.frexp(value)[1]) - 1, smallest)
    return float(np.ldexp(1.0, exponent - fraction))
