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
    """What is in the folder; listing it asks a file server again, where a look at one may not."""
    return frozenset(path.name for path in folder.iterdir())


def node_file(number: int) -> str:
    """What an agent leaves when it has begun."""
    return f"node-{number}"


def end_file(step: int) -> str:
    """What ends a step on every node."""
    return f"step-{step}.end"


def read_fact(path: Path) -> bytes:
    """A small file of the folder; raises `StorageError` for anything else."""
    with open_regular(path, MAX_FACT_BYTES) as file:
        return file.read()


def mark(folder: Path, name: str) -> None:
    """Make an empty file; one that is there already is fine."""
    with contextlib.suppress(OSError):
        writing.write_new(folder / name, (), 0o600)


def open_steps(names: frozenset[str]) -> list[int]:
    """The steps that are not over: the client ends each of its own."""
    begun = sorted(int(match[1]) for name in names if (match := STEP.match(name)))
    return [step for step in begun if end_file(step) not in names]
