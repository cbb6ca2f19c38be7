"""Peak memory of this process on the host."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

KIB = 1024
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = resource.getpagesize()


def peak_bytes() -> int:
    """The largest resident set so far.

    Linux carries `ru_maxrss` over from the process that started this one, which may have been
    larger (getrusage(2), execve(2)); `VmHWM` belongs to this program alone.
    """
    about = Path("/proc/self/status")
    text = about.read_text(encoding="ascii", errors="replace") if about.is_file() else ""
    high_water = re.search(r"^VmHWM:\s*(\d+) kB$", text, re.MULTILINE)
    if high_water:
        return int(high_water[1]) * KIB
    unit = 1 if sys.platform == "darwin" else KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes() -> int:
    """The resident set now; 0 where the system has no /proc."""
    try:
        with _STATM.open("rb", buffering=0) as file:
            return int(file.read(200).split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
