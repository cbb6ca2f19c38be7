"""A real git repository that a test fills, with valid or with forged objects."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gate.errors import ExitCode, RepositoryError

IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    # fixed dates, so that equal contents give the same commit in every test: see `scenes.py`
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    # without these, git would start itself twice after a commit to look for maintenance work
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "gc.auto",
    "GIT_CONFIG_VALUE_0": "0",
    "GIT_CONFIG_KEY_1": "maintenance.auto",
    "GIT_CONFIG_VALUE_1": "false",
    "PATH": os.environ["PATH"],
}


class Repository:
    """A repository that a test prepares; the code under test reads it through `gate/system/git`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        # without a template, because its example hooks would be copied with every repository
        self.git("init", "-q", "--template=", "-b", "main")

    def git(self, *arguments: str, stdin: bytes = b"") -> str:
        # the repository may belong to the runner's account, as after a checkout
        here = ("-C", str(self.path), "-c", f"safe.directory={self.path}")
        done = subprocess.run(
            ("git", *here, *arguments),  # noqa: S607 - the PATH of the tests
            env=IDENTITY,
            input=stdin,
            capture_output=True,
            check=True,
        )
        return done.stdout.decode().strip()

    def write(self, path: str, text: str | bytes) -> Path:
        there = self.path / path
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(text.encode() if isinstance(text, str) else text)
        return there

    def commit(self, message: str = "change") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self._newest() or self.git("rev-parse", "HEAD")

    def _newest(self) -> str:
        """The commit of the branch that a commit has just moved; empty where git has to be asked.

        Each branch that moves has a file of its own: others may stand together in one.
        """
        with suppress(OSError):
            kind, _, name = (self.path / ".git" / "HEAD").read_text().strip().partition(" ")
            if kind == "ref:":
                return (self.path / ".git" / name).read_text().strip()
        return ""

    def forged(self, *rows: tuple[str, bytes, str]) -> str:
        """Commit a flat tree of (mode, name, object) rows, which git itself would refuse."""
        tree = b"".join(
            f"{mode} ".encode() + name + b"\0" + bytes.fromhex(blob) for mode, name, blob in rows
        )
        hashed = self.git("hash-object", "-w", "-t", "tree", "--literally", "--stdin", stdin=tree)
        return self.git("commit-tree", hashed, "-m", "forged")

    def blob(self, content: bytes) -> str:
        return self.git("hash-object", "-w", "--stdin", stdin=content)


def refusal(action: Callable[..., object], *arguments: object) -> RepositoryError:
    """Return the error with which an action must fail because of the call or the clone."""
    return _fault(action, arguments, ExitCode.USAGE)


def commit_fault(action: Callable[..., object], *arguments: object) -> RepositoryError:
    """Return the error with which an action must fail because of the commit under test."""
    return _fault(action, arguments, ExitCode.ERROR)


def _fault(
    action: Callable[..., object], arguments: tuple[object, ...], exit_code: ExitCode
) -> RepositoryError:
    with pytest.raises(RepositoryError) as caught:
        action(*arguments)
    assert caught.value.exit_code is exit_code
    assert caught.value.hint
    return caught.value
