"""The gate's side of an answering process: starts it, asks it, and leaves no process behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace

from gate.errors import RunError
from gate.isolation.answering_server import ASKED, READY, STATUS
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.isolation.process_table import (
    apart,
    closed_memory,
    descendants,
    end_all,
    kill,
    kill_account,
    owned_by,
)
from gate.isolation.processes import start_process
from gate.isolation.stop_signals import StopSignals
from gate.isolation.training_output import FollowedOutput, OutputCapture

START_SECONDS = 120.0
KILL_SECONDS = 2.0
KEPT_BYTES = 64 * 1024


class LocalAnsweringProcess:
    """A running process whose program is `server.serve`; it answers one question at a time.

    Any thread may ask. The process belongs to no training's family, and ends when this process
    does, however that ends.
    """

    def __init__(self, request: ProcessRequest, interrupts: StopSignals) -> None:
        """Start the process without waiting for it; its socket's number becomes its last argument.

        The request bounds the time and the output of each answer. Raises `RunError` if the process
        cannot be started.
        """
        self._request = request
        self._account = request.credentials
        self._interrupts = interrupts
        self._one_at_a_time = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._ready = False
        self._ends = ExitStack()
        # SOCK_SEQPACKET keeps messages apart. The gate closes its copy of `theirs` after the start,
        # or it would never see the end of the process.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._interrupts.deferred(), closed_memory(), ExitStack() as ends:
            self._control = ends.enter_context(ours)
            number = theirs.fileno()
            asked = replace(self._request, argv=(*self._request.argv, str(number)))
            self._process = start_process(asked, (number,))
            apart.add(self._process.pid)
            ends.callback(self._leave)
            ends.enter_context(self._interrupts.last_resort(self._kill))
            self._ends = ends.pop_all()

    def wait_until_ready(self) -> None:
        """Return when the process has imported all that it needs.

        It has read nothing untrusted by then. If it ended instead, raises `RunError` with the last
        line that it printed.
        """
        if self._ready:
            return
        self._ready = self._status_within(START_SECONDS) == READY
        if not self._ready:
            self._kill()
            printed = self._printed()
            self.end()
            lines = printed.decode("utf-8", "replace").splitlines() or ["it could not start"]
            raise RunError(
                lines[-1],
                hint="Reinstall the gate: its interpreter could not run its own file.",
            )

    def ask(self, question: bytes) -> ProcessResult:
        """Return what a child answered or printed, and how it ended.

        The next question gets a new process if this one timed out or died, or if the child left a
        process behind. Raises `RunError` if the process cannot be started or does not become ready.
        """
        # closed while the child lives, because the child may run under the gate's own account
        with self._one_at_a_time, closed_memory():
            if self._process.poll() is not None:
                self.end()
                self._begin()
            try:
                self.wait_until_ready()
                result = self._asked(question)
            except BaseException:
                # a pending answer would be taken for the answer to the next question
                self.end()
                raise
            if result.timed_out or self._strays():
                self.end()
            return result

    def end(self) -> None:
        """End the process and all that it started; raises `RunError` if one of them survives."""
        with self._interrupts.deferred():
            self._ends.close()

    def _asked(self, question: bytes) -> ProcessResult:
        output = OutputCapture(self._request.output_limit_bytes)
        reading, writing = os.pipe()
        begun = time.monotonic()
        with os.fdopen(reading, "rb", buffering=0):
            try:
                self._send(question, writing)
            finally:
                os.close(writing)
            waiting = _Waiting(self)
            followed = FollowedOutput(reading, ended=waiting.ended, wait=waiting.wait)
            in_time = followed.follow(output.feed, self._request.timeout_seconds)
        return ProcessResult(
            exit_code=waiting.exit_code,
            timed_out=not in_time,
            wall_seconds=time.monotonic() - begun,
            output=output.content(),
            output_bytes=output.total_bytes,
        )

    def _send(self, question: bytes, writing: int) -> None:
        # the question goes in a file, complete: through the socket a long one would wait for its
        # reader
        with tempfile.TemporaryFile(buffering=0) as asked:
            view = memoryview(question)
            while view:
                view = view[asked.write(view) :]
            # ignored here, because the wait that follows notices that the process is gone
            with suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._control, [ASKED], [asked.fileno(), writing])

    def told_status(self, seconds: float) -> int | None:
        """Return the exit code of the child, or of the process itself if it is gone.

        None means that neither ended within `seconds`.
        """
        status = self._status_within(seconds)
        if status is None:
            return None
        if len(status) == STATUS.size:
            (code,) = STATUS.unpack(status)
            return int(code)
        # no status: the process itself is ending, so its own exit code is the answer
        self._kill()
        return self._process.wait()

    def _status_within(self, seconds: float) -> bytes | None:
        """Return the next message; empty if none will come, None if none came in time."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        if not poller.poll(seconds * 1000):
            return None
        with suppress(ConnectionResetError):
            return self._control.recv(STATUS.size)
        return b""

    def _printed(self) -> bytes:
        """Return what the process itself printed: nothing, unless it could not start.

        Call it only after the end of the process.
        """
        assert self._process.stdout is not None  # noqa: S101 - started with a pipe
        os.set_blocking(self._process.stdout.fileno(), False)
        with suppress(BlockingIOError):
            return os.read(self._process.stdout.fileno(), KEPT_BYTES)
        return b""

    def _strays(self) -> bool:
        """Return whether the last child left a process, which could affect the next child."""
        itself = {self._process.pid}
        if self._account is not None:
            return bool(owned_by(self._account.uid) - itself)
        return bool(descendants(self._process.pid))

    def _kill(self) -> None:
        """Send SIGKILL to the process group and to all descendants, without waiting."""
        # list them first: once the parent is dead, its children have another parent
        children = descendants(self._process.pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        kill(children)

    def _leave(self) -> None:
        """End every process that is left, and remove the process from `apart`."""
        self._kill()
        left: frozenset[int] = frozenset()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)
        account = self._account
        if account is not None:
            left = end_all(
                lambda: owned_by(account.uid),
                lambda processes: None if kill_account(account) else kill(processes),
                seconds=KILL_SECONDS,
            )
        if self._process.stdout is not None:
            self._process.stdout.close()
        if left or self._process.poll() is None:
            raise RunError(
                f"processes of the reader could not be killed: {sorted(left)[:10]}",
                hint="They hang in the kernel. Restart the machine before the next run.",
            )
        apart.discard(self._process.pid)


class _Waiting:
    """Waits for the end of one child, in the form that `FollowedOutput` needs."""

    def __init__(self, process: LocalAnsweringProcess) -> None:
        self._process = process
        self._status: int | None = None

    @property
    def exit_code(self) -> int:
        return 0 if self._status is None else self._status

    def ended(self) -> bool:
        self.wait(0)
        return self._status is not None

    def wait(self, seconds: float) -> None:
        if self._status is None:
            self._status = self._process.told_status(seconds)
