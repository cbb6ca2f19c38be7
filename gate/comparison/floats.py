"""Raw little-endian floats as numbers, and how many numbers of their type lie between two."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gate.comparison.element_types import ELEMENT_TYPES
from gate.records.evidence import FloatType
from gate.records.values import FloatName

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
    kind = ELEMENT_TYPES[dtype]
    # A signaling NaN is a bit pattern like any other here; the processor reports its widening.
    with np.errstate(invalid="ignore"):
        return kind.numbers(np.frombuffer(data, dtype=kind.bits)).astype(np.float64)


def ulp_distances(dtype: FloatName, left: bytes, right: bytes) -> NDArray[np.uint64]:
    """How many numbers of the type lie between each two elements; the two zeros are one number."""
    kind = ELEMENT_TYPES[dtype]
    one, other = (np.frombuffer(data, dtype=kind.bits) for data in (left, right))
    return kind.distances(one, other).astype(np.uint64)


def ulp_size(value: float, dtype: FloatType) -> float:
    """The distance from a finite number to its next neighbour of the type."""
    fraction, smallest = FRACTION_BITS[dtype]
    exponent = max(int(np.frexp(value)[1]) - 1, smallest)
    return float(np.ldexp(1.0, exponent - fraction))
