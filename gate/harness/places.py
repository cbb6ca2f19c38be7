"""Where in the user's code something happened: the innermost frame outside torch and harness."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from .user_code import UNSEEN_FILE

MAX_FILE_LENGTH = 300
UNKNOWN = "unknown"

# The script may change its directory later; names are told as seen from where it began.
_beginning = f"{Path.cwd()}{os.sep}"
_not_the_users = (
    f"{Path(torch.__file__).parent}{os.sep}",
    f"{Path(__file__).parent}{os.sep}",
    *(str(module.__file__) for module in (contextlib, functools, warnings)),
    "<frozen ",
    UNSEEN_FILE,
)
# Torch's notices of a backward pass reach Python when the pass is over, in this file.
_engine = str(Path(torch.__file__).parent / "autograd" / "graph.py")


class Place:
    """A line of the user's, and whether torch was in a backward pass there."""

    __slots__ = ("backward", "file", "line")

    def __init__(self, file: str, line: int, *, backward: bool = False) -> None:
        self.file = file
        self.line = line
        self.backward = backward

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def place_here() -> Place:
    """The line of the user's that is running now."""
    backward = inside_backward()
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect offers only slower copies
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_not_the_users):
            return Place(_shown(name), frame.f_lineno, backward=backward)
        backward = backward or name == _engine
        frame = frame.f_back
    return Place(UNKNOWN, 0, backward=backward)


def inside_backward() -> bool:
    """Whether the engine is running a node of the graph in this thread, as some torchs can tell."""
    node: Any = getattr(torch._C, "_current_autograd_node", None)  # noqa: SLF001 - no public name
    return node is not None and node() is not None


def place_of(traceback: TracebackType | None) -> Place:
    """The innermost line of the user's in the traceback of an exception."""
    found = Place(UNKNOWN, 0)
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if not name.startswith(_not_the_users):
            found = Place(_shown(name), traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def _shown(name: str) -> str:
    """The name from the folder where the script began, or from the installed packages on."""
    inside = name.removeprefix(_beginning)
    _, found, package = inside.rpartition(f"{os.sep}site-packages{os.sep}")
    return (package if found else inside)[-MAX_FILE_LENGTH:]
