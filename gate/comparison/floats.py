"""Raw little-endian floats as numbers, and how many numbers of their type lie between two.

bfloat16, which NumPy does not know, is the upper half of a float32.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gate.records.evidence import FloatType
from gate.records.values import FloatName

ELEMENT_TYPES: Final[dict[FloatName, tuple[str, str]]] = {
    "F64": ("<f8", "<i8"),
    "F32": ("<f4", "<i4"),
    "F16": ("<f2", "<i2"),
    "BF16": ("<u2", "<i2"),
}
# Bits of the fraction, and the exponent of the smallest normal number (IEEE 754; bfloat16 has the
# exponents of float32).
FRACTION_BITS: Final[dict[FloatType, tuple[int, int]]] = {
    "float64": (52, -1022),
    "float32": (23, -126),
    "float16": (10, -14),
    "bfloat16": (7, -126),
}


def numbers(dtype: FloatName, data: bytes) -> NDArray[np.float64]:
    """The values as float64, which holds each of these types exactly; shape (elements,)."""
    stored = np.frombuffer(data, dtype=ELEMENT_TYPES[dtype][0])
    if dtype == "BF16":
        stored = (stored.astype("<u4") << 16).view("<f4")
    return stored.astype(np.float64)


def ulp_distances(dtype: FloatName, left: bytes, right: bytes) -> NDArray[np.uint64]:
    """How many numbers of the type lie between each two elements; the two zeros are one number."""
    one, other = _ordered(dtype, left), _ordered(dtype, right)
    # Modulo 2**64, so that the widest distance of float64 fits as well.
    larger, smaller = np.maximum(one, other), np.minimum(one, other)
    return larger.view(np.uint64) - smaller.view(np.uint64)


def _ordered(dtype: FloatName, data: bytes) -> NDArray[np.int64]:
    """The bit patterns on one line, as in `gate.comparison.ulp`."""
    bits = np.frombuffer(data, dtype=ELEMENT_TYPES[dtype][1])
    magnitude = (bits & np.iinfo(bits.dtype).max).astype(np.int64)
    return np.where(bits < 0, -magnitude, magnitude)


def ulp_size(value: float, dtype: FloatType) -> float:
    """The distance from a finite number to its next neighbour of the type."""
    fraction, smallest = FRACTION_BITS[dtype]
    exponent = max(int(np.frexp(value)[1]) - 1, smallest)
    return float(np.ldexp(1.0, exponent - fraction))
