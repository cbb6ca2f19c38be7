"""A training process between its start and its end, and everything that it started in turn."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress

from gate.errors import RunError
from gate.isolation.followed_output import FollowedOutput, Take
from gate.isolation.modes import Credentials
from gate.isolation.page_cache import CacheGroup
from gate.isolation.process_table import (
    ProcessFacts,
    View,
    apart,
    descendants,
    end_all,
    holds,
    kill,
    kill_account,
    owned_by,
    processes,
    reap,
)

# together below the 7.5 s that a runner waits between its first and its second signal
GRACE_SECONDS = 3.0
KILL_SECONDS = 2.0
# a driver takes its time to give back a large GPU's memory, and the pinned memory beside it
GPU_KILL_SECONDS = 10.0
GPU_FILES = "/dev/nvidia"
KILL_ATTEMPTS = 3


class RunningProcess:
    """`family_before` are the gate's other children; all later ones belong to the training.

    Not so where it has a view of its own: others may be started beside it, and what belongs to it
    has the same view.
    """

    # only a container's engine tells
    out_of_memory = False

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        account: Credentials | None,
        family_before: frozenset[int],
        view: View | None = None,
        group: CacheGroup | None = None,
    ) -> None:
        assert process.stdout is not None  # noqa: S101 - started with a pipe; tells the checker
        self._process = process
        self._account = account
        self._family_before = family_before
        self._view = view
        self._group = group
        if view is not None:
            apart.add(process.pid)
        self._pipe = process.stdout
        self.output = FollowedOutput(self._pipe.fileno(), ended=self.ended, wait=self._wait)
        self._started_at = time.monotonic()
        self.wall_seconds = 0.0

    def let_go(self) -> None:
        """Its time counts from now on."""
        self._started_at = time.monotonic()

    @property
    def exit_code(self) -> int:
        """Negative for a signal; only after the end."""
        return int(self._process.returncode)

    def end(self, take: Take) -> None:
        """End what still lives: asked first if it is the process itself, then by force.

        Takes 8 s at most, 16 s with a GPU, and that only against resistance. Raises `RunError` when
        something outlives even that.
        """
        # now: a process that is being torn down shows no file any more
        on_gpu = any(holds(pid, GPU_FILES) for pid in self._living())
        if not self.ended():
            # so that a training can save what it has, and a driver its state
            self._signal_group(signal.SIGTERM)
            self.output.follow(take, GRACE_SECONDS)
        # before any look at the table: who forks without end is never in it
        self.kill()
        seconds = GPU_KILL_SECONDS if on_gpu else KILL_SECONDS
        left = end_all(self._living, lambda _: self.kill(), seconds=seconds)
        self.ended()
        self.output.drain(take)
        self._pipe.close()
        # adopted orphans have nobody else to wait for them, and would fill the table of processes
        reap(but=self._family_before)
        if self._view is not None:
            self._view.close()
            apart.discard(self._process.pid)
        if self._group is not None:
            self._group.forget()
        if left:
            raise RunError(
                f"processes of the training could not be killed: {sorted(left)[:10]}",
                hint="They hang in the kernel, often in a driver. Restart the machine before the "
                "next run.",
            )

    def kill(self) -> None:
        """SIGKILL to the group, to whoever left it, and to the whole account; never waits long."""
        self._signal_group(signal.SIGKILL)
        rows = tuple(processes())
        kill(self._family(rows))
        if self._account is not None:
            kill(owned_by(self._account.uid, rows))
            # again only where it could not be sent: a process of the account may have ended the
            # sender first
            any(kill_account(self._account) for _ in range(KILL_ATTEMPTS))

    def ended(self) -> bool:
        """Whether the process itself is over; what it started may live on."""
        if self._process.poll() is None:
            return False
        # at the first look after the end, not when the output has been drained
        self.wall_seconds = self.wall_seconds or time.monotonic() - self._started_at
        return True

    def _living(self) -> frozenset[int]:
        itself = frozenset() if self.ended() else frozenset({self._process.pid})
        # one reading: on a machine with many processes each takes a while
        rows = tuple(processes())
        account = frozenset() if self._account is None else owned_by(self._account.uid, rows)
        return itself | self._family(rows) | account

    def _family(self, rows: tuple[ProcessFacts, ...]) -> frozenset[int]:
        if self._view is not None:
            return self._view.members(rows) | descendants(self._process.pid, rows)
        return descendants(os.getpid(), rows) - self._family_before

    def _signal_group(self, number: signal.Signals) -> None:
        # gone already, or a member that changed its account: the table shows who is left
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
