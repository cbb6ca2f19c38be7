"""A separate program that gives up its privileges, and then becomes the training.

`sandboxed_start.py` starts it as root with the gate's interpreter (`-I -S`), so it imports from the
standard library alone, and nothing once the account is changed: that one may not be able to read
the interpreter. Limits belong to a whole process and cannot be set for a child from outside by a
root without CAP_SYS_RESOURCE, as a container's is: hence a process between gate and training. Its
environment is empty; the plan, the training's environment in it, comes on stdin as JSON.

Where a run may write is settled in one of two ways, see `WriteGuard`: by a mount namespace
(`private_view.py`) while this is still root, or by Landlock (`landlock.py`) afterwards.

The one argument is the descriptor to report on: `.` when all is ready, then, only if something
failed, a JSON object. It is closed by a successful start, which is how the gate learns of that.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypedDict

from gate.isolation.kernel_calls import checked, library, write_only_below
from gate.isolation.private_view import Account, Own, enter_namespaces, make_view, show_at_place

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
INSTRUCTION_BYTES = 8
READY = b"."
CANNOT_START = 127
MOUNT_NAMESPACE = "mount namespace"
# of a status as wait(2) tells it
STATUS_BYTES = 4


class LaunchPlan(TypedDict):
    """What `sandboxed_start.py` asks for; `seccomp_filter` is in base64, `limits` by name.

    `groups` are all that it has beside its own. `guard` is a `WriteGuard`; `writable` are the run's
    own folders, `shared` the temporary folders of all accounts that Landlock leaves open to them;
    `mounts` are pairs of what a view shows and where, `place` is such a pair for the run's own
    folder. Without an account (`uid`) it stays who it is, and nothing is refused to it. `own` is
    what it has of its own, as `private_view.Own` calls it; `cpus` are those that it is kept to,
    none for all. `door` is the file by which it joins a control group, empty for none.
    """

    argv: list[str]
    env: dict[str, str]
    workdir: str
    uid: int | None
    gid: int
    groups: list[int]
    limits: dict[str, int]
    seccomp_filter: str
    guard: str
    writable: list[str]
    shared: list[str]
    mounts: list[tuple[str, str]]
    place: tuple[str, str] | None
    own: list[str]
    cpus: list[int]
    door: str


def main(report: int) -> None:
    """Take each step in turn; the last one does not return."""
    plan: LaunchPlan = json.loads(sys.stdin.buffer.read())
    # execve closes it, which tells the gate of a good start, and the training never holds it
    os.set_inheritable(report, False)
    for step in STEPS:
        if step is exec_command:
            os.write(report, READY)
            if plan["place"] is not None:
                # the gate looks at the view meanwhile: later nobody may be in it any more
                os.read(report, len(READY))
        try:
            step(plan)
        except (OSError, ValueError) as error:
            facts = {
                "step": step.__name__,
                "errno": getattr(error, "errno", None),
                "reason": getattr(error, "strerror", None) or str(error),
            }
            os.write(report, json.dumps(facts).encode())
            # nothing to tidy up, and no output of an interpreter's end amid the training's
            os._exit(CANNOT_START)


def close_input(_: LaunchPlan) -> None:
    """Nothing to read for the training."""
    _read_nothing()


def _read_nothing() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def limit(plan: LaunchPlan) -> None:
    """Lower limits, soft and hard; none is ever raised."""
    # the hard one too: a soft limit alone anybody may raise again (getrlimit(2))
    for name, most in plan["limits"].items():
        kind = getattr(resource, name)
        soft, hard = (_lower(now, most) for now in resource.getrlimit(kind))
        resource.setrlimit(kind, (soft, hard))


def _lower(now: int, most: int) -> int:
    return most if now == resource.RLIM_INFINITY else min(now, most)


def keep_to_cpus(plan: LaunchPlan) -> None:
    """Before anything counts the cores that it may use."""
    if plan["cpus"]:
        os.sched_setaffinity(0, plan["cpus"])


def join_group(plan: LaunchPlan) -> None:
    """Before anything is read in for the training."""
    if plan["door"]:
        with open(plan["door"], "wb", buffering=0) as door:  # noqa: PTH123 - as little as can be
            # whoever writes it (cgroups(7))
            door.write(b"0")


def enter_own_namespaces(plan: LaunchPlan) -> None:
    """Where it is asked for, leave the machine's mounts, processes, network and System V objects.

    With processes of its own all that follows is done by the first of them (pid_namespaces(7)):
    this process goes on outside, and ends as the training does. When that first one ends, the
    kernel ends all others.
    """
    if plan["guard"] != MOUNT_NAMESPACE:
        return
    enter_namespaces(plan["own"])
    if Own.PROCESSES not in plan["own"]:
        return
    reading, writing = os.pipe()
    first = os.fork()
    if first:
        _end_as_training(first, reading)
    os.close(reading)
    # kept where nothing is read any more: the training gets another, see `exec_command`
    os.dup2(writing, 0)
    os.close(writing)


def _end_as_training(first: int, reading: int) -> NoReturn:
    """Wait for the first process of the namespace, then end as it says that the training ended."""
    # the gate asks the whole group to end; the first process hands that on
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _hold_only(reading)
    said = os.read(0, STATUS_BYTES)
    _, status = os.waitpid(first, 0)
    status = int.from_bytes(said, sys.byteorder) if len(said) == STATUS_BYTES else status
    code = os.waitstatus_to_exitcode(status)
    # 128 + n, as a shell has it, would be another end than the training's: the gate, which asks by
    # wait(2), has to see the signal itself
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _hold_only(descriptor: int) -> None:
    """Close all but one, which is the first from now on: others wait for the end of the rest."""
    os.dup2(descriptor, 0)
    os.closerange(1, os.sysconf("SC_OPEN_MAX"))


def show_own_view(plan: LaunchPlan) -> None:
    """Where it is asked for, show the run a machine that it can only read, but for its folders."""
    place = None if plan["place"] is None else _pair(plan["place"])
    if plan["guard"] == MOUNT_NAMESPACE:
        mounts = [_pair(mount) for mount in plan["mounts"]]
        writable = [Path(folder) for folder in plan["writable"]]
        account = Account(plan["uid"] or 0, (plan["gid"], *plan["groups"]))
        make_view(writable, mounts, place, plan["own"], account)
    elif place is not None:
        show_at_place(place)


def _pair(paths: tuple[str, str]) -> tuple[Path, Path]:
    source, target = paths
    return Path(source), Path(target)


def change_account(plan: LaunchPlan) -> None:
    """Leave root and every group but those of the plan for good; root's capabilities go with it."""
    uid, gid = plan["uid"], plan["gid"]
    if uid is None:
        return
    # groups first, the user last: once that is another's, neither call is permitted any more
    os.setgroups(plan["groups"])
    os.setresgid(gid, gid, gid)
    # all three ids: a saved id of 0 would be a way back to root (setresuid(2))
    os.setresuid(uid, uid, uid)


