"""Finds where an operator call comes from: line, module, phase of the step.

A module is named by its path in the outermost module, such as `fc.0`. The outermost module itself
is named by its class.

The harness computes digests with operators of its own. Such a call is recognised by the innermost
frame outside torch: the frame is in the harness, and not in one of the wrappers around the script's
calls (`WRAPPERS`).
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from ..user_code import in_library, in_machinery, is_users_file, shown_file

if TYPE_CHECKING:
    from types import CodeType, FrameType


MAX_LINES: Final = 20_000
A_DOCUMENT: Final = 300
OnLine = Callable[[str, int], None]


class ExecutedLines:
    """Lines of the script that ran, each with the number of the next operator call."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], int] = {}

    def note(self, file: str, line: int, call: int) -> None:
        """Note a line's first run; lines beyond `MAX_LINES` are dropped."""
        if len(self._first) < MAX_LINES:
            self._first.setdefault((file, line), call)

    def documents(self) -> Iterator[dict[str, Any]]:
        """Yield all lines as records of limited size."""
        rows = [[file, line, call] for (file, line), call in self._first.items()]
        for start in range(0, len(rows), A_DOCUMENT):
            yield {"kind": "lines", "lines": rows[start : start + A_DOCUMENT]}


# Python has few ids for monitoring tools; by convention nobody uses these two.
TOOLS: Final = (4, 3)
# the tool id in use, if any
_watching: list[int] = []


def watch(on_line: OnLine) -> None:
    """Call back for each line of user code that runs, also in functions that are running now.

    All threads are watched. Python 3.11 has no monitoring, so `settrace` is used there. A debugger
    that the script starts then replaces it, and lines are missing.
    """
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - inspect offers only slower copies
    while frame is not None:
        if name := _users_name(frame.f_code.co_filename):
            for line in _ran_before(frame):
                on_line(name, line)
        frame = frame.f_back
    if sys.version_info >= (3, 12):
        _monitor(on_line)
    else:
        _trace(on_line)


@functools.lru_cache(MAX_LINES)
def _users_name(file: str) -> str:
    """Return a file's name as the user knows it; empty if the file is not the user's."""
    return _shown(file) if is_users_file(file) else ""


@functools.lru_cache(MAX_LINES)
def _shown(file: str) -> str:
    return shown_file(file)


class _OneLineFunctions:
    """The lines on which code only defines a function whose body is on the same line.

    Such a line runs twice: where the function is defined, and in the function itself. Only the
    second shows that the body ran. A lambda is used where it is written, so its line counts.
    """

    def __init__(self) -> None:
        # By identity, with the code so that its id stays its own: the hash of a code object is
        # computed from all its byte code each time, and this is asked at every line that runs.
        self._known: dict[int, tuple[CodeType, frozenset[int]]] = {}

    def __call__(self, code: CodeType) -> frozenset[int]:
        known = self._known.get(id(code))
        if known is None:
            known = self._known[id(code)] = code, self._lines(code)
        return known[1]

    @staticmethod
    def _lines(code: CodeType) -> frozenset[int]:
        return frozenset(
            body.co_firstlineno
            for body in code.co_consts
            if isinstance(body, type(code))
            and not body.co_name.startswith("<")
            and {line for _, _, line in body.co_lines() if line} == {body.co_firstlineno}
        )


def _monitor(on_line: OnLine) -> None:
    """Call back once for each line; afterwards the line costs nothing."""
    if sys.version_info >= (3, 12):
        # local names: when the process ends, the module's globals may be gone before `ran` is
        monitoring, name_of, only_defined = sys.monitoring, _users_name, _OneLineFunctions()

        def ran(code: CodeType, line: int) -> Any:
            if (name := name_of(code.co_filename)) and line not in only_defined(code):
                on_line(name, line)
            return monitoring.DISABLE

        tool = next((number for number in TOOLS if monitoring.get_tool(number) is None), None)
        if tool is not None:
            monitoring.use_tool_id(tool, "repro-gate")
            monitoring.register_callback(tool, monitoring.events.LINE, ran)
            monitoring.set_events(tool, monitoring.events.LINE)
            _watching.append(tool)


