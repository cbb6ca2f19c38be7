"""The device files of GPUs: created where they are missing, and the groups that may open them."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

DEVICES = Path("/dev")
# what CUDA opens to read and write, and what it only reads: the capabilities of a slice (MIG)
_OPENED = re.compile(r"nvidia(?:ctl|-uvm|-uvm-tools|[0-9]+)")
_READ = re.compile(r"nvidia-cap[0-9]+")
# the setuid program of the driver; no_new_privs keeps a training from it, so it is called before
MAKER = Path("/usr/bin/nvidia-modprobe")
MAKE_ALL = ("-c", "0", "-u")
MAKER_SECONDS = 30.0
# who is in the group of one of these could do more than use a GPU
NEVER_GIVEN = tuple(
    Path(name)
    for name in (
        *("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock"),
        *("/run/podman/podman.sock", "/etc/shadow", "/etc/sudoers", "/dev/mem", "/dev/kmem"),
        *("/dev/kvm", "/dev/fuse", "/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/tty1"),
    )
)


def make_device_files(devices: Path = DEVICES, maker: Path = MAKER) -> bool:
    """Let the driver's own program make what is missing, as root; whether it was called.

    Without nvidia-persistenced /dev/nvidia-uvm is not there until root first uses CUDA. A fault of
    the program is no fault here: what is still missing is reported when the training needs it.
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
    """The groups without which another account could not open a GPU's device files, sorted.

    Never root's, the gate's own, that of the engine's `socket`, or one that opens more than a GPU.
    """
    # being in root's or the gate's own group would open files that are closed to other accounts
    guarded = {0, os.getegid()}
    for path in (*never, *((Path(socket),) if socket else ())):
        with suppress(OSError):
            guarded.add(path.stat().st_gid)
    found = {gid for path in _files(devices) if (gid := _opening_group(path)) is not None}
    return tuple(sorted(found - guarded))


def _files(devices: Path) -> list[Path]:
    found: list[Path] = []
    for folder in (devices, devices / "nvidia-caps"):
        with suppress(OSError):
            found += folder.iterdir()
    return [path for path in found if _OPENED.fullmatch(path.name) or _READ.fullmatch(path.name)]


def _opening_group(path: Path) -> int | None:
    """The group that may open what others may not; None where others may, or nobody but root."""
    needed = stat.S_IROTH if _READ.fullmatch(path.name) else stat.S_IROTH | stat.S_IWOTH
    with suppress(OSError):
        facts = path.stat()
        if facts.st_mode & needed != needed and facts.st_mode >> 3 & needed == needed:
            return facts.st_gid
    return None
