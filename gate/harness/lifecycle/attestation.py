"""What a process says of itself beside its settings: where it runs, with what, started how."""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys

import torch

from .. import cuda
from ..determinism import switches
from ..output import Problems
from . import devices, variables

NONE = "none"


def about_this_process(problems: Problems) -> dict[str, object]:
    """`parent`, `started`, `device`, `devices`, `versions` and `variables` of the attestation."""
    with problems.noting("describing this process"):
        return {
            "parent": os.getppid(),
            "started": _how_started(),
            "device": _device(),
            "versions": _versions(),
            "devices": devices.facts(),
            "variables": {**variables.attested(), **switches.variables()},
        }
    return {}


def _how_started() -> str:
    """`program`, or `worker` for what multiprocessing started."""
    return "program" if multiprocessing.parent_process() is None else "worker"


def _device() -> str:
    """The started GPUs that it uses, by name; asking never starts one."""
    return devices.described()[:200] if cuda.in_use() else "cpu"


def _versions() -> dict[str, str]:
    numpy = sys.modules.get("numpy")
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": NONE if numpy is None else str(numpy.__version__),
        "cuda": torch.version.cuda or NONE,
    }
