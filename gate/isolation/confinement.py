"""The limits of a child that answers a question: it may read, compute and answer, and no more.

They come on top of its parent's limits. A part that the system lacks is skipped; the rest holds.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import threading
from contextlib import suppress

from gate.errors import RunError
from gate.isolation.kernel_calls import write_only_below
from gate.isolation.sandbox_launcher import install_filter
from gate.isolation.seccomp_filter import answering_filter

# Enough for the largest accepted evidence (256 MiB of lines become about 2 GiB of records) and its
# parser. A decompression bomb that passes every other limit ends here, before the machine suffers.
MEMORY_BYTES = 4 * 1024**3
# 64 GiB of saved state at 200 MB/s on one core take 340 s
CPU_SECONDS = 900
OPEN_FILES = 256
# hashing starts a thread for each core, and their stacks count as address space
STACK_BYTES = 1024 * 1024
# linux/prctl.h
PR_SET_NO_NEW_PRIVS = 38
LIMITS = {
    resource.RLIMIT_AS: MEMORY_BYTES,
    # no byte can be written to any file, so a parser cannot be tricked into writing one
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_CORE: 0,
}


def limit_this_process(cpu_seconds: int = CPU_SECONDS, open_files: int = OPEN_FILES) -> None:
    """Limit memory, time and open files, forbid file writes and new privileges; cannot be undone.

    A limit that the system lacks is skipped; the others still hold.
    """
    own = {resource.RLIMIT_CPU: cpu_seconds, resource.RLIMIT_NOFILE: open_files}
    threading.stack_size(STACK_BYTES)
    for kind, most in (LIMITS | own).items():
        # hard limits too: the process could raise its own soft limit again (getrlimit(2))
        soft, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (_lower(soft, most), _lower(hard, most)))
    control = getattr(ctypes.CDLL(None), "prctl", None)
    if control is not None:
        control(PR_SET_NO_NEW_PRIVS, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0)))


def _lower(now: int, most: int) -> int:
    return most if now == resource.RLIM_INFINITY else min(now, most)


def confine_child(cpu_seconds: int = CPU_SECONDS, open_files: int = OPEN_FILES) -> None:
    """Limit memory and time, forbid changing files and starting processes; cannot be undone."""
    limit_this_process(cpu_seconds, open_files)
    # without Landlock in the kernel no content can be written either (RLIMIT_FSIZE)
    with suppress(OSError):
        write_only_below((), shared_memory=False)
    with suppress(OSError, RunError):
        install_filter(answering_filter(platform.machine(), os.getpid()))
