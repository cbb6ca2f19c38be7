"""One run's mount namespace: read-only but for the run's folders, with private temporary folders.

A mount namespace, made by `sandbox_launcher.py` as root with CAP_SYS_ADMIN: of the standard
library alone. It goes with the last process of the run, and with it what that left in
temporary folders, in shared memory and in System V objects.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence
from pathlib import Path

from gate.adapters.process.kernel_calls import checked, library, system_call

# linux/sched.h, linux/mount.h, linux/fcntl.h
CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWNET = 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x2, 0x4, 0x8
MS_BIND, MS_RECURSIVE, MS_PRIVATE = 0x1000, 0x4000, 0x40000
READ_ONLY, NO_ACCESS_TIMES, ALL_TIMES = 0x1, 0x10, 0x70
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
# the same number on x86_64 and aarch64
MOUNT_SETATTR = 442
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
HELD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - made private
TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - made private
# libraries name threads through files of /proc; all there that is not the account's own is root's
KERNEL_FILES = Path("/proc")


def show_at_place(place: tuple[Path, Path]) -> None:
    """Move this process into a view in which the first folder is seen at the second path.

    Nothing else changes. Raises `OSError` where kernel or container do not allow it.
    """
    _enter_own_mounts(CLONE_NEWNS)
    _show_folder(*place)


def make_view(
    writable: Sequence[Path],
    mounts: Sequence[tuple[Path, Path]] = (),
    place: tuple[Path, Path] | None = None,
    *,
    alone: bool = False,
    live: bool = False,
) -> None:
    """Move this process into a view of its own, in which only these folders keep what is written.

    `mounts` are pairs: what lies at the first path, with all that is mounted below it, is seen at
    the second too, read-only; `place` is one that stays writable, and that `writable` lies in. No
    time of access moves. With `alone` no other account's processes are seen, and no network, nor
    the sockets without a file that belong to one. With `live` temporary folders stay the machine's,
    read-only: a layer over them need not show what is written below it later (Changes to underlying
    filesystems, in the kernel's overlayfs.rst). Raises `OSError` where kernel (5.12) or container
    do not allow it.
    """
    # a namespace of System V objects too: they need no file, and outlive the process that made them
    _enter_own_mounts(CLONE_NEWNS | CLONE_NEWIPC | (CLONE_NEWNET if alone else 0))
    if place is not None:
        _show_folder(*place)
    if alone:
        _hide_processes()
    # taken hold of now: a layer may come to lie over them
    own = [(path, os.open(path, FOLDER)) for path in writable]
    shown = [(target, os.open(source, HELD)) for source, target in mounts]
    opened = [] if live else [path for path in TEMPORARY if _lay_over(path)]
    for path, folder in own:
        _bind(folder, path)
    # these lie in the others, which are bound by now
    for target, held in shown:
        _bind(held, target, MS_RECURSIVE)
    if SHARED_MEMORY.is_dir():
        room = os.statvfs(SHARED_MEMORY)
        _mount_memory(SHARED_MEMORY, f"mode=1777,size={room.f_blocks * room.f_frsize}")
        opened.append(SHARED_MEMORY)
    # after all mounts are made, since one that comes later would not be changed by it
    everything = READ_ONLY | NO_ACCESS_TIMES
    _change_mount(Path("/"), everything, ALL_TIMES, flags=AT_RECURSIVE)
    for path in (*writable, *opened, KERNEL_FILES):
        _change_mount(path, clear=READ_ONLY)


def _enter_own_mounts(namespaces: int) -> None:
    checked(library.unshare(namespaces))
    # a new namespace shares its mounts' events: without this
    # each mount below would reach the host (mount_namespaces(7))
    _change_mount(Path("/"), flags=AT_RECURSIVE, propagation=MS_PRIVATE)


def _show_folder(source: Path, target: Path) -> None:
    _bind(os.open(source, FOLDER), target)


def _hide_processes() -> None:
    """Show this account's own processes alone: their command lines are words to whoever reads."""
    # a container's engine lays empty files over some of the kernel's: they stay so
    below = [(path, os.open(path, HELD)) for path in _mounts_below(KERNEL_FILES)]
    # of this mount alone since Linux 5.8 (hidepid in proc(5))
    _mount("proc", KERNEL_FILES, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=2")
    for path, there in below:
        _bind(there, path)


def _lay_over(place: Path) -> bool:
    """Lay memory over a folder: what is there can be read, what is written goes with the view.

    False where the kernel has no overlays: the folder is then read-only.
    """
    if place.is_symlink() or not place.is_dir():
        return False
    lower = os.open(place, FOLDER)
    # an overlay does not show what is mounted below
    below = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in _mounts_below(place)]
    mode = stat.S_IMODE(place.stat().st_mode)
    _mount_memory(place, "mode=0755")
    for name in ("upper", "work"):
        (place / name).mkdir()
        (place / name).chmod(mode)
    # by descriptor: the path itself leads to the new memory from here on
    layers = f"lowerdir=/proc/self/fd/{lower},upperdir={place}/upper,workdir={place}/work"
    try:
        _mount("overlay", place, "overlay", MS_NOSUID | MS_NODEV, layers)
    except OSError:
        checked(library.umount2(os.fsencode(place), 0))
        return False
    finally:
        os.close(lower)
    for path, there in below:
        _bind(there, path)
    return True


def _mounts_below(place: Path) -> list[Path]:
    """Where something is mounted below a folder, outermost first."""
    rows = Path("/proc/self/mountinfo").read_bytes().splitlines()
    # the kernel writes blanks and backslashes there as octal escapes
    written = {row.split(b" ")[4].decode("unicode_escape").encode("latin-1") for row in rows}
    paths = (Path(os.fsdecode(path)) for path in written)
    return sorted(path for path in paths if path != place and path.is_relative_to(place))


def _bind(descriptor: int, path: Path, flags: int = 0) -> None:
    """Show at a path what a descriptor stands for, which is closed."""
    _mount(f"/proc/self/fd/{descriptor}", path, "", MS_BIND | flags)
    os.close(descriptor)


def _mount_memory(place: Path, options: str) -> None:
    _mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, options)


def _mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
    words = (source.encode(), os.fsencode(target), kind.encode())
    checked(library.mount(*words, flags, options.encode()))


def _change_mount(
    path: Path, add: int = 0, clear: int = 0, *, flags: int = 0, propagation: int = 0
) -> None:
    attributes = struct.pack("=QQQQ", add, clear, propagation, 0)
    place = os.fsencode(path)
    system_call(MOUNT_SETATTR, AT_FDCWD, place, flags, attributes, len(attributes))
