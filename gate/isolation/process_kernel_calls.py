"""System calls that Python has no function for, by the standard library alone."""

from __future__ import annotations

import ctypes
import os

library = ctypes.CDLL(None, use_errno=True)


def system_call(number: int, *arguments: int | bytes | None) -> int:
    """Make a call that the C library has no function for either; `OSError` when it fails."""
    # an int alone would be passed as 32 bits, and syscall(2) takes long words
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return checked(library.syscall(ctypes.c_long(number), *words))


def checked(answer: int) -> int:
    """The answer of a function of the C library; `OSError` when it is negative."""
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
