"""What a child that answers a question may still do, and its limits: read, compute, answer.

On top of what confines its parent; each part holds where the system has it, whoever starts it.
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

# Room for the largest evidence that is accepted (256 MiB of lines become about 2 GiB of records)
# and its parser; a bomb that gets past every cap of ours ends here, before the machine suffers.
MEMORY_BYTES = 4 * 1024**3
# 64 GiB of state at 200 MB/s on one core are 340 s
CPU_SECONDS = 900
OPEN_FILES = 256
# hashing starts a thread for each core: their stacks are address space too
STACK_BYTES = 1024 * 1024
# linux/prctl.h
PR_SET_NO_NEW_PRIVS = 38
LIMITS = {
    resource.RLIMIT_AS: MEMORY_BYTES,
    # no byte can be written to any file: what a parser could be led to write goes nowhere
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_CORE: 0,
}


def limit_this_process(cpu_seconds: int = CPU_SECONDS, open_files: int = OPEN_FILES) -> None:
    """Bound memory and time, write no file, gain no privilege; there is no way back.

    Where the system has no such limit or switch, the others still hold.
    """
    own = {resource.RLIMIT_CPU: cpu_seconds, resource.RLIMIT_NOFILE: open_files}
    threading.stack_size(STACK_BYTES)
    for kind, most in (LIMITS | own).items():
        # hard limits too: a soft one could be raised again by the process itself (getrlimit(2))
        soft, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (_lower(soft, most), _lower(hard, most)))
    control = getattr(ctypes.CDLL(None), "prctl", None)
    if control is not None:
        control(PR_SET_NO_NEW_PRIVS, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0)))


def _lower(now: int, most: int) -> int:
    return most if now == resource.RLIM_INFINITY else min(now, most)


def confine_child(cpu_seconds: int = CPU_SECONDS, open_files: int = OPEN_FILES) -> None:
    """Bound memory and time, change no file, start no process; there is no way back."""
    limit_this_process(cpu_seconds, open_files)
    # a kernel without Landlock: no content can be written all the same (RLIMIT_FSIZE)
    with suppress(OSError):
        write_only_below((), shared_memory=False)
    with suppress(OSError, RunError):
        install_filter(answering_filter(platform.machine(), os.getpid()))
