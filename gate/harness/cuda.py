"""Facts and operations of GPUs: those that the training uses, and those that it can see."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch

# Parts of torch without type annotations, under untyped names.
_cuda: Final[Any] = torch.cuda
_cudnn: Final[Any] = torch.backends.cudnn

# a tensor's class may override attribute access; only the device of its memory matters here
_without_asking_classes: Final[Any] = torch._C.DisableTorchFunctionSubclass  # noqa: SLF001 - documented, by no public name

_AS_IT_IS: Final = nullcontext()

Devices = tuple[torch.device, ...]


def in_use() -> bool:
    """Whether this process has initialised CUDA."""
    return bool(_cuda.is_initialized())


def in_bad_fork() -> bool:
    """Whether this process was forked after CUDA's initialisation, and so cannot use CUDA."""
    return bool(_cuda._is_in_bad_fork())  # noqa: SLF001 - torch asks this itself, by no public name


def capturing() -> bool:
    """Whether a CUDA graph is being captured, which waiting or reading would break."""
    return in_use() and bool(_cuda.is_current_stream_capturing())


def devices_of(tensors: Iterable[torch.Tensor]) -> Devices:
    """Return the GPUs that hold these tensors, by index; not the current GPU, which may differ."""
    # a subclass of Tensor may define `device` by code of its own
    with _without_asking_classes():
        devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    return sorted_by_index(devices)


def sorted_by_index(devices: Iterable[torch.device]) -> Devices:
    """Return each device once, sorted by index."""
    return tuple(sorted(set(devices), key=lambda device: device.index))


def synchronize(devices: Devices) -> None:
    """Wait until these devices have done all queued work."""
    for device in devices:
        torch.cuda.synchronize(device)


def timed_event(device: torch.device) -> Any:
    """Return a timed event that the device passes after the work queued so far.

    It is recorded on the device's current stream, where an optimizer's kernels go.
    """
    event: Any = _cuda.Event(enable_timing=True)
    event.record(_cuda.current_stream(device))
    return event


def free_to_wait() -> AbstractContextManager[None]:
    """Allow the block to wait for a device, which `set_sync_debug_mode` may forbid."""
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
    """Return how many bytes torch has allocated on these devices now, in total."""
    return sum(torch.cuda.memory_allocated(device) for device in devices)


def peak_bytes(devices: Devices) -> int:
    """Return the sum of each device's peak of bytes allocated by torch."""
    return sum(torch.cuda.max_memory_allocated(device) for device in devices)


def cudnn_version() -> str:
    """Return cuDNN's version as torch numbers it, for example 91002."""
    return str(_cudnn.version())


