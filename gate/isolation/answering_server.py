"""The program of an answering process, which forks a child for each question.

The process itself reads nothing. Everything that an answer needs is imported first, so a child
starts in a few milliseconds. Only a child reads untrusted data (rule T5). It limits itself first
and ends with its answer. Its memory is a copy, so whatever it learns or breaks is gone before the
next question.

A question is one byte on the control socket with two descriptors: a file that contains the
question, and a pipe for the answer and for all that the child prints. Only the child's exit status
comes back on the socket.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

from gate.isolation.confinement import confine_child
from gate.isolation.process_table import PR_SET_DUMPABLE, process_control

Answer = Callable[[bytes], bytes]
READY: Final = b"r"
ASKED: Final = b"?"
DESCRIPTORS: Final = 2
# exit code, negative for a signal
STATUS: Final = struct.Struct("=i")
FAILED: Final = 1
MAX_QUESTION_BYTES: Final = 4 * 1024 * 1024


def serve(control: int, answer: Answer) -> None:
    """Answer questions until the other end of the socket is closed, then return.

    `answer` is called in a child with the bytes of a question. The process must have no other
    threads, because it forks.
    """
    # children inherit this: no process of the account may read another through /proc, or trace it
    process_control(PR_SET_DUMPABLE, 0)
    ended, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    # SIGCHLD is ignored by default and would wake nobody; the handler does nothing, because the
    # byte in the wake-up pipe is enough
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # otherwise the first garbage collection in each child would touch, and so copy, every page
    gc.collect()
    gc.freeze()
    # the caller may have switched collection off for its imports
    gc.enable()
    with socket.socket(fileno=control) as asking:
        asking.send(READY)
        while True:
            word, descriptors, _, _ = socket.recv_fds(asking, 1, DESCRIPTORS)
            if word != ASKED or len(descriptors) != DESCRIPTORS:
                return
            child = os.fork()
            if child == 0:
                for inherited in (control, ended, wake):
                    os.close(inherited)
                _in_child(answer, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            status = _status_of(child, ended, control)
            if status is None:
                return
            asking.send(STATUS.pack(status))


def _status_of(child: int, ended: int, control: int) -> int | None:
    """Return the child's exit code; if the asking process is gone, kill the child, return None."""
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    # no question comes while one is open, so an event here means that the asking process is gone
    poller.register(control, select.POLLIN)
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        events = dict(poller.poll())
        if control in events:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        os.read(ended, select.PIPE_BUF)


def _in_child(answer: Answer, question: int, already_answered: int) -> NoReturn:
    """Answer one question and end the process; never return into the parent's loop."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor, number in ((question, 0), (already_answered, 1), (already_answered, 2)):
            os.dup2(descriptor, number)
        os.close(question)
        os.close(already_answered)
        # Garbage goes when the child ends. Collecting it takes as long as reading 10^5 lines, and
        # the cost per line grows with their number.
        gc.disable()
        asked = _question()
        # Before the first untrusted byte: from here on memory is bounded, no file can be written,
        # and no process can be started that would outlive this one.
        confine_child()
        _write(answer(asked))
    except BaseException:  # noqa: BLE001 - told on the pipe, and the exit code says that it failed
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(FAILED)
    os._exit(0)


def _question() -> bytes:
    """Return the whole question file; pread, because the writer shares the file's offset."""
    size = min(os.fstat(0).st_size, MAX_QUESTION_BYTES)
    return os.pread(0, size, 0)


def _write(data: bytes) -> None:
    """Write straight to the pipe: a crash could lose the end of a buffer."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
