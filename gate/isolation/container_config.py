"""The engine's configuration of a training's container: everything closed, then a little opened.

To mount a folder into a container, the engine needs the folder's path on the engine's machine. A
gate inside a container knows only its own path. The mounts of its container translate between them.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gate.errors import RunError
from gate.isolation.engine import RUN_LABEL, Engine
from gate.isolation.modes import ALL_GPUS, TrainingContainer
from gate.isolation.private_view import COUNTERS, COUNTING_FOLDERS
from gate.isolation.process_request import ProcessRequest
from gate.text.untrusted_text import safe_line

MOUNT_TABLE = Path("/proc/self/mountinfo")
# The engine keeps a container's hostname, hosts and resolv.conf in a folder named by the
# container's id, and mounts them in the container. The host's mount table also lists the folders of
# every running container, as mount points of their /dev/shm. Those are not this process's, so the
# pattern also checks the mount point (proc(5), mountinfo: fields 4 and 5).
_IN_MOUNT_TABLE = re.compile(
    r"^\S+ \S+ \S+ \S*/containers/([0-9a-f]{64})/\S+ /etc/(?:hostname|hosts|resolv\.conf) ",
    re.MULTILINE,
)
_HOST_NAME = re.compile(r"[0-9a-f]{12}\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """A folder's path as the gate sees it (`here`) and as the engine sees it (`there`)."""

    here: PurePosixPath
    there: PurePosixPath


def own_ids(mount_table: str, host_name: str) -> tuple[str, ...]:
    """Return the names by which an engine may know this process's container, best first."""
    ids = dict.fromkeys(_IN_MOUNT_TABLE.findall(mount_table))
    if _HOST_NAME.match(host_name):
        ids[host_name] = None
    return tuple(ids)


def this_process() -> tuple[str, ...]:
    """Return `own_ids` of this process; empty outside any container, and without /proc."""
    try:
        table = MOUNT_TABLE.read_text("utf-8", "replace")
    except OSError:
        table = ""
    return own_ids(table, socket.gethostname())


def own_mounts(engine: Engine, ids: Sequence[str]) -> tuple[Mount, ...] | None:
    """Return the mounts of the gate's container.

    None means that the engine does not know the container, so both sides use the same paths. Raises
    `RunError` if the engine cannot be asked.
    """
    for container in ids:
        mounts = engine.mounts_of(container)
        if mounts is not None:
            return tuple(
                Mount(here=PurePosixPath(here), there=PurePosixPath(there))
                for here, there in mounts
            )
    return None


def seen_by_engine(path: Path, mounts: Sequence[Mount] | None) -> str:
    """Return a path of the gate as the engine names it.

    Raises `RunError` for a path that exists in the gate's container only, since no other container
    can mount it.
    """
    real = path.resolve()
    if mounts is None:
        return str(real)
    holding = [mount for mount in mounts if real.is_relative_to(mount.here)]
    if not holding:
        raise RunError(
            f"{safe_line(str(real))} is inside the gate's own container, so no other container "
            f"can mount it",
            hint="Put the output folder into the workspace, which the runner mounts.",
        )
    # mounts can be nested: the innermost one contains the path
    nearest = max(holding, key=lambda mount: len(mount.here.parts))
    return str(nearest.there / real.relative_to(nearest.here))


TMP_BYTES = 1024**3
# Paths to hide. The first are an engine's defaults (moby's oci/defaults.go), repeated because this
# list replaces them. The others show other containers: rows of locks that belong to no process, and
# counts of the whole machine.
HIDDEN = (
    *(
        f"/proc/{name}"
        for name in ("acpi", "asound", "interrupts", "kcore", "keys", "latency_stats")
    ),
    *(f"/proc/{name}" for name in ("sched_debug", "scsi", "timer_list", "timer_stats")),
    *("/sys/devices/virtual/powercap", "/sys/firmware"),
    *map(str, (*COUNTERS, *COUNTING_FOLDERS)),
)
# listed in full, because "gpu" alone leaves the others to the engine's default
CAPABILITIES = ("gpu", "compute", "utility")


def container_config(
    request: ProcessRequest, container: TrainingContainer, source: Callable[[Path], str]
) -> dict[str, Any]:
    """Return the body of the engine's `POST /containers/create`.

    Folders have the same path inside as for the gate, so that one path never means two things.
    Declared data is the exception. `source` returns the engine's path of a folder. The image's
    entry point and health check are switched off.
    """
    account = request.credentials
    assert account is not None  # noqa: S101 - a training container always has one; tells the checker
    return {
        "Image": container.image_id,
        "Entrypoint": list(request.argv),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in sorted(request.env.items())],
        "WorkingDir": str(request.workdir),
        # The only name that resolves without a network. Ranks connect to the machine's own name,
        # which must be the same in both runs.
        "Hostname": "localhost",
        "User": f"{account.uid}:{account.gid}",
        "Labels": {RUN_LABEL: container.run},
        "Healthcheck": {"Test": ["NONE"]},
        "Tty": False,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": _host_config(request, container, source),
    }


def _host_config(
    request: ProcessRequest, container: TrainingContainer, source: Callable[[Path], str]
) -> dict[str, Any]:
    limits, account = container.limits, request.credentials
    assert account is not None  # noqa: S101 - as above
    memory = limits.memory_bytes or 0
    return {
        # never "host", which would expose services on the machine's loopback
        "NetworkMode": "bridge" if request.network else "none",
        # removed from the bounding set too, so no program of the image can regain one
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "ReadonlyRootfs": True,
        "MaskedPaths": list(HIDDEN),
        # its own shared memory, not that of the host or of another run
        "IpcMode": "private",
        "PidsLimit": limits.pids,
        "Memory": memory,
        # the sum of memory and swap: equal to the memory, so there is no swap
        "MemorySwap": memory,
        "ShmSize": limits.shm_bytes,
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={TMP_BYTES}"},  # noqa: S108 - inside
        **({"CpusetCpus": ",".join(map(str, request.cpus))} if request.cpus else {}),
        "Mounts": [
            *(
                _mount(path, source, read_only=False, of=request.on_host(path))
                for path in request.writable
            ),
            *(
                _mount(path, source, read_only=True, of=request.on_host(path))
                for path in request.readable
            ),
            *(
                _mount(mount.target, source, read_only=True, of=mount.source)
                for mount in request.mounts
            ),
        ],
        "DeviceRequests": _devices(container.gpus),
        # the kernel ignores most signals to a container's first process, so that must not be the
        # training
        "Init": True,
        # the gate keeps the output itself, up to its limit
        "LogConfig": {"Type": "none"},
        "GroupAdd": [str(gid) for gid in account.groups],
        "RestartPolicy": {"Name": "no"},
    }


def _mount(
    path: Path, source: Callable[[Path], str], *, read_only: bool, of: Path
) -> dict[str, Any]:
    """Return a bind mount of the gate's path `of` at `path`.

    Unlike `Binds`, it fails on a missing source instead of creating it.
    """
    return {"Type": "bind", "Source": source(of), "Target": str(path), "ReadOnly": read_only}


def _devices(gpus: tuple[str, ...]) -> list[dict[str, Any]]:
    if not gpus:
        return []
    which = {"Count": -1} if ALL_GPUS in gpus else {"DeviceIDs": list(gpus)}
    return [{"Capabilities": [list(CAPABILITIES)], **which}]
