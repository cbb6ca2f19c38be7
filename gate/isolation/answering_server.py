"""Inside the process that is asked: it forks a child for each question, and reads nothing itself.

All that an answer needs was imported before, so that a child starts in a few milliseconds. What is
untrusted is read by a child alone, which limits itself first and ends with its answer; its memory
is a copy, and nothing that it learns or breaks is there for the next one.

A question comes as one byte on the control socket with two descriptors: a file to read it from,
and a pipe for the answer and for all that the child prints. What comes back on the socket is the
child's exit status alone.
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

    `answer` is called in a child, and gets the bytes of a question. Only for a process without
    other threads.
    """
    # of this process and of its children: none of them may look into another by /proc, or trace it
    process_control(PR_SET_DUMPABLE, 0)
    ended, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    # the default would not wake anybody; the byte in the pipe is all that is wanted
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # else the first look for garbage in each child would copy every page
    gc.collect()
    gc.freeze()
    # whoever started this may have paused it for its imports
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
    """How the child ended; None when nobody waits for that any more, and it was killed."""
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    # nothing is asked while a question is open: what comes is the end of the asking process
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
    """Answer one question and end; whatever happens, the loop of the parent is not gone on with."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor, number in ((question, 0), (already_answered, 1), (already_answered, 2)):
            os.dup2(descriptor, number)
        os.close(question)
        os.close(already_answered)
        # garbage ends with the answer: looking for it takes as long as reading 10^5 lines does, and
        # longer for each line the more there are
        gc.disable()
        asked = _question()
        # before the first untrusted byte: from here on memory is bounded, no file can be written,
        # and no process can be started that would outlive this one
        confine_child()
        _write(answer(asked))
    except BaseException:  # noqa: BLE001 - told on the pipe, and the exit code says that it failed
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(FAILED)
    os._exit(0)


def _question() -> bytes:
    """All of the file: its place may be anywhere, since whoever wrote it shares it."""
    size = min(os.fstat(0).st_size, MAX_QUESTION_BYTES)
    return os.pread(0, size, 0)


def _write(data: bytes) -> None:
    """Straight to the pipe: no buffer whose end a crash could swallow."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
