"""The parts of the machine and software that a result depends on, as this process sees them."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch

from .. import cuda as devices
from .. import harness_cuda
from ..output import Problems
from . import environment, variables

NONE: Final = "none"
MAX_PART_LENGTH = 200


def parts(problems: Problems) -> dict[str, str]:
    """Part to text for every part of docs/harness-protocol.md; `none` for what does not apply."""
    texts: dict[str, str] = {}
    for name, read in _READERS.items():
        texts[name] = NONE
        with problems.noting(f"reading the environment's {name}"):
            texts[name] = read()[:MAX_PART_LENGTH] or NONE
    return texts


def _python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"


def _numpy() -> str:
    numpy = sys.modules.get("numpy")
    return NONE if numpy is None else str(numpy.__version__)


def _device() -> str:
    return devices.described() if harness_cuda.in_use() else "cpu"


def _cuda() -> str:
    if not harness_cuda.in_use():
        return NONE
    return torch.version.cuda or f"HIP {torch.version.hip}"


def _cudnn() -> str:
    return harness_cuda.cudnn_version() if harness_cuda.in_use() else NONE


def _driver() -> str:
    if not harness_cuda.in_use():
        return NONE
    return devices.driver_version() or f"for CUDA {harness_cuda.newest_supported_version()}"


def _cublas() -> str:
    return devices.cublas_version(devices.loaded_files()) if harness_cuda.in_use() else NONE


def _nccl() -> str:
    """Of ranks alone: one process on a GPU asks NCCL nothing."""
    if not harness_cuda.in_use() or _world_size() == "1":
        return NONE
    return devices.nccl_version(devices.loaded_files())


def _cpu() -> str:
    about = Path("/proc/cpuinfo")
    text = about.read_text(encoding="utf-8", errors="replace") if about.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def _cpu_capability() -> str:
    return torch.backends.cpu.get_cpu_capability()


def _os() -> str:
    """Distribution, machine and C library; the kernel computes nothing and changes weekly."""
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = f"{platform.system()} {platform.release()}"
    library = " ".join(platform.libc_ver())
    return ", ".join(text for text in (name, platform.machine(), library.strip()) if text)


def _world_size() -> str:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return str(torch.distributed.get_world_size())
    return os.environ.get("WORLD_SIZE", "1")


class Packages:
    """What is installed, as the summary has it: `name==version`, names, and name to origin."""

    def __init__(self, found: Sequence[environment.Installed] = ()) -> None:
        self.packages = sorted(str(package) for package in found)
        self.imported = [package.name for package in found if package.imported]
        self.origins = {
            package.name: package.origin for package in found if package.origin != environment.INDEX
        }


def packages(problems: Problems, tree: str = "") -> Packages:
    """Every distribution that can be imported, and which were; nothing where that fails.

    `tree` is the copy of the commit that is trained, the working directory where nobody said.
    """
    with problems.noting("reading the environment's packages"):
        return Packages(environment.survey(Path(tree) if tree else Path.cwd()))
    return Packages()


def _packages() -> str:
    """SHA-256 over the lines of all that is installed, each ended by a newline."""
    lines = environment.distribution_lines()
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


_READERS: Final[dict[str, Callable[[], str]]] = {
    "python": _python,
    "torch": lambda: str(torch.__version__),
    "numpy": _numpy,
    "device": _device,
    "cuda": _cuda,
    "cudnn": _cudnn,
    "cublas": _cublas,
    "nccl": _nccl,
    "driver": _driver,
    "cpu": _cpu,
    "cpu_capability": _cpu_capability,
    "os": _os,
    "threads": lambda: str(torch.get_num_threads()),
    "world_size": _world_size,
    "variables": variables.started_with,
    "packages": _packages,
}