def unwatch() -> None:
    """Stop calling back for lines: the trace is over."""
    pause_lines()
    # threads that start from now on
    if _is_own(threading.gettrace()):
        threading.settrace(None)
    if sys.version_info >= (3, 12):
        for tool in _watching:
            sys.monitoring.set_events(tool, sys.monitoring.events.NO_EVENTS)


# code of the function that `sys.settrace` got, to tell the harness's from a debugger's
_entered_code: Any = None


def _trace(on_line: OnLine) -> None:
    name_of, only_defined = _users_name, _OneLineFunctions()  # as above

    def local(frame: FrameType, event: str, _: Any) -> Any:
        code, line = frame.f_code, frame.f_lineno
        if event == "line" and line not in only_defined(code):
            on_line(name_of(code.co_filename), line)
        return local

    def entered(frame: FrameType, _event: str, _: Any) -> Any:
        return local if name_of(frame.f_code.co_filename) else None

    # Frames that run already have no local trace function: the script's module is among them.
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - as above
    while frame is not None:
        frame.f_trace = entered(frame, "call", None)
        frame = frame.f_back
    global _entered_code
    _entered_code = entered.__code__
    threading.settrace(entered)
    sys.settrace(entered)


def _is_own(tracer: Any) -> bool:
    return tracer is not None and getattr(tracer, "__code__", None) is _entered_code


def pause_lines() -> Any:
    """Suspend `sys.settrace` until `resume_lines`, while the tracer's own functions run.

    Calling back for each of them would cost more than all other work of the tracer. A debugger of
    the script stays active.
    """
    seen = sys.gettrace()
    if not _is_own(seen):
        return None
    sys.settrace(None)
    return seen


def resume_lines(paused: Any) -> None:
    """Continue with the trace function that `pause_lines` returned."""
    if paused is not None:
        sys.settrace(paused)


def _ran_before(frame: FrameType) -> list[int]:
    """Return the lines of a module up to the one that imports torch.

    The harness sees nothing before torch is there. Branches cannot be told apart, so some of these
    lines may not have run. In a function only the current line is certain.
    """
    now = frame.f_lineno or 0
    if frame.f_code.co_name != "<module>":
        return [now]
    lines = {line for _, _, line in frame.f_code.co_lines() if line}
    return sorted(line for line in lines if line <= now)


MAX_PATH: Final = 200
MAX_MODULES: Final = 20_000


class RunningModules(threading.local):
    """The stack of modules whose forward pass is in progress in this thread."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._names: dict[int, str] = {}

    def install(self) -> None:
        """Hook the forward pass of every module; the hooks change neither inputs nor outputs."""
        register_module_forward_pre_hook(self._enter)
        # after an exception too, so that the stack stays balanced
        register_module_forward_hook(self._leave, always_call=True)

    @property
    def path(self) -> str:
        """The innermost module's path; empty outside all modules."""
        return self._paths[-1] if self._paths else ""

    def _enter(self, module: nn.Module, _args: Any) -> None:
        if not self._paths:
            # built again at each pass, since an `id` may belong to another module by now
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
# files of the harness through which the script's own calls of torch go
WRAPPERS: Final = (
    *("training_hooks", "auxiliary_state", "overrides", "mode", "first_inputs", "c_classes"),
    "concurrency",
)
WRAPPER_FILES: Final = tuple(f"{os.sep}{name}.py" for name in WRAPPERS)
ENGINE: Final = f"{TORCH}autograd{os.sep}graph.py"
MODULE: Final = f"{TORCH}nn{os.sep}modules{os.sep}module.py"
OPTIMIZERS: Final = f"{TORCH}optim{os.sep}"
SCHEDULERS: Final = f"{OPTIMIZERS}lr_scheduler.py"
AVERAGES: Final = f"{OPTIMIZERS}swa_utils.py"
STEP_WRAPPER: Final = f"{OPTIMIZERS}optimizer.py"
LOADERS: Final = f"{TORCH}utils{os.sep}data{os.sep}"
SAVED: Final = f"{TORCH}serialization.py"
# unpacks a tensor that another process sent
SHARED: Final = f"{TORCH}multiprocessing{os.sep}reductions.py"
# Inductor writes its Python here; a run has a cache folder of its own
COMPILED: Final = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "") or f"{os.sep}torchinductor_"


