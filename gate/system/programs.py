"""Ask a program one question, limited in time and output, without a shell or the gate's secrets.

The question goes to standard input, and the answer comes from standard output.
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

# Beginnings of variable names: the step's inputs, secrets of the runner and the gate, and logins of
# trackers and package indexes.
WITHHELD: Final = (
    *("INPUT_", "ACTIONS_", "REPRO_GATE_", "PYTHON"),
    *(tracker.prefix for tracker in TRACKERS),
    *("PIP_", "UV_", "POETRY_", "PDM_", "TWINE_"),
)


def without_secrets(variables: Mapping[str, str], *further: str) -> dict[str, str]:
    """Return the variables without those whose names begin like `WITHHELD` or `further`.

    A program's own credentials stay, because it needs them to reach a key service or a data remote.
    """
    withheld = (*WITHHELD, *further)
    return {name: value for name, value in variables.items() if not name.startswith(withheld)}


SECONDS: Final = 60.0
MAX_ANSWER_BYTES: Final = 64 * 1024
KEPT_ERROR_BYTES: Final = 8 * 1024
PIECE_BYTES: Final = 64 * 1024
SHOWN_LINES: Final = 5
# If a variable's name contains one of these words, its value is a secret that a program may print
# by mistake.
SECRET_WORDS: Final = ("TOKEN", "SECRET", "PASS", "KEY", "PIN", "CREDENTIAL")
MIN_SECRET_CHARACTERS: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A program to ask; `name` is for messages, and `variables` are filtered before it gets them.

    `seconds` limits the whole answer.
    """

    name: str
    argv: tuple[str, ...]
    variables: Mapping[str, str]
    seconds: float = SECONDS

    def ask(self, question: bytes, *words: str) -> bytes:
        """Run the program with these further arguments and return its standard output.

        Raises `AttestationError` if it cannot start, fails, prints too much or is too slow.
        """
        environment = {
            **without_secrets(self.variables),
            "PATH": _search_path(self.variables),
        }
        try:
            process = subprocess.Popen(
                (*self.argv, *words),
                # A pipe rather than a file, because the question may contain a PIN.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                # Not the work tree, where a relative path would name a file of the commit under
                # test.
                cwd="/",
                # a group of its own, so that `_end` can kill whatever the program started
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
        """Write the question and collect the answer; also return the end of standard error.

        All three pipes are served at once: a program may fill one of them before it reads the
        question.
        """
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
    """Return a program's full path; empty if there is none, or if others could change it."""
    program = shutil.which(name, path=_search_path(variables))
    return program if program and nobody_elses(Path(program)) else ""


def nobody_elses(path: Path) -> bool:
    """Return whether only root and this account can change a file or folder; False if missing.

    Programs that a pull request installed for its training belong to another account, but come
    first on the search path (`container/start.py`).
    """
    try:
        facts = path.stat()
    except OSError:
        return False
    return facts.st_uid in {0, os.geteuid()} and not facts.st_mode & stat.S_IWOTH


def _search_path(variables: Mapping[str, str]) -> str:
    folders = variables.get("PATH", os.defpath).split(os.pathsep)
    # A relative folder would be inside the commit under test.
    full = [
        folder for folder in folders if Path(folder).is_absolute() and nobody_elses(Path(folder))
    ]
    return os.pathsep.join(full)


def _present(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # noqa: S101 - both are pipes, by the call above
    return stream


def _closed(stream: object) -> None:
    """Close a stream; for standard input, this tells the program that the question is complete."""
    if isinstance(stream, io.IOBase):
        stream.close()


def _sent(descriptor: int, left: bytearray) -> bool:
    """Write some of the question; return whether there is more to write."""
    try:
        count = os.write(descriptor, left[:PIECE_BYTES])
    except BlockingIOError:
        return True
    except BrokenPipeError:
        # The program may answer without reading, for example for the public key.
        return False
    del left[:count]
    return bool(left)


def _received(descriptor: int, received: bytearray) -> bool:
    """Read some of the answer; return whether there may be more."""
    piece = os.read(descriptor, PIECE_BYTES)
    received += piece
    return bool(piece)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the program and everything it started, unless it has ended already."""
    # Not polled before: as long as nobody has waited for the process, its number cannot be reused.
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
    """Return the program's last lines for a log, without control characters and secrets."""
    text = said.decode("utf-8", "replace")
    for name, value in environment.items():
        if len(value) >= MIN_SECRET_CHARACTERS and any(word in name for word in SECRET_WORDS):
            text = text.replace(value, "***")
    lines = [line for line in text.splitlines() if line.strip()]
    return tuple(safe_line(line) for line in lines[-SHOWN_LINES:])
