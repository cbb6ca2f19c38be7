"""Starting a training process: no shell, nothing inherited, one pipe for all that it prints."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gate.errors import RunError
from gate.isolation.modes import Separation
from gate.isolation.page_cache import CacheGroup
from gate.isolation.path_access import blocking_folder
from gate.isolation.process_request import ProcessRequest
from gate.isolation.process_table import View, descendants
from gate.isolation.processes import GroupedProcesses
from gate.isolation.running_process import RunningProcess
from gate.isolation.sandboxed_start import start_sandboxed
from gate.text.untrusted_text import safe_line


class LocalProcesses(GroupedProcesses):
    """The port `Processes` on this machine."""

    def begin(self, request: ProcessRequest) -> RunningProcess:
        """Start a process of this machine."""
        family_before = descendants(os.getpid())
        views: list[View] = []

        def ready(pid: int) -> None:
            if request.place is not None:
                views.append(View(pid))

        account = request.credentials
        own = account.own if account is not None and request.writable else ()
        group = CacheGroup() if Separation.CACHE in own else None
        try:
            process = start(request, ready=ready, door=None if group is None else group.door)
        except BaseException:
            if group is not None:
                group.forget()
            raise
        view = views[0] if views else None
        return RunningProcess(process, account, family_before, view, group)


def start(
    request: ProcessRequest,
    handed_on: tuple[int, ...] = (),
    ready: Callable[[int], None] = lambda _: None,
    door: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own; raises `RunError` that names what is wrong.

    `handed_on` are descriptors that it has under the same numbers, beside its output. `ready` is
    called with its number when it is about to become the program, in a view of its own; `door` is
    the file by which one of another account joins a control group.
    """
    if not request.found(request.workdir).is_dir():
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
        # a group of its own to signal, and no terminal to read from or to push input into (TIOCSTI)
        start_new_session=True,
    )


@contextmanager
def _no_core_dumps() -> Iterator[None]:
    """A child inherits the limit: a dump would hold the machine's disk full of its memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def _cannot_start(request: ProcessRequest, error: OSError | ValueError) -> RunError:
    """Say what was tried; the hint follows the kind of fault."""
    name = safe_line(request.argv[0])
    if isinstance(error, FileNotFoundError):
        return RunError(
            f"cannot start {name}: command not found",
            hint="Install it in the training's environment, or correct train.command; a script "
            "whose first line names a missing interpreter looks the same.",
        )
    if isinstance(error, PermissionError):
        return _not_permitted(request, name)
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return RunError(
        f"cannot start {name}: {reason}",
        hint="Correct train.command in repro-gate.yml; a script needs a first line such as "
        "#!/usr/bin/env python.",
    )


def _not_permitted(request: ProcessRequest, name: str) -> RunError:
    """Name the folder that is closed: a link of a virtual environment tells nothing of it."""
    account = request.credentials
    if account is None:
        file = safe_line(Path(request.argv[0]).name)
        return RunError(
            f"cannot start {name}: permission denied",
            hint=f"Make it executable (chmod +x {file}), or start it with python.",
        )
    closed = blocking_folder(request, account)
    if closed is None:
        return RunError(
            f"cannot start {name}: permission denied",
            hint=f"The account {account.uid} that the training runs under may not execute it.",
        )
    folder = safe_line(str(closed))
    mode = stat.S_IMODE(closed.stat().st_mode)
    return RunError(
        f"cannot start {name}: {folder} is closed to other accounts (mode {mode:04o})",
        hint=f"Let other accounts pass through it (chmod o+x {folder}), or use an interpreter "
        f"and a "
        "repository that do not lie below it; an environment created from /usr/bin/python3 needs "
        "nobody's home.",
    )
