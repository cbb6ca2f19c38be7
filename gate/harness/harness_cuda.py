"""The GPU, if the training uses one; asking never starts it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch

# Untyped parts of torch, seen through one untyped name.
_cuda: Final[Any] = torch.cuda
_cudnn: Final[Any] = torch.backends.cudnn

# a tensor's class may answer for its attributes too; here its memory alone is asked
_without_asking_classes: Final[Any] = torch._C.DisableTorchFunctionSubclass  # noqa: SLF001 - documented, by no public name

_AS_IT_IS: Final = nullcontext()

Devices = tuple[torch.device, ...]


def in_use() -> bool:
    """Whether this process has started CUDA."""
    return bool(_cuda.is_initialized())


def in_bad_fork() -> bool:
    """Whether this process was forked from one that had started CUDA, and so cannot use it."""
    return bool(_cuda._is_in_bad_fork())  # noqa: SLF001 - torch asks this itself, by no public name


def capturing() -> bool:
    """Whether work is being captured into a CUDA graph: waiting or reading would spoil it."""
    return in_use() and bool(_cuda.is_current_stream_capturing())


def devices_of(tensors: Iterable[torch.Tensor]) -> Devices:
    """The GPUs that hold these tensors, by index; never the current one, which may be another."""
    with _without_asking_classes():
        devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    return sorted_by_index(devices)


def sorted_by_index(devices: Iterable[torch.device]) -> Devices:
    """Each of them once, by index."""
    return tuple(sorted(set(devices), key=lambda device: device.index))


def wait(devices: Devices) -> None:
    """Return when these devices have done all their work."""
    for device in devices:
        torch.cuda.synchronize(device)


def passed(device: torch.device) -> Any:
    """An event with a time, which the device passes after the work that is queued by now.

    On the current stream of that device, the one that an optimizer's own kernels go to.
    """
    event: Any = _cuda.Event(enable_timing=True)
    event.record(_cuda.current_stream(device))
    return event


def free_to_wait() -> AbstractContextManager[None]:
    """Let the body wait for a device in a script that forbids it by `set_sync_debug_mode`."""
    mode = _cuda.get_sync_debug_mode() if in_use() else 0
    return _free_to_wait(mode) if mode else _AS_IT_IS


@contextmanager
def _free_to_wait(mode: int) -> Iterator[None]:
    _cuda.set_sync_debug_mode(0)
    try:
        yield
    finally:
        _cuda.set_sync_debug_mode(mode)


def allocated_bytes(devices: Devices) -> int:
    """What torch has allocated on these devices now, together."""
    return sum(torch.cuda.memory_allocated(device) for device in devices)


def peak_bytes(devices: Devices) -> int:
    """The largest amounts that torch had allocated on each of these devices, together."""
    return sum(torch.cuda.max_memory_allocated(device) for device in devices)


def cudnn_version() -> str:
    """As torch numbers it, for example 91002."""
    return str(_cudnn.version())


def newest_supported_version() -> str:
    """The newest CUDA version that the driver supports, for example 12080."""
    return str(torch._C._cuda_getDriverVersion())  # type: ignore[attr-defined]  # noqa: SLF001 - only in CUDA builds, under no public name


def generators() -> tuple[torch.Generator, ...]:
    """The default generator of each device."""
    default: tuple[torch.Generator, ...] = _cuda.default_generators
    return default
