"""Where an operator call comes from: the user's line, the phase of the step, compiled or not.

The harness computes digests with operators of its own. They are told by the innermost frame outside
torch: it lies in the harness, and not in one of the wrappers that the script's calls go through.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from ..user_code import in_library, in_machinery, shown_file

if TYPE_CHECKING:
    from types import FrameType

MAX_FRAMES: Final = 400
OURS: Final = str(Path(__file__).resolve().parents[1]) + os.sep
TORCH: Final = str(Path(torch.__file__).parent) + os.sep
# what the script's own calls of torch go through
WRAPPERS: Final = (
    *("training_hooks", "auxiliary_state", "cuda_graphs", "override_hooks", "mode"),
    *("first_inputs", "c_classes"),
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


class Place(NamedTuple):
    """A line (none where `file` is empty), the phase that the stack shows, and whether compiled.

    `phase` is empty where only the graph and the modules can tell. `own_backward`: the line itself
    runs inside the backward pass, in a function or hook of the script's own.
    """

    file: str
    line: int
    phase: str
    compiled: bool
    own_backward: bool


def place_of(frame: FrameType | None) -> Place | None:
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
        return Place("", 0, phase, compiled, own_backward=False)
    file, line = outside.f_code.co_filename, outside.f_lineno or 0
    return Place(shown_file(file), line, phase, compiled, own_backward)


def origin_of(frame: FrameType | None) -> str:
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
