"""A busy machine, and threads that begin late."""

from __future__ import annotations

import os
import sys
import time

from .told import CannotVaryError, tell_varied
from .user_code import named_as

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Callbacks = dict[str, Callable[[], None]]

# set in the first process of a training, so that those that it starts add no load of their own
LOADED = "REPRO_GATE_LOADED"
MOST_PROCESSES = 64
BUSY_ROUNDS = 200_000
HIGHEST_DESCRIPTOR = 1024
# of one thread after the other: the first begins last
DELAYS_SECONDS = (0.06, 0.0, 0.04, 0.02)
# a pool may start thousands
DELAYED_THREADS = 200


def vary_cpu_load() -> Callbacks:
    """Keep each CPU that this process may use busy until its training has ended."""
    if LOADED not in os.environ:
        os.environ[LOADED] = "1"
        count = min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
        reading, _writing = os.pipe()
        for _ in range(count):
            _start_busy(reading)
        # the other end stays open in this process and those that it forks, and is closed with the
        # last of them, however it ends
        os.close(reading)
        tell_varied("cpu-load", f"{count} busy processes")
    return {}


def _start_busy(reading: int) -> None:
    """A process that is nobody's child: a script may wait for all of its own."""
    try:
        middle = os.fork()
    except OSError as error:
        raise CannotVaryError(f"no process could be started: {error.strerror}") from error
    if middle == 0:
        try:
            if os.fork() == 0:
                _be_busy(reading)
        finally:
            os._exit(0)
    os.waitpid(middle, 0)


def _be_busy(reading: int) -> None:
    import select

    # descriptor 0 now stands for the training's end; all others, its output too, are let go
    os.dup2(reading, 0)
    os.closerange(1, HIGHEST_DESCRIPTOR)
    while not select.select([0], [], [], 0)[0]:
        for _ in range(BUSY_ROUNDS):
            pass


def vary_thread_delays() -> Callbacks:
    """Let threads begin late, the first of four last of all."""
    return {"threading": _delay_threads}


def _delay_threads() -> None:
    kind: Any = sys.modules["threading"].Thread
    plain, sleep = kind.start, time.sleep
    started = 0

    def start(self: Any) -> Any:
        nonlocal started
        run, delay = self.run, DELAYS_SECONDS[started % len(DELAYS_SECONDS)]
        started += 1

        def run_late() -> None:
            # the thread's own again, for whoever looks at it
            del self.run
            sleep(delay)
            run()

        if started <= DELAYED_THREADS:
            tell_varied("thread-delays", f"up to {max(DELAYS_SECONDS)} s")
            self.run = run_late
        return plain(self)

    named_as(start, plain)
    kind.start = start
