"""Finds the line of the training that did something, on the stack or in a traceback.

There are two questions with different answers. The script answers for an override or a seed, no
matter how many libraries are in between: `caller_of`. An operator belongs to the line that called
torch, which may be a library's: `running_line` and `failing_line`. Processes without torch import
this module too, so it imports nothing heavy.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any

# packages that act for somebody else: the responsible line is above them on the stack
GO_BETWEENS = ("torch", "contextlib", "numpy", str(__package__))
PACKAGES = ("site-packages", "dist-packages")
STANDARD = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib is slow to import
LIBRARIES = (*PACKAGES, STANDARD)
COMPILER = ("torch._dynamo", "torch._compile")
UNKNOWN = "unknown"
IMPORTING = "importlib"
MAX_FILE_LENGTH = 300
STACK_DEPTH = 3
# `warnings` skips frames of such a file when it looks for the line that a warning is about.
UNSEEN_FILE = "<repro-gate, passed over as importlib._bootstrap is>"

# File names are reported relative to the start directory; the script may change directories later.
_began_in = os.getcwd().rstrip(os.sep) + os.sep  # noqa: PTH109 - as above
# computed once torch is imported: no line in these files is the training's
_machinery: tuple[str, ...] = ()


class CodeLine:
    """A line of the training, and whether torch ran a backward pass there.

    `file` is empty if no caller was found, and `UNKNOWN` if an operator's line cannot be found.
    `started_backward` is true if the line started the backward pass and no line of the training
    runs inside it.
    """

    __slots__ = ("backward", "file", "line", "started_backward")

    def __init__(self, file: str = "", line: int = 0, *, backward: bool = False) -> None:
        self.file = file
        self.line = line
        self.backward = backward
        self.started_backward = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def named_as(function: Any, plain: Any) -> Any:
    """Give a hook the names of the function it replaces; `functools.wraps` is slow to import."""
    for word in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(function, word, getattr(plain, word, None))
    return function


def called_by_torch(frame: FrameType | None) -> bool:
    """Whether torch itself made the call; its compiler's wrappers do not count as a caller."""
    while frame is not None and _module(frame).startswith(COMPILER):
        frame = frame.f_back
    return frame is not None and _root(frame) == "torch"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _root(frame: FrameType) -> str:
    return _module(frame).partition(".")[0]


class Caller:
    """The line that a call came from, and how.

    `through_context` is true if a context manager is in between. `importing` is true if a library
    made the call while that line imported it.
    """

    __slots__ = ("importing", "place", "through_context")

    def __init__(self, place: CodeLine, *, through_context: bool, importing: bool) -> None:
        self.place = place
        self.through_context = through_context
        self.importing = importing


def caller_of(frame: FrameType | None) -> Caller:
    """Return the first line of the user's own code, or else of the library that called."""
    through_context = importing = False
    outside: FrameType | None = None
    while frame is not None:
        root = _root(frame)
        # a context manager further up the stack is not how this call came about
        if outside is None and root == "contextlib":
            through_context = True
        importing = importing or root == IMPORTING
        # remember the innermost library's line in case no line of the user's follows
        if root not in GO_BETWEENS and root != IMPORTING:
            outside = outside or frame
            if not in_library(frame.f_code.co_filename):
                break
        frame = frame.f_back
    line = frame or outside
    place = (
        CodeLine() if line is None else CodeLine(shown_file(line.f_code.co_filename), line.f_lineno)
    )
    return Caller(place, through_context=through_context, importing=importing)


def user_stack(frame: FrameType | None) -> list[str]:
    """Return `file:line function` of the user's own innermost frames, three at most."""
    lines: list[str] = []
    while frame is not None and len(lines) < STACK_DEPTH:
        if _is_users(frame):
            lines.append(
                f"{shown_file(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"
            )
        frame = frame.f_back
    return lines


def through_library(frame: FrameType | None) -> list[str]:
    """Return `file:line function` of an installed package that acts for the user, if one does.

    The user's line may be a loop over what the package creates. A reader who looks for a seed needs
    the package's own line.
    """
    while frame is not None and not _is_users(frame):
        file = frame.f_code.co_filename
        if _root(frame) not in GO_BETWEENS and any(part in file for part in PACKAGES):
            return [f"{shown_file(file)}:{frame.f_lineno} {frame.f_code.co_name}"]
        frame = frame.f_back
    return []


def users_frame(frame: FrameType | None, through: frozenset[str]) -> FrameType | None:
    """Return the frame above the modules `through` if it is the user's own; else None."""
    while frame is not None and _root(frame) in through:
        frame = frame.f_back
    return frame if frame is not None and _is_users(frame) else None


