"""Ends a run inside the write of its checkpoint, at a byte that is chosen beforehand.

The kernel ends it: RLIMIT_FSIZE is set during `torch.save`. So a write by any writer is cut at that
byte, and the next write raises SIGXFSZ, which ends the process (setrlimit(2)). CPython ignores that
signal from its start on, so its default action is restored first. The limit applies to every
regular file of the process, so the harness itself writes nothing meanwhile.

The size of the file is measured beforehand, by the same call into a file that is thrown away. Which
call writes the checkpoint is known by its target, or by earlier saves: a file that such a save
wrote, under any name, was found at the checkpoint's path afterwards.
"""

from __future__ import annotations

import io
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ..output import Output
from ..recording.recorder import Recorder
from ..settings import HarnessSettings
from ..user_code import caller_of
from .preemption import files_at

FIRST, MIDDLE = "first-byte", "middle"
MAX_NAMES: Final = 20
MAX_TEXT: Final = 200
SCRATCH: Final = "measured"

Write = Callable[[Any], None]
Line = tuple[str, int]


class SaveKiller:
    """Decides in which save this process is ended, ends it, and writes `kill-rR-P.json`."""

    def __init__(self, settings: HarnessSettings, output: Output, recorder: Recorder) -> None:
        """Prepare for a run with `settings.kill_save`."""
        self._point = settings.kill_save
        self._step = settings.preempt_step
        self._checkpoint = Path(os.path.realpath(settings.preempt_path))
        self._tree = Path(os.path.realpath(settings.tree))
        self._output = output
        # ranks share the output folder, so the scratch folder needs the process id
        self._scratch = Path(settings.out).absolute() / f"{SCRATCH}-{output.pid}"
        self._recorder = recorder
        # by device and inode of each saved file: the path that was written, and the line that saved
        # it
        self._saved: dict[tuple[int, int], tuple[Path, Line]] = {}
        # inodes of saved files that were later found at the checkpoint's path
        self._became: set[tuple[int, int]] = set()
        self._had_one = False
        self._is_reported = False
        self._why_not = ""

    @property
    def is_due(self) -> bool:
        """Whether the next save of the checkpoint is the one to be ended in."""
        return not self._is_reported and self._recorder.steps >= self._step

    def save(self, write: Write, target: Any, frame: FrameType) -> None:
        """Save to `target` by `write`; if this is the save to be ended in, never return.

        `frame` is the frame of the script that saves. Raises what `write` raises.
        """
        place_found = caller_of(frame).place
        place = place_found.file, place_found.line
        path = _path_of(target)
        self.look()
        if self.is_due and self._is_of_checkpoint(path, place):
            self._end_inside(write, target, path, place)
        else:
            self._pass_over(path, place)
            write(target)
        if path is not None:
            with suppress(OSError):
                # the inode may be that of a file that is gone
                self._became.discard(identity := _identity(path.stat()))
                self._saved[identity] = path, place

    def tell_missed(self) -> None:
        """Report why the run was not ended inside a save, if it was not."""
        if not self._is_reported:
            self._tell(
                None,
                ("", 0),
                why=self._why_not
                or f"torch.save was not called between step {self._step} and the next one",
            )

    def look(self) -> None:
        """Look at the checkpoint's path for files that earlier saves wrote."""
        for _, (device, number, _, _) in files_at(self._checkpoint):
            self._had_one = True
            if (device, number) in self._saved:
                self._became.add((device, number))

    def _is_of_checkpoint(self, path: Path | None, place: Line) -> bool:
        if path is None:
            return False
        if path == self._checkpoint or self._checkpoint in path.parents:
            return True
        if any(self._saved[saved_path][0] == path for saved_path in self._became):
            return True
        if self._became:
            # Accept a new name if every file that this line saved became the checkpoint.
            of_line = {saved_path for saved_path, (_, line) in self._saved.items() if line == place}
            return bool(of_line) and of_line <= self._became
        # No earlier save can show it: expect a temporary name that contains the checkpoint's.
        folder = self._checkpoint.parent
        beside = path.relative_to(folder).parts[:1] if folder in path.parents else ()
        return any(self._checkpoint.stem in name for name in beside)

    def _pass_over(self, path: Path | None, place: Line) -> None:
        if self.is_due:
            where = "to memory" if path is None else f"to {path.name!a}"
            self._why_not = (
                f"torch.save wrote {where} ({place[0]}:{place[1]}), and nothing shows that "
                "this becomes the checkpoint"
            )

    def _end_inside(self, write: Write, target: Any, path: Path | None, place: Line) -> None:
        """End the process at the chosen byte, or note why that was not possible."""
        if threading.current_thread() is not threading.main_thread():
            # the training would go on in its own thread, and the harness would write under the
            # limit
            self._why_not = "torch.save runs in a thread beside the training"
            write(target)
            return
        try:
            stream = _stream_of(target)
            start = 0 if stream is None else stream.tell()
            size = self._measured(write, target)
        except Exception as error:
            self._why_not = f"its size could not be measured: {type(error).__name__}: {error}"
            write(target)
            return
        byte = {FIRST: 1, MIDDLE: max(1, size // 2)}.get(self._point, max(1, size - 1))
        self._tell(path, place, size=size, byte=byte)
        # Lines of the last steps are still waiting; nothing can write them later.
        self._recorder.flush()
        self._output.silent = True
        own, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        # SIGXFSZ dumps core by default (signal(7))
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        # Python ignores the signal: a write would raise an error, which an `except` could swallow.
        before = signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_at_most(start + byte, most), most))
        try:
            write(target)
            if stream is not None:
                # data that Python still buffers for this file belongs to the save
                stream.flush()
        except BaseException:
            # the signal is blocked, so the write failed instead: end here, with no further byte
            # written
            os._exit(128 + signal.SIGXFSZ)
        resource.setrlimit(resource.RLIMIT_FSIZE, (own, most))
        signal.signal(signal.SIGXFSZ, before)
        self._output.silent = False
        self._tell(
            path,
            place,
            size=size,
            byte=byte,
            why=f"torch.save returned before byte {byte:,} of {size:,} was in the file",
        )

    def _measured(self, write: Write, target: Any) -> int:
        """Return how many bytes the save is going to write."""
        if _stream_of(target) is not None:
            counter = _Counter()
            write(counter)
            return counter.count
        # same name, since torch writes the name into the archive
        name = Path(os.fsdecode(target)).name
        self._scratch.mkdir()
        try:
            write(str(self._scratch / name))
            return (self._scratch / name).stat().st_size
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _tell(
        self, path: Path | None, place: Line, *, size: int = 0, byte: int = 0, why: str = ""
    ) -> None:
        """Write the record; `why` says why the process is not ended.

        It is written before the end, since nothing can be written after it.
        """
        self._is_reported = True
        shown = "" if path is None else os.path.relpath(path, self._tree)
        document = {
            "pid": self._output.pid,
            "rank": self._output.rank,
            "point": self._point,
            "step": self._recorder.steps,
            "path": shown[-MAX_TEXT:],
            "inside": self._inside(path),
            "file": place[0][-MAX_TEXT:],
            "line": place[1],
            "size_bytes": size,
            "byte": byte,
            "had_one": self._had_one,
            "beside": sorted(set(self._beside(path)))[:MAX_NAMES],
            "why": why[:MAX_TEXT],
        }
        with suppress(OSError):
            self._output.write_document("kill", document)

    def _inside(self, path: Path | None) -> str:
        """Return the file's path below the checkpoint, or `.` for the checkpoint itself."""
        if path is None or not (path == self._checkpoint or self._checkpoint in path.parents):
            return ""
        name = path.relative_to(self._checkpoint).as_posix()
        return name if len(name) <= MAX_TEXT else ""

    def _beside(self, target: Path | None) -> Iterator[str]:
        """Yield names beside the checkpoint of files that earlier saves of this run wrote."""
        folder = self._checkpoint.parent
        for path, (device, number, _, _) in files_at(folder):
            inside = Path(os.path.realpath(path))
            if (device, number) not in self._saved or inside == target:
                continue
            name = Path(path).relative_to(folder).parts[0]
            if name != self._checkpoint.name and len(name) <= MAX_TEXT:
                yield name


class _Counter(io.RawIOBase):
    """A stream that counts the bytes and drops them."""

    count = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        self.count += size
        return size


def _stream_of(target: Any) -> Any:
    """Return the open file below the argument of `torch.save`; None for a path."""
    if isinstance(target, str | os.PathLike | bytes):
        return None
    # distributed checkpoints wrap the file in an object without a name
    return target if hasattr(target, "name") else getattr(target, "raw", target)


def _path_of(target: Any) -> Path | None:
    """Return the path that a save writes to, with links resolved; None if it is no file."""
    stream = _stream_of(target)
    named = target if stream is None else getattr(stream, "name", None)
    if not isinstance(named, str | os.PathLike | bytes):
        return None
    return Path(os.path.realpath(os.fsdecode(named)))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _at_most(asked: int, most: int) -> int:
    return asked if most == resource.RLIM_INFINITY else min(asked, most)
