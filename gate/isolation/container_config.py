"""The engine's configuration of a training's container: everything closed, then little opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gate.isolation.engine import RUN_LABEL
from gate.isolation.modes import TrainingContainer
from gate.isolation.process_request import ProcessRequest

TMP_BYTES = 1024**3
ALL_GPUS = "all"
# What an engine hides by itself (moby's oci/defaults.go), since a list replaces its own; then what
# tells of other containers: rows of locks that belong to no process, and counts of the machine.
HIDDEN = (
    *(
        f"/proc/{name}"
        for name in ("acpi", "asound", "interrupts", "kcore", "keys", "latency_stats")
    ),
    *(f"/proc/{name}" for name in ("sched_debug", "scsi", "timer_list", "timer_stats")),
    *("/sys/devices/virtual/powercap", "/sys/firmware"),
    *(f"/proc/{name}" for name in ("locks", "sys/kernel/pty/nr", "sys/fs/file-nr")),
    *(f"/proc/sys/fs/{name}" for name in ("inode-nr", "inode-state", "dentry-state")),
)
# said in full: what an engine makes of "gpu" alone is its own default
CAPABILITIES = ("gpu", "compute", "utility")


def container_config(
    request: ProcessRequest, container: TrainingContainer, source: Callable[[Path], str]
) -> dict[str, Any]:
    """The body of the engine's `POST /containers/create`.

    Folders have the same path inside as for the gate, so one path never means two things, except
    for declared data; `source` answers what the engine calls a folder. The image's own entry point
    and health check are off.
    """
    account = request.credentials
    assert account is not None  # noqa: S101 - a training container always has one; tells the checker
    return {
        "Image": container.image_id,
        "Entrypoint": list(request.argv),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in sorted(request.env.items())],
        "WorkingDir": str(request.workdir),
        # the only name that resolves without a network: ranks ask for each other by the machine's
        # own, and two runs must not see two
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
        # never "host", which would show it what listens on the machine's own loopback
        "NetworkMode": "bridge" if request.network else "none",
        # of the bounding set too, so that no program of the image can take one up again
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "ReadonlyRootfs": True,
        "MaskedPaths": list(HIDDEN),
        # shared memory of its own: otherwise that of the host or of another run
        "IpcMode": "private",
        "PidsLimit": limits.pids,
        "Memory": memory,
        # the sum of memory and swap: equal to the memory, there is no swap
        "MemorySwap": memory,
        "ShmSize": limits.shm_bytes,
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={TMP_BYTES}"},  # noqa: S108 - inside
        **({"CpusetCpus": ",".join(map(str, request.cpus))} if request.cpus else {}),
        "Mounts": [
            *(
                _mount(path, source, read_only=False, of=request.found(path))
                for path in request.writable
            ),
            *(
                _mount(path, source, read_only=True, of=request.found(path))
                for path in request.readable
            ),
            *(_mount(one.target, source, read_only=True, of=one.source) for one in request.mounts),
        ],
        "DeviceRequests": _devices(container.gpus),
        # the first process of a container ignores most signals: let that be none of the training's
        "Init": True,
        # the gate itself keeps what is printed, up to its limit
        "LogConfig": {"Type": "none"},
        "GroupAdd": [str(gid) for gid in account.groups],
        "RestartPolicy": {"Name": "no"},
    }


def _mount(
    path: Path, source: Callable[[Path], str], *, read_only: bool, of: Path
) -> dict[str, Any]:
    """A bind mount; unlike `Binds`, a source that is missing is an error and not made.

    `of` is the gate's own path of what is seen there.
    """
    return {"Type": "bind", "Source": source(of), "Target": str(path), "ReadOnly": read_only}


def _devices(gpus: tuple[str, ...]) -> list[dict[str, Any]]:
    if not gpus:
        return []
    which = {"Count": -1} if ALL_GPUS in gpus else {"DeviceIDs": list(gpus)}
    return [{"Capabilities": [list(CAPABILITIES)], **which}]
