"""Starts a training in its sandbox: a separate account, limits, a view and a seccomp filter."""

from __future__ import annotations

import base64
import json
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import gate
from gate.errors import RunError
from gate.isolation.modes import Credentials, Separation, WriteGuard
from gate.isolation.process_request import ProcessRequest
from gate.isolation.process_table import require_other_account
from gate.isolation.sandbox_launcher import READY, LaunchPlan
from gate.isolation.seccomp_filter import seccomp_filter
from gate.text.untrusted_text import safe_line

# a path through circular links never ends
MAX_STEPS = 1000


def blocking_folder(request: ProcessRequest, account: Credentials) -> Path | None:
    """Return the first folder that bars the account from the program or its workdir, or None."""
    name = request.argv[0]
    program = request.workdir / name if "/" in name else shutil.which(name, path=_path_of(request))
    places = (request.workdir, *((Path(program),) if program else ()))
    return next(filter(None, (first_blocked_folder(place, account) for place in places)), None)


def is_there(request: ProcessRequest) -> bool:
    """Return whether the command's file exists where it is looked for, executable or not."""
    name = request.argv[0]
    folders = ("",) if "/" in name else _path_of(request).split(os.pathsep)
    places = (request.on_host(request.workdir / folder / name) for folder in folders)
    return any(os.access(place, os.F_OK) for place in places)


def _path_of(request: ProcessRequest) -> str:
    return request.env.get("PATH", os.defpath)


def first_blocked_folder(path: Path, account: Credentials) -> Path | None:
    """Return the first folder on the way to `path` that the account may not enter.

    Links are followed one by one. If `path` is a folder, it is checked too. Return None if all
    folders are open to the account, or if the path does not exist.
    """
    place, steps = Path("/"), list(path.absolute().parts[1:])
    # bounded, because links may form a circle; the kernel gives up on one too (ELOOP)
    for _ in range(MAX_STEPS):
        if not _may_enter(place.stat(), account):
            return place
        if not steps:
            return None
        there = place / steps.pop(0)
        try:
            mode = os.lstat(there).st_mode
            target = there.readlink() if stat.S_ISLNK(mode) else None
        except OSError:
            return None
        if target is not None:
            # the parts of the link's target come before the remaining steps
            steps[:0] = [part for part in target.parts if part != "/"]
            place = Path("/") if target.is_absolute() else place
        elif stat.S_ISDIR(mode):
            # `..` can be resolved by name here, because every folder so far is a real one, not a
            # link
            place = Path(os.path.normpath(there))
        else:
            return None
    return None


def _may_enter(facts: os.stat_result, account: Credentials) -> bool:
    # the first matching class decides, even against the owner (path_resolution(7))
    if facts.st_uid == account.uid:
        return bool(facts.st_mode & stat.S_IXUSR)
    if facts.st_gid in {account.gid, *account.groups}:
        return bool(facts.st_mode & stat.S_IXGRP)
    return bool(facts.st_mode & stat.S_IXOTH)


PACKAGE_ROOT = Path(gate.__file__).resolve().parents[1]
# the package's folder comes last, so nothing in it shadows a standard module
PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from gate.isolation.sandbox_launcher import main; main(int(sys.argv[2]))"
)
# Isolated, without site packages and without writing byte-code: root must run nothing that a
# repository, a home folder or a .pth file adds.
OPTIONS = ("-I", "-S", "-B", "-X", "utf8")
REPORT_LIMIT_BYTES = 4096
# There is no limit of address space, because CUDA reserves far more than it uses. The process limit
# counts threads, over all processes of the account. No smoke training writes a file of this size.
LIMITS = {
    "RLIMIT_CORE": 0,
    "RLIMIT_NOFILE": 65_536,
    "RLIMIT_FSIZE": 64 * 1024**3,
    "RLIMIT_NPROC": 8192,
}


