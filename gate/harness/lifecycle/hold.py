"""Waits where torch has been imported until the gate lets the run go.

A run can so be started ahead of its turn: up to here it did what any run of the script does, in the
script's own order. Imported by processes that have torch, before the harness does anything there.
"""

from __future__ import annotations

import os
import time

from ..this_process import perf_counter, started_at

POLL_SECONDS = 0.005


class Waiting:
    """How long this process took to get here, and how long it then waited, in seconds."""

    ready_seconds = 0.0
    waited_seconds = 0.0


def wait_until_let_go(sign: str) -> None:
    """Return when the file `sign` is there; without a name, or a second time, at once.

    Raises `SystemExit` when whoever started this process is gone.
    """
    if Waiting.ready_seconds:
        return
    parent = os.getppid()
    Waiting.ready_seconds = perf_counter() - started_at
    if not sign or os.path.exists(sign):  # noqa: PTH110 - no other module is needed here
        return
    _import_what_optimizers_need()
    Waiting.ready_seconds = perf_counter() - started_at
    while not os.path.exists(sign):  # noqa: PTH110 - as above
        if os.getppid() != parent:
            raise SystemExit(1)
        time.sleep(POLL_SECONDS)
    waited = perf_counter() - started_at - Waiting.ready_seconds
    Waiting.waited_seconds = waited


def _import_what_optimizers_need() -> None:
    """The first optimizer of a process imports these, and takes a second for it; nothing is drawn.

    Whatever is wrong with them is told when the script itself needs them.
    """
    try:  # noqa: SIM105 - contextlib would be imported for it
        import torch._dynamo  # noqa: F401
    except Exception:
        pass
