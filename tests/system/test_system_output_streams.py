"""Output that cannot be printed: escaped, left out, or told, and never called a bug."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from each_row import each_row

ROOT = Path(__file__).resolve().parents[2]
FULL = "standard output cannot be written: No space left on device"


def _ended(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What a shell's command gives, in which PROGRAM stands for the program."""
    return subprocess.run(
        ("/bin/sh", "-c", command.replace("PROGRAM", f"{sys.executable} -m gate")),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@each_row(
    "variables",
    [{}, {"PYTHONUNBUFFERED": "1"}, {"GITHUB_ACTIONS": "true"}],
)
@pytest.mark.parametrize("verb", ["schema", "doctor", "--version"])
def test_a_full_disk_is_told_as_what_it_is(verb: str, variables: dict[str, str]) -> None:
    ended = _ended(f"PROGRAM {verb} > /dev/full", **variables)
    assert ended.returncode == 3
    assert ended.stderr.strip() == (
        f"error: {FULL}\nhint: Free space, or let the output go elsewhere. Files that the command "
        "has written are whole."
    )


def test_a_standard_error_that_is_full_leaves_an_error_an_error() -> None:
    assert _ended("PROGRAM diff no-such-file nor-this 2> /dev/full").returncode == 3


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_takes_everything(closed: str) -> None:
    ended = _ended(f"PROGRAM --version {closed}")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_character_that_the_stream_cannot_encode_is_escaped() -> None:
    ended = _ended("PROGRAM no-such-verb-\u2192", PYTHONIOENCODING="latin-1", PYTHONUTF8="1")
    assert (ended.returncode, r"no-such-verb-\u2192" in ended.stderr) == (2, True)