def start_sandboxed(
    request: ProcessRequest,
    handed_on: tuple[int, ...] = (),
    ready: Callable[[int], None] = lambda _: None,
    door: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a training in its sandbox, and return once it has become the requested program.

    `handed_on` are descriptors that it keeps. For a request with a place, the sandbox launcher
    waits until `ready` has been called with its process number. `door` is the file by which it
    joins a control group.

    Raises `OSError` or `ValueError` if the command itself cannot be started, as `Popen` does, and
    `RunError` if the sandbox cannot be set up.
    """
    account, place = request.credentials, request.place
    plan: LaunchPlan = {
        "argv": list(request.argv),
        "env": request.env,
        "workdir": str(request.workdir),
        "uid": None,
        "gid": 0,
        "groups": [],
        "limits": {},
        "seccomp_filter": "",
        "guard": WriteGuard.NONE.value,
        "writable": [str(folder) for folder in request.writable],
        "shared": [],
        "mounts": [(str(mount.source), str(mount.target)) for mount in request.mounts],
        "place": None if place is None else (str(place.source), str(place.target)),
        "own": [],
        "cpus": list(request.cpus),
        "door": "" if door is None else str(door),
    }
    if account is not None:
        plan = {**plan, **_confined(account, request)}
    process, report = _launch(plan, handed_on, ready)
    if report != READY:
        output = process.communicate()[0]
        raise _fault(report, output)
    return process


class _Confined(TypedDict):
    """The fields of a plan for a training under a separate account."""

    uid: int
    gid: int
    groups: list[int]
    limits: dict[str, int]
    seccomp_filter: str
    guard: str
    shared: list[str]
    own: list[str]


def _confined(account: Credentials, request: ProcessRequest) -> _Confined:
    require_other_account(account)
    program = seccomp_filter(platform.machine(), network=request.network)
    # a process without writable folders is a reader: it lives beside the runs, and must see their
    # folders come and go
    own = [
        separation
        for separation in (account.own if request.writable else ())
        if separation is not Separation.CACHE
        and (separation is not Separation.NETWORK or not request.network)
    ]
    return {
        "uid": account.uid,
        "gid": account.gid,
        "groups": list(account.groups),
        "limits": LIMITS,
        "seccomp_filter": base64.b64encode(program).decode(),
        "guard": account.guard.value,
        "shared": [str(folder) for folder in account.shared],
        "own": [separation.value for separation in own],
    }


def _launch(
    plan: LaunchPlan, handed_on: tuple[int, ...], ready: Callable[[int], None]
) -> tuple[subprocess.Popen[bytes], bytes]:
    """Return the process, and what the launcher reported up to its start or failure."""
    report, theirs = socket.socketpair()
    with report, tempfile.TemporaryFile() as handed_over:
        with theirs:
            # in a file, because a pipe blocks its writer once it is full
            handed_over.write(json.dumps(plan).encode())
            handed_over.seek(0)
            number = theirs.fileno()
            process = subprocess.Popen(
                (sys.executable, *OPTIONS, "-c", PROGRAM, str(PACKAGE_ROOT), str(number)),
                # no variable may influence root's interpreter; the training's variables are in the
                # plan
                env={},
                cwd="/",
                stdin=handed_over,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                close_fds=True,
                pass_fds=(number, *handed_on),
                start_new_session=True,
            )
        greeting = report.recv(len(READY))
        if greeting == READY and plan["place"] is not None:
            ready(process.pid)
            report.sendall(READY)
        # the report ends when its last other copy is closed: by execve, or with the launcher
        return process, greeting + _rest(report)


def _rest(report: socket.socket) -> bytes:
    return b"".join(iter(lambda: report.recv(REPORT_LIMIT_BYTES), b""))


def _fault(report: bytes, output: bytes) -> OSError | ValueError | RunError:
    """Turn the launcher's report into an error.

    The report can be trusted: the launcher is the gate's code, and the training has not run yet.
    """
    if not report:
        return RunError(
            "the sandbox launcher ended early",
            hint="Reinstall the gate: its interpreter could not run its own file.",
            details=tuple(safe_line(line) for line in output.splitlines()[-5:]),
        )
    fault = json.loads(report.removeprefix(READY))
    if report.startswith(READY):
        if fault["errno"] is None:
            return ValueError(fault["reason"])
        return OSError(fault["errno"], fault["reason"])
    return RunError(
        f"the training cannot be sandboxed: {fault['step'].replace('_', ' ')}: {fault['reason']}",
        hint="Give the container Docker's default capabilities and a kernel with seccomp filters, "
        "or set isolation.mode to none where you trust the code.",
    )
