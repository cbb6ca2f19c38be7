"""Finds out by trying whether trainings can run under separate accounts, GPUs included."""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gate.errors import RunError
from gate.isolation.accounts import FILE_FOLDERS, acquire_uid, release_uid
from gate.isolation.modes import (
    Credentials,
    Isolation,
    IsolationMode,
    IsolationSettings,
    Separation,
    WriteGuard,
)
from gate.isolation.page_cache import PROOF_BYTES, cache_left_by, new_proof
from gate.isolation.process_request import PrivateFolder, Processes, ProcessRequest
from gate.isolation.process_table import processes
from gate.isolation.restricted_paths import EVERYWHERE, WritablePaths, find_writable_paths
from gate.isolation.sandboxed_start import first_blocked_folder
from gate.system.files import trees, writing
from gate.text.phrases import joined
from gate.text.untrusted_text import safe_line

DEVICES = Path("/dev")
# device files that CUDA opens to read and write, and those that it only reads: the capabilities of
# a GPU slice (MIG)
_OPENED = re.compile(r"nvidia(?:ctl|-uvm|-uvm-tools|[0-9]+)")
_READ = re.compile(r"nvidia-cap[0-9]+")
# the driver's setuid program; `no_new_privs` keeps a training from using it, so the gate calls it
# first
MAKER = Path("/usr/bin/nvidia-modprobe")
MAKE_ALL = ("-c", "0", "-u")
MAKER_SECONDS = 30.0
# membership in the group of one of these files would allow more than using a GPU
NEVER_GIVEN = tuple(
    Path(name)
    for name in (
        *("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock"),
        *("/run/podman/podman.sock", "/etc/shadow", "/etc/sudoers", "/dev/mem", "/dev/kmem"),
        *("/dev/kvm", "/dev/fuse", "/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/tty1"),
    )
)


def make_device_files(devices: Path = DEVICES, maker: Path = MAKER) -> bool:
    """Have the driver's program create missing device files, as root; return whether it was called.

    Without nvidia-persistenced, /dev/nvidia-uvm does not exist until root first uses CUDA. A
    failure of the program is ignored here: a missing file is reported when the training needs it.
    """
    if not (devices / "nvidiactl").exists() or (devices / "nvidia-uvm").exists():
        return False
    if os.geteuid() != 0 or not maker.is_file():
        return False
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            (str(maker), *MAKE_ALL),
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=MAKER_SECONDS,
        )
    return True


def gpu_file_groups(
    devices: Path = DEVICES, never: Iterable[Path] = NEVER_GIVEN, *, socket: str = ""
) -> tuple[int, ...]:
    """Return the groups that another account needs to open GPU device files, sorted.

    Root's group, the gate's own, the group of the engine's `socket` and groups that open more than
    a GPU are never included.
    """
    # root's and the gate's own group would open files that are closed to other accounts
    guarded = {0, os.getegid()}
    for path in (*never, *((Path(socket),) if socket else ())):
        with suppress(OSError):
            guarded.add(path.stat().st_gid)
    groups = {gid for path in _files(devices) if (gid := _opening_group(path)) is not None}
    return tuple(sorted(groups - guarded))


def _files(devices: Path) -> list[Path]:
    paths: list[Path] = []
    for folder in (devices, devices / "nvidia-caps"):
        with suppress(OSError):
            paths += folder.iterdir()
    return [path for path in paths if _OPENED.fullmatch(path.name) or _READ.fullmatch(path.name)]


def _opening_group(path: Path) -> int | None:
    """Return the group that may open a file while other accounts may not, or None."""
    needed = stat.S_IROTH if _READ.fullmatch(path.name) else stat.S_IROTH | stat.S_IWOTH
    with suppress(OSError):
        facts = path.stat()
        if facts.st_mode & needed != needed and facts.st_mode >> 3 & needed == needed:
            return facts.st_gid
    return None


