"""Asking a program one question: bounded in time and output, no shell, no secret of the gate.

The question goes in on standard input, the answer comes back on standard output.
"""

from __future__ import annotations

import io
import os
import selectors
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from gate.errors import AttestationError
from gate.text.trackers import TRACKERS
from gate.text.untrusted_text import safe_line

# the step's inputs, what the runner and the gate keep secret, and the logins of a tracker and of
# package indexes
WITHHELD: Final = (
    *("INPUT_", "ACTIONS_", "REPRO_GATE_", "PYTHON"),
    *(tracker.prefix for tracker in TRACKERS),
    *("PIP_", "UV_", "POETRY_", "PDM_", "TWINE_"),
)


def without_secrets(variables: Mapping[str, str], *further: str) -> dict[str, str]:
    """The variables but those with such a beginning, or with one of `further`.

    A program's own credentials stay: a key service or a remote of data is reached with them.
    """
    withheld = (*WITHHELD, *further)
    return {name: value for name, value in variables.items() if not name.startswith(withheld)}


SECONDS: Final = 60.0
MAX_ANSWER_BYTES: Final = 64 * 1024
KEPT_ERROR_BYTES: Final = 8 * 1024
PIECE_BYTES: Final = 64 * 1024
SHOWN_LINES: Final = 5
# A variable with one of these words in its name holds what a program may print by mistake.
SECRET_WORDS: Final = ("TOKEN", "SECRET", "PASS", "KEY", "PIN", "CREDENTIAL")
MIN_SECRET_CHARACTERS: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A program by its name in messages; `variables` are the gate's, of which its own are left out.

    `seconds` is how long an answer may take.
    """

    name: str
    argv: tuple[str, ...]
    variables: Mapping[str, str]
    seconds: float = SECONDS

    def ask(self, question: bytes, *words: str) -> bytes:
        """What it prints, called with these words too; `AttestationError` unless it ends well."""
        environment = {
            **without_secrets(self.variables),
            "PATH": _search_path(self.variables),
        }
        try:
            process = subprocess.Popen(
                (*self.argv, *words),
                # a pipe and no file: a PIN may be in it
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                # not the work tree: a relative path would be one of the commit under test
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise AttestationError(
                f"{self.name} cannot be started: {error.strerror}",
                hint="Check that the file exists and is executable.",
            ) from error
        try:
            answer, said = self._collected(process, question)
        finally:
            _end(process)
        if process.returncode:
            raise AttestationError(
                f"{self.name} {_ended(process.returncode)}",
                hint="Its last lines are above; call it by hand with the same argument.",
                details=_last_lines(said, environment),
            )
        return answer

    def _collected(self, process: subprocess.Popen[bytes], question: bytes) -> tuple[bytes, bytes]:
        """All of the answer, and the end of what it said beside it."""
        end = time.monotonic() + self.seconds
        answer, said, asked = bytearray(), bytearray(), bytearray(question)
        with selectors.DefaultSelector() as ready:
            os.set_blocking(_present(process.stdin).fileno(), False)
            ready.register(_present(process.stdin), selectors.EVENT_WRITE, asked)
            for stream, target in ((process.stdout, answer), (process.stderr, said)):
                ready.register(_present(stream), selectors.EVENT_READ, target)
            while ready.get_map():
                events = ready.select(max(0.0, end - time.monotonic()))
                if not events:
                    raise self._too_slow()
                for key, event in events:
                    step = _sent if event & selectors.EVENT_WRITE else _received
                    if not step(key.fd, key.data):
                        ready.unregister(key.fileobj)
                        _closed(key.fileobj)
                if len(answer) > MAX_ANSWER_BYTES:
                    raise AttestationError(
                        f"{self.name} printed more than {MAX_ANSWER_BYTES // 1024} KiB",
                        hint="Let it print the answer alone: a public key, or a signature.",
                    )
                del said[:-KEPT_ERROR_BYTES]
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise self._too_slow() from error
        return bytes(answer), bytes(said)

    def _too_slow(self) -> AttestationError:
        return AttestationError(
            f"{self.name} gave no answer within {self.seconds:g} s",
            hint="It must not ask for anything on a terminal; try it with `</dev/null`.",
        )


def find_program(name: str, variables: Mapping[str, str]) -> str:
    """The full path of a program by name or path; empty where none is that may be started."""
    program = shutil.which(name, path=_search_path(variables))
    return program if program and nobody_elses(Path(program)) else ""


def nobody_elses(path: Path) -> bool:
    """Whether only root and this account can change a file or folder; no for one that is missing.

    What a pull request had installed for its training belongs to another account, and stands on
    the search path before all else (`container/start.py`).
    """
    try:
        facts = path.stat()
    except OSError:
        return False
    return facts.st_uid in {0, os.geteuid()} and not facts.st_mode & stat.S_IWOTH


def _search_path(variables: Mapping[str, str]) -> str:
    folders = variables.get("PATH", os.defpath).split(os.pathsep)
    # a relative folder would be one of the commit under test
    full = [
        folder for folder in folders if Path(folder).is_absolute() and nobody_elses(Path(folder))
    ]
    return os.pathsep.join(full)


def _present(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # noqa: S101 - both are pipes, by the call above
    return stream


def _closed(stream: object) -> None:
    """The program learns from it that there is no more of its input."""
    if isinstance(stream, io.IOBase):
        stream.close()


def _sent(descriptor: int, left: bytearray) -> bool:
    """Write some of the question; whether there is more."""
    try:
        count = os.write(descriptor, left[:PIECE_BYTES])
    except BlockingIOError:
        return True
    except BrokenPipeError:
        # it may answer without reading, as for the public key
        return False
    del left[:count]
    return bool(left)


def _received(descriptor: int, received: bytearray) -> bool:
    """Read some of the answer; whether there may be more."""
    piece = os.read(descriptor, PIECE_BYTES)
    received += piece
    return bool(piece)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing of it behind, should it not have ended well; whatever it started goes too."""
    # not polled: until somebody waits for it, nobody else can have its number
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        with suppress(OSError):
            _present(stream).close()


def _ended(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _last_lines(said: bytes, environment: Mapping[str, str]) -> tuple[str, ...]:
    """What it said last, fit for a log: no control characters, and no secret of its environment."""
    text = said.decode("utf-8", "replace")
    for name, value in environment.items():
        if len(value) >= MIN_SECRET_CHARACTERS and any(word in name for word in SECRET_WORDS):
            text = text.replace(value, "***")
    lines = [line for line in text.splitlines() if line.strip()]
    return tuple(safe_line(line) for line in lines[-SHOWN_LINES:])
