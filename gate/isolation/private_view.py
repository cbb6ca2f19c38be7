"""One run's view of the machine: read-only but for the run's folders, with its own everything else.

A mount namespace, made by `sandbox_launcher.py` as root with CAP_SYS_ADMIN: of the standard
library alone. It goes with the last process of the run, and with it what that left in
temporary folders, in shared memory and in System V objects.

A lock, a watch and a name in a list of terminals belong to an inode or to an instance of a file
system, so a read-only file that two runs see is a line between them. Hence `Own.FILES`: an overlay
over each file system that the run can reach gives it inodes of its own, without a copy.
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
# libraries name threads through files of /proc; all there that is not the account's own is root's
KERNEL_FILES = Path("/proc")
DRIVERS = KERNEL_FILES / "driver"
TERMINALS, TERMINAL_MAKER = Path("/dev/pts"), Path("/dev/ptmx")
KERNEL_LOG, NOTHING = Path("/dev/kmsg"), Path("/dev/null")
# few enough that no run can use up those of the machine (Documentation/filesystems/devpts.rst)
TERMINAL_OPTIONS = "newinstance,ptmxmode=0666,mode=0620,gid=5,max=256"
# How many of each the whole machine has: what one run opens another could count. Locks of open file
# descriptions belong to no process, so every namespace lists them (locks_show in fs/locks.c).
COUNTERS = tuple(
    KERNEL_FILES / name
    for name in (
        *("locks", "sys/kernel/pty/nr", "sys/fs/file-nr"),
        *("sys/fs/inode-nr", "sys/fs/inode-state", "sys/fs/dentry-state", "sys/fs/aio-nr"),
    )
)
# What each file system of the machine has written and has left, to the block. What is left of
# one's own statvfs(3) says too; of the control groups libraries read the limits.
COUNTING_FOLDERS = tuple(
    Path(name)
    for name in ("/proc/fs", "/sys/fs/btrfs", "/sys/fs/ext4", "/sys/fs/f2fs", "/sys/fs/xfs")
)
# what no training needs and no overlay can be laid over
LEFT_OUT = frozenset(
    (
        *("autofs", "binfmt_misc", "bpf", "configfs", "debugfs", "devpts", "efivarfs", "fusectl"),
        *("hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "tracefs"),
    )
)
# a file that an engine puts over one of the image's, such as /etc/hosts, is copied
MOST_COPIED_BYTES = 1024 * 1024


class Own:
    """What a run can have of its own, by the words of `gate.isolation.modes.Separation`."""

    PROCESSES = "processes"
    NETWORK = "network"
    TERMINALS = "terminals"
    FILES = "files"


class Account(NamedTuple):
    """Whom the view is for: what it cannot reach is left out."""

    uid: int
    groups: tuple[int, ...]


class Mounted(NamedTuple):
    """A file system, and where it is mounted."""

    path: Path
    kind: str


def enter_namespaces(own: Collection[str]) -> None:
    """Leave the machine's mounts, System V objects and host name, and what else is asked for.

    Of processes, only a child is in the new namespace. Raises `OSError` where kernel or container
    do not allow it.
    """
    # System V objects need no file, and outlive the process that made them
    asked = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS
    asked |= CLONE_NEWPID if Own.PROCESSES in own else 0
    asked |= CLONE_NEWNET if Own.NETWORK in own else 0
    _enter_own_mounts(asked)


def show_at_place(place: tuple[Path, Path]) -> None:
    """Move this process into a view in which the first folder is seen at the second path.

    Nothing else changes. Raises `OSError` where kernel or container do not allow it.
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
    """Change this namespace's mounts so that only these folders keep what is written.

    `mounts` are pairs: what lies at the first path, with all that is mounted below it, is seen at
    the second too, read-only; `place` is one that stays writable, and that `writable` is in.
    Without `writable` temporary folders are read-only too, and show what comes to be in them. No
    time of access moves. Raises `OSError` where kernel (5.12) or container do not allow it.
    """
    if place is not None:
        _show_folder(*place)
    # taken hold of now: a layer may come to lie over them
    held = [(path, os.open(path, FOLDER)) for path in (*(place or ())[1:], *writable)]
    masks = [mount for mount in _mounted() if mount.path in set(_mounts_below(KERNEL_FILES))]
    over = Own.FILES in own
    mine = tuple(path for path, _ in held)
    view = _Overlays(writable[0], mine, account, own) if over else None
    top = ROOT if view is None else view.root
    opened = [*view.opened] if view is not None else [
        # a layer need not show what is renamed below it from then on ("Changes to underlying
        # filesystems" in the kernel's overlayfs.rst), and who only reads needs none
        path for path in TEMPORARY if writable and _lay_over(path, path)
    ]  # fmt: skip
    shown = [] if view is None else [(view.shown(*pair), pair[1]) for pair in mounts]
    plain = mounts if view is None else ()
    shown += [(os.open(source, HELD), target) for source, target in plain]
    _show_kernel_files(top, masks, own)
    # the place first: the others are in it
    for path, folder in held:
        _bind(folder, _at(top, path))
    if SHARED_MEMORY.is_dir():
        room = os.statvfs(SHARED_MEMORY)
        size = room.f_blocks * room.f_frsize
        _mount_memory(_at(top, SHARED_MEMORY), f"mode=1777,size={size}")
        opened.append(SHARED_MEMORY)
    # these are in the others, which are bound by now
    for source, target in shown:
        _bind(source, _at(top, target), MS_RECURSIVE)
    if view is not None:
        view.enter()
    # after all mounts are made, since one that comes later would not be changed by it
    _change_mount(ROOT, READ_ONLY | NO_ACCESS_TIMES, ALL_TIMES, flags=AT_RECURSIVE)
    terminals = (TERMINALS,) if Own.TERMINALS in own else ()
    for path in (*writable, *opened, *terminals, KERNEL_FILES):
        _change_mount(path, clear=READ_ONLY)