# a range that systemd does not assign by itself: systemd.io/UIDS-GIDS
ACCOUNTS = range(61001, 61184)
PROBE_SECONDS = 20.0
PROBE_OUTPUT_BYTES = 4096
PROBE_ANSWER = b"isolated"
ROOT_HINT = "Run the gate as root with an interpreter and folders that every account may read."
# This program runs under the separate account, so it reports what a training would be.
PROBE = """
import os, sys
for folder in sys.argv[3:]:
    os.listdir(folder)
try: open(sys.argv[2] + "/word", "w").close()
except OSError: pass
uid = int(sys.argv[1].split(",")[0])
groups = {int(group) for group in sys.argv[1].split(",")[1:]}
ids = {*os.getresuid(), *os.getresgid()}
status = open("/proc/self/status").read()
sandboxed = "NoNewPrivs:\\t1" in status and "Seccomp:\\t2" in status
itself = ids == {uid} and {*os.getgroups()} - {uid} == groups
ids |= {*os.getgroups()}
print("isolated" if itself and sandboxed else f"ids are {sorted(ids)}, sandboxed: {sandboxed}")
"""
APART = "the training runs under a separate account"
NO_NETWORK = "without network access"
NETWORK_OPEN = "with network access (isolation.network)"
GUARDED = {
    WriteGuard.MOUNT_NAMESPACE: "a mount namespace shows it the machine read-only",
    WriteGuard.LANDLOCK: "Landlock keeps it from writing outside its folders",
    WriteGuard.NONE: "permissions alone keep it from writing elsewhere, since neither a mount "
    "namespace (CAP_SYS_ADMIN) nor Landlock is available",
}
ON_DISK = Path("/var/tmp")  # noqa: S108 - a new folder in it
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - judged, not used
# Landlock lets a run write in these unless that opens a way to the next run
TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - judged, not used


def choose_isolation(
    asked: IsolationSettings,
    processes: Processes,
    interpreter: str,
    folders: Sequence[Path],
    groups: tuple[int, ...] = (),
) -> Isolation:
    """Return the strongest isolation that the settings allow and the machine supports.

    `interpreter` is the Python that trains, and `folders` are those that it must be able to list.
    Both are tried under the separate account, which this process then holds. `groups` own GPU
    device files and are given to the account. The result includes the reason for the choice. Raises
    `RunError` if `uid` was asked for and is not possible, and if this machine cannot provide
    `isolation.minimum`.
    """
    isolation = _strongest(asked, processes, interpreter, folders, groups)
    if isolation.mode.strength < asked.minimum.strength:
        raise RunError(
            f"isolation.minimum is {asked.minimum.value}, but {isolation.reason}",
            hint=ROOT_HINT,
        )
    return isolation


def _strongest(
    asked: IsolationSettings,
    processes: Processes,
    interpreter: str,
    folders: Sequence[Path],
    groups: tuple[int, ...],
) -> Isolation:
    if asked.mode is IsolationMode.NONE:
        return _not_isolated("isolation.mode is none")

    def try_it(account: Credentials) -> str:
        return _obstacle(account, processes, interpreter, folders)

    account = unused_account() if os.geteuid() == 0 else None
    obstacle = _why_no_account(os.geteuid())
    if account is not None:
        # strongest first; each is tried, because no version number shows what a container allows
        for guard in WriteGuard:
            guarded = replace(account, guard=guard, groups=groups)
            separations = _wanted_separations(guard, network=asked.network)
            obstacle = try_it(replace(guarded, own=separations))
            shares = ""
            if obstacle and separations:
                shares, obstacle = obstacle, try_it(guarded)
                # all together failed, so try them one by one: a kernel may lack a single one
                separations = tuple(
                    separation
                    for separation in (separations if not obstacle else ())
                    if not try_it(replace(guarded, own=(separation,)))
                )
            if not obstacle and guard is WriteGuard.MOUNT_NAMESPACE:
                cache = _cache_stays(replace(guarded, own=(Separation.CACHE,)), processes)
                separations = separations if cache else (*separations, Separation.CACHE)
                shares = "; ".join(dict.fromkeys(filter(None, (shares, cache))))
            if not obstacle:
                isolation = _isolated(
                    replace(guarded, own=separations), shares, network=asked.network
                )
                return replace(isolation, shares=shares)
        release_uid(account.uid)
    if asked.mode is IsolationMode.UID:
        raise RunError(
            f"isolation.mode is uid, but {obstacle}",
            hint=f"{ROOT_HINT} Or set isolation.mode to none.",
        )
    return _not_isolated(obstacle)


def _wanted_separations(guard: WriteGuard, *, network: bool) -> tuple[Separation, ...]:
    """Return what each run should have for itself; only a mount namespace can show a run its own.

    The cache is tested separately, see `_cache_stays`.
    """
    if guard is not WriteGuard.MOUNT_NAMESPACE:
        return ()
    lacks = {Separation.CACHE, *((Separation.NETWORK,) if network else ())}
    return tuple(separation for separation in Separation if separation not in lacks)


