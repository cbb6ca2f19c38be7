"""The GPU, if the training uses one; asking never starts it."""

from __future__ import annotations

from typing import Any, Final

import torch

# Untyped parts of torch, seen through one untyped name.
_cuda: Final[Any] = torch.cuda
_cudnn: Final[Any] = torch.backends.cudnn


def in_use() -> bool:
    """Whether this process has started CUDA."""
    return bool(_cuda.is_initialized())


def in_bad_fork() -> bool:
    """Whether this process was forked from one that had started CUDA, and so cannot use it."""
    return bool(_cuda._is_in_bad_fork())  # noqa: SLF001 - torch asks this itself, by no public name


def wait() -> None:
    """Return when the device has done all its work."""
    if in_use():
        torch.cuda.synchronize()


def peak_bytes() -> int:
    """The largest amount that torch had allocated on the current device; 0 without CUDA."""
    return torch.cuda.max_memory_allocated() if in_use() else 0


def cudnn_version() -> str:
    """As torch numbers it, for example 91002."""
    return str(_cudnn.version())


def newest_supported_version() -> str:
    """The newest CUDA version that the driver supports, for example 12080."""
    return str(torch._C._cuda_getDriverVersion())  # type: ignore[attr-defined]  # noqa: SLF001 - only in CUDA builds, under no public name


def generators() -> tuple[torch.Generator, ...]:
    """The default generator of each device."""
    found: tuple[torch.Generator, ...] = _cuda.default_generators
    return found


def allocated_bytes() -> int:
    """What torch has allocated on the current device now; 0 without CUDA."""
    return torch.cuda.memory_allocated() if in_use() else 0
