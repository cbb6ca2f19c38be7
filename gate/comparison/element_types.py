"""Raw little-endian elements of every type as numbers, exactly, and on a line of whole numbers.

NumPy knows neither bfloat16 (the upper half of a float32) nor the floats of one byte, whose 256
values stand in tables here. Sources: P. Micikevicius and others, FP8 Formats for Deep Learning,
2022; the FNUZ types (no infinity, no minus zero) as StableHLO specifies them; E8M0, a power of two
without sign, in OCP Microscaling Formats 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Raw = NDArray[Any]
Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ElementType:
    """How elements are stored: `bits` is NumPy's integer type of one part.

    `numbers` makes floats of an array of `bits`: float32 where that holds the type exactly, else
    float64, which rounds integers beyond 2**53 and nothing else. `signed` is true for floats with
    a sign bit, `parts` is two for complex numbers.
    """

    bits: str
    numbers: Callable[[Raw], Numbers]
    is_float: bool = True
    signed: bool = True
    narrow: bool = True
    parts: int = 1

    def distances(self, left: Raw, right: Raw) -> Raw:
        """The exact distance of each two parts, unsigned, in steps of the type.

        For floats that is units in the last place; the two zeros are one number.
        """
        one, other = self._ordered(left), self._ordered(right)
        # sorted first: an unsigned difference the wrong way round would wrap
        larger, smaller = np.maximum(one, other), np.minimum(one, other)
        # modulo the width, so that the widest distance fits as well
        unsigned = np.dtype(f"<u{one.dtype.itemsize}")
        found: Raw = larger.view(unsigned) - smaller.view(unsigned)
        return found

    def _ordered(self, raw: Raw) -> Raw:
        if not (self.is_float and self.signed):
            return raw
        # sign and magnitude to two's complement: so patterns are in the order of their numbers
        magnitude = raw & np.iinfo(raw.dtype).max
        return np.where(raw < 0, -magnitude, magnitude)


def _viewed(stored: str) -> Callable[[Raw], Numbers]:
    return lambda raw: raw.view(stored)


def _widened(stored: str, wide: str) -> Callable[[Raw], Numbers]:
    return lambda raw: raw.view(stored).astype(wide)


def _brain(raw: Raw) -> Numbers:
    # the lower half of a float32 is fraction that bfloat16 does not have: zeros
    return (raw.astype("<u4") << 16).view("<f4")


def _tabled(values: list[float]) -> Callable[[Raw], Numbers]:
    table = np.array(values, dtype=np.float32)
    return lambda raw: table[raw.view(np.uint8)]


def _byte_float(exponent_bits: int, bias: int, *, minus_zero: bool) -> list[float]:
    """All 256 values of a float of one byte without infinities.

    Without a minus zero, its code is the only NaN; with one, the codes of all ones are.
    """
    fraction_bits = 7 - exponent_bits
    values = []
    for code in range(256):
        exponent = (code & 0x7F) >> fraction_bits
        fraction = (code & ((1 << fraction_bits) - 1)) / (1 << fraction_bits)
        size = (
            math.ldexp(1 + fraction, exponent - bias)
            if exponent
            else math.ldexp(fraction, 1 - bias)
        )
        values.append(-size if code >> 7 else size)
    # E4M3 has one NaN for each sign, the FNUZ types the code that minus zero would have
    for code in (0x7F, 0xFF) if minus_zero else (0x80,):
        values[code] = math.nan
    return values


def _half_byte(raw: Raw) -> Numbers:
    """The upper byte of a float16."""
    # E5M2 is float16 cut after its second fraction bit, so zeros behind it give the same number
    return (raw.view(np.uint8).astype("<u2") << 8).view("<f2").astype("<f4")


def _scales() -> list[float]:
    return [*(math.ldexp(1.0, code - 127) for code in range(255)), math.nan]


def _integer(bits: str) -> ElementType:
    return ElementType(bits=bits, numbers=_widened(bits, "<f8"), is_float=False, narrow=False)


_FLOAT32 = ElementType(bits="<i4", numbers=_viewed("<f4"))
ELEMENT_TYPES: Final[dict[str, ElementType]] = {
    "BOOL": _integer("u1"),
    "U8": _integer("u1"),
    # Two numbers of four bits in a byte, and a file that nobody understands: counted by bytes.
    "F4_X2": _integer("u1"),
    "RAW": _integer("u1"),
    "I8": _integer("i1"),
    "U16": _integer("<u2"),
    "I16": _integer("<i2"),
    "U32": _integer("<u4"),
    "I32": _integer("<i4"),
    "U64": _integer("<u8"),
    "I64": _integer("<i8"),
    "F16": ElementType(bits="<i2", numbers=_widened("<f2", "<f4")),
    "BF16": ElementType(bits="<i2", numbers=_brain),
    "F32": _FLOAT32,
    "F64": ElementType(bits="<i8", numbers=_viewed("<f8"), narrow=False),
    "C32": ElementType(bits="<i2", numbers=_widened("<f2", "<f4"), parts=2),
    "C64": ElementType(bits="<i4", numbers=_viewed("<f4"), parts=2),
    "C128": ElementType(bits="<i8", numbers=_viewed("<f8"), narrow=False, parts=2),
    "F8_E5M2": ElementType(bits="i1", numbers=_half_byte),
    "F8_E4M3": ElementType(bits="i1", numbers=_tabled(_byte_float(4, 7, minus_zero=True))),
    "F8_E4M3FNUZ": ElementType(bits="i1", numbers=_tabled(_byte_float(4, 8, minus_zero=False))),
    "F8_E5M2FNUZ": ElementType(bits="i1", numbers=_tabled(_byte_float(5, 16, minus_zero=False))),
    "F8_E8M0": ElementType(bits="u1", numbers=_tabled(_scales()), signed=False),
}
