"""Numbers as they lie in a file, on their way from the reader to the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

FloatName = Literal["F64", "F32", "F16", "BF16"]
FLOAT_NAMES: Final[dict[str, FloatName]] = {
    "F64": "F64",
    "F32": "F32",
    "F16": "F16",
    "BF16": "BF16",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatPair:
    """The same stretch of the same tensor in two states: little-endian elements, equally many."""

    dtype: FloatName
    left: bytes
    right: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatTensor:
    """The first elements of a tensor in row-major order, little-endian."""

    name: str
    dtype: FloatName
    data: bytes