class _Overlays:
    """A root of overlays over all that an account can reach, built on a folder that it covers.

    The kernel wants two layers where nothing is written: the lower one is empty.
    """

    def __init__(
        self, folder: Path, mine: tuple[Path, ...], account: Account, own: Collection[str]
    ) -> None:
        """`mine` are the run's own folders, which need no layer."""
        # device files of a container's engine are rebuilt in it
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
            # what it is mounted in is left out
            return
        if kind == "temporary":
            if not _lay_over(path, target):
                raise OSError(errno.EINVAL, f"no layer can be laid over {path}")
            self.opened.append(path)
        elif kind == "sysfs" and Own.NETWORK in own:
            # one for each network: it shows the devices of that alone
            _mount("sysfs", target, "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        elif path.is_dir():
            self._cover(path, target)
        else:
            _bind(self._file(path), target)

    def shown(self, source: Path, target: Path) -> int:
        """A copy of what is at a path, with inodes of its own, held; all below it with it."""
        del target
        if not source.is_dir():
            return os.open(self._covered(source.parent) / source.name, HELD)
        made = self._covered(source)
        for path in sorted(path for path in self._mounted if path.is_relative_to(source)):
            if path != source:
                self._cover(path, made / path.relative_to(source))
        return os.open(made, HELD)

    def enter(self) -> None:
        """Make it the root of all that are in this namespace; nothing leads back to the other."""
        os.chdir(self.root)
        # the new root comes to lie over the old one, which is then taken away (pivot_root(2))
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
        # by descriptor: a path may have a colon, and may be covered
        layers = f"lowerdir=/proc/self/fd/{lower}:/proc/self/fd/{empty}"
        try:
            _mount("overlay", target, "overlay", MS_NOSUID | kept, layers)
        except OSError as fault:
            raise OSError(fault.errno, f"{fault.strerror}: an overlay over {source}") from fault
        finally:
            os.close(lower)
            os.close(empty)

    def _file(self, path: Path) -> int:
        """A node or copy of a file that is mounted by itself."""
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
    # a new namespace shares its mounts' events: without this
    # each mount below would reach the host (mount_namespaces(7))
    _change_mount(ROOT, flags=AT_RECURSIVE, propagation=MS_PRIVATE)


def _show_folder(source: Path, target: Path) -> None:
    _bind(os.open(source, FOLDER), target)


def _at(top: Path, path: Path) -> Path:
    """Where the place of a path is while a root is built."""
    return top / path.relative_to(ROOT)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _can_reach(path: Path, account: Account) -> bool:
    """Whether the account may pass every folder on the way, a folder at its end included."""
    way = (*path.parents, path) if path.is_dir() else tuple(path.parents)
    return all(_may_enter(folder.stat(), account) for folder in way)


def _may_enter(facts: os.stat_result, account: Account) -> bool:
    # the first class that fits decides (path_resolution(7))
    if facts.st_uid == account.uid:
        return bool(facts.st_mode & stat.S_IXUSR)
    if facts.st_gid in account.groups:
        return bool(facts.st_mode & stat.S_IXGRP)
    return bool(facts.st_mode & stat.S_IXOTH)


def _show_kernel_files(top: Path, masks: Sequence[Mounted], own: Collection[str]) -> None:
    """The run's own processes, terminals and network alone, and no count of other runs' things."""
    place, log = _at(top, KERNEL_FILES), _at(top, KERNEL_LOG)
    if Own.PROCESSES in own:
        # a new instance shows the namespace of whoever mounts it alone, see pid_namespaces(7)
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
    """A container's engine lays empty folders and files over some of the kernel's: they stay so.

    Not by what it laid there, which other runs see too. What it shows of a driver in another way,
    and what it made read-only, is the kernel's own here, and root's.
    """
    if mask.kind in LEFT_OUT or mask.path.is_relative_to(DRIVERS) or not target.exists():
        return
    if target.is_dir():
        _mount_memory(target, "mode=0555")
    elif mask.kind.startswith("fuse"):
        # numbers of a container's own, such as those of lxcfs, that no copy could follow
        raise OSError(errno.EFBIG, f"{mask.path} is mounted by itself and cannot be copied")
    else:
        _bind(os.open(nothing, HELD), target)


def _lay_over(place: Path, target: Path) -> bool:
    """Lay memory over a folder: what is there can be read, what is written goes with the view.

    It is seen at `target`. False where the kernel has no overlays: the folder is then read-only.
    """
    if not _is_folder(place):
        return False
    lower = os.open(place, FOLDER)
    # an overlay does not show what is mounted below
    below = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in _mounts_below(place)]
    mode = stat.S_IMODE(place.stat().st_mode)
    _mount_memory(target, "mode=0755")
    for name in ("upper", "work"):
        (target / name).mkdir()
        (target / name).chmod(mode)
    # by descriptor: the path itself leads to the new memory from here on
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
    """All that is mounted, the lowest first where several are mounted at one path."""
    rows = Path("/proc/self/mountinfo").read_bytes().splitlines()
    return [
        Mounted(
            # the kernel writes blanks and backslashes there as octal escapes
            Path(os.fsdecode(row.split(b" ")[4].decode("unicode_escape").encode("latin-1"))),
            row.rpartition(b" - ")[2].split(b" ")[0].decode(),
        )
        for row in rows
    ]


def _mounts_below(place: Path) -> list[Path]:
    """Where something is mounted below a folder, outermost first."""
    paths = {mount.path for mount in _mounted()}
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
