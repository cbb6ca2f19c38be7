"""Which system calls a training may make: a program for the kernel's seccomp filter.

Written as classic BPF by hand (linux/filter.h, linux/seccomp.h): it is short, and so needs no
library in the image. The kernel runs it before each call, over the call's number and arguments.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gate.errors import RunError

LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
IF_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
IF_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K
# struct seccomp_data: number, architecture, instruction pointer, six arguments of 8 bytes each
CALL_NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
FAIL_WITH = 0x00050000
# x86-64 kernels have a second table of calls, the x32 one, from here on
X32_CALLS = 0x40000000


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """An architecture: its number in linux/audit.h, and the numbers of its calls."""

    architecture: int
    calls: dict[str, int]
    has_x32: bool = False


ARCHITECTURES = {
    "x86_64": Architecture(
        architecture=0xC000003E,
        has_x32=True,
        calls={
            "socket": 41,
            "socketpair": 53,
            "setsockopt": 54,
            "getsockopt": 55,
            "clone": 56,
            "ptrace": 101,
            "syslog": 103,
            "io_setup": 206,
            "mq_open": 240,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "unshare": 272,
            "perf_event_open": 298,
            "open_by_handle_at": 304,
            "setns": 308,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "bpf": 321,
            "userfaultfd": 323,
            "fadvise64": 221,
            "preadv2": 327,
            "io_uring_setup": 425,
            "pidfd_open": 434,
            "clone3": 435,
            "pidfd_getfd": 438,
            "cachestat": 451,
            # from here on for `answering_filter` alone
            "shmget": 29,
            "fork": 57,
            "vfork": 58,
            "execve": 59,
            "kill": 62,
            "semget": 64,
            "msgget": 68,
            "rt_sigqueueinfo": 129,
            "setpriority": 141,
            "sched_setparam": 142,
            "sched_setscheduler": 144,
            "tkill": 200,
            "sched_setaffinity": 203,
            "tgkill": 234,
            "ioprio_set": 251,
            "rt_tgsigqueueinfo": 297,
            "prlimit64": 302,
            "sched_setattr": 314,
            "execveat": 322,
            "pidfd_send_signal": 424,
        },
    ),
    "aarch64": Architecture(
        architecture=0xC00000B7,
        calls={
            "io_setup": 0,
            "unshare": 97,
            "socket": 198,
            "socketpair": 199,
            "syslog": 116,
            "ptrace": 117,
            "mq_open": 180,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "setsockopt": 208,
            "getsockopt": 209,
            "clone": 220,
            "perf_event_open": 241,
            "open_by_handle_at": 265,
            "setns": 268,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "bpf": 280,
            "userfaultfd": 282,
            "fadvise64": 223,
            "preadv2": 286,
            "io_uring_setup": 425,
            "pidfd_open": 434,
            "clone3": 435,
            "pidfd_getfd": 438,
            "cachestat": 451,
            # as above; this machine has neither fork nor vfork, only clone
            "ioprio_set": 30,
            "sched_setparam": 118,
            "sched_setscheduler": 119,
            "sched_setaffinity": 122,
            "kill": 129,
            "tkill": 130,
            "tgkill": 131,
            "rt_sigqueueinfo": 138,
            "setpriority": 140,
            "msgget": 186,
            "semget": 190,
            "shmget": 194,
            "execve": 221,
            "rt_tgsigqueueinfo": 240,
            "prlimit64": 261,
            "sched_setattr": 274,
            "execveat": 281,
            "pidfd_send_signal": 424,
        },
    ),
}
# ENOSYS where libraries know kernels that lack the call and do without it, EPERM for the rest.
REFUSED = {
    # its operations pass no filter, and one of them makes sockets
    "io_uring_setup": errno.ENOSYS,
    # the machine counts these in one number, which shows by what is left (aio-max-nr in
    # Documentation/admin-guide/sysctl/fs.rst)
    "io_setup": errno.ENOSYS,
    # inodes of these come from one count for all namespaces (fs/pidfs.c); libraries do without
    "pidfd_open": errno.ENOSYS,
    # opens one of these by its number, from Linux 6.17 on without any right (FD_PIDFS_ROOT)
    "open_by_handle_at": errno.EPERM,
    # the machine numbers these one after the other (perf_event_id in kernel/events/core.c)
    "perf_event_open": errno.EPERM,
    # its flags lie behind a pointer, where no filter can look (seccomp(2)); the C library falls
    # back to clone, whose flags are an argument
    "clone3": errno.ENOSYS,
    # in a user namespace of its own a training would be root, and reach parts of the kernel that
    # are root's (user_namespaces(7))
    "unshare": errno.EPERM,
    "setns": errno.EPERM,
    # a queue outlives its run, so it could carry word to the next (mq_overview(7))
    "mq_open": errno.ENOSYS,
    # other processes of the account: its memory, its registers, its open files
    "ptrace": errno.EPERM,
    "process_vm_readv": errno.EPERM,
    "process_vm_writev": errno.EPERM,
    "pidfd_getfd": errno.EPERM,
    # keys of a user outlive the run too, and the next run is the same user (keyrings(7))
    "add_key": errno.EPERM,
    "request_key": errno.EPERM,
    "keyctl": errno.EPERM,
    # parts of the kernel that take programs, or let a program stop it half-way
    "bpf": errno.EPERM,
    "userfaultfd": errno.EPERM,
    # the kernel's log and the page cache: another run may have left its mark there
    "syslog": errno.EPERM,
    "cachestat": errno.ENOSYS,
}
SOCKET_CALLS = ("socket", "socketpair")
# What could outlive a process that only answers, or reach another one of its account: starting
# one, objects of System V, sockets. What is refused to a training is refused to it too.
ANSWERING_REFUSED = {
    **REFUSED,
    "fork": errno.EPERM,
    "vfork": errno.EPERM,
    "execve": errno.EPERM,
    "execveat": errno.EPERM,
    # objects of System V stay until somebody removes them (sysvipc(7))
    "shmget": errno.EPERM,
    "semget": errno.EPERM,
    "msgget": errno.EPERM,
    "socket": errno.EACCES,
    "socketpair": errno.EACCES,
    # signals and priorities reach every process of the account; what names one of them by an
    # argument that is no process number, or by its thread alone, is refused as a whole
    "tkill": errno.EPERM,
    "rt_sigqueueinfo": errno.EPERM,
    "rt_tgsigqueueinfo": errno.EPERM,
    "pidfd_send_signal": errno.EPERM,
    "setpriority": errno.EPERM,
    "ioprio_set": errno.EPERM,
}
SIGNALS = ("kill", "tgkill")
# their first argument is a process
OF_ITSELF_ALONE = (
    *SIGNALS,
    "prlimit64",
    "sched_setaffinity",
    "sched_setattr",
    "sched_setparam",
    "sched_setscheduler",
)
CLONE_THREAD = 0x00010000
# linux/fs.h: reads what is in the page cache, and says so where it is not
RWF_NOWAIT = 0x8
# linux/fadvise.h: 4 takes a file out of the page cache; 5 has the same bit, and does nothing
FADV_DONTNEED = 0x4
ADVICE_OF_FADVISE = FIRST_ARGUMENT + 3 * 8
DONE = 0
FLAGS_OF_PREADV2 = FIRST_ARGUMENT + 5 * 8
# every CLONE_NEW* of linux/sched.h that clone knows
NEW_NAMESPACES = 0x7E020000
# linux/sched.h: what `pidfd_open` gives, for the new process
CLONE_PIDFD = 0x00001000
# asm-generic/socket.h
SOL_SOCKET = 1
SO_COOKIE, SO_NETNS_COOKIE, SO_PASSPIDFD, SO_PEERPIDFD = 57, 71, 76, 77
# What the machine numbers one after the other, for all namespaces: sockets and networks by their
# cookies, and processes by the descriptors that come with a message or for who is connected.
COUNTED_OPTIONS = {
    "getsockopt": (SO_COOKIE, SO_NETNS_COOKIE, SO_PEERPIDFD),
    "setsockopt": (SO_PASSPIDFD,),
}
LEVEL_OF_OPTION, NAME_OF_OPTION = FIRST_ARGUMENT + 8, FIRST_ARGUMENT + 2 * 8


def seccomp_filter(machine: str, *, network: bool) -> bytes:
    """The filter for a machine as `platform.machine()` names it, eight bytes an instruction.

    Calls of another architecture end the process: they have numbers of their own. Without
    `network` no socket but a local one (AF_UNIX) can be made, and the answer is EACCES. Raises
    `RunError` for a machine whose numbers are not known here.
    """
    known, program = _beginning(machine)
    program += _refused(known, REFUSED)
    # processes and threads may be made, but in the namespaces of their maker, and known by number
    making = {NEW_NAMESPACES: errno.EPERM, CLONE_PIDFD: errno.ENOSYS}
    program += _without_flags(known.calls["clone"], FIRST_ARGUMENT, making)
    # a read that would not wait is answered as by a file system that has none
    reading = {RWF_NOWAIT: errno.EOPNOTSUPP}
    program += _without_flags(known.calls["preadv2"], FLAGS_OF_PREADV2, reading)
    # what is in memory for all no run takes out of it; it is told that it did, since it is advice
    program += _without_flags(known.calls["fadvise64"], ADVICE_OF_FADVISE, {FADV_DONTNEED: DONE})
    for call, options in COUNTED_OPTIONS.items():
        program += _without_options(known.calls[call], options)
    for call in () if network else SOCKET_CALLS:
        program += _local_sockets_only(known.calls[call])
    # a list of what is refused and no list of what is allowed: drivers and libraries of
    # accelerators make calls that nobody can list ahead, and what guards files and accounts stands
    # elsewhere
    return b"".join([*program, _instruction(RETURN, ALLOW)])


def answering_filter(machine: str, pid: int) -> bytes:
    """The filter for process `pid`, which answers one question: threads, but no other process.

    What is not refused passes on to the filters that are there already. Raises `RunError` as
    `seccomp_filter` does.
    """
    known, program = _beginning(machine)
    program += _refused(known, ANSWERING_REFUSED)
    program += _threads_only(known.calls["clone"])
    for call in OF_ITSELF_ALONE:
        # of a signal, 0 is all of the caller's group; of the others, the caller itself
        itself = (pid,) if call in SIGNALS else (pid, 0)
        program += _of_itself_alone(known.calls[call], itself)
    return b"".join([*program, _instruction(RETURN, ALLOW)])


def _beginning(machine: str) -> tuple[Architecture, list[bytes]]:
    """The architecture, and the instructions that refuse every other."""
    known = ARCHITECTURES.get(machine)
    if known is None:
        raise RunError(
            f"no seccomp filter is known for a machine of type {machine!r}",
            hint=f"Train on {' or '.join(ARCHITECTURES)}, or set isolation.mode to none.",
        )
    program = [
        # first of all: a 32-bit call (int 0x80) has other numbers, and would pass as another call
        _instruction(LOAD_WORD, ARCHITECTURE),
        _instruction(IF_EQUAL, known.architecture, then_skip=1),
        _instruction(RETURN, KILL_PROCESS),
        _instruction(LOAD_WORD, CALL_NUMBER),
    ]
    if known.has_x32:
        program += [
            # x32 calls report the same architecture: only
            # their numbers tell them apart (seccomp(2))
            _instruction(IF_AT_LEAST, X32_CALLS, else_skip=1),
            _instruction(RETURN, FAIL_WITH | errno.ENOSYS),
        ]
    return known, program


def _refused(known: Architecture, answers: Mapping[str, int]) -> list[bytes]:
    """Calls that this architecture lacks need no refusal."""
    return [
        instruction
        for call, answer in answers.items()
        if call in known.calls
        for instruction in (
            _instruction(IF_EQUAL, known.calls[call], else_skip=1),
            _instruction(RETURN, FAIL_WITH | answer),
        )
    ]


def _threads_only(number: int) -> list[bytes]:
    return [
        _instruction(IF_EQUAL, number, else_skip=4),
        _instruction(LOAD_WORD, FIRST_ARGUMENT),
        _instruction(IF_ANY_BIT, CLONE_THREAD, else_skip=1),
        _instruction(RETURN, ALLOW),
        _instruction(RETURN, FAIL_WITH | errno.EPERM),
    ]


def _of_itself_alone(number: int, numbers: Sequence[int]) -> list[bytes]:
    """Process numbers are 32 bits."""
    known = [
        _instruction(IF_EQUAL, call, then_skip=len(numbers) - at) for at, call in enumerate(numbers)
    ]
    return [
        _instruction(IF_EQUAL, number, else_skip=len(numbers) + 3),
        _instruction(LOAD_WORD, FIRST_ARGUMENT),
        *known,
        _instruction(RETURN, FAIL_WITH | errno.EPERM),
        _instruction(RETURN, ALLOW),
    ]


def _without_flags(number: int, word: int, answers: Mapping[int, int]) -> list[bytes]:
    """A call is answered where a word of its arguments has one of these bits; the first decides.

    Flags are the low 32 bits of an argument, and the filter loads words.
    """
    refused = [
        instruction
        for flags, answer in answers.items()
        for instruction in (
            _instruction(IF_ANY_BIT, flags, else_skip=1),
            _instruction(RETURN, FAIL_WITH | answer),
        )
    ]
    return [
        _instruction(IF_EQUAL, number, else_skip=len(refused) + 2),
        _instruction(LOAD_WORD, word),
        *refused,
        _instruction(RETURN, ALLOW),
    ]


def _without_options(number: int, options: Sequence[int]) -> list[bytes]:
    """These options of a socket are answered as by a kernel that has none of the name.

    The kernel takes level and name as 32 bits.
    """
    known = [
        _instruction(IF_EQUAL, option, then_skip=len(options) - at)
        for at, option in enumerate(options)
    ]
    return [
        _instruction(IF_EQUAL, number, else_skip=len(options) + 5),
        _instruction(LOAD_WORD, LEVEL_OF_OPTION),
        _instruction(IF_EQUAL, SOL_SOCKET, else_skip=len(options) + 1),
        _instruction(LOAD_WORD, NAME_OF_OPTION),
        *known,
        _instruction(RETURN, ALLOW),
        _instruction(RETURN, FAIL_WITH | errno.ENOPROTOOPT),
    ]


def _local_sockets_only(number: int) -> list[bytes]:
    """The kernel takes the family as 32 bits: the lower half of the argument on these machines."""
    return [
        _instruction(IF_EQUAL, number, else_skip=4),
        _instruction(LOAD_WORD, FIRST_ARGUMENT),
        _instruction(IF_EQUAL, int(socket.AF_UNIX), else_skip=1),
        _instruction(RETURN, ALLOW),
        _instruction(RETURN, FAIL_WITH | errno.EACCES),
    ]


def _instruction(code: int, operand: int, *, then_skip: int = 0, else_skip: int = 0) -> bytes:
    """One struct sock_filter."""
    # code, jump if true, jump if false, operand (linux/filter.h); jumps count instructions
    return struct.pack("=HBBI", code, then_skip, else_skip, operand)
