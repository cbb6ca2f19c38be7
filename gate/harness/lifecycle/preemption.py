"""Ends a run as a preemption would, and records the state at that border on both sides.

A scheduler sends SIGTERM, waits, and sends SIGKILL. A script that saves every few steps has written
its checkpoint before it goes on to the next update. A script that saves on SIGTERM has a handler
for it, and writes the checkpoint a step or two later. Both get the time to save, and then the
process dies at once: nothing that it might still do may reach the checkpoint by chance.

The interrupted and the resumed run both record their state there (`border.py`). So the gate can
name the state that the resumed run lacks.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch
from torch.optim import Optimizer

from ..output import Output
from ..recording.recorder import Recorder
from ..settings import HarnessSettings, perf_counter, process_id

# further steps for a script with a handler that has not written its checkpoint yet
STEPS_MORE: Final = 2
WAIT_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.01
MAX_FILES: Final = 10_000
MAX_NAME: Final = 300
MAX_WRITING: Final = 20
LOCAL_RANKS: Final = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
WRITES: Final = os.O_WRONLY | os.O_RDWR
# device, inode, time of modification in ns and size of a file
Stamp = tuple[int, int, int, int]


# torch's function that steps with gradients and a learning rate of 0. It gives an optimizer a state
# to load into.
MAKES_STATE: Final = ("torch.distributed.checkpoint.state_dict", "_init_optim_state")
MAX_FRAMES: Final = 40


def makes_state_to_load() -> bool:
    """Whether this optimizer step is torch's own, before it loads an optimizer's state."""
    module, function = MAKES_STATE
    frame = sys._getframe(1) if module in sys.modules else None  # noqa: SLF001 - no other way
    for _ in range(MAX_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_name == function and frame.f_globals.get("__name__") == module:
            return True
        frame = frame.f_back
    return False


class Preemption:
    """Decides when this process is to be ended, and how."""

    def __init__(self, settings: HarnessSettings) -> None:
        """Prepare from the settings; without `preempt_step` the process is never ended."""
        self._step = settings.preempt_step
        self._path = Path(settings.preempt_path)
        self._before: dict[str, Stamp] | None = None
        self._signalled_at = 0
        self._at_the_end: dict[str, Stamp] | None = None

    def note_step(self, steps: int) -> None:
        """Note the checkpoint's files once the last step before the border has ended."""
        if self._step and steps >= self._step and self._before is None:
            self._before = dict(files_at(self._path))

    def is_due(self, recorder: Recorder, optimizer: Optimizer) -> bool:
        """Whether this optimizer has taken all steps up to the border and begins another.

        If optimizers step one after another in an iteration, the last one still has to step when
        the first one has. Between the two no script saves, so the border is before the first one's
        next step.
        """
        # a handler usually sets a flag, and the script saves a step or two later
        border = self._signalled_at + STEPS_MORE if self._signalled_at else self._step
        return bool(self._step) and recorder.steps_of(optimizer) >= border

    @property
    def is_gentle(self) -> bool:
        """Whether the script has a SIGTERM handler and has not saved since: then it gets time."""
        handled = callable(signal.getsignal(signal.SIGTERM))
        return handled and not self._signalled_at and dict(files_at(self._path)) == self._before

    def ask(self, steps: int) -> None:
        """Send SIGTERM to this process; the script's handler may raise here."""
        self._signalled_at = steps
        os.kill(process_id(), signal.SIGTERM)

    def end(self) -> None:
        """End this process by SIGTERM, unless it got that already, and then by SIGKILL."""
        try:
            if not self._signalled_at:
                os.kill(process_id(), signal.SIGTERM)
        # the handler may raise, and the process must end nevertheless
        finally:
            os.kill(process_id(), signal.SIGKILL)

    def note_end(self) -> None:
        """Note the checkpoint's files: from here on only a thread of the script can write."""
        self._at_the_end = dict(files_at(self._path))

    def written_after_the_end(self) -> bool:
        """Whether a thread wrote the checkpoint while the harness was writing its own files.

        On a faster machine that write would have come too late. With several ranks another rank may
        be late, so nothing is concluded.
        """
        return bool(self._changed()) and _ranks() == 1

    def _changed(self) -> set[str]:
        before = self._at_the_end
        if before is None:
            return set()
        return {path for path, _ in set(files_at(self._path)) ^ set(before.items())}

    def being_written(self) -> tuple[list[str], list[str]]:
        """Return the names of files that are being written: the checkpoint's, and others.

        The first list has files at or below the checkpoint's path that are open for writing or that
        a thread is saving. The second has files that a thread is saving elsewhere, and open files
        beside the checkpoint with its name in theirs.
        """
        path = str(self._path)
        saved = set(_saved_by_threads())
        there = {saved_path for saved_path in saved if saved_path.startswith(path)} | set(
            _open_for_writing(path)
        )
        there |= self._changed() if self.written_after_the_end() else set()
        beside = {
            open_path
            for open_path in _open_for_writing(str(self._path.parent))
            if Path(open_path).parent == self._path.parent
            and self._path.stem in Path(open_path).name
        }
        return _names(there), _names((saved | beside) - there)