class CallPlace(NamedTuple):
    """Where a call comes from: a line, the phase that the stack shows, and whether compiled.

    `file` is empty if there is no line. `phase` is empty if only the graph and the modules can
    tell. `own_backward` is true if the line itself runs inside the backward pass, in a function or
    hook of the script. `by_module` is true if the line calls a module of torch, which makes the
    call.
    """

    file: str
    line: int
    phase: str
    compiled: bool
    own_backward: bool
    by_module: bool


class FileOwner(Enum):
    """Whose file a frame runs; the harness's wrappers count as machinery, as they pass on."""

    HARNESS = "harness"
    TORCH = "torch"
    COMPILED = "compiled"
    MACHINERY = "machinery"
    LIBRARY = "library"
    SCRIPT = "script"


@functools.lru_cache(MAX_LINES)
def _owner(name: str) -> tuple[FileOwner, str]:
    """Return whose file this is, and the phase of torch's; cached, since calls ask often."""
    if name.startswith(OURS):
        return (FileOwner.MACHINERY if name.endswith(WRAPPER_FILES) else FileOwner.HARNESS), ""
    if name.startswith(TORCH):
        return FileOwner.TORCH, "engine" if name == ENGINE else _phase(name)
    if COMPILED in name:
        return FileOwner.COMPILED, ""
    if in_machinery(name):
        return FileOwner.MACHINERY, ""
    return (FileOwner.LIBRARY if in_library(name) else FileOwner.SCRIPT), ""


def call_place(frame: FrameType | None) -> CallPlace | None:
    """Return the place of the call that `frame` makes; None for the harness's own work."""
    outside: FrameType | None = None
    phase, compiled, engine, own_backward, library = "", False, False, False, False
    closure = by_module = False
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        owner, detail = _owner(frame.f_code.co_filename)
        if owner is FileOwner.HARNESS:
            if outside is None:
                return None
        # torch between the call and the script's line: the module calls the operator for the script
        elif owner is FileOwner.TORCH:
            by_module = by_module or (outside is None and frame.f_code.co_filename == MODULE)
            engine = engine or detail == "engine"
            closure = closure or (outside is not None and _runs_a_closure(frame))
            phase = phase or (detail if detail != "engine" and not closure else "")
        elif owner is FileOwner.COMPILED:
            compiled = True
        elif owner is not FileOwner.MACHINERY:
            own_backward = not engine if outside is None else own_backward
            # a line of the script takes precedence over a library's between it and torch
            if outside is None or (library and owner is FileOwner.SCRIPT):
                outside, library = frame, owner is FileOwner.LIBRARY
        frame = frame.f_back
    if outside is None:
        return CallPlace("", 0, phase, compiled, own_backward=False, by_module=False)
    file, line = outside.f_code.co_filename, outside.f_lineno or 0
    return CallPlace(_shown(file), line, phase, compiled, own_backward, by_module)


def _runs_a_closure(frame: FrameType) -> bool:
    """Whether torch's `step` of an optimizer, or a wrapper around one, runs the script's closure.

    A closure computes losses and is no part of the update. The script's own optimizer runs inside
    the wrapper too. If it got a closure, only the closure keeps gradients enabled.
    """
    file = frame.f_code.co_filename
    if not file.startswith(OPTIMIZERS) or file == SCHEDULERS:
        return False
    if file != STEP_WRAPPER:
        return frame.f_code.co_name == "step"
    given = len(frame.f_locals.get("args", ())) > 1 or bool(frame.f_locals.get("kwargs"))
    return given and torch.is_grad_enabled()


def storage_origin(frame: FrameType | None) -> str:
    """Return who filled the storage that this call takes, by the innermost known frame."""
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
    # averages of weights are in the optimizers' folder but no optimizers: the script calls them
    # itself
    if file.startswith(OPTIMIZERS) and file != AVERAGES:
        return "optimizer"
    return "data" if file.startswith(LOADERS) else ""


def caller(depth: int) -> FrameType:
    """Return the frame `depth` calls above the caller of this function."""
    return sys._getframe(depth + 1)  # noqa: SLF001 - inspect offers only slower copies
