"""The port to a scheduler, which hands out the nodes of a cluster, and helpers for its programs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gate.errors import RunError
from gate.isolation.cluster_settings import ClusterSettings

ANSWER_SECONDS: Final = 60.0
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
OWNER: Final = re.compile(
    r"repro-gate\.run=(?P<run>[0-9a-f]{1,64}) host=(?P<host>[\w.-]{1,200}) pid=(?P<pid>\d{1,10}) "
    r"started=(?P<started>\d{1,20})\Z",
    re.ASCII,
)
NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,200}\Z", re.ASCII)
# the states of a job, by Slurm's names
WAITING: Final = frozenset(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD"))
RUNNING: Final = frozenset(("RUNNING", "STAGE_OUT"))
COMPLETING: Final = "COMPLETING"
GONE: Final = "GONE"
ENDED: Final = "ENDED"
# what ended a job that the gate did not end itself, as a clause
ENDINGS: Final = {
    "NODE_FAIL": "a node failed",
    "PREEMPTED": "another job preempted it",
    "TIMEOUT": "it reached its time limit",
    "DEADLINE": "it reached its deadline",
    "CANCELLED": "somebody cancelled it",
    "OUT_OF_MEMORY": "it used more memory than it was given",
    "BOOT_FAIL": "a node did not boot",
    "SUSPENDED": "it was suspended",
    GONE: "Slurm does not know it any more",
    ENDED: "it ended before the gate was done with it",
}
HINT: Final = "Nothing was judged: this says nothing about the commit. Start the gate again."


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """What is known of a job; `nodes` is empty until it has nodes."""

    state: str
    reason: str = ""
    restarts: int = 0
    nodes: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The gate call that a job belongs to, as the job's comment names it.

    `started` is the start of the process in clock ticks since boot: with it, a process number that
    was used again is not mistaken for the owner.
    """

    run: str
    host: str
    pid: int
    started: int

    @property
    def comment(self) -> str:
        """The owner as text, as the job carries it."""
        return f"repro-gate.run={self.run} host={self.host} pid={self.pid} started={self.started}"

    @property
    def is_gone(self) -> bool:
        """Whether the process is known to have ended; False for a process of another machine."""
        return self.host == socket.gethostname() and start_of(self.pid) != self.started


class Scheduler(Protocol):
    """The port to a scheduler: one job holds the nodes for a call, and each run is a step of it.

    A step uses all nodes of the job. A job's name is the text that `submit` returns. Each method
    raises `RunError` if the scheduler does not do what it is asked.
    """

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables for its programs on this machine, and for the command from `step`."""
        ...

    def refuse_absent(self) -> None:
        """Raise `RunError` if a program is missing on this machine."""
        ...

    def submit(
        self,
        settings: ClusterSettings,
        owner: Owner,
        seconds: float,
        folder: Path,
        apart_from: tuple[str, ...] = (),
    ) -> str:
        """Submit the job that holds the nodes, none of them in `apart_from`; return its name."""
        ...

    def state(self, job: str) -> JobState:
        """Return the state of a job."""
        ...

    def nodes(self, listed: str) -> tuple[str, ...]:
        """Return the names in `JobState.nodes`, in the order of the node numbers."""
        ...

    def address(self, node: str) -> str:
        """Return where other nodes reach a node."""
        ...

    def step(self, job: str, settings: ClusterSettings, tasks_per_node: int) -> tuple[str, ...]:
        """Return the words that start a step on all nodes of a job, to put before the command."""
        ...

    def steps(self, job: str) -> tuple[str, ...]:
        """Return the names of a job's steps that have not ended."""
        ...

    def cancel(self, *jobs: str) -> None:
        """End jobs or steps; one that has ended is fine."""
        ...

    def cancel_at_once(self, job: str) -> None:
        """Cancel a job without waiting and without an error, for a second signal."""
        ...

    def orphans(self) -> tuple[tuple[str, str], ...]:
        """Return jobs whose gate call on this machine ended without cancelling them.

        Each comes with its run, which is the name of the call in the job's comment.
        """
        ...


def finished(
    command: tuple[str, ...], seconds: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Run one of a scheduler's programs to its end, and return all that it printed.

    Raises `subprocess.TimeoutExpired` if it does not end in time, and `OSError` if it cannot be
    started.
    """
    return subprocess.run(
        command,
        env=dict(environment),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=seconds,
        # its own session, so that a Ctrl-C for the gate does not reach it
        start_new_session=True,
    )


def run_limited(
    command: tuple[str, ...], shown: str, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a program and return its output as text, cut at a limit.

    Raises `RunError` if it cannot be started or does not answer in time.
    """
    try:
        done = finished(command, ANSWER_SECONDS, environment)
    except subprocess.TimeoutExpired as error:
        raise RunError(
            f"{shown} did not answer in {ANSWER_SECONDS:g} s",
            hint=f"Run `{shown}` by hand. {HINT}",
        ) from error
    except OSError as error:
        raise RunError(
            f"{shown} cannot be started: {error.strerror}",
            hint="Name a program, or a script that starts with #!, that this account may execute.",
        ) from error
    text = done.stdout[:MAX_ANSWER_BYTES].decode("utf-8", "replace")
    return subprocess.CompletedProcess(command, done.returncode, text)


def begun(command: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Start a program in the background, without waiting for it and without errors."""
    # the shell ends at once, so nothing waits for the program itself
    shell = ("/bin/sh", "-c", '"$@" >/dev/null 2>&1 &', "sh", *command)
    with suppress(OSError, subprocess.TimeoutExpired):
        finished(shell, ANSWER_SECONDS, environment)


def node_folder(run: str) -> Path:
    """Return where all runs of one call live on a node; the node's number is added to the path."""
    return Path(f"/tmp/repro-gate-{run}")  # noqa: S108 - made by the script alone, for its owner alone


def start_of(pid: int) -> int:
    """Return when a process started, in clock ticks since boot, or 0 if there is none."""
    with suppress(OSError, ValueError, IndexError):
        # the program's name may contain blanks and parentheses, so count fields after the last
        # parenthesis
        after = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2]
        # starttime is field 22 (proc_pid_stat(5)), so the 20th after the name
        return int(after.split()[19])
    return 0


def this_owner(run: str) -> Owner:
    """Return this process as the owner of the run's jobs."""
    pid = os.getpid()
    return Owner(run=run, host=socket.gethostname(), pid=pid, started=start_of(pid))


def owner_of(comment: str) -> Owner | None:
    """Return the owner that a comment names, or None for any other comment."""
    match = OWNER.match(comment.strip())
    if match is None:
        return None
    return Owner(
        run=match["run"],
        host=match["host"],
        pid=int(match["pid"]),
        started=int(match["started"]),
    )
