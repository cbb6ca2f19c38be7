"""Memory that nobody has written, workers of data loaders, memory of a GPU: once torch is there."""

from __future__ import annotations

import os
import sys

from .sources.found import READING, SOURCES
from .sources.reads import put
from .told import tell_varied
from .user_code import calling_frame, users_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Callbacks = dict[str, Callable[[], None]]

NOBODY: frozenset[str] = frozenset()
OF_DATA = frozenset(("torch",))
# no number that memory or the gate's own fill (NaN, or the largest whole number) holds
FILL = 85
OF_TORCH = ("empty", "empty_like", "empty_strided")
OF_TENSORS = ("new_empty", "new_empty_strided")
OF_NUMPY = ("empty", "empty_like")
# the place of `num_workers` among the arguments of torch's DataLoader, behind `self`
WORKERS_PLACE = 5
WORKERS_OF_NONE = 2
HELD_PART = 0.5

_held: list[Any] = []


def vary_uninitialized_memory() -> Callbacks:
    """Fill what `empty` gives; what C asks the allocator for the gate has varied by a variable."""
    tell_varied("uninitialized-memory", f"filled with {FILL}")
    return {"torch": _fill_torch, "numpy": _fill_numpy}


def _fill_torch() -> None:
    torch: Any = sys.modules["torch"]
    for owner, names in ((torch, OF_TORCH), (torch.Tensor, OF_TENSORS)):
        for name in names:
            _fill(owner, name, lambda tensor: tensor.detach().fill_(FILL))


def _fill_numpy() -> None:
    for name in OF_NUMPY:
        _fill(sys.modules["numpy"], name, lambda array: array.fill(FILL))


def _fill(owner: Any, name: str, fill: Callable[[Any], object]) -> None:
    plain = getattr(owner, name)
    shown = f"{owner.__name__}.{name}"

    def filled(*args: Any, **named: Any) -> Any:
        made = plain(*args, **named)
        try:
            fill(made)
            _tell(shown, NOBODY)
        except Exception:
            # of a type that holds no such number
            return made
        return made

    filled.__name__, filled.__doc__ = name, plain.__doc__
    # the name by which it can be pickled: torch's own is that of a hidden class
    of_class = isinstance(owner, type)
    filled.__module__ = owner.__module__ if of_class else owner.__name__
    filled.__qualname__ = f"{owner.__qualname__}.{name}" if of_class else name
    setattr(owner, name, filled)


def vary_worker_count() -> Callbacks:
    """Give each torch DataLoader one worker more, and two where it had none."""
    return {"torch": _add_workers}


def _add_workers() -> None:
    from torch.utils.data import DataLoader

    plain: Any = DataLoader.__init__

    def make(self: Any, *args: Any, **named: Any) -> None:
        by_place = len(args) > WORKERS_PLACE
        before = args[WORKERS_PLACE] if by_place else named.get("num_workers", 0)
        after = before + 1 if before else WORKERS_OF_NONE
        if by_place:
            args = (*args[:WORKERS_PLACE], after, *args[WORKERS_PLACE + 1 :])
        else:
            named["num_workers"] = after
        _tell("torch.utils.data.DataLoader", OF_DATA)
        tell_varied("worker-count", f"{after} instead of {before}")
        plain(self, *args, **named)

    put(DataLoader, "__init__", make)


def vary_free_gpu_memory() -> Callbacks:
    """Hold half of the memory that is free on the GPU from when CUDA is started."""
    return {"torch": _hold_when_started}


def _hold_when_started() -> None:
    torch: Any = sys.modules["torch"]
    plain = torch.cuda._lazy_init  # noqa: SLF001 - torch calls it before it first uses a GPU
    pid = os.getpid()

    def _lazy_init() -> None:
        plain()
        if not _held and os.getpid() == pid:
            # a word first: what follows asks for CUDA again
            _held.append("")
            free, _ = torch.cuda.mem_get_info()
            size = int(free * HELD_PART)
            _held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            tell_varied("free-gpu-memory", f"{size} bytes less")

    torch.cuda._lazy_init = _lazy_init  # noqa: SLF001 - as above


def vary_gpu_index() -> Callbacks:
    """The gate has named the GPUs in another order, which CUDA reads when it starts."""
    tell_varied("gpu-index", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return {}


def _tell(call: str, through: frozenset[str]) -> None:
    user = users_frame(calling_frame(2), through)
    if user is not None and not SOURCES.full(READING):
        SOURCES.found_at(READING, call, user)