def newest_supported_version(load: Library = ctypes.CDLL) -> int:
    """Return the newest CUDA version that the driver supports, for example 12080; 0 without one.

    The driver's own library is asked, which needs no device (`cuDriverGetVersion` of the CUDA
    driver API). torch's binding of it is gone since 2.11.
    """
    version = ctypes.c_int()
    try:
        load("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return version.value


def generators() -> tuple[torch.Generator, ...]:
    """Return the default generator of each device."""
    default: tuple[torch.Generator, ...] = _cuda.default_generators
    return default


GIB: Final = 1024**3
MAX_DEVICES: Final = 64
# only this allocator reports figures without touching a device that is not in use
NATIVE: Final = "native"
MODULE_VERSION: Final = Path("/sys/module/nvidia/version")
DRIVER_TEXT: Final = Path("/proc/driver/nvidia/version")
# `NVIDIA UNIX x86_64 Kernel Module  550.54.15`, `NVIDIA UNIX Open Kernel Module for x86_64
# 580.159.04`, `NVIDIA UNIX Open Kernel x86_64 Kernel Module  590.48.01`: the version is the first
# number that stands alone, which neither "86" nor "aarch64" is.
_DRIVER: Final = re.compile(r"^NVRM version:.*?\s(\d{3,}\.\d[\d.]*)(?:\s|$)", re.MULTILINE)
_SLICE: Final = re.compile(r"\bMIG (\S+)")
_CUBLAS: Final = re.compile(r"\S+/libcublas\.so\S*$", re.MULTILINE)
# libraries that NCCL loads to choose algorithms or to reach other machines
_NCCL_PLUGIN: Final = re.compile(r"/(libnccl-(?:tuner|net)\S*)$", re.MULTILINE)
# libraryPropertyType of library_types.h: major, minor, patch
_PROPERTIES: Final = (0, 1, 2)

Library = Callable[[str], Any]


def used() -> tuple[int, ...]:
    """Return the devices on which torch ever held memory here; asking touches no other device."""
    if not in_use():
        return ()
    indices: tuple[int, ...] = ()
    if _cuda.get_allocator_backend() == NATIVE:
        indices = tuple(index for index in range(_cuda.device_count()) if _held(index))
    return indices or (int(_cuda.current_device()),)


def _held(index: int) -> bool:
    figures = _cuda.memory_stats(index)
    kinds = ("peak", "current")
    return any(figures.get(f"reserved_bytes.all.{kind}", 0) > 0 for kind in kinds)


def device_facts() -> list[dict[str, object]]:
    """Return one row for each visible device; empty before CUDA is initialised."""
    if not in_use():
        return []
    mine = used()
    return [_fact(index, mine) for index in range(min(_cuda.device_count(), MAX_DEVICES))]


def _fact(index: int, mine: tuple[int, ...]) -> dict[str, object]:
    about = _cuda.get_device_properties(index)
    part = _SLICE.search(about.name)
    return {
        "index": index,
        "name": about.name[:200],
        "capability": f"{about.major}.{about.minor}",
        "multiprocessors": about.multi_processor_count,
        "memory_bytes": about.total_memory,
        "slice": part[1][:40] if part else "",
        "uuid": str(getattr(about, "uuid", ""))[:80],
        "used": index in mine,
    }


def device_summary() -> str:
    """Describe the devices in use, equal ones counted; a MIG slice has its profile in its name.

    Bits repeat only for the same architecture and number of multiprocessors. Memory is given in
    whole GiB: it limits what a library may choose, and its last bytes change with the driver.
    """
    kinds = Counter(_kind(index) for index in used())
    return "; ".join(kind if count == 1 else f"{count} x {kind}" for kind, count in kinds.items())


def _kind(index: int) -> str:
    about = _cuda.get_device_properties(index)
    return (
        f"{about.name} (compute capability {about.major}.{about.minor}, "
        f"{about.multi_processor_count} multiprocessors, {round(about.total_memory / GIB)} GiB)"
    )


def driver_version(version: Path = MODULE_VERSION, text: Path = DRIVER_TEXT) -> str:
    """Return the kernel module's version in any of its known text forms; empty if unknown."""
    try:
        return version.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        pass
    try:
        match = _DRIVER.search(text.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return match[1] if match else ""


def loaded_files() -> str:
    """Return the kernel's list of files mapped into this process; empty if unreadable."""
    try:
        return Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cublas_version(maps: str, load: Library = ctypes.CDLL) -> str:
    """Return the version of the loaded cuBLAS, wherever it came from; empty if none is mapped."""
    match = _CUBLAS.search(maps)
    if match is None:
        return ""
    try:
        library = load(match[0].strip())
        return ".".join(str(_property(library, kind)) for kind in _PROPERTIES)
    except (OSError, AttributeError):
        return ""


def _property(library: Any, kind: int) -> int:
    value = ctypes.c_int()
    library.cublasGetProperty(kind, ctypes.byref(value))
    return value.value


def nccl_version(maps: str) -> str:
    """Return the version of torch's NCCL and its loaded plugins; empty if torch has none."""
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return ""
    version = ".".join(map(str, _cuda.nccl.version()))
    return ", ".join((version, *sorted(set(_NCCL_PLUGIN.findall(maps)))))
