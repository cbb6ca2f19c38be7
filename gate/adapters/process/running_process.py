"""A training process between its start and its end, and everything that it started in turn."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

from gate.adapters.process.process_table import (
    descendants,
    end_all,
    holds,
    kill,
    kill_account,
    owned_by,
    reap,
)
from gate.errors import RunError
from gate.records.runs import Credentials

CHUNK_BYTES = 256 * 1024
POLL_SECONDS = 0.05
# together below the 7.5 s that a runner waits between its first and its second signal
GRACE_SECONDS = 3.0
KILL_SECONDS = 2.0
# a driver takes its time to give back a large GPU's memory, and the pinned memory beside it
GPU_KILL_SECONDS = 10.0
GPU_FILES = "/dev/nvidia"
KILL_ATTEMPTS = 3
DRAIN_SECONDS = 0.5


class RunningProcess:
    """`family_before` are the gate's other children; all later ones belong to the training."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        account: Credentials | None,
        family_before: frozenset[int],
    ) -> None:
        assert process.stdout is not None  # noqa: S101 - started with a pipe; tells the checker
        self._process = process
        self._account = account
        self._family_before = family_before
        self._pipe = process.stdout
        self._poller = select.poll()
        self._poller.register(self._pipe, select.POLLIN)
        self._pipe_open = True
        self._started_at = time.monotonic()
        self.wall_seconds = 0.0

    @property
    def exit_code(self) -> int:
        """Negative for a signal; only after the end."""
        return int(self._process.returncode)

    def follow(self, take: Callable[[bytes], None], seconds: float) -> bool:
        """Hand on output until the process ends; False when that takes more than `seconds`."""
        deadline = time.monotonic() + seconds
        while not self._ended():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self._pump(take, min(remaining, POLL_SECONDS))
        self._drain(take)
        return True

    def end(self, take: Callable[[bytes], None]) -> None:
        """End what still lives: asked first if it is the process itself, then by force.

        Takes 8 s at most, 16 s with a GPU, and that only against resistance. Raises `RunError` when
        something outlives even that.
        """
        # now: a process that is being torn down shows no file any more
        on_gpu = any(holds(pid, GPU_FILES) for pid in self._living())
        if not self._ended():
            # so that a training can save what it has, and a driver its state
            self._signal_group(signal.SIGTERM)
            self.follow(take, GRACE_SECONDS)
        # before any look at the table: who forks without end is never in it
        self.kill()
        seconds = GPU_KILL_SECONDS if on_gpu else KILL_SECONDS
        left = end_all(self._living, lambda _: self.kill(), seconds=seconds)
        self._ended()
        self._drain(take)
        self._pipe.close()
        # adopted orphans have nobody else to wait for them, and would fill the table of processes
        reap(but=self._family_before)
        if left:
            raise RunError(
                f"processes of the training could not be ended: {sorted(left)[:10]}",
                hint="They hang in the kernel, often in a driver. Restart the machine before the "
                "next run.",
            )

    def kill(self) -> None:
        """SIGKILL to the group, to whoever left it, and to the whole account; never waits long."""
        self._signal_group(signal.SIGKILL)
        kill(self._family())
        if self._account is not None:
            kill(owned_by(self._account.uid))
            # again only where it could not be sent: a process of the account may have ended the
            # sender first
            any(kill_account(self._account) for _ in range(KILL_ATTEMPTS))

    def _ended(self) -> bool:
        if self._process.poll() is None:
            return False
        # at the first look after the end, not when the output has been drained
        self.wall_seconds = self.wall_seconds or time.monotonic() - self._started_at
        return True

    def _living(self) -> frozenset[int]:
        itself = frozenset() if self._ended() else frozenset({self._process.pid})
        account = frozenset() if self._account is None else owned_by(self._account.uid)
        return itself | self._family() | account

    def _family(self) -> frozenset[int]:
        return descendants(os.getpid()) - self._family_before

    def _signal_group(self, number: signal.Signals) -> None:
        # gone already, or a member that changed its account: the table shows who is left
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _pump(self, take: Callable[[bytes], None], seconds: float) -> None:
        if not self._pipe_open:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        elif self._poller.poll(seconds * 1000):
            # whatever is there, and no more: a full read would wait for a training that is silent
            data = os.read(self._pipe.fileno(), CHUNK_BYTES)
            self._pipe_open = bool(data)
            take(data)

    def _drain(self, take: Callable[[bytes], None]) -> None:
        """What is still in the pipe; never wait for its end, which a stranger might hold open."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._pipe_open and self._poller.poll(0) and time.monotonic() < deadline:
            self._pump(take, 0)
