"""Start the programs that fetch data, with limits on time, output, size and disk, and progress."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gate.data import watched
from gate.data.cache import LIMIT_HINT, disk_full
from gate.errors import DataError, RunError
from gate.isolation.process_request import Processes, ProcessRequest, ProcessResult
from gate.system.console import Progress
from gate.system.programs import without_secrets
from gate.text.untrusted_text import safe_line

UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")
STEP: Final = 1000.0


def shown_bytes(count: float) -> str:
    """Return a size such as `1.2 GB`, in powers of 1000."""
    unit = 0
    while count >= STEP - 0.5 and unit < len(UNITS) - 1:
        count /= STEP
        unit += 1
    digits = 0 if unit == 0 or count >= 100 else 1  # noqa: PLR2004 - three digits
    return f"{count:.{digits}f} {UNITS[unit]}"


def shown_rate(count: float, seconds: float) -> str:
    """Return a rate such as `85 MB/s`."""
    return f"{shown_bytes(count / max(seconds, 1e-3))}/s"


MAX_OUTPUT_BYTES: Final = 256 * 1024
SHOWN_LINES: Final = 8
# free space that other programs of the machine need
MIN_FREE_BYTES: Final = 256 * 1024**2
TELL_SECONDS: Final = 5.0
# this token is for signing in a vault, and is not needed to fetch data
SIGNERS: Final = "VAULT_TOKEN"
# variables that would make git use another repository than the one it is called in
GIT_PLACES: Final = frozenset(
    {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"}
    | {"GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX"}
)
_PASSWORD: Final = re.compile(r"(?<=://)[^/@\s]+@")
_FETCHED: Final = re.compile(rf"{watched.MARK}([0-9]{{1,20}})\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A call of a program for one data set, which may put `max_bytes` into `objects`.

    `ends_at` is the moment on the monotonic clock at which `seconds` are over.
    """

    entry: str
    argv: tuple[str, ...]
    objects: Path
    workdir: Path
    seconds: float
    ends_at: float
    max_bytes: int
    more_environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tools:
    """The programs of this machine; `environment` is the gate's own, including credentials."""

    processes: Processes
    progress: Progress
    environment: Mapping[str, str]

    def find(self, name: str, hint: str) -> str:
        """Return the program's path; raises `DataError` if it is not installed."""
        folders_of_path = self.environment.get("PATH", os.defpath).split(os.pathsep)
        # Programs in the gate's virtual environment are found even if it is not activated.
        folders = (*folders_of_path, str(Path(sys.executable).parent))
        # A relative folder on the PATH would be inside the commit under test.
        tool = shutil.which(name, path=os.pathsep.join(filter(os.path.isabs, folders)))
        if tool is None:
            raise DataError(f"data: {name} is not installed, or not on the PATH", hint=hint)
        return tool

    def run(self, call: ToolCall) -> ProcessResult:
        """Run the program to its end, and return the result whatever the exit code.

        Raises `DataError` if it takes too long or too much space, or cannot start.
        """
        meter = _Meter(call.entry, self.progress)
        request = ProcessRequest(
            argv=(
                *(sys.executable, "-I", "-S", "-B", watched.__file__, str(call.objects)),
                *(str(call.max_bytes), str(MIN_FREE_BYTES), *call.argv),
            ),
            env={**self._environment(), **call.more_environment},
            workdir=call.workdir,
            timeout_seconds=max(0.0, call.ends_at - time.monotonic()),
            output_limit_bytes=MAX_OUTPUT_BYTES,
        )
        try:
            result = self.processes.run(request, meter.line)
        except RunError as error:
            raise DataError(
                f"data: {call.entry}: {Path(call.argv[0]).name} cannot be run: {error.message}",
                hint="Check its installation.",
            ) from error
        if result.timed_out:
            raise too_slow(call.entry, call.seconds, last_printed_lines(result))
        if result.exit_code == watched.TOO_LARGE:
            raise DataError(
                f"data: {call.entry}: the download exceeds {call.max_bytes:,} bytes",
                hint=LIMIT_HINT,
            )
        if result.exit_code == watched.DISK_FULL:
            raise disk_full(call.objects, f"stopped fetching {call.entry} before nothing was left")
        return result

    def _environment(self) -> dict[str, str]:
        kept = without_secrets(self.environment, SIGNERS)
        return {name: value for name, value in kept.items() if name not in GIT_PLACES}


def too_slow(entry: str, seconds: float, details: tuple[str, ...] = ()) -> DataError:
    """Return the error for a fetch that took too long, the same for all kinds of data."""
    return DataError(
        f"data: {entry}: not fetched within {seconds:g} s",
        hint="Check the network and the server, or raise fetch.timeout_seconds; what was "
        "downloaded is kept for the next call.",
        details=details,
    )


def last_printed_lines(result: ProcessResult) -> tuple[str, ...]:
    """Return the last lines that a program printed, made safe and without passwords."""
    text = result.output.decode("utf-8", "replace").replace("\r", "\n")
    lines = [line for line in text.splitlines() if line.strip() and not _FETCHED.match(line)]
    return tuple(safe_line(without_password(line)) for line in lines[-SHOWN_LINES:])


def without_password(text: str) -> str:
    """Return a text with the user name and password before a host in an address removed."""
    return _PASSWORD.sub("", text)


class _Meter:
    """Shows a program's output, and every few seconds how much has arrived and how fast."""

    def __init__(self, entry: str, progress: Progress) -> None:
        self._entry = entry
        self._progress = progress
        self._began = self._last_line_seconds = time.monotonic()

    def line(self, line: bytes) -> None:
        """Process one line of output: either a number of bytes or the program's own text."""
        match = _FETCHED.match(line.decode("utf-8", "replace").strip())
        if match is None:
            self._progress.output(without_password(line.decode("utf-8", "replace")).encode())
            return
        now = time.monotonic()
        size = int(match[1])
        if size and now - self._last_line_seconds >= TELL_SECONDS:
            self._last_line_seconds = now
            rate = shown_rate(size, now - self._began)
            self._progress.step(f"{self._entry}: {shown_bytes(size)}, {rate}")
