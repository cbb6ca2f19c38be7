"""Starts training processes without a shell, follows them in one thread, and leaves none behind."""

from __future__ import annotations

import os
import resource
import select
import signal
import stat
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from gate.errors import RunError
from gate.isolation.modes import Credentials, Separation
from gate.isolation.page_cache import CacheGroup
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.isolation.process_table import (
    ProcessFacts,
    View,
    adopt_orphans,
    apart,
    closed_memory,
    descendants,
    end_all,
    holds,
    kill,
    kill_account,
    owned_by,
    processes,
    reap,
)
from gate.isolation.sandboxed_start import blocking_folder, is_there, start_sandboxed
from gate.isolation.stop_signals import StopSignals
from gate.isolation.training_output import POLL_SECONDS, FollowedOutput, RunOutput, Take
from gate.text.untrusted_text import safe_line

# together below the 7.5 s that a runner waits between its first and its second signal
GRACE_SECONDS = 3.0
KILL_SECONDS = 2.0
# a driver needs time to release a large GPU's memory and the pinned host memory
GPU_KILL_SECONDS = 10.0
GPU_FILES = "/dev/nvidia"
KILL_ATTEMPTS = 3


class RunningProcess:
    """A training process of this machine, with everything that it started.

    `family_before` are the children that the gate had before the start; every later one belongs to
    the training. With a `view` that rule does not hold, because other trainings may start beside
    this one. The processes in the same view then belong to the training.
    """

    # only a container's engine reports this
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
        """Start to count the training's time."""
        self._started_at = time.monotonic()

    @property
    def exit_code(self) -> int:
        """The exit code, negative for a signal; valid only after the end."""
        return int(self._process.returncode)

    def end(self, take: Take) -> None:
        """End everything of the training that still lives: first by SIGTERM, then by force.

        SIGTERM is sent only if the process itself still runs. This takes up to 8 s, or 16 s with a
        GPU, if the training resists. Raises `RunError` if a process survives.
        """
        # ask before the signal: a process that is being torn down no longer shows its open files
        on_gpu = any(holds(pid, GPU_FILES) for pid in self._living())
        if not self.ended():
            # SIGTERM first, so that a training can save its work and a driver its state
            self._signal_group(signal.SIGTERM)
            self.output.follow(take, GRACE_SECONDS)
        # kill before reading the process table: a process that keeps forking is never in it. One
        # call reaches a whole group, or all processes of an account (kill(2)).
        self.kill()
        seconds = GPU_KILL_SECONDS if on_gpu else KILL_SECONDS
        left = end_all(self._living, lambda _: self.kill(), seconds=seconds)
        self.ended()
        self.output.drain(take)
        self._pipe.close()
        # nobody else waits for adopted orphans, and unreaped they would fill the process table
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
        """Send SIGKILL to the group, to processes that left it, and to the account; do not wait."""
        self._signal_group(signal.SIGKILL)
        rows = tuple(processes())
        kill(self._family(rows))
        if self._account is not None:
            kill(owned_by(self._account.uid, rows))
            # repeat only if the call could not be sent: a process of the account may kill the
            # sender first
            any(kill_account(self._account) for _ in range(KILL_ATTEMPTS))

    def ended(self) -> bool:
        """Return whether the process itself has ended; its children may still live."""
        if self._process.poll() is None:
            return False
        # measure at the first check after the end: draining the output later is not the training's
        # time
        self.wall_seconds = self.wall_seconds or time.monotonic() - self._started_at
        return True

    def _living(self) -> frozenset[int]:
        itself = frozenset() if self.ended() else frozenset({self._process.pid})
        # read the table once: on a machine with many processes each reading takes a while
        rows = tuple(processes())
        account = frozenset() if self._account is None else owned_by(self._account.uid, rows)
        return itself | self._family(rows) | account

    def _family(self, rows: tuple[ProcessFacts, ...]) -> frozenset[int]:
        if self._view is not None:
            return self._view.members(rows) | descendants(self._process.pid, rows)
        return descendants(os.getpid(), rows) - self._family_before

    def _signal_group(self, number: signal.Signals) -> None:
        # the group is gone, or a member changed its account; the process table shows who is left
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)