def called_in(frame: FrameType, user: FrameType) -> str:
    """Return the function that a user's frame called, as `module.function`; `frame` is below it."""
    while frame.f_back is not None and frame.f_back is not user:
        frame = frame.f_back
    # users import `pathlib`, not `pathlib._local`
    return f"{_module(frame).partition('._')[0]}.{frame.f_code.co_name.lstrip('_')}"


def _is_users(frame: FrameType) -> bool:
    ours = _root(frame) in {*GO_BETWEENS, IMPORTING}
    return not ours and not in_library(frame.f_code.co_filename)


def made_by_machinery(frame: FrameType | None) -> bool:
    """Whether the standard library, torch or NumPy made the call for its own purposes.

    Packages that torch imports count too, since nobody can import torch without them.
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
    while frame is not None and in_library(frame.f_code.co_filename):
        importing = importing or _root(frame) == IMPORTING
        if importing and _root(frame) == "torch":
            return True
        frame = frame.f_back
    return False


def is_users_file(file: str) -> bool:
    """Whether a file is the user's own and not a library's."""
    return not in_library(file) and not in_machinery(file)


def in_library(file: str) -> bool:
    """Whether a file is the standard library's, an installed package's, or no real file."""
    return file.startswith("<") or any(part in file for part in LIBRARIES)


def running_line() -> CodeLine:
    """Return the innermost line outside torch and the harness that is running now."""
    backward, above_engine = inside_backward(), False
    engine = f"{_torch_folder()}autograd{os.sep}graph.py"
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect offers only slower copies
    while frame is not None:
        name = frame.f_code.co_filename
        if not in_machinery(name):
            place = CodeLine(shown_file(name), frame.f_lineno, backward=backward)
            place.started_backward = above_engine
            return place
        # torch shows warnings of a backward pass when the pass is over, from a frame in this file
        above_engine = above_engine or name == engine
        backward = backward or above_engine
        frame = frame.f_back
    return CodeLine(UNKNOWN, backward=backward)


def failing_line(traceback: TracebackType | None) -> CodeLine:
    """Return the innermost line outside torch and the harness in an exception's traceback."""
    innermost = CodeLine(UNKNOWN)
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if not in_machinery(name):
            innermost = CodeLine(shown_file(name), traceback.tb_lineno)
        traceback = traceback.tb_next
    return innermost


def inside_backward() -> bool:
    """Whether autograd runs a node in this thread; False if this version of torch cannot say."""
    torch: Any = sys.modules["torch"]
    node: Any = getattr(torch._C, "_current_autograd_node", None)  # noqa: SLF001 - no public name
    return node is not None and node() is not None


def _torch_folder() -> str:
    return os.path.dirname(str(sys.modules["torch"].__file__)) + os.sep  # noqa: PTH120 - as above


def _files_of_machinery() -> tuple[str, ...]:
    """Return prefixes of the files that contain no line of the training."""
    global _machinery
    if not _machinery:
        ours = os.path.dirname(__file__) + os.sep  # noqa: PTH120 - as above
        standard = (
            f"{STANDARD}{os.sep}{name}.py" for name in ("contextlib", "functools", "warnings")
        )
        _machinery = (_torch_folder(), ours, *standard, "<frozen ", UNSEEN_FILE)
    return _machinery


def shown_file(file: str) -> str:
    """Return the file's name relative to the start directory or to the installed packages."""
    whole = file if file.startswith("<") else os.path.abspath(file)  # noqa: PTH100 - as above
    inside = whole.removeprefix(_began_in)
    _, installed, package = inside.rpartition(f"{os.sep}site-packages{os.sep}")
    return (package if installed else inside)[-MAX_FILE_LENGTH:]


def in_machinery(file: str) -> bool:
    """Whether a file is torch's, the harness's, or one that only passes calls on."""
    return file.startswith(_files_of_machinery())


def calling_frame(depth: int) -> FrameType:
    """Return the frame `depth` calls above the caller of this function."""
    return sys._getframe(depth + 1)  # noqa: SLF001 - inspect offers only slower copies


def unseen_by_warnings(function: Any) -> Any:
    """Change a wrapper so that a warning of the wrapped function points to the wrapper's caller.

    The wrapped function counts frames (`stacklevel=2`), and a wrapper is one more. `warnings` does
    not count frames of the import system, which it recognises by their file's name.
    """
    function.__code__ = function.__code__.replace(co_filename=UNSEEN_FILE)
    return function