def refuse_privileges(plan: LaunchPlan) -> None:
    """No program started from here on gains any: setuid bits and file capabilities do nothing."""
    # Landlock and seccomp(2) require it without CAP_SYS_ADMIN
    if plan["uid"] is not None:
        _control(PR_SET_NO_NEW_PRIVS, 1, 0)


def refuse_writing(plan: LaunchPlan) -> None:
    """Where it is asked for, let Landlock refuse each change outside the run's folders."""
    if plan["guard"] == "landlock":
        write_only_below((*plan["writable"], *plan["shared"]))


def refuse_calls(plan: LaunchPlan) -> None:
    """Install the filter, for this process and all that come of it."""
    if plan["uid"] is not None:
        install_filter(base64.b64decode(plan["seccomp_filter"]))


def install_filter(program: bytes) -> None:
    """Have the kernel ask a program of `seccomp_filter` before each call; `OSError` if it cannot.

    One that is there already is asked too. Needs `no_new_privs`.
    """
    # kept in variables: the kernel reads both after this line, and Python frees what nobody names
    held = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog
    header = struct.pack("@HP", len(program) // INSTRUCTION_BYTES, ctypes.addressof(held))
    held_header = ctypes.create_string_buffer(header, len(header))
    _control(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(held_header))


def _control(option: int, first: int, second: int) -> None:
    values = [ctypes.c_ulong(value) for value in (first, second, 0, 0)]
    checked(library.prctl(option, *values))


def exec_command(plan: LaunchPlan) -> None:
    """Become the training, in its folder, found on its own PATH.

    Not by `os.execvpe`, which imports: the account may be one that cannot read this interpreter.
    """
    os.chdir(plan["workdir"])
    if Own.PROCESSES in plan["own"]:
        _fork_training()
    # the interpreter ignores these two, and what it ignores would stay ignored
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    name, faults = plan["argv"][0], []
    folders = [""] if "/" in name else plan["env"].get("PATH", os.defpath).split(":")
    for folder in folders:
        try:
            path = f"{folder}/{name}" if folder else name
            os.execve(path, plan["argv"], plan["env"])  # noqa: S606 - no shell, on purpose
        except OSError as fault:
            faults.append(fault)
    # one that is there and cannot be started says more than those that are not there
    missing = (FileNotFoundError, NotADirectoryError)
    raise next((fault for fault in faults if not isinstance(fault, missing)), faults[-1])


def _fork_training() -> None:
    """Go on in a child; this process stays the first of its namespace until that has ended.

    It has the training's account and every refusal of it. It cannot be signalled from inside
    without a handler, holds nothing but the way to say how the training ended, and takes leave of
    orphans (pid_namespaces(7)).
    """
    # ends with the process outside, however that ended; a change of the account had cleared it
    _control(PR_SET_PDEATHSIG, signal.SIGKILL, 0)
    # Python's own handler would raise in here
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    training = os.fork()
    if not training:
        _control(PR_SET_PDEATHSIG, 0, 0)
        _read_nothing()
        # as it is without a namespace: a session and a group of its own, and all else as it was
        os.setsid()
        return
    _hold_only(0)

    def hand_on(number: int, _: object) -> None:
        try:
            os.killpg(training, number)
        except OSError:
            # it has just ended, or has not begun
            return

    signal.signal(signal.SIGTERM, hand_on)
    while True:
        ended, status = os.wait()
        if ended == training:
            os.write(0, status.to_bytes(STATUS_BYTES, sys.byteorder))
            os._exit(0)


Step = Callable[[LaunchPlan], None]
# The order is the safety: mounts need root, Landlock and the filter need `no_new_privs`, and the
# filter comes last, since it refuses `unshare`.
STEPS: tuple[Step, ...] = (
    close_input,
    limit,
    keep_to_cpus,
    join_group,
    enter_own_namespaces,
    show_own_view,
    change_account,
    refuse_privileges,
    refuse_writing,
    refuse_calls,
    exec_command,
)
