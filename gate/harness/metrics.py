"""For scripts that want more than the loss on record: `metrics.log("accuracy", value, step=n)`."""

from __future__ import annotations

from typing import Any

from .lifecycle.process import current
from .output import exact


def log(name: str, value: Any, *, step: int) -> None:
    """Record a number exactly as it is: a tensor of one element, a NumPy scalar or a number.

    Outside a gate run nothing happens. Never raises: what cannot be recorded is noted in the
    evidence. Reading a tensor of a GPU waits for it.
    """
    session = current()
    if session is not None:
        with session.problems.noting(f"logging the metric {name!r}"):
            line = {"name": str(name), "step": int(step), **exact(value)}
            session.output.append_line("metrics", line)
