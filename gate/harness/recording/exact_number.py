"""One number as evidence: its type and its exact value."""

from __future__ import annotations

from typing import Any

FLOAT_TYPES = ("float64", "float32", "float16", "bfloat16")


def type_name(value: Any) -> str:
    """The float type of a tensor or NumPy scalar; `float64`, Python's own, for all else."""
    name = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return name if name in FLOAT_TYPES else "float64"


def exact(value: Any) -> dict[str, str]:
    """`dtype` and `hex` of a one-element tensor, a NumPy scalar or a Python number.

    Every value of the four float types is a float64 exactly, so `float.hex` loses nothing. Reading
    a tensor of a GPU waits for it.
    """
    return {"dtype": type_name(value), "hex": float(value).hex()}
