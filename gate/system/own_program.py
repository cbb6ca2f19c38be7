"""Call this very program in a folder, as its user would type it."""

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
# The stop is forwarded to the call, which needs time to clean up its own runs.
STOP_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnCall:
    """How a call ended: exit code, duration, and the first error line without its prefix."""

    code: int
    wall_seconds: float
    fault: str


def call_gate(folder: Path, variables: Mapping[str, str], *words: str) -> OwnCall:
    """Run `repro-gate` with these arguments in a folder, and wait for its end.

    If this process is stopped, the call is stopped too.
    """
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
        # BaseException: a signal or Ctrl-C must not leave the call running
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
