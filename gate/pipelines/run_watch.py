"""Shows the progress of a turn's runs to a person at a terminal.

The step comes from lines that the harness writes during the run. They are untrusted: only a bounded
tail of each file is read, no link is followed, and only a number is used. No outcome depends on it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gate.errors import StorageError
from gate.system.files.port import Files

LOOK_EACH_SECONDS: Final = 1.0
# room for two lines of the maximal length, so that one is always whole
TAIL_BYTES: Final = 128 * 1024
MOST_NAMES: Final = 2_000
# a huge or sparse file does no harm, because only its end is read
LARGEST_BYTES: Final = 2**50
STEPS_FILE = re.compile(r"steps-r0-[0-9]{1,10}\.jsonl")
STEP = re.compile(rb'[{,]\s?"step":\s?([0-9]{1,9})[,}]')
MINUTE: Final = 60
ROUNDED_SECONDS: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class LivingRun:
    """A living run: the harness's folder, the start time and the number of steps."""

    out: Path
    begun_seconds: float
    max_steps: int


@dataclass(slots=True)
class RunWatch:
    """The position in a series of `total` runs; `done` counts the ended ones.

    Times are in seconds of `clock`.
    """

    files: Files
    clock: Callable[[], float]
    total: int = 0
    done: int = 0
    _took: list[float] = field(default_factory=list)
    # for the watched run: its start, the first step that was seen, and when
    _first: tuple[float, int, float] | None = None

    def series(self, total: int) -> None:
        """Begin a series of `total` runs, one turn after the other."""
        self.total, self.done, self._took = total, 0, []

    def ended(self, runs: int, seconds: float) -> None:
        """Record a turn that has ended, with its runs and seconds."""
        self.done += runs
        self._took.append(seconds)
        self._first = None

    def words(self, going: Sequence[LivingRun], over: int = 0) -> str:
        """Return a text such as `run 2 of 4, step 13 of 20, about 40 s left`; omit what is unknown.

        `over` runs of the turn have ended already.
        """
        if not going:
            return ""
        steps = [(step_in(self.files, watched.out), watched) for watched in going]
        # the turn ends with its slowest run
        step, slowest = min(steps, key=lambda pair: pair[0] / pair[1].max_steps)
        parts = [self._number(over, len(going))]
        if step:
            parts.append(f"step {min(step, slowest.max_steps):,} of {slowest.max_steps:,}")
            left = self._left(step, slowest, over + len(going))
            parts.append(f"about {_rounded(left)} left" if left is not None else "")
        return ", ".join(filter(None, parts))

    def _number(self, over: int, runs: int) -> str:
        last = self.done + over + runs
        if self.total <= 1 or last > self.total:
            return ""
        which = f"run {last}" if runs == 1 else f"runs {last - runs + 1} to {last}"
        return f"{which} of {self.total}"

    def _left(self, step: int, watched: LivingRun, runs: int) -> float | None:
        """Estimate the seconds until the series ends, from the pace since the first step seen."""
        now = self.clock()
        if self._first is None or self._first[0] != watched.begun_seconds:
            self._first = watched.begun_seconds, step, now
        _, first_step, first_seconds = self._first
        if step <= first_step or now <= first_seconds:
            return None
        pace = (now - first_seconds) / (step - first_step)
        here = pace * max(0, watched.max_steps - step)
        whole = (
            sum(self._took) / len(self._took) if self._took else now - watched.begun_seconds + here
        )
        turns = math.ceil(max(0, self.total - self.done - runs) / runs)
        return here + turns * whole


def step_in(files: Files, out: Path) -> int:
    """Return the last step that the harness wrote into a folder; 0 if none is readable."""
    try:
        names = files.list_names(out, max_names=MOST_NAMES)
        steps = (
            last_written_step(files, out / name) for name in names if STEPS_FILE.fullmatch(name)
        )
        return max(steps, default=0)
    except StorageError:
        return 0


def last_written_step(files: Files, path: Path) -> int:
    """Return the last step in a file of steps, read from its end; 0 without one.

    Raises `StorageError` for anything but a plain file.
    """
    with files.open_binary(path, max_bytes=LARGEST_BYTES) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        steps = STEP.findall(file.read(TAIL_BYTES))
    return int(steps[-1]) if steps else 0


def _rounded(seconds: float) -> str:
    """Round an estimated time to a sensible precision."""
    if seconds < 2 * MINUTE:
        return f"{max(1, round(seconds / ROUNDED_SECONDS)) * ROUNDED_SECONDS} s"
    return f"{round(seconds / MINUTE):,} min"
