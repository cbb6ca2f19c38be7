"""Which line of the training called: found on the stack, told as file and line.

Imported by processes without torch too, so nothing heavy is imported here.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

# Who acts for somebody else: the line that is looked for lies above these on the stack.
GO_BETWEENS = ("torch", "contextlib", "numpy", str(__package__))
PACKAGES = ("site-packages", "dist-packages")
STANDARD = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib is slow to import
LIBRARIES = (*PACKAGES, STANDARD)
COMPILER = ("torch._dynamo", "torch._compile")
UNKNOWN = ("", 0)
IMPORTING = "importlib"

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


class Caller:
    """The line that a call came from, and how.

    `through_context`: a context manager stands in between; `importing`: a library made the call
    while that line imported it.
    """

    __slots__ = ("file", "importing", "line", "through_context")

    def __init__(self, place: tuple[str, int], *, through_context: bool, importing: bool) -> None:
        self.file, self.line = place
        self.through_context = through_context
        self.importing = importing


def caller_of(frame: FrameType | None) -> Caller:
    """The first line of the user's own code; when there is none, of whichever library called."""
    through_context = importing = False
    outside: FrameType | None = None
    while frame is not None:
        root = _root(frame)
        if outside is None and root == "contextlib":
            through_context = True
        importing = importing or root == IMPORTING
        if root not in GO_BETWEENS and root != IMPORTING:
            outside = outside or frame
            if not _in_library(frame.f_code.co_filename):
                place = _shown(frame)
                break
        frame = frame.f_back
    else:
        place = UNKNOWN if outside is None else _shown(outside)
    return Caller(place, through_context=through_context, importing=importing)


def made_by_machinery(frame: FrameType | None) -> bool:
    """Whether the standard library, torch or NumPy made the call for a purpose of its own.

    What torch imports makes such generators too, and nobody can import torch without it.
    """
    while frame is not None and _root(frame) in {"random", str(__package__)}:
        frame = frame.f_back
    if frame is None or _root(frame) in {"torch", "numpy"}:
        return True
    file = frame.f_code.co_filename
    standard = file.startswith(STANDARD) and not any(part in file for part in PACKAGES)
    return standard or _imported_by_torch(frame)


def _imported_by_torch(frame: FrameType | None) -> bool:
    importing = False
    while frame is not None and _in_library(frame.f_code.co_filename):
        importing = importing or _root(frame) == IMPORTING
        if importing and _root(frame) == "torch":
            return True
        frame = frame.f_back
    return False


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


# Python passes over such frames when it looks for the line that a warning is about.
UNSEEN_FILE = "<repro-gate, passed over as importlib._bootstrap is>"


def unseen_by_warnings(function: Any) -> Any:
    """The wrapper, changed so that a warning of what it wraps points to whoever called it.

    What is wrapped counts frames (`stacklevel=2`), and a wrapper is one more. `warnings` leaves the
    frames of the import system out of that count, which it knows by the name of their file.
    """
    function.__code__ = function.__code__.replace(co_filename=UNSEEN_FILE)
    return function
