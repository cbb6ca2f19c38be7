"""A run's private view of the machine: read-only except for the run's folders.

`sandbox_launcher.py` builds the view in a mount namespace, as root with CAP_SYS_ADMIN, so this
module imports the standard library alone. The view ends with the last process of the run. With it
goes what the run left in temporary folders, in shared memory and in System V objects.

A lock, a watch and a name in a list of terminals belong to an inode or to an instance of a file
system. So two runs that see the same file, even read-only, can communicate through it. `Own.FILES`
therefore puts an overlay over each file system that the run can reach. The overlay has its own
inodes and needs no copy.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from gate.isolation.kernel_calls import checked, library, system_call

# linux/sched.h, linux/mount.h, linux/fcntl.h
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x2, 0x4, 0x8
MS_BIND, MS_RECURSIVE, MS_PRIVATE, DETACH = 0x1000, 0x4000, 0x40000, 0x2
READ_ONLY, NO_ACCESS_TIMES, ALL_TIMES = 0x1, 0x10, 0x70
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
# the same number on x86_64 and aarch64
MOUNT_SETATTR = 442
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
HELD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
ROOT = Path("/")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - made private
TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - made private
# must stay writable, because libraries name threads through files of /proc; everything there that
# is not the account's own belongs to root
KERNEL_FILES = Path("/proc")
DRIVERS = KERNEL_FILES / "driver"
TERMINALS, TERMINAL_MAKER = Path("/dev/pts"), Path("/dev/ptmx")
KERNEL_LOG, NOTHING = Path("/dev/kmsg"), Path("/dev/null")
# a limit, so that no run uses up the machine's terminals (Documentation/filesystems/devpts.rst)
TERMINAL_OPTIONS = "newinstance,ptmxmode=0666,mode=0620,gid=5,max=256"
# Counts over the whole machine: what one run opens, another could count. Locks of open file
# descriptions belong to no process, so every namespace lists them (locks_show in fs/locks.c).
COUNTERS = tuple(
    KERNEL_FILES / name
    for name in (
        *("locks", "sys/kernel/pty/nr", "sys/fs/file-nr"),
        *("sys/fs/inode-nr", "sys/fs/inode-state", "sys/fs/dentry-state", "sys/fs/aio-nr"),
    )
)
# Folders that show, to the block, what each file system has written and has free. They are hidden,
# although statvfs(3) shows the free space of a run's own file system anyway. Control groups stay
# visible, because libraries read their limits there.
COUNTING_FOLDERS = tuple(
    Path(name)
    for name in ("/proc/fs", "/sys/fs/btrfs", "/sys/fs/ext4", "/sys/fs/f2fs", "/sys/fs/xfs")
)
# kinds of file system that no training needs and no overlay can cover
LEFT_OUT = frozenset(
    (
        *("autofs", "binfmt_misc", "bpf", "configfs", "debugfs", "devpts", "efivarfs", "fusectl"),
        *("hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "tracefs"),
    )
)
# an engine mounts files over some of the image's, such as /etc/hosts; up to this size they are
# copied
MOST_COPIED_BYTES = 1024 * 1024


class Own:
    """What a run can have for itself, in the words of `gate.isolation.modes.Separation`."""

    PROCESSES = "processes"
    NETWORK = "network"
    TERMINALS = "terminals"
    FILES = "files"


class Account(NamedTuple):
    """The account that the view is for; the view leaves out what this account cannot reach."""

    uid: int
    groups: tuple[int, ...]


class Mounted(NamedTuple):
    """A mounted file system: its mount point and its type, such as overlay."""

    path: Path
    kind: str


def enter_namespaces(own: Collection[str]) -> None:
    """Move this process into new mount, IPC and host name namespaces, and those that `own` adds.

    A new PID namespace takes effect for children only. Raises `OSError` where the kernel or the
    container forbids it.
    """
    # System V objects need no file and outlive the process that created them
    asked = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS
    asked |= CLONE_NEWPID if Own.PROCESSES in own else 0
    asked |= CLONE_NEWNET if Own.NETWORK in own else 0
    _enter_own_mounts(asked)


def show_at_place(place: tuple[Path, Path]) -> None:
    """Move this process into a mount namespace that shows the first folder at the second path.

    Nothing else changes. Raises `OSError` where the kernel or the container forbids it.
    """
    _enter_own_mounts(CLONE_NEWNS)
    _show_folder(*place)


def make_view(
    writable: Sequence[Path],
    mounts: Sequence[tuple[Path, Path]],
    place: tuple[Path, Path] | None,
    own: Collection[str],
    account: Account,
) -> None:
    """Remount this namespace so that only the `writable` folders keep what is written.

    `mounts` are pairs (source, target): the source, with everything mounted below it, is shown
    read-only at the target. `place` is such a pair that stays writable and contains the `writable`
    folders. Without `writable` the process only reads: temporary folders are read-only, and new
    files in them become visible. Access times never change. Raises `OSError` where the kernel
    (before 5.12) or the container forbids it.
    """
    if place is not None:
        _show_folder(*place)
    # open the folders now: an overlay may cover their paths later
    held = [(path, os.open(path, FOLDER)) for path in (*(place or ())[1:], *writable)]
    # recorded before the new /proc covers them
    masks = [mount for mount in _mounted() if mount.path in set(_mounts_below(KERNEL_FILES))]
    over = Own.FILES in own
    mine = tuple(path for path, _ in held)
    view = _Overlays(writable[0], mine, account, own) if over else None
    top = ROOT if view is None else view.root
    opened = [*view.opened] if view is not None else [
        # an overlay need not show what is renamed below it later ("Changes to underlying
        # filesystems" in the kernel's overlayfs.rst), and a process that only reads needs no
        # overlay
        path for path in TEMPORARY if writable and _lay_over(path, path)
    ]  # fmt: skip
    shown = [] if view is None else [(view.shown(*pair), pair[1]) for pair in mounts]
    plain = mounts if view is None else ()
    shown += [(os.open(source, HELD), target) for source, target in plain]
    _show_kernel_files(top, masks, own)
    # the place comes first, because the writable folders are in it
    for path, folder in held:
        _bind(folder, _at(top, path))
    if SHARED_MEMORY.is_dir():
        room = os.statvfs(SHARED_MEMORY)
        size = room.f_blocks * room.f_frsize
        _mount_memory(_at(top, SHARED_MEMORY), f"mode=1777,size={size}")
        opened.append(SHARED_MEMORY)
    # these targets are inside the folders that are bound by now
    for source, target in shown:
        _bind(source, _at(top, target), MS_RECURSIVE)
    if view is not None:
        view.enter()
    # after all mounts are made: one made after this call would stay writable
    _change_mount(ROOT, READ_ONLY | NO_ACCESS_TIMES, ALL_TIMES, flags=AT_RECURSIVE)
    terminals = (TERMINALS,) if Own.TERMINALS in own else ()
    for path in (*writable, *opened, *terminals, KERNEL_FILES):
        _change_mount(path, clear=READ_ONLY)


class _Overlays:
    """A new root built of overlays over everything that the account can reach.

    It is built in memory that is mounted over one of the run's folders. The kernel demands two
    layers for an overlay without an upper one, so an empty folder is added to each.
    """

    def __init__(
        self, folder: Path, mine: tuple[Path, ...], account: Account, own: Collection[str]
    ) -> None:
        """Cover every mount that the account can reach, except the run's own folders, `mine`."""
        # no MS_NODEV here: device files that a container's engine mounted are recreated in this
        # memory
        _mount("tmpfs", folder, "tmpfs", MS_NOSUID, "mode=0755")
        self._folder = folder
        self.root, self._empty = folder / "root", folder / "empty"
        for path in (self.root, self._empty):
            path.mkdir()
        self._made = 0
        self.opened: list[Path] = []
        mounted = {mount.path: mount.kind for mount in _mounted()}
        mounted |= {path: "temporary" for path in TEMPORARY if _is_folder(path)}
        self._mounted = mounted
        for path, kind in sorted(mounted.items()):
            ours = any(path.is_relative_to(path_allowed) for path_allowed in (*mine, SHARED_MEMORY))
            if kind in LEFT_OUT or ours or not _can_reach(path, account):
                continue
            self._add(path, kind, own)

    def _add(self, path: Path, kind: str, own: Collection[str]) -> None:
        target = _at(self.root, path)
        if not target.exists():
            # the mount around this one is left out of the view, and so is this one
            return
        if kind == "temporary":
            if not _lay_over(path, target):
                raise OSError(errno.EINVAL, f"no layer can be laid over {path}")
            self.opened.append(path)
        elif kind == "sysfs" and Own.NETWORK in own:
            # a new sysfs instance shows only the devices of this network namespace
            _mount("sysfs", target, "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        elif path.is_dir():
            self._cover(path, target)
        else:
            _bind(self._file(path), target)

    def shown(self, source: Path, target: Path) -> int:
        """Return a descriptor of a copy of `source` and of all mounts below it, with new inodes."""
        del target
        if not source.is_dir():
            return os.open(self._covered(source.parent) / source.name, HELD)
        made = self._covered(source)
        for path in sorted(path for path in self._mounted if path.is_relative_to(source)):
            if path != source:
                self._cover(path, made / path.relative_to(source))
        return os.open(made, HELD)

    def enter(self) -> None:
        """Make the new root the root of all processes in this namespace, and detach the old one."""
        os.chdir(self.root)
        # pivot_root(2) with the same folder twice stacks the old root on the new one; the unmount
        # then removes the old root, so no process in the view can get back to it
        checked(library.syscall(ctypes.c_long(PIVOT_ROOT[os.uname().machine]), b".", b"."))
        checked(library.umount2(b".", DETACH))
        os.chdir(ROOT)

    def _covered(self, source: Path) -> Path:
        made = self._next()
        made.mkdir()
        self._cover(source, made)
        return made

    def _cover(self, source: Path, target: Path) -> None:
        lower, empty = os.open(source, FOLDER), os.open(self._empty, FOLDER)
        kept = os.statvfs(source).f_flag & (MS_NODEV | MS_NOEXEC)
        # by descriptor: a path may contain a colon, which separates layers, and may be covered by
        # now
        layers = f"lowerdir=/proc/self/fd/{lower}:/proc/self/fd/{empty}"
        try:
            _mount("overlay", target, "overlay", MS_NOSUID | kept, layers)
        except OSError as fault:
            raise OSError(fault.errno, f"{fault.strerror}: an overlay over {source}") from fault
        finally:
            os.close(lower)
            os.close(empty)

    def _file(self, path: Path) -> int:
        """Return a descriptor of a new device node or copy of a file that is mounted by itself."""
        made, facts = self._next(), path.stat()
        if stat.S_ISCHR(facts.st_mode):
            os.mknod(made, facts.st_mode, facts.st_rdev)
        elif stat.S_ISREG(facts.st_mode) and facts.st_size <= MOST_COPIED_BYTES:
            made.write_bytes(path.read_bytes())
        else:
            raise OSError(errno.EFBIG, f"{path} is mounted by itself and cannot be copied")
        os.chown(made, facts.st_uid, facts.st_gid)
        made.chmod(stat.S_IMODE(facts.st_mode))
        return os.open(made, HELD)

    def _next(self) -> Path:
        self._made += 1
        return self._folder / str(self._made)


def _enter_own_mounts(namespaces: int) -> None:
    checked(library.unshare(namespaces))
    # a new namespace still shares mount events with its parent: unless they are made private, each
    # mount below would reach the host (mount_namespaces(7))
    _change_mount(ROOT, flags=AT_RECURSIVE, propagation=MS_PRIVATE)


def _show_folder(source: Path, target: Path) -> None:
    _bind(os.open(source, FOLDER), target)


def _at(top: Path, path: Path) -> Path:
    """Return where a path is in the new root while that root is still being built."""
    return top / path.relative_to(ROOT)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _can_reach(path: Path, account: Account) -> bool:
    """Return whether the account may enter each folder on the way, and `path` if it is a folder."""
    way = (*path.parents, path) if path.is_dir() else tuple(path.parents)
    return all(_may_enter(folder.stat(), account) for folder in way)


def _may_enter(facts: os.stat_result, account: Account) -> bool:
    # the first matching class decides, as in the kernel (path_resolution(7))
    if facts.st_uid == account.uid:
        return bool(facts.st_mode & stat.S_IXUSR)
    if facts.st_gid in account.groups:
        return bool(facts.st_mode & stat.S_IXGRP)
    return bool(facts.st_mode & stat.S_IXOTH)


def _show_kernel_files(top: Path, masks: Sequence[Mounted], own: Collection[str]) -> None:
    """Mount a /proc and terminals that show this run alone, and hide machine-wide counts."""
    place, log = _at(top, KERNEL_FILES), _at(top, KERNEL_LOG)
    if Own.PROCESSES in own:
        # a new /proc instance shows only the PID namespace of the process that
        # mounts it (pid_namespaces(7))
        _mount("proc", place, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        for mask in masks:
            _hide_as_before(mask, _at(top, mask.path), _at(top, NOTHING))
        counters = (path for path in COUNTERS if path.exists())
        for path in (*counters, *((KERNEL_LOG,) if log.exists() else ())):
            _bind(os.open(_at(top, NOTHING), HELD), _at(top, path))
        for folder in (_at(top, path) for path in COUNTING_FOLDERS):
            if folder.is_dir():
                _mount_memory(folder, "mode=0555")
    elif top != ROOT:
        _bind(os.open(KERNEL_FILES, FOLDER), place, MS_RECURSIVE)
    terminals, maker = _at(top, TERMINALS), _at(top, TERMINAL_MAKER)
    if Own.TERMINALS in own:
        _mount("devpts", terminals, "devpts", MS_NOSUID | MS_NOEXEC, TERMINAL_OPTIONS)
        if not maker.is_symlink():
            _bind(os.open(terminals / "ptmx", HELD), maker)
    elif top != ROOT and TERMINALS.is_dir():
        _bind(os.open(TERMINALS, FOLDER), terminals)


def _hide_as_before(mask: Mounted, target: Path, nothing: Path) -> None:
    """Hide again what a container's engine hides in /proc with empty files and folders.

    The engine's own file or folder is not used, because other runs see it too. Drivers that the
    engine shows differently, and files that it made read-only, need nothing: in the new /proc they
    are the kernel's own and writable by root alone.
    """
    if mask.kind in LEFT_OUT or mask.path.is_relative_to(DRIVERS) or not target.exists():
        return
    if target.is_dir():
        _mount_memory(target, "mode=0555")
    elif mask.kind.startswith("fuse"):
        # files of FUSE, such as those of lxcfs, compute a container's numbers; no copy could follow
        # them
        raise OSError(errno.EFBIG, f"{mask.path} is mounted by itself and cannot be copied")
    else:
        _bind(os.open(nothing, HELD), target)


def _lay_over(place: Path, target: Path) -> bool:
    """Mount an overlay of `place` at `target` that keeps changes in memory, for this view only.

    Return False where the kernel has no overlays: the folder then stays read-only.
    """
    if not _is_folder(place):
        return False
    lower = os.open(place, FOLDER)
    # an overlay does not show mounts below its lower folder, so they are bound again afterwards
    below = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in _mounts_below(place)]
    mode = stat.S_IMODE(place.stat().st_mode)
    _mount_memory(target, "mode=0755")
    for name in ("upper", "work"):
        (target / name).mkdir()
        (target / name).chmod(mode)
    # by descriptor: the path itself now leads to the new memory
    layers = f"lowerdir=/proc/self/fd/{lower},upperdir={target}/upper,workdir={target}/work"
    try:
        _mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, layers)
    except OSError:
        checked(library.umount2(os.fsencode(target), 0))
        return False
    finally:
        os.close(lower)
    for path, there in below:
        if target == place:
            _bind(there, path)
        else:
            os.close(there)
    return True


def _mounted() -> list[Mounted]:
    """Return all mounts; of several at one path, the one that covers the others comes last."""
    rows = Path("/proc/self/mountinfo").read_bytes().splitlines()
    return [
        Mounted(
            # the kernel escapes blanks and backslashes in this file as octal numbers
            Path(os.fsdecode(row.split(b" ")[4].decode("unicode_escape").encode("latin-1"))),
            row.rpartition(b" - ")[2].split(b" ")[0].decode(),
        )
        for row in rows
    ]


def _mounts_below(place: Path) -> list[Path]:
    """Return the mount points below a folder, outermost first."""
    paths = {mount.path for mount in _mounted()}
    return sorted(path for path in paths if path != place and path.is_relative_to(place))


def _bind(descriptor: int, path: Path, flags: int = 0) -> None:
    """Show what a descriptor refers to at a path, and close the descriptor."""
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
