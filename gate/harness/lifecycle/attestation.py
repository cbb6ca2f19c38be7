"""What a process records about itself besides its settings: machine, versions, how it started.

`process_facts` and `told_variables` go into the summary and are not compared. `about_this_process`
goes into the attestation.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import platform
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch

from .. import cuda
from ..determinism import process_knobs
from ..output import Problems
from ..recording.training_hooks import LoaderWorkers
from ..settings import current_rank
from . import environment_survey
from .children import Forks

# Parts of torch without type annotations, under an untyped name.
_cuda: Final[Any] = torch.cuda
_distributed: Final[Any] = torch.distributed
MAX_TEXT: Final = 4000
MAX_VARIABLE: Final = 200
MAX_NODE: Final = 100
MAX_VARIABLES: Final = 200
PREFIXES: Final = ("NCCL_", "CUDA_", "CUBLAS_", "OMP_", "MKL_", "TORCH_")
# A name like a secret's: nobody should keep a secret under these prefixes, but somebody may.
SECRETS: Final = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH")
MEMORY: Final = Path("/proc/meminfo")
MEMORY_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_TOTAL: Final = re.compile(r"^MemTotal:\s*(\d+) kB$", re.MULTILINE)
_ENVIRONMENT: Final = "Environment variables:"


class Group:
    """The backends of the default process group, as of the first step: at the end it is gone."""

    # for example `cpu:gloo,cuda:nccl`; empty without a group
    backends = ""

    @classmethod
    def remember(cls) -> None:
        """Read size and backends while the group exists; an error is ignored, as for all facts."""
        with suppress(Exception):
            if _distributed.is_available() and _distributed.is_initialized():
                environment_survey.World.size = str(_distributed.get_world_size())
                cls.backends = str(_distributed.distributed_c10d.get_backend_config())


def process_facts() -> dict[str, str]:
    """Return facts as name to text; one that does not apply or cannot be read is missing."""
    facts: dict[str, str] = {}
    for name, read in _READERS.items():
        # nothing is judged by facts, so a missing one must not fail a strict run
        with suppress(Exception):
            text = read()[:MAX_TEXT]
            if text:
                facts[name] = text
    return facts


def told_variables(source: Path = environment_survey.AT_START) -> dict[str, str]:
    """Return the variables at the start that a library of the computation reads.

    Left out are names that look like a secret's.
    """
    chosen = {
        name: text[:MAX_VARIABLE]
        for name, text in sorted(environment_survey.at_start(source).items())
        if name.startswith(PREFIXES) and not SECRETS.search(name) and len(name) <= MAX_VARIABLE
    }
    return dict(list(chosen.items())[:MAX_VARIABLES])


def _torch_build() -> str:
    return " ".join(torch.__config__.show().split())


def _torch_parallel() -> str:
    """Return torch's report without the variables at its end, which are recorded separately."""
    return " ".join(torch.__config__.parallel_info().partition(_ENVIRONMENT)[0].split())


def _built_for_nccl() -> str:
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return ""
    return ".".join(map(str, _cuda.nccl.version()))


def _allowed_cpus() -> str:
    # only Linux has it
    asked: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return str(len(asked(0))) if asked is not None else ""


def _memory_bytes() -> str:
    total = _TOTAL.search(_text(MEMORY))
    return str(int(total[1]) * 1024) if total else ""


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_TEXT)
    except OSError:
        return ""


_READERS: Final[dict[str, Callable[[], str]]] = {
    "torch_build": _torch_build,
    "torch_build_sha256": lambda: hashlib.sha256(_torch_build().encode()).hexdigest(),
    "torch_parallel": _torch_parallel,
    "torch_cuda": lambda: torch.version.cuda or "",
    "torch_nccl": _built_for_nccl,
    "process_group": lambda: Group.backends,
    "kernel": lambda: f"{platform.system()} {platform.release()}",
    "cpus": lambda: str(os.cpu_count() or ""),
    "allowed_cpus": _allowed_cpus,
    "loader_workers": lambda: str(LoaderWorkers.most_workers or ""),
    "forks": lambda: str(Forks.count or ""),
    "memory_bytes": _memory_bytes,
    "memory_limit_bytes": lambda: _text(MEMORY_LIMIT).strip().replace("max", ""),
}


NONE = "none"


def about_this_process(problems: Problems) -> dict[str, object]:
    """Return what the attestation records besides the settings, by the names in it."""
    with problems.noting("describing this process"):
        return {
            "parent": os.getppid(),
            "started": _how_started(),
            "device": _device(),
            "versions": _versions(),
            "devices": cuda.device_facts(),
            "variables": {**environment_survey.attested(), **process_knobs.variables()},
            "node": platform.node()[:MAX_NODE],
            "world_size": _ranks(),
        }
    return {}


def training_rank() -> int:
    """Return the process group's rank, or else the launcher's, or 0.

    Workers of `torch.multiprocessing.spawn` often pass their rank to `init_process_group` only.
    """
    if _distributed.is_available() and _distributed.is_initialized():
        return int(_distributed.get_rank())
    return current_rank()


def _ranks() -> int:
    text = environment_survey.world_size()
    return int(text) if text.isascii() and text.isdigit() else 1


def _how_started() -> str:
    """Return `program`, or `worker` for a process that multiprocessing started."""
    return "program" if multiprocessing.parent_process() is None else "worker"


def _device() -> str:
    """Return the names of the GPUs in use, or `cpu`; asking never initialises one."""
    return cuda.device_summary()[:200] if cuda.in_use() else "cpu"


def _versions() -> dict[str, str]:
    numpy = sys.modules.get("numpy")
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": NONE if numpy is None else str(numpy.__version__),
        "cuda": torch.version.cuda or NONE,
    }