def wait_for_ranks(folder: str, output: Output) -> None:
    """Wait for the summary of every rank of this machine, at most `WAIT_SECONDS`.

    A launcher kills the other ranks as soon as the first is gone, whatever they are doing.
    """
    ranks = ranks_here(_ranks(), os.environ)
    until = perf_counter() + WAIT_SECONDS
    while ranks > 1 and perf_counter() < until:
        names = os.listdir(folder)  # noqa: PTH208 - asked often
        ended = {name.split("-")[1] for name in names if name.startswith("summary-r")}
        if len(ended | {f"r{output.rank}"}) >= ranks:
            return
        time.sleep(POLL_SECONDS)


def ranks_here(world_size: int, variables: Mapping[str, str]) -> int:
    """Return how many of the ranks run on this machine, where the launcher says so."""
    # torchrun sets it, and so does the gate on a cluster; ranks elsewhere write to folders of their
    # own, which would be waited for in vain
    local = variables.get("LOCAL_WORLD_SIZE", "")
    return min(world_size, int(local)) if LOCAL_RANKS.fullmatch(local) else world_size


def _ranks() -> int:
    distributed: Any = torch.distributed
    with suppress(Exception):
        if distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_world_size())
    return 1


def _names(paths: Iterable[str]) -> list[str]:
    return sorted({Path(path).name[:MAX_NAME] for path in paths})[:MAX_WRITING]


def _saved_by_threads() -> Iterator[str]:
    """Yield the paths that other threads are saving to right now, read from their frames."""
    mine = threading.get_ident()
    for thread, innermost in sys._current_frames().items():  # noqa: SLF001 - no other way
        frame = innermost if thread != mine else None
        for _ in range(MAX_FRAMES):
            if frame is None:
                break
            module = str(frame.f_globals.get("__name__"))
            target = None
            if module == "torch.serialization" and frame.f_code.co_name == "save":
                target = frame.f_locals.get("f")
                # torch.save takes a path or an open file
                target = getattr(target, "name", target)
            elif module.startswith("torch.distributed.checkpoint"):
                writer = frame.f_locals.get("storage_writer")
                target = getattr(writer, "path", None) or frame.f_locals.get("checkpoint_id")
            if isinstance(target, str | os.PathLike):
                yield os.path.abspath(os.fsdecode(target))  # noqa: PTH100 - as text
                break
            frame = frame.f_back


def files_at(path: Path) -> Iterator[tuple[str, Stamp]]:
    """Yield each file at or below a path with its stamp; stops after `MAX_FILES` files."""
    number = 0
    for folder, _, names in os.walk(path):
        for name in names:
            number += 1
            if number > MAX_FILES:
                return
            yield from _stamp_of(f"{folder}/{name}")
    yield from _stamp_of(str(path))


def _stamp_of(path: str) -> Iterator[tuple[str, Stamp]]:
    with suppress(OSError):
        about = os.lstat(path)
        if not Path(path).is_dir():
            yield path, (about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size)


def _open_for_writing(path: str) -> Iterator[str]:
    # `.` is `Path("")` or its parent: no checkpoint's path is configured
    if not sys.platform.startswith("linux") or path == ".":
        return
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names alone
        with suppress(OSError, ValueError, IndexError):
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - a text is wanted
            about = Path(f"/proc/self/fdinfo/{number}").read_text(encoding="ascii")
            flags = next(line for line in about.splitlines() if line.startswith("flags:"))
            if target.startswith(path) and int(flags.split()[1], 8) & WRITES:
                yield target