class Running(Protocol):
    """A started process or container; the caller must call `end` in every case."""

    @property
    def output(self) -> FollowedOutput:
        """The output that it prints."""
        ...

    @property
    def exit_code(self) -> int:
        """The exit code, negative for a signal; valid only after the end."""
        ...

    @property
    def wall_seconds(self) -> float:
        """The seconds from `let_go` to the end."""
        ...

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel is known to have killed one of its processes for lack of memory."""
        ...

    def let_go(self) -> None:
        """Start to count its time."""
        ...

    def ended(self) -> bool:
        """Return whether it has ended; its children may still live."""
        ...

    def end(self, take: Take) -> None:
        """End everything of it that still lives, and release its resources."""
        ...

    def kill(self) -> None:
        """End everything of it at once: quickly, and without raising an error."""
        ...


class Started:
    """One member of a `LocalProcessGroup`; it implements the port `StartedProcess`."""

    def __init__(
        self, running: Running, request: ProcessRequest, on_line: Callable[[bytes], None]
    ) -> None:
        """Wrap a process that has just started and whose output nobody has read yet."""
        self.running = running
        self.output = RunOutput(request.output_limit_bytes, on_line)
        self.result: ProcessResult | None = None
        self.deadline: float | None = None
        self.timeout_seconds = request.timeout_seconds
        self.stopped = False

    def let_go(self) -> None:
        """Start to count its time, up to the time limit; its output is passed on from now on."""
        self.running.let_go()
        self.deadline = time.monotonic() + self.timeout_seconds

    def stop(self) -> None:
        """Mark it to be ended at the next check."""
        self.stopped = True


class LocalProcessGroup:
    """Processes or containers that live at the same time, followed by one thread.

    `begin` starts one of them. `interrupts` must be the installed ones, if any are.
    """

    def __init__(self, begin: Callable[[ProcessRequest], Running], interrupts: StopSignals) -> None:
        """Create an empty group."""
        self._begin = begin
        self._interrupts = interrupts
        self._living: list[Started] = []

    def start(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> Started:
        """Start a member; the group can end it from its first moment on."""
        # a signal between the start and the append would leave a process that nobody ends
        with self._interrupts.deferred():
            started = Started(self._begin(request), request, on_line)
            self._living.append(started)
        return started

    def follow(self, seconds: float) -> None:
        """Pass on output until a member that was let go ends, for at most this many seconds."""
        until = time.monotonic() + seconds
        while not self._end_those_that_are_over():
            left = until - time.monotonic()
            watched = [started for started in self._living if started.deadline is not None]
            if left <= 0 or not watched:
                return
            self._pump(watched, min(left, POLL_SECONDS))

    def _end_those_that_are_over(self) -> bool:
        over = [child for child in self._living if child.stopped or _is_over(child)]
        for started in over:
            self._end(started)
        return bool(over)

    def _pump(self, watched: list[Started], seconds: float) -> None:
        """Wait for output of any watched member, and pass on what has arrived."""
        poller = select.poll()
        outputs = {
            child.running.output.descriptor: child for child in watched if child.running.output.open
        }
        for descriptor in outputs:
            poller.register(descriptor, select.POLLIN)
        if not outputs:
            # every output is closed while a process still runs: poll() on nothing would spin
            time.sleep(min(seconds, POLL_SECONDS))
            return
        for descriptor, _ in poller.poll(seconds * 1000):
            started = outputs[descriptor]
            started.running.output.pump(started.output.take)

    def _end(self, started: Started) -> None:
        in_time = started.running.ended()
        if in_time and not started.stopped:
            started.running.output.drain(started.output.take)
        with self._interrupts.deferred():
            try:
                started.running.end(started.output.keep)
            finally:
                # remove it only now: until then a second signal has to kill it too
                self._living.remove(started)
        started.result = started.output.result(
            started.running, in_time=in_time, out_of_memory=started.running.out_of_memory
        )

    def kill(self) -> None:
        """End all members at once: quickly, and without raising an error."""
        for started in self._living:
            started.running.kill()

    def end(self) -> None:
        """End all living members, the newest first; raise the first fault after the last member."""
        faults: list[Exception] = []
        while self._living:
            started = self._living[-1]
            try:
                started.running.end(started.output.keep)
            except Exception as fault:  # noqa: BLE001 - the others have to be ended all the same
                faults.append(fault)
            self._living.remove(started)
        if faults:
            raise faults[0]


def _is_over(started: Started) -> bool:
    if started.deadline is None:
        return False
    return started.running.ended() or time.monotonic() >= started.deadline


class GroupedProcesses(ABC):
    """The port `Processes` for subclasses that only say how to start one process."""

    def __init__(self, interrupts: StopSignals | None = None) -> None:
        """`interrupts` must be the installed ones, if any are."""
        self._interrupts = interrupts or StopSignals()

    @abstractmethod
    def begin(self, request: ProcessRequest) -> Running:
        """Start a process; raises `RunError` if it cannot be started."""

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        """Run to the end, the time limit or an exception, then leave no process behind.

        `on_line` receives lines to show. A flood is thinned out (see `LineFeed`), so code must use
        the output in the result. Raises `RunError` if the process cannot be started, or if
        something that it started cannot be ended.
        """
        with self.together() as group:
            started = group.start(request, on_line)
            started.let_go()
            while started.result is None:
                group.follow(request.timeout_seconds)
            return started.result

    @contextmanager
    def together(self) -> Iterator[LocalProcessGroup]:
        """Yield a group of processes that live at the same time; none of them outlives the body."""
        # before the start: a daemon whose parent ends is then adopted by this process instead of
        # init
        adopt_orphans()
        group = LocalProcessGroup(self.begin, self._interrupts)
        with (
            # the cleanup must not be interrupted; the body may be
            self._interrupts.deferred(),
            closed_memory(),
            self._interrupts.last_resort(group.kill),
        ):
            try:
                with self._interrupts.allowed():
                    yield group
            finally:
                group.end()


class LocalProcesses(GroupedProcesses):
    """The port `Processes` on this machine."""

    def begin(self, request: ProcessRequest) -> RunningProcess:
        """Start a process of this machine, in a cache group of its own if its account has one."""
        # before the start: every child born later belongs to the training, daemons included
        family_before = descendants(os.getpid())
        views: list[View] = []

        def ready(pid: int) -> None:
            if request.place is not None:
                views.append(View(pid))

        account = request.credentials
        own = account.own if account is not None and request.writable else ()
        group = CacheGroup() if Separation.CACHE in own else None
        try:
            process = start_process(
                request, ready=ready, door=None if group is None else group.door
            )
        except BaseException:
            if group is not None:
                group.forget()
            raise
        view = views[0] if views else None
        return RunningProcess(process, account, family_before, view, group)


def start_process(
    request: ProcessRequest,
    handed_on: tuple[int, ...] = (),
    ready: Callable[[int], None] = lambda _: None,
    door: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in its own session, with stdout and stderr in one pipe.

    `handed_on` are descriptors that the process keeps under the same numbers. `ready` is called
    with the process number just before it becomes the program, when it is in its own view. `door`
    is the file by which a process of another account joins a control group. Raises `RunError` that
    says what is wrong if the process cannot be started.
    """
    if not request.on_host(request.workdir).is_dir():
        raise RunError(
            f"the working directory {safe_line(str(request.workdir))} is not a folder",
            hint="Correct train.workdir in repro-gate.yml.",
        )
    try:
        with _no_core_dumps():
            if request.under_own_account or request.place is not None:
                return start_sandboxed(request, handed_on, ready, door)
            return _popen(request, handed_on)
    except (OSError, ValueError) as error:
        raise _cannot_start(request, error) from error


