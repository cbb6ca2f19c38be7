"""The folder in which the agents on the nodes, the client and the gate meet.

This machine and every node see it. Each file has one writer and appears whole, so nothing is
locked:

- `node-K`: an agent is there; `again`: it was started a second time, so the job restarted;
- `step-N`: what every agent starts next; `step-N.R.out` and `step-N.R.exit`: what the task of rank
  R prints, and how it ended; `step-N.end`: the step is over for all;
- `stop`: no further step comes; `ended`: the scheduler says that the job has ended.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

from gate.system.files import writing
from gate.system.files.regular_files import open_regular

STOP: Final = "stop"
AGAIN: Final = "again"
ENDED_FILE: Final = "ended"
STEP: Final = re.compile(r"step-(\d{1,6})\Z", re.ASCII)
POLL_SECONDS: Final = 0.1
MAX_FACT_BYTES: Final = 64 * 1024
NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def names_in(folder: Path) -> frozenset[str]:
    """Return the names in the folder.

    A file server answers a listing freshly, while it may answer a look at one file from a cache.
    """
    return frozenset(path.name for path in folder.iterdir())


def node_file(number: int) -> str:
    """Return the name of the file that an agent creates when it has started."""
    return f"node-{number}"


def end_file(step: int) -> str:
    """Return the name of the file that ends a step on every node."""
    return f"step-{step}.end"


def read_fact(path: Path) -> bytes:
    """Return the content of a small file of the folder; raises `StorageError` for anything else."""
    with open_regular(path, MAX_FACT_BYTES) as file:
        return file.read()


def mark(folder: Path, name: str) -> None:
    """Create an empty file; one that exists already is fine."""
    with contextlib.suppress(OSError):
        writing.write_new(folder / name, (), 0o600)


def open_steps(names: frozenset[str]) -> list[int]:
    """Return the steps that are not over, because the client has not written their end file."""
    begun = sorted(int(match[1]) for name in names if (match := STEP.match(name)))
    return [step for step in begun if end_file(step) not in names]
