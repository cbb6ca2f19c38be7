"""Looks for what torch's determinism flag does not cover: packages, autotuners, custom operators.

Names to look for come from the gate, which also knows what is to be said about each.
"""

from __future__ import annotations

import gc
import mmap
import sys
from pathlib import Path
from typing import Any, Final

MAX_NAMES = 200
MAX_NAME_LENGTH = 120
AUTOTUNER_MODULE: Final = "triton.runtime.autotuner"
# Every compiled extension that can see a tensor is linked with one of these.
LIBRARIES: Final = (b"libc10.so", b"libtorch.so", b"libtorch_cpu.so", b"libtorch_python.so")


def imported(names: tuple[str, ...]) -> list[str]:
    """Those of the watched modules that the process has imported."""
    return [name for name in names if sys.modules.get(name) is not None]


def autotuned_kernels() -> list[dict[str, Any]]:
    """Triton kernels that ran and chose among more than one configuration by timing them.

    Torch's own compiler has autotuners of another class, and those the flag does reach.
    """
    autotuner = getattr(sys.modules.get(AUTOTUNER_MODULE), "Autotuner", None)
    if not isinstance(autotuner, type):
        return []
    kernels: dict[str, dict[str, Any]] = {}
    for tuner in filter(lambda item: type(item) is autotuner, gc.get_objects()):
        choices = len(getattr(tuner, "configs", ()))
        if choices > 1 and getattr(tuner, "cache", None):
            kernel = getattr(getattr(tuner, "base_fn", None), "__name__", "unknown")
            kernels[kernel] = {"kernel": str(kernel)[:MAX_NAME_LENGTH], "configurations": choices}
    return list(kernels.values())[:MAX_NAMES]


def compiled_extensions(torch_folder: Path) -> list[str]:
    """Imported extension modules outside torch that are linked with torch, by module name."""
    names = []
    for name, module in list(sys.modules.items()):
        file = str(getattr(module, "__file__", None) or "")
        if file.endswith(".so") and not file.startswith(str(torch_folder)) and _uses_torch(file):
            names.append(name[:MAX_NAME_LENGTH])
    return sorted(names)[:MAX_NAMES]


def _uses_torch(file: str) -> bool:
    """Whether the file names one of torch's libraries; one that cannot be read does not."""
    try:
        with Path(file).open("rb") as opened, _mapped(opened.fileno()) as content:
            return any(content.find(library) >= 0 for library in LIBRARIES)
    except (OSError, ValueError):
        return False


def _mapped(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
