"""What a child that answers a question may still do: read, compute, and write its answer.

On top of what confines its parent; each part holds where the system has it, whoever starts it.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress

from gate.errors import RunError
from gate.isolation.confinement import CPU_SECONDS, OPEN_FILES, limit_this_process
from gate.isolation.kernel_calls import write_only_below
from gate.isolation.sandbox_launcher import install_filter
from gate.isolation.seccomp_filter import answering_filter


def confine_child(cpu_seconds: int = CPU_SECONDS, open_files: int = OPEN_FILES) -> None:
    """Bound memory and time, change no file, start no process; there is no way back."""
    limit_this_process(cpu_seconds, open_files)
    # a kernel without Landlock: no content can be written all the same (RLIMIT_FSIZE)
    with suppress(OSError):
        write_only_below((), shared_memory=False)
    with suppress(OSError, RunError):
        install_filter(answering_filter(platform.machine(), os.getpid()))