def _popen(request: ProcessRequest, handed_on: tuple[int, ...]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        request.argv,
        env=request.env,
        cwd=request.workdir,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        close_fds=True,
        pass_fds=handed_on,
        # its own process group to signal, and no terminal to read from or to inject
        # input into (TIOCSTI)
        start_new_session=True,
    )


@contextmanager
def _no_core_dumps() -> Iterator[None]:
    """Set the core limit to 0, which a child inherits: a dump would fill the disk with memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


ACTIVATE = (
    "If it is in a virtual environment that git ignores, activate that and write `python` in "
    "train.command."
)


def _cannot_start(request: ProcessRequest, error: OSError | ValueError) -> RunError:
    """Return the error for a failed start; the hint depends on the kind of fault."""
    name = safe_line(request.argv[0])
    if isinstance(error, FileNotFoundError):
        return _not_found(name)
    if isinstance(error, PermissionError):
        return _not_permitted(request, name)
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return RunError(
        f"cannot start {name}: {reason}",
        hint="Correct train.command in repro-gate.yml; a script needs a first line such as "
        "#!/usr/bin/env python.",
    )


def _not_found(name: str) -> RunError:
    if "/" in name and not name.startswith("/"):
        return RunError(
            f"cannot start {name}: command not found",
            hint="The gate trains a clean checkout, and this file is not in the commit. "
            f"{ACTIVATE}",
        )
    return RunError(
        f"cannot start {name}: command not found",
        hint="Install it in the training's environment, or correct train.command; a script "
        "whose first line names a missing interpreter looks the same.",
    )


def _not_permitted(request: ProcessRequest, name: str) -> RunError:
    """Return the error for a denied start, with the folder that is closed, if one is.

    The program's own path may not show that folder: in a virtual environment it is a link.
    """
    account = request.credentials
    closed = None if account is None else blocking_folder(request, account)
    # the kernel reports one closed folder of PATH as EACCES, even if the program is nowhere on PATH
    if closed is None and not is_there(request):
        return _not_found(name)
    if account is None:
        file = safe_line(Path(request.argv[0]).name)
        return RunError(
            f"cannot start {name}: permission denied",
            hint=f"Make it executable (chmod +x {file}), or start it with python.",
        )
    if closed is None:
        return RunError(
            f"cannot start {name}: permission denied",
            hint=f"The account {account.uid} that the training runs under may not execute it.",
        )
    folder = safe_line(str(closed))
    mode = stat.S_IMODE(closed.stat().st_mode)
    return RunError(
        f"cannot start {name}: {folder} is closed to other accounts (mode {mode:04o})",
        hint=f"Let other accounts pass through it (chmod o+x {folder}), or use an interpreter and "
        "a "
        f"repository outside of it; an environment created from /usr/bin/python3 needs no "
        "home folder.",
    )
