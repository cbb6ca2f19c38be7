"""Flushes TensorBoard's writers at the end: a stopped script never comes to its own `close()`.

The writer hands its events to a daemon thread, which dies with the interpreter, so how much of the
tail is on disk would differ from run to run. Imported only when a writer's module is.
"""

from __future__ import annotations

import functools
import os
import sys
from contextlib import suppress
from typing import Any, Final

MODULE: Final = "tensorboard.summary.writer.event_file_writer"

_writers: list[tuple[int, Any]] = []


def hook_writers() -> None:
    """Remember each `EventFileWriter` that is made from now on."""
    writer_class: Any = sys.modules[MODULE].EventFileWriter
    plain_init = writer_class.__init__

    @functools.wraps(plain_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain_init(self, *args, **kwargs)
        _writers.append((os.getpid(), self))

    writer_class.__init__ = init


def flush_all() -> None:
    """Bring what is queued to disk.

    Not in a forked child: the thread that empties the queue stayed with the parent. A writer that
    is closed, or whose folder is gone, has nothing to lose.
    """
    for pid, writer in _writers:
        if pid == os.getpid():
            with suppress(Exception):
                writer.flush()
