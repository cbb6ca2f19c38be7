"""A separate program that runs another one and reports how much data it has put into a folder.

`watched.py FOLDER MAX_BYTES MIN_FREE_BYTES PROGRAM ...` ends with the program's exit code. If the
folder becomes too large or the disk too full, it kills the program and ends with a special code. It
uses the standard library only, because it is started by its path, without the gate's packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

MARK = "repro-gate-fetched "
TOO_LARGE = 90
DISK_FULL = 91
NOT_STARTED = 92
LOOK_SECONDS = 1.0
# Looking at many files takes time, so pause long enough that it takes a twentieth at most.
PAUSES_FOR_A_LOOK = 20


def main(folder: str, max_bytes: int, min_free_bytes: int, program: list[str]) -> int:
    """Run the program to its end, and return the exit code to end with."""
    try:
        child = subprocess.Popen(program)
    except OSError as error:
        sys.stdout.write(f"{program[0]}: {error.strerror}\n")
        return NOT_STARTED
    while True:
        began = time.monotonic()
        size = sum(_sizes(folder))
        sys.stdout.write(f"{MARK}{size}\n")
        sys.stdout.flush()
        disk = os.statvfs(folder)
        stop = TOO_LARGE if size > max_bytes else 0
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < min_free_bytes:
            stop = DISK_FULL
        if stop:
            child.kill()
            child.wait()
            return stop
        try:
            took = time.monotonic() - began
            code = child.wait(max(LOOK_SECONDS, PAUSES_FOR_A_LOOK * took))
        except subprocess.TimeoutExpired:
            continue
        # a quick program may have ended before the first look
        if sum(_sizes(folder)) > max_bytes:
            return TOO_LARGE
        return code if code >= 0 else 128 - code


def _sizes(folder: str) -> Iterator[int]:
    """Yield the size of each file below a folder."""
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        yield entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            # the program has moved a folder in the meantime
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
