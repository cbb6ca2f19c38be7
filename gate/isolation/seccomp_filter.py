"""The seccomp filters of the sandbox: which system calls a training or a reader may make.

A filter is a program in classic BPF (linux/filter.h, linux/seccomp.h). The kernel runs it before
each system call, over the call's number and arguments. The programs here are assembled by hand:
they are short, so the image needs no library for them.
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
# x86-64 kernels have a second table of calls, x32, whose numbers start here
X32_CALLS = 0x40000000


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """One processor architecture: its number in linux/audit.h and its system call numbers.

    `has_x32` says that its kernels have the second table of calls, x32.
    """

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
            # the calls below are refused by `answering_filter` alone
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
            # the calls below are refused by `answering_filter` alone; aarch64 has no fork or vfork,
            # only clone
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
# The error that each refused call returns. It is ENOSYS where libraries know kernels without the
# call and manage without it, and EPERM for the rest.
REFUSED = {
    # its operations bypass every filter, and one of them creates sockets
    "io_uring_setup": errno.ENOSYS,
    # the kernel keeps one count of these for the whole machine, which shows how many
    # are left (aio-max-nr in Documentation/admin-guide/sysctl/fs.rst)
    "io_setup": errno.ENOSYS,
    # the inodes of these descriptors come from one counter for all namespaces (fs/pidfs.c);
    # libraries manage without the call
    "pidfd_open": errno.ENOSYS,
    # opens such a process descriptor by its inode number, since Linux 6.17 without
    # any privilege (FD_PIDFS_ROOT)
    "open_by_handle_at": errno.EPERM,
    # the kernel numbers these events in sequence for the whole machine (perf_event_id in
    # kernel/events/core.c)
    "perf_event_open": errno.EPERM,
    # its flags are behind a pointer, which a filter cannot follow (seccomp(2)); the C library falls
    # back to clone, whose flags are a plain argument
    "clone3": errno.ENOSYS,
    # in a new user namespace the training would be root, and could reach parts of the kernel that
    # only root reaches (user_namespaces(7))
    "unshare": errno.EPERM,
    "setns": errno.EPERM,
    # a queue outlives its run, so it could carry a message to the next run (mq_overview(7))
    "mq_open": errno.ENOSYS,
    # these reach other processes of the account: their memory, registers and open files
    "ptrace": errno.EPERM,
    "process_vm_readv": errno.EPERM,
    "process_vm_writev": errno.EPERM,
    "pidfd_getfd": errno.EPERM,
    # a user's keys outlive the run too, and the next run has the same user (keyrings(7))
    "add_key": errno.EPERM,
    "request_key": errno.EPERM,
    "keyctl": errno.EPERM,
    # the first loads programs into the kernel, the second lets a process pause the kernel midway
    "bpf": errno.EPERM,
    "userfaultfd": errno.EPERM,
    # the kernel's log and the page cache can contain a mark that another run left
    "syslog": errno.EPERM,
    "cachestat": errno.ENOSYS,
}
SOCKET_CALLS = ("socket", "socketpair")
# Calls by which a reader's child could leave something behind or reach another process of its
# account: starting a process, System V objects, sockets, signals. All that a training is refused is
# refused here too.
ANSWERING_REFUSED = {
    **REFUSED,
    "fork": errno.EPERM,
    "vfork": errno.EPERM,
    "execve": errno.EPERM,
    "execveat": errno.EPERM,
    # System V objects stay until somebody removes them (sysvipc(7))
    "shmget": errno.EPERM,
    "semget": errno.EPERM,
    "msgget": errno.EPERM,
    "socket": errno.EACCES,
    "socketpair": errno.EACCES,
    # Signals and priorities reach every process of the account. `OF_ITSELF_ALONE` allows calls
    # whose first argument is a process number. These calls name their target in another way, or by
    # its thread alone, so they are refused entirely.
    "tkill": errno.EPERM,
    "rt_sigqueueinfo": errno.EPERM,
    "rt_tgsigqueueinfo": errno.EPERM,
    "pidfd_send_signal": errno.EPERM,
    "setpriority": errno.EPERM,
    "ioprio_set": errno.EPERM,
}
SIGNALS = ("kill", "tgkill")
# calls whose first argument is a process number; the process may name only itself
OF_ITSELF_ALONE = (
    *SIGNALS,
    "prlimit64",
    "sched_setaffinity",
    "sched_setattr",
    "sched_setparam",
    "sched_setscheduler",
)
CLONE_THREAD = 0x00010000
# linux/fs.h: read only what is in the page cache, and report what is not, which probes the cache
RWF_NOWAIT = 0x8
# linux/fadvise.h: advice 4 drops a file from the page cache. Advice 5 (NOREUSE) has the same bit
# and does nothing, so testing the bit refuses nothing else of use.
FADV_DONTNEED = 0x4
ADVICE_OF_FADVISE = FIRST_ARGUMENT + 3 * 8
# error number 0: the caller sees success, and the kernel does nothing
DONE = 0
FLAGS_OF_PREADV2 = FIRST_ARGUMENT + 5 * 8
# every CLONE_NEW* flag of linux/sched.h that clone accepts
NEW_NAMESPACES = 0x7E020000
# linux/sched.h: return a process descriptor, as `pidfd_open` does, for the new process
CLONE_PIDFD = 0x00001000
# asm-generic/socket.h
SOL_SOCKET = 1
SO_COOKIE, SO_NETNS_COOKIE, SO_PASSPIDFD, SO_PEERPIDFD = 57, 71, 76, 77
# Socket options that show numbers which the kernel counts for the whole machine, across namespaces:
# cookies of sockets and networks, and descriptors of the sending or connected process.
COUNTED_OPTIONS = {
    "getsockopt": (SO_COOKIE, SO_NETNS_COOKIE, SO_PEERPIDFD),
    "setsockopt": (SO_PASSPIDFD,),
}
LEVEL_OF_OPTION, NAME_OF_OPTION = FIRST_ARGUMENT + 8, FIRST_ARGUMENT + 2 * 8


def seccomp_filter(machine: str, *, network: bool) -> bytes:
    """Return the filter for a training: struct sock_filter instructions, eight bytes each.

    `machine` is the name that `platform.machine()` returns. Without `network` only local sockets
    (AF_UNIX) can be created; any other gets EACCES. A call of another architecture kills the
    process, because its numbers mean different calls. Raises `RunError` for a machine without a
    table here.
    """
    known, program = _beginning(machine)
    program += _refused(known, REFUSED)
    # new processes and threads are allowed, but only in the caller's namespaces and without a
    # process descriptor
    making = {NEW_NAMESPACES: errno.EPERM, CLONE_PIDFD: errno.ENOSYS}
    program += _without_flags(known.calls["clone"], FIRST_ARGUMENT, making)
    # answer a non-blocking read as a file system without support does; libraries then read normally
    reading = {RWF_NOWAIT: errno.EOPNOTSUPP}
    program += _without_flags(known.calls["preadv2"], FLAGS_OF_PREADV2, reading)
    # No run may drop pages that other runs see. The call reports success, since it is only advice.
    program += _without_flags(known.calls["fadvise64"], ADVICE_OF_FADVISE, {FADV_DONTNEED: DONE})
    for call, options in COUNTED_OPTIONS.items():
        program += _without_options(known.calls[call], options)
    for call in () if network else SOCKET_CALLS:
        program += _local_sockets_only(known.calls[call])
    # The filter lists what is refused, not what is allowed. Drivers and libraries of accelerators
    # make calls that nobody can list in advance, and other parts of the sandbox protect files and
    # accounts.
    return b"".join([*program, _instruction(RETURN, ALLOW)])


def answering_filter(machine: str, pid: int) -> bytes:
    """Return the filter for process `pid`, a reader's child that answers one question.

    It may start threads but no process. A call that this filter does not refuse still passes
    through the filters installed before it. Raises `RunError` for a machine without a table here.
    """
    known, program = _beginning(machine)
    program += _refused(known, ANSWERING_REFUSED)
    program += _threads_only(known.calls["clone"])
    for call in OF_ITSELF_ALONE:
        # target 0 means the caller's whole process group for a signal, and the caller itself for
        # the others
        itself = (pid,) if call in SIGNALS else (pid, 0)
        program += _of_itself_alone(known.calls[call], itself)
    return b"".join([*program, _instruction(RETURN, ALLOW)])


def _beginning(machine: str) -> tuple[Architecture, list[bytes]]:
    """Return the architecture and the instructions that refuse calls of every other one.

    They leave the call's number loaded for the instructions that follow.
    """
    known = ARCHITECTURES.get(machine)
    if known is None:
        raise RunError(
            f"no seccomp filter is known for a machine of type {machine!r}",
            hint=f"Train on {' or '.join(ARCHITECTURES)}, or set isolation.mode to none.",
        )
    program = [
        # This check comes first: a 32-bit call (int 0x80) has different numbers, and would pass as
        # a different call.
        _instruction(LOAD_WORD, ARCHITECTURE),
        _instruction(IF_EQUAL, known.architecture, then_skip=1),
        _instruction(RETURN, KILL_PROCESS),
        _instruction(LOAD_WORD, CALL_NUMBER),
    ]
    if known.has_x32:
        program += [
            # x32 calls report the same architecture; only their numbers tell
            # them apart (seccomp(2))
            _instruction(IF_AT_LEAST, X32_CALLS, else_skip=1),
            _instruction(RETURN, FAIL_WITH | errno.ENOSYS),
        ]
    return known, program


def _refused(known: Architecture, answers: Mapping[str, int]) -> list[bytes]:
    """Return the instructions that answer each of these calls with its error number.

    Calls that this architecture lacks are skipped.
    """
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
    """Return the instructions that allow a call only if its first argument is one of `numbers`.

    Process numbers are 32 bits, so one word of the argument is enough.
    """
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
    """Return the instructions that answer a call by flag bits in one word of its arguments.

    `answers` maps flag bits to the error number returned; the first that matches decides. Flags are
    in the low 32 bits of an argument, which is all that a filter loads at once.
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
    """Return the instructions that hide these socket options, as if the kernel did not know them.

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
    """Return the instructions that refuse every socket family but AF_UNIX.

    The kernel takes the family as 32 bits: the lower half of the argument on these machines.
    """
    return [
        _instruction(IF_EQUAL, number, else_skip=4),
        _instruction(LOAD_WORD, FIRST_ARGUMENT),
        _instruction(IF_EQUAL, int(socket.AF_UNIX), else_skip=1),
        _instruction(RETURN, ALLOW),
        _instruction(RETURN, FAIL_WITH | errno.EACCES),
    ]


def _instruction(code: int, operand: int, *, then_skip: int = 0, else_skip: int = 0) -> bytes:
    """Return one struct sock_filter; the skips count instructions to jump over."""
    # code, jump if true, jump if false, operand (linux/filter.h); jumps count instructions
    return struct.pack("=HBBI", code, then_skip, else_skip, operand)
