"""What the gate asks of whatever hands out the nodes of a cluster, and the answers."""

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
# the states of a job, as Slurm calls them
WAITING: Final = frozenset(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD"))
RUNNING: Final = frozenset(("RUNNING", "STAGE_OUT"))
COMPLETING: Final = "COMPLETING"
GONE: Final = "GONE"
ENDED: Final = "ENDED"
# what ended a job that the gate did not end, as a clause
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
    """What is known of a job; `nodes` is empty until it has some."""

    state: str
    reason: str = ""
    restarts: int = 0
    nodes: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The gate call that a job belongs to, as its comment says."""

    run: str
    host: str
    pid: int
    started: int

    @property
    def comment(self) -> str:
        """As the job carries it."""
        return f"repro-gate.run={self.run} host={self.host} pid={self.pid} started={self.started}"

    @property
    def is_gone(self) -> bool:
        """Whether that process is known to have ended; of another machine nothing is known."""
        return self.host == socket.gethostname() and start_of(self.pid) != self.started


class Scheduler(Protocol):
    """One job holds the nodes for a whole call, and each run is a step of it on all of them.

    A job is named by the word that `submit` returns. Each method raises `RunError` where the
    scheduler does not do what it is asked.
    """

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of its programs on this machine, and of the words of `step`."""
        ...

    def refuse_absent(self) -> None:
        """Raise `RunError` where a program is missing here."""
        ...

    def submit(
        self,
        settings: ClusterSettings,
        owner: Owner,
        seconds: float,
        folder: Path,
        apart_from: tuple[str, ...] = (),
    ) -> str:
        """Submit the job that holds the nodes, none of `apart_from`; its name."""
        ...

    def state(self, job: str) -> JobState:
        """What becomes of a job."""
        ...

    def nodes(self, listed: str) -> tuple[str, ...]:
        """The names in a state's `nodes`, in the order of their numbers."""
        ...

    def address(self, node: str) -> str:
        """Where the others reach a node."""
        ...

    def step(self, job: str, settings: ClusterSettings, tasks_per_node: int) -> tuple[str, ...]:
        """The words that start a step on all nodes of a job, before the command."""
        ...

    def steps(self, job: str) -> tuple[str, ...]:
        """The names of a job's steps that have not ended."""
        ...

    def cancel(self, *jobs: str) -> None:
        """End jobs or steps; one that has ended is fine."""
        ...

    def cancel_at_once(self, job: str) -> None:
        """The same without waiting, and without an error: for a second signal."""
        ...

    def orphans(self) -> tuple[tuple[str, str], ...]:
        """Jobs of gate calls of this machine that ended without cancelling them, each with its run.

        The run is the name of the call, as in the job's comment.
        """
        ...


def finished(
    command: tuple[str, ...], seconds: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """One of a scheduler's programs at its end, with all that it printed.

    Raises `subprocess.TimeoutExpired` where it does not end in time, `OSError` where it cannot
    be started.
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
        # a signal for the gate is the gate's to act on
        start_new_session=True,
    )


def answer_of(
    command: tuple[str, ...], shown: str, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """The same as text, bounded; raises `RunError` where there is no answer in time."""
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
    """Start a program that nobody waits for."""
    shell = ("/bin/sh", "-c", '"$@" >/dev/null 2>&1 &', "sh", *command)
    with suppress(OSError, subprocess.TimeoutExpired):
        finished(shell, ANSWER_SECONDS, environment)


def node_folder(run: str) -> Path:
    """Where runs of one call live on a node, before its number; the same for all of its runs."""
    return Path(f"/tmp/repro-gate-{run}")  # noqa: S108 - made by the script alone, for its owner alone


def start_of(pid: int) -> int:
    """When a process of this machine started, in clock ticks since boot; 0 where it is none."""
    with suppress(OSError, ValueError, IndexError):
        # the name may hold blanks and parentheses: fields are counted behind the last one
        after = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2]
        return int(after.split()[19])
    return 0


def this_owner(run: str) -> Owner:
    """The process that asks."""
    pid = os.getpid()
    return Owner(run=run, host=socket.gethostname(), pid=pid, started=start_of(pid))


def owner_of(comment: str) -> Owner | None:
    """The gate call that a comment names; None for any other comment."""
    match = OWNER.match(comment.strip())
    if match is None:
        return None
    return Owner(
        run=match["run"],
        host=match["host"],
        pid=int(match["pid"]),
        started=int(match["started"]),
    )
