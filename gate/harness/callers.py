"""Which line of the training called: found on the stack, told as file and line.

Imported by processes without torch too, so nothing heavy is imported here.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

# Who acts for somebody else: the line that is looked for lies above these on the stack.
GO_BETWEENS = ("torch", "contextlib", "numpy", str(__package__))
LIBRARIES = ("site-packages", "dist-packages", os.path.dirname(os.__file__))  # noqa: PTH120 - pathlib is slow to import
COMPILER = ("torch._dynamo", "torch._compile")
UNKNOWN = ("", 0)

_began_in = os.getcwd()  # noqa: PTH109 - as above


def called_by_torch(frame: FrameType | None) -> bool:
    """Whether torch itself made the call, not a wrapper that its compiler puts around a name."""
    while frame is not None and _module(frame).startswith(COMPILER):
        frame = frame.f_back
    return frame is not None and _root(frame) == "torch"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _root(frame: FrameType) -> str:
    return _module(frame).partition(".")[0]


def place_of(frame: FrameType | None) -> tuple[str, int, bool]:
    """File, line, and whether a context manager stands between there and the given frame.

    The first line of the user's own code; when there is none, of whichever library called.
    """
    through_context = False
    outside: FrameType | None = None
    while frame is not None:
        root = _root(frame)
        if outside is None and root == "contextlib":
            through_context = True
        if root not in GO_BETWEENS:
            outside = outside or frame
            if not _in_library(frame.f_code.co_filename):
                return (*_shown(frame), through_context)
        frame = frame.f_back
    return (*(_shown(outside) if outside is not None else UNKNOWN), through_context)


def _in_library(file: str) -> bool:
    return file.startswith("<") or any(part in file for part in LIBRARIES)


def _shown(frame: FrameType) -> tuple[str, int]:
    """Relative to where the training began, when it lies there."""
    file = os.path.abspath(frame.f_code.co_filename)  # noqa: PTH100 - pathlib is slow to import
    inside = _began_in.rstrip(os.sep) + os.sep
    return file.removeprefix(inside), frame.f_lineno


def calling_frame(depth: int) -> FrameType:
    """The frame that many calls above the caller of this function."""
    return sys._getframe(depth + 1)  # noqa: SLF001 - inspect offers only slower copies
