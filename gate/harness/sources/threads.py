"""Threads that the script starts, and which of them draw from the common generators.

Two threads that draw from one generator take its numbers in an order that nobody fixes. So the
functions that draw are hooked once the script has started a thread of its own, not before. torch's
are left alone, since its compiler knows them by identity: of them the random state tells.

Imported by every Python process of a training, so nothing heavy is imported here.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from ..user_code import called_in, calling_frame, named_as, unseen_by_warnings, users_frame
from .found import DRAW, SOURCES, THREAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

# Who starts threads for the user.
THREAD_MAKERS = frozenset(("threading", "concurrent", "multiprocessing", "asyncio"))
NO_DRAWS = frozenset(("seed", "getstate", "setstate", "get_state", "set_state"))
# a thread may draw millions of numbers
MAX_LOOKS = 1_000

_hooked: set[str] = set()


def hook_threads(module: ModuleType) -> None:
    """`threading` has been imported: tell each line of the user's that starts a thread."""
    kind: Any = module.Thread
    plain = kind.start

    def start(self: Any) -> Any:
        try:
            frame = calling_frame(1)
            user = users_frame(frame, THREAD_MAKERS)
            if user is not None and not _feeds_a_queue(frame):
                SOURCES.found_at(THREAD, _started_by(frame, user), user)
                hook_draws()
        except Exception:
            # what the harness cannot find out must not be the script's worry
            pass
        return plain(self)

    named_as(start, plain)
    kind.start = unseen_by_warnings(start)


def _feeds_a_queue(frame: FrameType) -> bool:
    """Whether a queue between processes starts its own: that one only hands on what was put."""
    return frame.f_globals.get("__name__") == "multiprocessing.queues"


def _started_by(frame: FrameType, user: FrameType) -> str:
    call = "threading.Thread" if frame is user else called_in(frame, user)
    # a coroutine knows of no thread: what it called is what a reader looks for
    return (
        call.replace("asyncio.threads.", "asyncio.")
        if call.startswith("asyncio.")
        else "threading.Thread"
    )


def hook_draws() -> None:
    """Hook the functions of the common generators, of each module once."""
    for name in ("random", "numpy.random"):
        module = sys.modules.get(name)
        if module is None or name in _hooked:
            continue
        _hooked.add(name)
        common = module._inst if name == "random" else module.mtrand._rand  # noqa: SLF001 - no public name
        for function, plain in list(vars(module).items()):
            if getattr(plain, "__self__", None) is common and function not in NO_DRAWS:
                setattr(module, function, Draw(plain, f"{name}.{function}", name))


class Draw:
    """A function that draws from a common generator; beside the main thread it tells its line."""

    def __init__(self, plain: Any, call: str, module: str) -> None:
        self._plain = plain
        self._call = call
        self._looks = 0
        self._main = get_ident()
        for name in ("__name__", "__qualname__", "__doc__"):
            setattr(self, name, getattr(plain, name, None))
        self.__module__ = module
        self.__wrapped__ = plain

    def __call__(self, *args: Any, **named: Any) -> Any:
        """As the plain one."""
        if get_ident() != self._main and self._looks < MAX_LOOKS:
            self._looks += 1
            self._tell(calling_frame(1))
        return self._plain(*args, **named)

    def __reduce__(self) -> Any:
        """As the plain one, which is a method of the common generator."""
        return self._plain.__reduce__()

    def __repr__(self) -> str:
        """As the plain one's."""
        return repr(self._plain)

    def _tell(self, frame: Any) -> None:
        try:
            user = users_frame(frame, frozenset(("random", "numpy")))
            if user is not None:
                SOURCES.found_at(DRAW, self._call, user)
        except Exception:
            return
