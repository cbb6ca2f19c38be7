"""How the time of a reader grows with its input: by CPU time, which other work hardly moves."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

# below this nothing is told from noise, and nobody waits for it
FLOOR_SECONDS = 0.04
MOST = 2.5
TRIES = 4


def grows_too_fast(read: Callable[[int], object], size: int) -> float:
    """What twice the input takes more, where that is above 2.5; 0 where it is not.

    `read` makes and reads an input of a size. A square takes 4 times as long each time; noise does
    not, so the least of several tries counts.
    """
    ratio = 0.0
    for _ in range(TRIES):
        twice = _seconds(read, 2 * size)
        if twice < FLOOR_SECONDS:
            return 0.0
        once = _seconds(read, size)
        if twice < MOST * once:
            return 0.0
        ratio = twice / max(once, 1e-9)
    return ratio


def _seconds(read: Callable[[int], object], size: int) -> float:
    gc.disable()
    try:
        begun = time.process_time()
        read(size)
        return time.process_time() - begun
    finally:
        gc.enable()
