"""Reports environment variables that the training asks for and that are not set.

Only a failed look-up costs anything: a variable that is set is returned at once. Only names are
reported, never a value.

Every Python process of a training imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

MAX_LOOKS = 5_000
MAX_NAMES = 20
MAX_NAME = 100
# modules that ask on the user's behalf: `os.getenv`, `os.environ.get`, `in`
THROUGH = frozenset(("os", "_collections_abc", "collections.abc"))
OURS = frozenset((__name__.partition(".")[0], "sitecustomize"))
LIBRARIES = (f"{sys.base_prefix}/lib", f"{sys.prefix}/lib", "<")
_looks = 0
_told_places: set[str] = set()


def hook_variables() -> None:
    """Look at each failed look-up in `os.environ`; hooks once, however often called."""
    kind: Any = type(os.environ)
    plain = kind.__getitem__
    if getattr(plain, "__module__", "") == __name__:
        return

    def value_of(self: Any, key: Any) -> Any:
        try:
            return plain(self, key)
        except KeyError:
            _missed(self, key)
            raise

    kind.__getitem__ = value_of


def _missed(asked: Any, key: Any) -> None:
    global _looks
    _looks += 1
    if (
        asked is not os.environ
        or _looks > MAX_LOOKS
        or len(_told_places) >= MAX_NAMES
        or key in _told_places
    ):
        return
    try:
        if len(key) <= MAX_NAME and key.isprintable():
            _look(sys._getframe(2), key)  # noqa: SLF001 - inspect offers only slower copies
    except Exception:
        # an error of the harness must never reach the script
        return


def _look(frame: FrameType | None, key: str) -> None:
    while frame is not None and frame.f_globals.get("__name__") in THROUGH:
        frame = frame.f_back
    # most failed look-ups are Python's own, and are recognised without an import
    if frame is None or frame.f_code.co_filename.startswith(LIBRARIES):
        return
    # skip look-ups of the harness, and of the module by which Python starts it
    if str(frame.f_globals.get("__name__")).partition(".")[0] in OURS:
        return
    from ..user_code import users_frame
    from .recorded import SOURCES, VARIABLE

    user = users_frame(frame, frozenset())
    if user is not None:
        _told_places.add(key)
        SOURCES.found_at(VARIABLE, key, user)
