"""Lets a script record more than the loss: `metrics.log("accuracy", value, step=n)`."""

from __future__ import annotations

from typing import Any

from .lifecycle.process import current
from .output import exact


def log(name: str, value: Any, *, step: int) -> None:
    """Record a number exactly: a tensor of one element, a NumPy scalar or a Python number.

    Does nothing outside a gate run. Never raises: a value that cannot be recorded becomes a problem
    in the evidence. Reading a tensor of a GPU waits for the device.
    """
    session = current()
    if session is not None:
        with session.problems.noting(f"logging the metric {name!r}"):
            line = {"name": str(name), "step": int(step), **exact(value)}
            session.output.append_line("metrics", line)
