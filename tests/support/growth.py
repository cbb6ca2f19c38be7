"""Measure how a reader's time grows with its input: CPU time, and the least of several tries."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

# shorter times cannot be distinguished from noise, and nobody notices them
FLOOR_SECONDS = 0.04
MOST = 2.5
TRIES = 40
PAUSE_SECONDS = 0.05


def grows_too_fast(read: Callable[[int], object], size: int) -> float:
    """What twice the input takes more, where that is above 2.5; 0 where it is not.

    `read` makes and reads an input of a size. Other work on the machine only ever adds to a time,
    so the least of both sizes is compared; a square takes 4 times as long however often it is
    asked, and a busy machine gets two seconds more to be quiet for two readings.
    """
    least, least_twice = float("inf"), float("inf")
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_SECONDS)
        least_twice = min(least_twice, _seconds(read, 2 * size))
        if least_twice < FLOOR_SECONDS:
            return 0.0
        least = min(least, _seconds(read, size))
        if least_twice < MOST * least:
            return 0.0
    return least_twice / max(least, 1e-9)


def _seconds(read: Callable[[int], object], size: int) -> float:
    gc.disable()
    try:
        begun = time.thread_time()
        read(size)
        return time.thread_time() - begun
    finally:
        gc.enable()
