"""One setting moved in this process: memory that nobody has written, one worker in each pool.

The gate fills the C heap itself, through the allocator's own variable. NumPy keeps small blocks and
hands them out again without asking the heap, so its two functions are wrapped here. What NumPy does
for itself uses names of its own, and is left alone.
"""

from __future__ import annotations

import functools
import inspect
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
            # as it is in memory, whatever its order
            array.reshape(-1, order="A").view("u1")[...] = byte
        return array

    return empty


# module, class, and the argument that counts the workers: the first one of each
POOLS: Final = {
    "concurrent.futures.thread": ("ThreadPoolExecutor", "max_workers"),
    "concurrent.futures.process": ("ProcessPoolExecutor", "max_workers"),
    "multiprocessing.pool": ("Pool", "processes"),
}
# a DataLoader refuses these without workers, or waits for none
OF_WORKERS: Final = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


def one_worker(module: str) -> None:
    """A module of pools has been imported: from now on each of its pools has one worker."""
    name, count = POOLS[module]
    kind: Any = getattr(sys.modules[module], name)
    plain = kind.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **named: Any) -> None:
        named.pop(count, None)
        plain(self, 1, *args[1:], **named)

    kind.__init__ = init


def no_loader_workers(kind: Any) -> None:
    """From now on each DataLoader reads in the process that trains."""
    plain = kind.__init__
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **named: Any) -> None:
        asked = signature.bind(self, *args, **named)
        for name in OF_WORKERS:
            asked.arguments.pop(name, None)
        # by name: what was taken out may stand before what is left
        plain(**{**asked.arguments, "num_workers": 0})

    kind.__init__ = init
