"""Explains SIGBUS: a process that maps a file is killed when another process makes it shorter.

The kernel ends the reader with SIGBUS, which Python cannot handle: the instruction that failed
would be tried again for ever. So the reader is a child, and its parent says what happened.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Final

from gate.errors import EvidenceError

PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What a shell shows for a command that a signal has ended.
SIGNAL_BASE: Final = 128


def run_under_sigbus_guard() -> None:
    """Go on in a child; the parent leaves with `SystemExit` and the child's exit code.

    Signals have their default meaning in the child. The parent raises `EvidenceError` when a file
    that the child had mapped became shorter. Only for a process without other threads.
    """
    # held back until both have their handlers: a signal right after the fork would end the parent
    # alone, and the child would read on as nobody's
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    # before any thread is started: of them only the calling one goes on in a child (fork(2))
    child = os.fork()
    if child == 0:
        for number in PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        os.kill(child, number)

    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGBUS:
        raise EvidenceError(
            "a file became shorter, or its disk failed, while it was read",
            hint="Wait until whatever writes the file has ended, then run the command again.",
        )
    raise SystemExit(code if code >= 0 else SIGNAL_BASE - code)
