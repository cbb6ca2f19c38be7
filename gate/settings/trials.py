"""The settings that a diagnosis moves one at a time, after two runs of one commit differ."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Setting(StrEnum):
    """What is moved.

    `NOTHING` is for runs to compare with. `RESTORE`: the harness sets again what the script
    overrides. `ONE_THREAD`: one thread in torch, OpenMP and the libraries that read
    `THREAD_VARIABLES`. `ONE_WORKER`: one worker in each pool of threads or processes.
    `NO_LOADER_WORKERS`: no worker process in a DataLoader. `TORCH_FILL`: torch fills its new memory
    with NaN. `HEAP_FILL`: the C heap and `numpy.empty` are filled with a byte. `LAUNCH_BLOCKING`:
    each CUDA kernel is awaited. `KNOB`: a knob of the table of knobs.
    """

    NOTHING = "nothing"
    RESTORE = "restore"
    ONE_THREAD = "one-thread"
    ONE_WORKER = "one-worker"
    NO_LOADER_WORKERS = "no-loader-workers"
    TORCH_FILL = "torch-fill"
    HEAP_FILL = "heap-fill"
    LAUNCH_BLOCKING = "launch-blocking"
    KNOB = "knob"


# Threads that determinism.threads does not reach: each library reads its own variable at its start.
THREAD_VARIABLES: Final = (
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
)
# of the GNU C library, read when a process starts
TUNABLES: Final = "GLIBC_TUNABLES"
# Any two bytes that differ in each bit, so that no value is the same under both.
FIRST_FILL: Final = 0x55
SECOND_FILL: Final = 0xAA


def perturbed_heap(byte: int) -> str:
    """`TUNABLES` for new memory of the C heap that holds the complement of a byte.

    GNU C library, Memory Allocation Tunables. Without a count of 0, a thread's own cache of small
    blocks would hand them out again as they are.
    """
    return f"glibc.malloc.perturb={byte}:glibc.malloc.tcache_count=0"
