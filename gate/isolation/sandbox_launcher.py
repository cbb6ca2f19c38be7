"""The sandbox launcher: a small program that gives up its privileges and becomes the training.

`sandboxed_start.py` starts it as root with the gate's interpreter (`-I -S`). So it imports the
standard library alone. After it changes the account it imports nothing, because the new account may
not be able to read the interpreter. A separate process is needed because limits belong to a whole
process: a root without CAP_SYS_RESOURCE, as in a container, cannot set them for a child from
outside. The launcher starts with an empty environment. It reads its plan, which includes the
training's environment, from stdin as JSON.

One of two guards decides where a run may write, see `WriteGuard`. A mount namespace
(`private_view.py`) is built while the process is still root. Landlock (`kernel_calls.py`) is
applied after the change of account.

The only argument is the descriptor to report on. The launcher writes `.` when all is ready and,
only if a step fails, a JSON object. A successful start closes the descriptor, which is how the gate
learns of it.
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
# bytes of a wait(2) status on the pipe between the two processes outside and inside
STATUS_BYTES = 4


class LaunchPlan(TypedDict):
    """What `sandboxed_start.py` asks the launcher to do.

    `groups` are the supplementary groups. Without a `uid` the process keeps its account, and no
    right is taken from it. `limits` maps names in Python's module resource to values;
    `seccomp_filter` is base64. `guard` is a value of `WriteGuard`. `writable` are the run's own
    folders; `shared` are temporary folders of all accounts, which Landlock leaves open. `mounts`
    are pairs of a source and the path that shows it; `place` is such a pair for the run's own
    folder. `own` has the words of `private_view.Own`. `cpus` are the cores that the process may
    use, empty for all. `door` is the file that joins a control group, empty for none.
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
    """Take each step of the plan in turn; the last one does not return."""
    plan: LaunchPlan = json.loads(sys.stdin.buffer.read())
    # execve closes the descriptor, which reports success, and the training never gets it
    os.set_inheritable(report, False)
    for step in STEPS:
        if step is exec_command:
            os.write(report, READY)
            if plan["place"] is not None:
                # wait while the gate opens this view: a training that ends at once would leave no
                # process in it
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
            # leave without the interpreter's shutdown, whose messages would mix with the training's
            # output
            os._exit(CANNOT_START)


def close_input(_: LaunchPlan) -> None:
    """Replace stdin with the null device, so that the training has nothing to read."""
    _read_nothing()


def _read_nothing() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def limit(plan: LaunchPlan) -> None:
    """Lower the limits, soft and hard; never raise one."""
    # the hard limit too: any process may raise its soft limit again (getrlimit(2))
    for name, most in plan["limits"].items():
        kind = getattr(resource, name)
        soft, hard = (_lower(now, most) for now in resource.getrlimit(kind))
        resource.setrlimit(kind, (soft, hard))


def _lower(now: int, most: int) -> int:
    return most if now == resource.RLIM_INFINITY else min(now, most)


def keep_to_cpus(plan: LaunchPlan) -> None:
    """Keep this process to the plan's cores, before any code counts the cores it may use."""
    if plan["cpus"]:
        os.sched_setaffinity(0, plan["cpus"])


def join_group(plan: LaunchPlan) -> None:
    """Join the plan's control group, before anything is loaded for the training."""
    if plan["door"]:
        with open(plan["door"], "wb", buffering=0) as door:  # noqa: PTH123 - as little as can be
            # 0 stands for the process that writes it (cgroups(7))
            door.write(b"0")


