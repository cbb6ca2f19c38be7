"""Start processes with and without the harness, for the benchmark of its overhead."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIXED = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def harness_variables(harness: Path, out: Path, steps: int) -> dict[str, str]:
    """Return the variables of docs/harness-protocol.md for a strict run with one thread."""
    return {
        "PYTHONPATH": str(harness),
        "REPRO_GATE_OUT": str(out),
        "REPRO_GATE_MODE": "strict",
        "REPRO_GATE_SEED": "42",
        "REPRO_GATE_MAX_STEPS": str(steps),
        "REPRO_GATE_THREADS": "1",
        "REPRO_GATE_FILL": "0",
    }


def inside(harness: Path, out: Path) -> dict[str, str]:
    """Return the same variables for a harness that is started by hand.

    The output folder is in `OUT` instead, so that the start-up file does not start the harness.
    """
    variables = harness_variables(harness, out, 1)
    folder = variables.pop("REPRO_GATE_OUT")
    return {**variables, "OUT": folder}


def fresh(folder: Path) -> Path:
    """Create an output folder for one process.

    Two processes with the same folder would count as two that train as the same rank.
    """
    return Path(tempfile.mkdtemp(dir=folder))


def run(code: str, variables: dict[str, str]) -> tuple[float, str]:
    """Run code as a whole process; return its seconds and its output."""
    begun = time.perf_counter()
    ended = subprocess.run(  # the code is this program's own
        [sys.executable, "-c", code],
        env=FIXED | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - begun, ended.stdout
