"""Arrays of NumPy that nobody has written hold a byte that the gate chose.

The gate fills the C heap itself, through the allocator's own variable. NumPy keeps small blocks and
hands them out again without asking the heap, so its two functions are wrapped here. What NumPy does
for itself uses names of its own, and is left alone.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

FUNCTIONS: Final = ("empty", "empty_like")


def fill_numpy(byte: int) -> None:
    """NumPy has been imported."""
    module: Any = sys.modules["numpy"]
    for name in FUNCTIONS:
        setattr(module, name, _filled(getattr(module, name), byte))


def _filled(plain: Any, byte: int) -> Any:
    @functools.wraps(plain)
    def empty(*args: Any, **named: Any) -> Any:
        array = plain(*args, **named)
        # references to objects are always written
        if not array.dtype.hasobject and array.nbytes:
            # as it lies in memory, whatever its order
            array.reshape(-1, order="A").view("u1")[...] = byte
        return array

    return empty