def enter_own_namespaces(plan: LaunchPlan) -> None:
    """If the plan asks for it, leave the machine's mounts, processes, network and System V objects.

    With its own processes, the first process of the new PID namespace takes all further steps
    (pid_namespaces(7)). This process stays outside and ends as the training does. When the first
    process ends, the kernel ends all others of the namespace.
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
    # stdin has been read by now, so its number holds the pipe; `exec_command` gives the training
    # another
    os.dup2(writing, 0)
    os.close(writing)


def _end_as_training(first: int, reading: int) -> NoReturn:
    """Wait for the namespace's first process, then end with the training's exit code or signal."""
    # the gate sends SIGTERM to the whole group; the first process passes it to the training
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _hold_only(reading)
    said = os.read(0, STATUS_BYTES)
    _, status = os.waitpid(first, 0)
    status = int.from_bytes(said, sys.byteorder) if len(said) == STATUS_BYTES else status
    code = os.waitstatus_to_exitcode(status)
    # die by the same signal: an exit code of 128 + n, as a shell returns, would hide the signal
    # from the gate, which asks by wait(2)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _hold_only(descriptor: int) -> None:
    """Close every descriptor but this one, which becomes number 0.

    Readers of the others, such as the gate's report socket, wait until every copy is closed.
    """
    os.dup2(descriptor, 0)
    os.closerange(1, os.sysconf("SC_OPEN_MAX"))


def show_own_view(plan: LaunchPlan) -> None:
    """If the plan asks for it, build the view in which only the run's folders are writable."""
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
    """Leave root and all groups except the plan's for good; root's capabilities go too."""
    uid, gid = plan["uid"], plan["gid"]
    if uid is None:
        return
    # groups first, user last: without root's user id neither group call is permitted
    os.setgroups(plan["groups"])
    os.setresgid(gid, gid, gid)
    # set all three ids: a saved id of 0 would be a way back to root (setresuid(2))
    os.setresuid(uid, uid, uid)


def refuse_privileges(plan: LaunchPlan) -> None:
    """Set `no_new_privs`: setuid bits and file capabilities have no effect from here on."""
    # without CAP_SYS_ADMIN, Landlock and seccomp(2) require it
    if plan["uid"] is not None:
        _control(PR_SET_NO_NEW_PRIVS, 1, 0)


def refuse_writing(plan: LaunchPlan) -> None:
    """If the guard is Landlock, refuse every change outside the run's folders."""
    if plan["guard"] == "landlock":
        write_only_below((*plan["writable"], *plan["shared"]))


def refuse_calls(plan: LaunchPlan) -> None:
    """Install the plan's seccomp filter for this process and all its descendants."""
    if plan["uid"] is not None:
        install_filter(base64.b64decode(plan["seccomp_filter"]))


def install_filter(program: bytes) -> None:
    """Add a program of `seccomp_filter` to the filters that the kernel asks before each call.

    Filters installed before stay active. Needs `no_new_privs`. Raises `OSError` if the kernel
    refuses.
    """
    # kept in variables: the kernel reads both buffers below, and Python frees what has no name
    held = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog
    header = struct.pack("@HP", len(program) // INSTRUCTION_BYTES, ctypes.addressof(held))
    held_header = ctypes.create_string_buffer(header, len(header))
    _control(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(held_header))


def _control(option: int, first: int, second: int) -> None:
    values = [ctypes.c_ulong(value) for value in (first, second, 0, 0)]
    checked(library.prctl(option, *values))


def exec_command(plan: LaunchPlan) -> None:
    """Become the training: change to its folder, find its program on its PATH, and execve.

    `os.execvpe` is not used because it imports, and the account may not be able to read this
    interpreter.
    """
    os.chdir(plan["workdir"])
    if Own.PROCESSES in plan["own"]:
        _fork_training()
    # Python ignores these two signals, and an ignored signal stays ignored across execve
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
    # an error about a file that exists says more than "not found"
    missing = (FileNotFoundError, NotADirectoryError)
    raise next((fault for fault in faults if not isinstance(fault, missing)), faults[-1])


def _fork_training() -> None:
    """Return in a child, which becomes the training; this process stays as the namespace's first.

    It has the training's account and restrictions. From inside the namespace only signals with a
    handler reach it. It holds one descriptor, to report how the training ended, and it reaps
    orphans (pid_namespaces(7)).
    """
    # die with the process outside, however that ends; set here because a change of account clears
    # it
    _control(PR_SET_PDEATHSIG, signal.SIGKILL, 0)
    # Python's own handler would raise KeyboardInterrupt in here
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    training = os.fork()
    if not training:
        _control(PR_SET_PDEATHSIG, 0, 0)
        _read_nothing()
        # as without a namespace: the training leads its own session and process group
        os.setsid()
        return
    _hold_only(0)

    def hand_on(number: int, _: object) -> None:
        try:
            os.killpg(training, number)
        except OSError:
            # the training has just ended, or its session has not begun
            return

    signal.signal(signal.SIGTERM, hand_on)
    while True:
        ended, status = os.wait()
        if ended == training:
            os.write(0, status.to_bytes(STATUS_BYTES, sys.byteorder))
            os._exit(0)


Step = Callable[[LaunchPlan], None]
# The order is a security rule. Mounts need root. Landlock and the filter need `no_new_privs`. The
# filter comes last because it refuses `unshare`.
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