def unused_account(accounts: range = ACCOUNTS) -> Credentials | None:
    """Return an account without a name or a process, and hold it until `release_uid`.

    Two gates never hold the same account, because each ends every process of its account. The
    search starts at a place that depends on the gate's process id, so that gates seldom try the
    same one. Return None if all are in use.
    """
    named = {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}
    offset = os.getpid() % len(accounts)
    for uid in (*accounts[offset:], *accounts[:offset]):
        if uid in named or not acquire_uid(uid):
            continue
        # check after the lock: processes left by a killed gate live on without one
        if not any(uid in row.uids for row in processes()):
            return Credentials(uid=uid, gid=uid)
        release_uid(uid)
    return None


def _isolated(account: Credentials, shares: str, *, network: bool) -> Isolation:
    """Return the isolation under this account, with the paths that it can write all the same."""
    reason = f"{APART} {NETWORK_OPEN if network else NO_NETWORK}; {GUARDED[account.guard]}"
    if account.own:
        reason += f"; each run has its own {joined(separation.value for separation in account.own)}"
    if shares:
        reason += f"; runs share what is not named here ({shares})"
    if account.groups:
        reason += f"; it has the groups {_named(account.groups)}, which own the GPUs' device files"
    writable = WritablePaths(paths=())
    if account.guard is WriteGuard.LANDLOCK:
        writable = find_writable_paths(FILE_FOLDERS, account.groups)
        shared = tuple(place for place in TEMPORARY if not writable.below(place))
        account = replace(account, shared=shared)
        for place in sorted(set(TEMPORARY) - set(shared)):
            reason += f"; {place} is closed to it, because other accounts can write in parts of it"
        # shared memory must stay open to libraries, so what others can write there is reported
        # instead
        outside = [path for path in writable.paths if path.is_relative_to(SHARED_MEMORY)]
        writable = replace(writable, paths=tuple(outside), complete=True)
    elif account.guard is WriteGuard.NONE:
        writable = find_writable_paths(EVERYWHERE, account.groups)
    return Isolation(
        mode=IsolationMode.UID,
        credentials=account,
        reason=reason,
        network=network,
        guard=account.guard,
        own=account.own,
        writable_paths=writable.paths,
        paths_uncounted=not writable.complete,
        device_groups=account.groups,
    )


def _named(groups: tuple[int, ...]) -> str:
    names = {entry.gr_gid: entry.gr_name for entry in grp.getgrall()}
    return ", ".join(f"{names[gid]} ({gid})" if gid in names else str(gid) for gid in groups)


def _not_isolated(reason: str) -> Isolation:
    return Isolation(mode=IsolationMode.NONE, credentials=None, reason=reason)


def _obstacle(
    account: Credentials, runner: Processes, interpreter: str, folders: Sequence[Path]
) -> str:
    """Return why this account cannot train, or an empty text if a trial under it succeeded.

    With a write guard, the trial must also fail to write in a folder that is open to all.
    """
    for needed in folders:
        closed = first_blocked_folder(needed, account)
        if closed is not None:
            mode = stat.S_IMODE(closed.stat().st_mode)
            return f"{safe_line(str(closed))} is closed to other accounts (mode {mode:04o})"
    with tempfile.TemporaryDirectory(prefix="repro-gate-trial-") as folder:
        writing.set_mode(Path(folder), 0o755)
        trap, own = Path(folder, "trap"), Path(folder, "own")
        for path in (trap, own):
            writing.new_folder(path)
        # as open as /tmp: if a write here fails, the guard stopped it and not a permission
        writing.set_mode(trap, 0o1777)
        trees.give_to(own, account.uid, account.gid)
        ids = ",".join(map(str, (account.uid, *account.groups)))
        request = ProcessRequest(
            argv=(interpreter, "-I", "-c", PROBE, ids, str(trap), *map(str, folders)),
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            workdir=Path("/"),
            timeout_seconds=PROBE_SECONDS,
            output_limit_bytes=PROBE_OUTPUT_BYTES,
            credentials=account,
            writable=(own,) if account.own else (),
        )
        try:
            result = runner.run(request, lambda _: None)
        except RunError as error:
            return error.message
        if account.guard is not WriteGuard.NONE and list(trap.iterdir()):
            return f"{account.guard.value}: another account could still write in {trap}"
    if result.exit_code == 0 and result.output.strip() == PROBE_ANSWER:
        return ""
    last = (result.output.strip().splitlines() or [b"no answer"])[-1]
    return f"another account cannot use {interpreter}: {safe_line(last)}"


