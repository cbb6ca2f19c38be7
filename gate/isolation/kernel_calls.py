"""System calls that Python has no function for, Landlock among them.

For `sandbox_launcher.py`: of the standard library alone, and nothing is imported once an account
is changed. What the kernel does not refuse by it: new times, permissions and locks
of a file or folder whose own permissions allow that.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

library = ctypes.CDLL(None, use_errno=True)


def system_call(number: int, *arguments: int | bytes | None) -> int:
    """Make a call that the C library has no function for either; `OSError` when it fails."""
    # an int alone would be passed as 32 bits, and syscall(2) takes long words
    words = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments
    ]
    return checked(library.syscall(ctypes.c_long(number), *words))


def checked(answer: int) -> int:
    """The answer of a function of the C library; `OSError` when it is negative."""
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


# the same numbers on x86_64 and aarch64
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
# linux/landlock.h: removing and making entries of all kinds are bits 4 to 12
ASK_VERSION, BELOW_A_PATH = 1, 1
WRITE_FILE, REMOVE_FILE, MAKE_FILE, CHANGE_ENTRIES = 1 << 1, 1 << 5, 1 << 8, 0x1FF0
# further rights to write, by the version of Landlock that brought them: REFER, TRUNCATE
LATER_RIGHTS = {2: 1 << 13, 3: 1 << 14}
TRUNCATE = LATER_RIGHTS[3]
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - of processes of one run; residue.py empties it
# libraries name threads through files of /proc; all there that is not the account's own is root's
KERNEL_FILES = "/proc"
# what programs and libraries for accelerators open to write, by the first letters
DEVICES = (
    *("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "dri", "kfd", "dxg"),
    *("nvidia", "nvhost", "nvmap", "nvgpu", "nvsciipc", "accel", "infiniband"),
)


def write_only_below(folders: Iterable[str], *, shared_memory: bool = True) -> None:
    """Refuse this process, and all that it starts, to write elsewhere; reading stays as it is.

    With `shared_memory` files can be made below /dev/shm, but no folders. Needs `no_new_privs`.
    Before version 2 (Linux 5.19) no file can be moved to another folder, before 3 (6.2) truncating
    is not refused. Raises `OSError` where the kernel has no Landlock (5.13).
    """
    version = system_call(CREATE_RULESET, None, 0, ASK_VERSION)
    later = sum(right for since, right in LATER_RIGHTS.items() if version >= since)
    # a right that a kernel does not know is refused as EINVAL, so only those of its version are
    # asked for
    everything = WRITE_FILE | CHANGE_ENTRIES | later
    of_a_file = everything & (WRITE_FILE | TRUNCATE)
    # a right that is not handled stays allowed everywhere; one that is handled is refused but for
    # rules
    handled = struct.pack("=Q", everything)
    rules = system_call(CREATE_RULESET, handled, len(handled), 0)
    for path in folders:
        _allow(rules, path, everything)
    if shared_memory:
        _allow(rules, SHARED_MEMORY, of_a_file | MAKE_FILE | REMOVE_FILE)
    _allow(rules, KERNEL_FILES, of_a_file)
    with os.scandir("/dev") as devices:
        for device in devices:
            if device.name.startswith(DEVICES):
                _allow(rules, device.path, of_a_file)
    system_call(RESTRICT_SELF, rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        # a rule holds the folder itself, so a later rename does not move it
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        # not on this machine, so nothing can be written there
        return
    # packed as the kernel declares it: 12 bytes, without padding (linux/landlock.h)
    rule = struct.pack("=Qi", rights, place)
    system_call(ADD_RULE, rules, BELOW_A_PATH, rule, 0)
    os.close(place)
