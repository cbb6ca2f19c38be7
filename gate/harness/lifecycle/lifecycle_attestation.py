"""What a process says of itself beside its settings: where it runs, with what, started how."""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
from typing import Any, Final

import torch

from .. import cuda as devices
from .. import harness_cuda
from ..determinism import switches
from ..output import Problems
from ..this_process import current_rank
from . import variables

NONE = "none"
# An optional part of torch, seen through one untyped name.
_distributed: Final[Any] = torch.distributed


def about_this_process(problems: Problems) -> dict[str, object]:
    """`parent`, `started`, `device`, `devices`, `versions` and `variables` of the attestation."""
    with problems.noting("describing this process"):
        return {
            "parent": os.getppid(),
            "started": _how_started(),
            "device": _device(),
            "versions": _versions(),
            "devices": devices.device_facts(),
            "variables": {**variables.attested(), **switches.variables()},
        }
    return {}


def training_rank() -> int:
    """The rank as the process group knows it, or else as the launcher set it, or 0.

    Workers of `torch.multiprocessing.spawn` often hand their rank to `init_process_group` only.
    """
    if _distributed.is_available() and _distributed.is_initialized():
        return int(_distributed.get_rank())
    return current_rank()


def _how_started() -> str:
    """`program`, or `worker` for what multiprocessing started."""
    return "program" if multiprocessing.parent_process() is None else "worker"


def _device() -> str:
    """The started GPUs that it uses, by name; asking never starts one."""
    return devices.described()[:200] if harness_cuda.in_use() else "cpu"


def _versions() -> dict[str, str]:
    numpy = sys.modules.get("numpy")
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": NONE if numpy is None else str(numpy.__version__),
        "cuda": torch.version.cuda or NONE,
    }
