"""System calls for which Python has no function, Landlock among them.

`sandbox_launcher.py` uses this module, so it imports the standard library alone, and nothing after
an account is changed. Landlock does not refuse new times, permissions or locks of a file or folder
if the file's own permissions allow them.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

library = ctypes.CDLL(None, use_errno=True)


def system_call(number: int, *arguments: int | bytes | None) -> int:
    """Make a call for which the C library has no function either; raises `OSError` if it fails."""
    # ctypes passes a bare int as 32 bits, and syscall(2) takes long words
    words = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments
    ]
    return checked(library.syscall(ctypes.c_long(number), *words))


def checked(answer: int) -> int:
    """Return the answer of a C function; raises `OSError` if it is negative."""
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


# the same numbers on x86_64 and aarch64
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
# linux/landlock.h: bits 4 to 12 are removing and creating entries of all kinds
ASK_VERSION, BELOW_A_PATH = 1, 1
WRITE_FILE, REMOVE_FILE, MAKE_FILE, CHANGE_ENTRIES = 1 << 1, 1 << 5, 1 << 8, 0x1FF0
# later rights to write, by the version of Landlock that added them: REFER, TRUNCATE
LATER_RIGHTS = {2: 1 << 13, 3: 1 << 14}
TRUNCATE = LATER_RIGHTS[3]
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - of processes of one run; accounts.py empties it
# must stay writable, because libraries name threads through files of /proc; everything there that
# is not the account's own belongs to root
KERNEL_FILES = "/proc"
# device files that programs and accelerator libraries open for writing, by prefix
DEVICES = (
    *("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "dri", "kfd", "dxg"),
    *("nvidia", "nvhost", "nvmap", "nvgpu", "nvsciipc", "accel", "infiniband"),
)


def write_only_below(folders: Iterable[str], *, shared_memory: bool = True) -> None:
    """Forbid this process and its children to write outside these folders; reading is unaffected.

    With `shared_memory`, files can be created in /dev/shm, but no folders. Needs `no_new_privs`.
    Before version 2 of Landlock (Linux 5.19) no file can be moved to another folder. Before version
    3 (6.2) truncating is not refused. Raises `OSError` where the kernel has no Landlock (before
    5.13).
    """
    version = system_call(CREATE_RULESET, None, 0, ASK_VERSION)
    later = sum(right for since, right in LATER_RIGHTS.items() if version >= since)
    # a kernel refuses rights that it does not know as EINVAL, so ask only for those of its version
    everything = WRITE_FILE | CHANGE_ENTRIES | later
    of_a_file = everything & (WRITE_FILE | TRUNCATE)
    # a right that the ruleset does not handle stays allowed everywhere; one that it handles is
    # refused except where a rule allows it
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
        # a rule refers to the folder itself, so a later rename does not move it
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        # absent on this machine, so nothing can be written there
        return
    # packed as the kernel declares it: 12 bytes, without padding (linux/landlock.h)
    rule = struct.pack("=Qi", rights, place)
    system_call(ADD_RULE, rules, BELOW_A_PATH, rule, 0)
    os.close(place)
