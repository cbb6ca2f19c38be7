"""Measure how a reader's time grows with its input: CPU time, and the least of several tries."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

# Shorter times cannot be distinguished from noise, and nobody notices them.
FLOOR_SECONDS = 0.04
# Eight times the input takes 8 times as long where a reader is linear, and 64 times where it is
# a square. Their middle is 22.6: what caches, memory and neighbours add (1.3 times were seen) is
# far from either.
MORE_INPUT = 8
MOST = 20.0
TRIES = 40
PAUSE_SECONDS = 0.05


def grows_too_fast(read: Callable[[int], object], size: int) -> float:
    """What `size` takes more than an eighth of it, where that is above 20 times; 0 where it is not.

    `read` makes and reads an input of a size. Other work on the machine only ever adds to a time,
    so the least of both sizes is compared; a square takes 64 times as long however often it is
    asked, and a busy machine gets two seconds more to be quiet for two readings.
    """
    least, least_large = float("inf"), float("inf")
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_SECONDS)
        least_large = min(least_large, _seconds(read, size))
        if least_large < FLOOR_SECONDS:
            return 0.0
        least = min(least, _seconds(read, size // MORE_INPUT))
        if least_large < MOST * least:
            return 0.0
    return least_large / max(least, 1e-9)


def _seconds(read: Callable[[int], object], size: int) -> float:
    gc.disable()
    try:
        begun = time.thread_time()
        read(size)
        return time.thread_time() - begun
    finally:
        gc.enable()
