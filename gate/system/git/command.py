"""Call git without letting the repository choose which programs run.

A repository's own `.git/config` can name programs: hooks, a file system monitor, filters, and
transports for missing objects. Each call switches all of them off, and passes nothing of the
caller's environment but the search path.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Timer
from typing import IO

from gate.errors import CommitError, RepositoryError
from gate.text.untrusted_text import safe_line

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
QUERY_SECONDS = 120.0
EXPORT_SECONDS = 1800.0
MAX_WORDS_BYTES = 64 * 1024
# A commit of 100 KiB can list 16 million files, through trees that contain one tree many times. So
# answers have a limit, in bytes and in names.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_ROWS = 500_000
ENVIRONMENT = {
    # a `.gitconfig` in the home folder may name programs too
    "HOME": "/nonexistent",
    "XDG_CONFIG_HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    # attributes select filters, and so change a file's bytes (gitattributes(5))
    "GIT_ATTR_NOSYSTEM": "1",
    # Nobody is there to type a password, and git would wait for it until the watchdog ends it.
    "GIT_TERMINAL_PROMPT": "0",
    # `git status` would refresh the index and leave it owned by root
    "GIT_OPTIONAL_LOCKS": "0",
    # no transport at all: a missing object is an error, never a download
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    # refs/replace makes git show other bytes than a commit's hash names (git-replace(1))
    "GIT_NO_REPLACE_OBJECTS": "1",
    # A file may be named `:(exclude)x` or `*`, which git would take for a pattern (gitglossary(7)).
    "GIT_LITERAL_PATHSPECS": "1",
    # git's messages become part of the gate's errors, which are in English
    "LC_ALL": "C",
}
# All but the last of these settings can name a program in a repository's configuration. The
# command line overrides it.
SETTINGS = (
    # runs whenever git looks at the work tree, even for `git status`
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    # the transport `ext::` runs any command line (git-remote-ext(1))
    "protocol.ext.allow=never",
    # git would write a name such as größe.py in quotes, with a number for each byte
    "core.quotePath=false",
)


class GitCommand:
    """git in one folder; `overrides` are more settings, stronger than the repository's own."""

    def __init__(
        self,
        folder: Path,
        *,
        search_path: str = SEARCH_PATH,
        overrides: tuple[str, ...] = (),
        query_seconds: float = QUERY_SECONDS,
    ) -> None:
        self.folder = folder
        self.search_path = search_path
        settings = (*SETTINGS, *overrides)
        flags = [word for setting in settings for word in ("-c", setting)]
        self._start = ("git", "-C", str(folder), "--no-pager", *flags)
        self._query_seconds = query_seconds
        self._environment = {**ENVIRONMENT, "PATH": search_path}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run git and return the result, whatever the exit code.

        Raises `RepositoryError` if git cannot start or times out, and `CommitError` if it prints
        more than `MAX_ANSWER_BYTES`.
        """
        late = Event()
        # standard error goes to a file: a second pipe could fill up and block git
        with tempfile.TemporaryFile() as said:
            process = self._popen(arguments, None, said)

            def stop() -> None:
                late.set()
                process.kill()

            watchdog = Timer(self._query_seconds, stop)
            watchdog.start()
            try:
                with process:
                    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
                    answer = process.stdout.read(MAX_ANSWER_BYTES + 1)
                    if len(answer) > MAX_ANSWER_BYTES:
                        process.kill()
            finally:
                watchdog.cancel()
            if late.is_set():
                raise _hangs(arguments, self._query_seconds)
            if len(answer) > MAX_ANSWER_BYTES:
                raise _too_much(arguments, f"{MAX_ANSWER_BYTES:,} bytes")
            said.seek(0)
            words = said.read(MAX_WORDS_BYTES)
        return subprocess.CompletedProcess(arguments, process.returncode, answer, words)

    def rows(self, *arguments: str) -> list[str]:
        """Return the names in a listing with zero bytes after each name, as `-z` gives it.

        The arguments must include `-z`. Raises the errors of `output`, and `CommitError` for more
        than `MAX_ROWS` names.
        """
        answer = self.output(*arguments)
        if answer.count(b"\0") > MAX_ROWS:
            raise _too_much(arguments, f"{MAX_ROWS:,} names")
        return [os.fsdecode(row) for row in answer.split(b"\0") if row]

    def output(self, *arguments: str) -> bytes:
        """Return what git prints; `RepositoryError` with git's own words if it fails."""
        done = self.run(*arguments)
        if done.returncode != 0:
            raise failure(arguments, done.stderr)
        return done.stdout

    @contextmanager
    def stream(self, *arguments: str, stdin: IO[bytes] | None = None) -> Iterator[IO[bytes]]:
        """Provide git's output as a stream while the body runs.

        A body that stops reading early ends git. Raises `RepositoryError` with git's own words if
        the body read to the end and git failed.
        """
        # Standard error goes to a file: a second pipe would have to be read too, or git blocks on
        # it.
        with tempfile.TemporaryFile() as said:
            process = self._popen(arguments, stdin, said)
            # Reading blocks, so only another thread can end a git that has become silent.
            watchdog = Timer(EXPORT_SECONDS, process.kill)
            watchdog.start()
            try:
                with process:
                    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
                    yield process.stdout
                    read_all = not process.stdout.read(1)
            finally:
                watchdog.cancel()
            if read_all and process.returncode:
                said.seek(0)
                raise failure(arguments, said.read(MAX_WORDS_BYTES))

    def _popen(
        self, arguments: tuple[str, ...], stdin: IO[bytes] | None, stderr: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                (*self._start, *arguments),
                env=self._environment,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        except (OSError, ValueError) as error:
            # Popen raises ValueError for a zero byte in an argument
            raise _cannot_start(error) from error


def failure(arguments: tuple[str, ...], stderr: bytes) -> RepositoryError:
    """Return git's error output as an error of the gate."""
    details = tuple(safe_line(line) for line in stderr.splitlines()[:5])
    return RepositoryError(
        f"git {arguments[0]} failed",
        hint="Check the clone with `git fsck`; if it is damaged, clone again.",
        details=details,
    )


def _cannot_start(error: OSError | ValueError) -> RepositoryError:
    if isinstance(error, FileNotFoundError):
        return RepositoryError(
            "git is not installed, or not on the PATH",
            hint="Install git (2.30 or later) and put it on the PATH.",
        )
    return RepositoryError(f"git cannot be started: {error}", hint="Check the installation of git.")


def _too_much(arguments: tuple[str, ...], what: str) -> CommitError:
    return CommitError(
        f"git {arguments[0]} lists more than {what}",
        hint="Take generated files and data out of the commit; a huge untracked folder belongs in "
        ".gitignore.",
    )


def _hangs(arguments: tuple[str, ...], seconds: float) -> RepositoryError:
    return RepositoryError(
        f"git {arguments[0]} timed out after {seconds:g} s",
        hint="Check the disk that the repository is on; a huge untracked folder belongs in "
        ".gitignore.",
    )
