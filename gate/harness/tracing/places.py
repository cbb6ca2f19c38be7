"""Where an operator call comes from: line, module, phase of the step.

`fc.0` is the name that the outermost module has for it; that one itself is named by its class.

The harness computes digests with operators of its own. They are told by the innermost frame outside
torch: it lies in the harness, and not in one of the wrappers that the script's calls go through.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from ..user_code import in_library, in_machinery, shown_file

if TYPE_CHECKING:
    from types import FrameType


MAX_LINES: Final = 20_000
A_DOCUMENT: Final = 300
OnLine = Callable[[str, int], None]


class ExecutedLines:
    """File and line, with the number of the call that came next."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], int] = {}

    def note(self, file: str, line: int, call: int) -> None:
        """Only the first time counts; beyond `MAX_LINES` the rest is dropped."""
        if len(self._first) < MAX_LINES:
            self._first.setdefault((file, line), call)

    def documents(self) -> Iterator[dict[str, Any]]:
        """All of them, in parts of bounded size."""
        rows = [[file, line, call] for (file, line), call in self._first.items()]
        for start in range(0, len(rows), A_DOCUMENT):
            yield {"kind": "lines", "lines": rows[start : start + A_DOCUMENT]}


def watch(on_line: OnLine) -> None:
    """Call back for each line of this thread's user code that runs, the running script's too.

    A debugger of the script's own takes the place of this, and then lines are missing.
    """
    names: dict[str, str] = {}

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            on_line(names[frame.f_code.co_filename], frame.f_lineno)
        return local

    def entered(frame: FrameType, _event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        known = names.get(file)
        if known is None:
            known = "" if in_machinery(file) or in_library(file) else shown_file(file)
            names[file] = known
        return local if known else None

    # frames that run already have no tracer of their own: the script's module is one of them
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - inspect offers only slower copies
    while frame is not None:
        frame.f_trace = entered(frame, "call", None)
        if frame.f_trace is not None:
            for line in _ran_before(frame):
                on_line(names[frame.f_code.co_filename], line)
        frame = frame.f_back
    sys.settrace(entered)


def _ran_before(frame: FrameType) -> list[int]:
    """Lines of a module's own level up to the one that imports torch; branches are not told apart.

    The harness sees nothing before torch is there. Of a function only the line itself is known.
    """
    now = frame.f_lineno or 0
    if frame.f_code.co_name != "<module>":
        return [now]
    lines = {line for _, _, line in frame.f_code.co_lines() if line}
    return sorted(line for line in lines if line <= now)


MAX_PATH: Final = 200
MAX_MODULES: Final = 20_000


class RunningModules(threading.local):
    """The stack of modules under way in this thread."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._names: dict[int, str] = {}

    def install(self) -> None:
        """Follow every forward pass of every module; what the hooks see is not changed."""
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)

    @property
    def path(self) -> str:
        """The innermost module's path; empty outside all modules."""
        return self._paths[-1] if self._paths else ""

    def _enter(self, module: nn.Module, _args: Any) -> None:
        if not self._paths:
            # anew at each pass: an identity may be another module's by now
            self._names = {}
            for count, (name, part) in enumerate(module.named_modules()):
                if count >= MAX_MODULES:
                    break
                self._names[id(part)] = name
        own = self._names.get(id(module)) or type(module).__name__
        self._paths.append(own[-MAX_PATH:])

    def _leave(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        if self._paths:
            self._paths.pop()


MAX_FRAMES: Final = 400
OURS: Final = str(Path(__file__).resolve().parents[1]) + os.sep
TORCH: Final = str(Path(torch.__file__).parent) + os.sep
# what the script's own calls of torch go through
WRAPPERS: Final = (
    *("training_hooks", "auxiliary_state", "overrides", "mode", "first_inputs", "c_classes"),
    "concurrency",
)
WRAPPER_FILES: Final = tuple(f"{os.sep}{name}.py" for name in WRAPPERS)
ENGINE: Final = f"{TORCH}autograd{os.sep}graph.py"
OPTIMIZERS: Final = f"{TORCH}optim{os.sep}"
LOADERS: Final = f"{TORCH}utils{os.sep}data{os.sep}"
SAVED: Final = f"{TORCH}serialization.py"
# what unpacks a tensor that another process sent
SHARED: Final = f"{TORCH}multiprocessing{os.sep}reductions.py"
# Inductor writes its Python here; a run has a folder of its own
COMPILED: Final = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "") or f"{os.sep}torchinductor_"


class CallPlace(NamedTuple):
    """A line (none where `file` is empty), the phase that the stack shows, and whether compiled.

    `phase` is empty where only the graph and the modules can tell. `own_backward`: the line itself
    runs inside the backward pass, in a function or hook of the script's own.
    """

    file: str
    line: int
    phase: str
    compiled: bool
    own_backward: bool


def call_place(frame: FrameType | None) -> CallPlace | None:
    """The place of the call that `frame` makes; None where it is the harness's own work."""
    outside: FrameType | None = None
    phase, compiled, engine, own_backward = "", False, False, False
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            if outside is None and not name.endswith(WRAPPER_FILES):
                return None
        elif name.startswith(TORCH):
            engine = engine or name == ENGINE
            phase = phase or _phase(name)
        elif COMPILED in name:
            compiled = True
        elif not in_machinery(name):
            own_backward = not engine if outside is None else own_backward
            # a line of the script's goes before one of a library between it and torch
            if outside is None or in_library(outside.f_code.co_filename):
                outside = _better(outside, frame)
        frame = frame.f_back
    if outside is None:
        return CallPlace("", 0, phase, compiled, own_backward=False)
    file, line = outside.f_code.co_filename, outside.f_lineno or 0
    return CallPlace(shown_file(file), line, phase, compiled, own_backward)


def storage_origin(frame: FrameType | None) -> str:
    """Who fills the storage that this call takes: the innermost that is known of the stack."""
    other = "storage"
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        name, function = frame.f_code.co_filename, frame.f_code.co_name
        if name == SAVED:
            return "torch.load"
        if function == "__deepcopy__" and name.startswith(TORCH):
            return "copy.deepcopy"
        if name.startswith(LOADERS):
            return "worker"
        if name == SHARED:
            other = "process"
        frame = frame.f_back
    return other


def _phase(file: str) -> str:
    if file.startswith(OPTIMIZERS):
        return "optimizer"
    return "data" if file.startswith(LOADERS) else ""


def _better(library: FrameType | None, frame: FrameType) -> FrameType:
    """The frame where it is the script's own, else the innermost library's."""
    return frame if library is None or not in_library(frame.f_code.co_filename) else library


def caller(depth: int) -> FrameType:
    """The frame that many calls above the caller of this function."""
    return sys._getframe(depth + 1)  # noqa: SLF001 - inspect offers only slower copies
