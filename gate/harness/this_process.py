"""What a process knows of itself before torch is there: since when, as what and as which rank.

Imported by every Python process of a training, so nothing heavy is imported here.
"""

from __future__ import annotations

import os
import sys
import time

# Bound before the harness hooks them: it asks them several times a step, and is no reader to tell.
perf_counter = time.perf_counter
monotonic = time.monotonic
process_id = os.getpid

# Of this process, or of the one that it was forked from: what a person waits for begins there. The
# start-up hook imports this module before anything else of the harness does much.
started_at = perf_counter()


def is_worker() -> bool:
    """Whether multiprocessing has started this interpreter anew for a worker.

    Its start-up line is all that is known before the worker's code runs; a worker that is forked
    has its parent's generators.
    """
    return "--multiprocessing-fork" in sys.orig_argv


def current_rank() -> int:
    """The rank that the launcher (torchrun, accelerate, the script itself) set, or 0."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isascii() and text.isdigit() else 0