def _cache_stays(account: Credentials, runner: Processes) -> str:
    """Return why what a run reads stays in memory; empty if a trial file does not stay."""
    # not in /tmp, which may be in memory entirely
    with tempfile.TemporaryDirectory(prefix="repro-gate-trial-", dir=ON_DISK) as folder:
        writing.set_mode(Path(folder), 0o755)
        proof, own = Path(folder, "proof"), Path(folder, "own")
        writing.new_folder(own)
        trees.give_to(own, account.uid, account.gid)
        request = ProcessRequest(
            # a program that every machine has; no code of the training is needed
            argv=("cat", str(proof)),
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            workdir=Path("/"),
            timeout_seconds=PROBE_SECONDS,
            output_limit_bytes=PROBE_OUTPUT_BYTES,
            credentials=account,
            writable=(own,),
        )
        try:
            new_proof(proof)
            result = runner.run(request, lambda _: None)
            stayed = cache_left_by(proof)
        except (RunError, OSError) as error:
            return error.message if isinstance(error, RunError) else str(error)
    if result.exit_code != 0 or result.output_bytes < PROOF_BYTES:
        return "another account could not read a file in /var/tmp"
    return f"{stayed} pages that a run read stay in memory" if stayed else ""


def _why_no_account(own_uid: int) -> str:
    if own_uid != 0:
        return "the gate does not run as root"
    return f"every account from {ACCOUNTS[0]} to {ACCOUNTS[-1]} is in use"


TRIAL_SECONDS = 20.0
TRIAL_OUTPUT_BYTES = 4096
SHOWN = b"shown"
READS = "import sys; sys.stdout.write(open(sys.argv[1]).read())"
HINT = "The runs go one after the other, with the same result."


def accounts_beside(
    isolation: Isolation, processes: Processes, interpreter: str, number: int
) -> tuple[Credentials | None, ...]:
    """Return accounts for up to `number` runs that go beside one of this isolation.

    An item is None where runs have no separate account. There are fewer if other gates hold the
    rest. This process holds them until `release_uid`. Raises `RunError` with the reason if two runs
    could reach each other or would see different paths.
    """
    if isolation.in_container:
        _refuse_shared(isolation)
        # each container has its own accounts, processes and folders, so one account serves all
        return (isolation.credentials,) * number
    if not isolation.own_accounts:
        if os.geteuid() != 0:
            raise RunError("only root can show two runs the same paths", hint=HINT)
        _try(None, processes, interpreter)
        return (None,) * number
    if isolation.guard is not WriteGuard.MOUNT_NAMESPACE:
        raise RunError("without a mount namespace two runs have other paths", hint=HINT)
    if isolation.network:
        raise RunError("with a network (isolation.network) two runs could communicate", hint=HINT)
    _refuse_shared(isolation)
    (own,) = isolation.own_accounts
    accounts = [account for _ in range(number) if (account := unused_account()) is not None]
    others = tuple(replace(own, uid=account.uid, gid=account.gid) for account in accounts)
    if not others:
        raise RunError("every account for trainings is in use", hint=HINT)
    try:
        # all accounts have the same rights, so one trial is enough
        _try(others[0], processes, interpreter)
    except BaseException:
        for account in others:
            release_uid(account.uid)
        raise
    return others


def _refuse_shared(isolation: Isolation) -> None:
    """Raise `RunError` if two living runs share something through which they could communicate."""
    shared = [
        separation.value
        for separation in Separation
        if separation not in isolation.own
        # emptying the cache at the end of a run does not separate two runs that live at the same
        # time
        and separation is not Separation.CACHE
        and (separation is not Separation.NETWORK or not isolation.network)
    ]
    if shared:
        why = f" ({isolation.shares})" if isolation.shares else ""
        raise RunError(f"two runs would share {', '.join(shared)}{why}", hint=HINT)


def _try(account: Credentials | None, processes: Processes, interpreter: str) -> None:
    """Show a file of one folder at the path of another; raises `RunError` if that fails."""
    with tempfile.TemporaryDirectory(prefix="repro-gate-trial-") as folder:
        source, target = (Path(folder) / name for name in ("source", "target"))
        for path in (source, target):
            writing.new_folder(path)
        writing.write_whole(source / "word", SHOWN)
        writing.set_mode(Path(folder), 0o755)
        request = ProcessRequest(
            argv=(interpreter, "-I", "-S", "-c", READS, str(target / "word")),
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            workdir=Path("/"),
            timeout_seconds=TRIAL_SECONDS,
            output_limit_bytes=TRIAL_OUTPUT_BYTES,
            credentials=account,
            writable=(target,),
            place=PrivateFolder(source=source, target=target),
        )
        result = processes.run(request, lambda _: None)
    if result.exit_code != 0 or result.output != SHOWN:
        last = (result.output.strip().splitlines() or [b"no answer"])[-1]
        raise RunError(f"a run cannot be shown another folder: {safe_line(last)}", hint=HINT)
