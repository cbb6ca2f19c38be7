"""Settings that a diagnostic run tries: filled memory in NumPy, one worker in each pool.

The gate fills the C heap itself, by the allocator's own variable. NumPy keeps small blocks and
hands them out again without asking the heap, so its two functions are wrapped here. NumPy's
internal code uses names of its own and is not affected.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, Final

FUNCTIONS: Final = ("empty", "empty_like")


def fill_numpy(byte: int) -> None:
    """Make NumPy's `empty` and `empty_like` return arrays filled with `byte`."""
    module: Any = sys.modules["numpy"]
    for name in FUNCTIONS:
        setattr(module, name, _filled(getattr(module, name), byte))


def _filled(plain: Any, byte: int) -> Any:
    @functools.wraps(plain)
    def empty(*args: Any, **named: Any) -> Any:
        array = plain(*args, **named)
        # NumPy always initialises arrays of objects
        if not array.dtype.hasobject and array.nbytes:
            # in the order of memory, so that the reshape is a view in any layout
            array.reshape(-1, order="A").view("u1")[...] = byte
        return array

    return empty


# module, class, and the name of its first argument, the number of workers
POOLS: Final = {
    "concurrent.futures.thread": ("ThreadPoolExecutor", "max_workers"),
    "concurrent.futures.process": ("ProcessPoolExecutor", "max_workers"),
    "multiprocessing.pool": ("Pool", "processes"),
}
# without workers, a DataLoader refuses these arguments or does not use them
OF_WORKERS: Final = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


def one_worker(module: str) -> None:
    """Give each pool of a module one worker from now on."""
    name, count = POOLS[module]
    kind: Any = getattr(sys.modules[module], name)
    plain = kind.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **named: Any) -> None:
        named.pop(count, None)
        plain(self, 1, *args[1:], **named)

    kind.__init__ = init


def no_loader_workers(kind: Any) -> None:
    """Let each DataLoader load in the training process from now on."""
    plain = kind.__init__
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **named: Any) -> None:
        asked = signature.bind(self, *args, **named)
        for name in OF_WORKERS:
            asked.arguments.pop(name, None)
        # passed by name, since the removed arguments may come before the remaining ones
        plain(**{**asked.arguments, "num_workers": 0})

    kind.__init__ = init
