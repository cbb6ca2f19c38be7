"""What to start (`ProcessRequest`), how it ended (`ProcessResult`), and the ports that start it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gate.isolation.cluster_settings import ClusterSettings
from gate.isolation.modes import Credentials, TrainingContainer


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOnlyMount:
    """A file or folder of this machine that a run sees at another path, read-only."""

    source: Path
    target: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivateFolder:
    """A folder of this machine that a process sees at another path.

    Each of several processes sees its own folder at the same path, so runs side by side have equal
    paths.
    """

    source: Path
    target: Path

    def on_host(self, path: Path) -> Path:
        """Return where the gate finds what the process sees at `path`."""
        inside = path.is_relative_to(self.target)
        return self.source / path.relative_to(self.target) if inside else path


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterStep:
    """A run on the nodes of a cluster.

    `root` is the run's folder, which all nodes see. `token` is unique to this run. `port` is where
    the ranks meet on the first node. `elsewhere` sends this run to different nodes from the other
    runs of the call.
    """

    settings: ClusterSettings
    root: Path
    token: str
    port: int
    elsewhere: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessRequest:
    """A process to start: without a shell, inherited variables or inherited descriptors.

    `network` lets a process under a separate account create sockets that are not local. `writable`
    and `readable` are the folders that it needs; a container contains no others. A process with
    `writable` folders is a run, and gets the separate resources that `credentials.own` lists.
    `mounts` take effect where the isolation can show one file at the path of another. A process
    with a `place` sees its own folder there. `cpus` are the cores that it may use, empty for all. A
    process with a `step` starts on the nodes of a cluster.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    workdir: Path
    timeout_seconds: float
    output_limit_bytes: int
    credentials: Credentials | None = None
    network: bool = False
    container: TrainingContainer | None = None
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    mounts: tuple[ReadOnlyMount, ...] = ()
    place: PrivateFolder | None = None
    cpus: tuple[int, ...] = ()
    step: ClusterStep | None = None

    def on_host(self, path: Path) -> Path:
        """Return where the gate finds what the process sees at `path`."""
        return path if self.place is None else self.place.on_host(path)

    @property
    def under_own_account(self) -> bool:
        """Whether the process runs under a different account from the gate's."""
        return self.credentials is not None

    @property
    def in_container(self) -> bool:
        """Whether the process runs in a container."""
        return self.container is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessResult:
    """How a process ended and what it printed.

    `exit_code` is negative for a signal, as in `subprocess`. `output` is stdout and stderr in order
    of arrival. If `output_bytes` exceeds the request's limit, its middle is cut out.
    `out_of_memory` is True only if the kernel is known to have killed a process for lack of memory.
    """

    exit_code: int
    timed_out: bool
    wall_seconds: float
    output: bytes
    output_bytes: int
    out_of_memory: bool = False


class Processes(Protocol):
    """The port that starts a process and waits for its end."""

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        """Run to the end, the time limit or cancellation, then leave no process behind."""
        ...


class TrainingProcesses(Processes, Protocol):
    """The port that starts training processes, also several at the same time."""

    def together(self) -> AbstractContextManager[ProcessGroup]:
        """Return a group of processes that live at the same time; none outlives the body."""
        ...


class ProcessGroup(Protocol):
    """Processes that live at the same time."""

    def start(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> StartedProcess:
        """Start a process; raises `RunError` if it cannot be started."""
        ...

    def follow(self, seconds: float) -> None:
        """Pass on output until a process that was let go ends, for at most this many seconds."""
        ...


class StartedProcess(Protocol):
    """A process of a group, from its start on."""

    @property
    def result(self) -> ProcessResult | None:
        """How the process ended; None while it lives."""
        ...

    def let_go(self) -> None:
        """Start to count its time; its output is passed on from now on."""
        ...

    def stop(self) -> None:
        """End it now, with all that it started; does nothing if it has ended."""
        ...


class AnsweringProcess(Protocol):
    """A process that answers each question in a new child, so a crash fails only that question."""

    def wait_until_ready(self) -> None:
        """Return when it can answer; raises `RunError` with the reason if it cannot start."""
        ...

    def ask(self, question: bytes) -> ProcessResult:
        """Return what a child printed and how it ended; restart the process if it has died."""
        ...

    def end(self) -> None:
        """End it, and leave no process behind."""
        ...
