"""A process to start and how it ended, and the protocols for starting one."""

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
    """A file or folder of this machine that a run sees at another path, and cannot change."""

    source: Path
    target: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivateFolder:
    """A folder of this machine that a process sees at another path, where others see their own.

    So processes that live at the same time have the same paths.
    """

    source: Path
    target: Path

    def on_host(self, path: Path) -> Path:
        """Where the gate finds what the process sees at `path`."""
        inside = path.is_relative_to(self.target)
        return self.source / path.relative_to(self.target) if inside else path


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterStep:
    """A run on the nodes of a cluster: its folder, which all of them see, and what names it.

    `token` is of no other run, and `port` is where its ranks meet on the first node. `elsewhere`
    is what goes to other nodes than the rest of its call.
    """

    settings: ClusterSettings
    root: Path
    token: str
    port: int
    elsewhere: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessRequest:
    """A process to start: no shell, no inherited variable, no inherited descriptor.

    `network` lets a process of another account make sockets that are not local.
    `writable` and `readable` are the folders that it needs: a container holds no others.
    `mounts` are shown where the isolation can show one thing at the path of another. What has a
    `place` sees a folder of its own there; `cpus` are the numbers of the cores that it is kept to,
    none for all. What has `writable` folders is a run, and has what `credentials.own` names.
    What has a `step` starts on the nodes of a cluster.
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
        """Where the gate finds what the process sees at `path`."""
        return path if self.place is None else self.place.on_host(path)

    @property
    def under_own_account(self) -> bool:
        """Whether it runs under another account than the gate's."""
        return self.credentials is not None

    @property
    def in_container(self) -> bool:
        """Whether it runs in a container."""
        return self.container is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessResult:
    """How a process ended and what it printed.

    `exit_code` is negative for a signal, as in `subprocess`. `output` holds stdout and stderr as
    they came, cut in its middle when `output_bytes` exceeds the limit of the request.
    `out_of_memory` is set where it is known that the kernel ended a process for lack of memory.
    """

    exit_code: int
    timed_out: bool
    wall_seconds: float
    output: bytes
    output_bytes: int
    out_of_memory: bool = False


class Processes(Protocol):
    """Starts a process and waits for its end."""

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        """Run to the end, to its time limit, or to cancellation, then leave no process behind."""
        ...


class TrainingProcesses(Processes, Protocol):
    """Starts training processes."""

    def together(self) -> AbstractContextManager[ProcessGroup]:
        """Processes that live at the same time; none of them is left when the body ends."""
        ...


class ProcessGroup(Protocol):
    """Processes that live at the same time."""

    def start(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> StartedProcess:
        """Start one; raises `RunError` when it cannot be started."""
        ...

    def follow(self, seconds: float) -> None:
        """Hand on output until one of those that were let go ends, at most for so long."""
        ...


class StartedProcess(Protocol):
    """A process of a group, from its start on."""

    @property
    def result(self) -> ProcessResult | None:
        """How it ended; None as long as it lives."""
        ...

    def let_go(self) -> None:
        """Its time counts from now on, and its output is handed on."""
        ...

    def stop(self) -> None:
        """End it now, with all that it started; nothing happens where it has ended."""
        ...


class AnsweringProcess(Protocol):
    """A process that answers questions, each in a child of its own: what one breaks is its own."""

    def wait_until_ready(self) -> None:
        """Return when it can answer; `RunError` that says why when it could not start."""
        ...

    def ask(self, question: bytes) -> ProcessResult:
        """What a child printed, and how it ended; started again where an earlier one took it."""
        ...

    def end(self) -> None:
        """Leave no process behind."""
        ...
