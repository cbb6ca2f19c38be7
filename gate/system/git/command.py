"""Calling git without letting the repository configure what runs.

A repository's own `.git/config` can name programs: hooks, a file system monitor, filters,
transports for objects that are missing. All are switched off for each call; nothing of the caller's
environment is handed on but the search path.
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
# A commit of 100 KiB can list 16 million files, by trees that hold a tree many times. No question
# is asked whose answer is longer, nor one of more names.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_ROWS = 500_000
ENVIRONMENT = {
    # a `.gitconfig` at home may name programs too
    "HOME": "/nonexistent",
    "XDG_CONFIG_HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    # attributes choose filters, and so change what a file's bytes are (gitattributes(5))
    "GIT_ATTR_NOSYSTEM": "1",
    # nobody sits at a gate: what asks for a password would wait for the watchdog
    "GIT_TERMINAL_PROMPT": "0",
    # `git status` would write the index, and so make it root's
    "GIT_OPTIONAL_LOCKS": "0",
    # no transport at all: a missing object is an error, never a download
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    # refs/replace shows other bytes under a commit's hash than it names (git-replace(1))
    "GIT_NO_REPLACE_OBJECTS": "1",
    # a file may be called `:(exclude)x` or `*`, which git would take for a pattern (gitglossary(7))
    "GIT_LITERAL_PATHSPECS": "1",
    # its words are part of the gate's errors, which are in English
    "LC_ALL": "C",
}
# in a repository's configuration each of these can name a program; the command line is stronger
SETTINGS = (
    # started by whatever looks at the work tree, `git status` too
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    # `ext::` is a transport that is any command line (git-remote-ext(1))
    "protocol.ext.allow=never",
)


class GitCommand:
    """git in one folder; `overrides` are further settings, stronger than the repository's own."""

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
        """Run to the end, whatever its exit code.

        Raises `RepositoryError` when it cannot or hangs, and `CommitError` when it prints more
        than `MAX_ANSWER_BYTES`.
        """
        late = Event()
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
        """The names of a listing, each of which ends in a zero byte; `-z` is among the arguments.

        Raises as `run` and `output` do, and `CommitError` for more than `MAX_ROWS` names.
        """
        answer = self.output(*arguments)
        if answer.count(b"\0") > MAX_ROWS:
            raise _too_much(arguments, f"{MAX_ROWS:,} names")
        return [os.fsdecode(row) for row in answer.split(b"\0") if row]

    def output(self, *arguments: str) -> bytes:
        """What it prints; `RepositoryError` with git's own words when it fails."""
        done = self.run(*arguments)
        if done.returncode != 0:
            raise failure(arguments, done.stderr)
        return done.stdout

    @contextmanager
    def stream(self, *arguments: str, stdin: IO[bytes] | None = None) -> Iterator[IO[bytes]]:
        """What it prints, as it comes, for the length of the body.

        A body that ends before it has read all of it ends git. Raises `RepositoryError` with git's
        own words when the body read to the end and git failed.
        """
        # a second pipe would have to be read beside the first, or git stops when it is full
        with tempfile.TemporaryFile() as said:
            process = self._popen(arguments, stdin, said)
            # reading blocks, so only another thread can end a git that says nothing any more
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
            # ValueError: a zero byte in a name
            raise _cannot_start(error) from error


def failure(arguments: tuple[str, ...], stderr: bytes) -> RepositoryError:
    """What git said, as an error of ours."""
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
