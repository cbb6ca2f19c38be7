"""A call of this very program in a folder, as its user would type it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gate.text.untrusted_text import safe_line

SAID_BYTES = 64 * 1024
# the stop is handed on, and it needs its time to put everything in order
STOP_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnCall:
    """How a call ended: its exit code, how long it took, and the first line of its error."""

    code: int
    wall_seconds: float
    fault: str


def call_gate(folder: Path, variables: Mapping[str, str], *words: str) -> OwnCall:
    """Run `repro-gate` with these words in a folder, to its end; a stop of this one stops it."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            (sys.executable, "-I", "-m", "gate", *words),
            cwd=folder,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise
        said.seek(0)
        lines = said.read(SAID_BYTES).splitlines()
    fault = next((line for line in lines if line.startswith(b"error: ")), b"")
    return OwnCall(
        code=code,
        wall_seconds=time.monotonic() - began,
        fault=safe_line(fault.removeprefix(b"error: ")),
    )
